"""Measuring an immunized extractor: condition numbers, verdicts of Definition 3.1, and the probe of Eq. (16)."""

from immunize.evaluation.deep import EvaluationSettings, check_group_size, evaluate_deep
from immunize.evaluation.immunity import evaluate_part, part_numbers
from immunize.evaluation.verdicts import Verdicts, verdicts_of

__all__ = [
    "EvaluationSettings",
    "Verdicts",
    "check_group_size",
    "evaluate_deep",
    "evaluate_part",
    "part_numbers",
    "verdicts_of",
]
