"""Measuring an immunized extractor: condition numbers, verdicts of Definition 3.1, and the probe of Eq. (16)."""

from immunize.evaluation.deep import EvaluationSettings, check_group_size, evaluate_deep
from immunize.evaluation.immunity import PartEvaluation, evaluate_part, least_squares_targets, part_numbers
from immunize.evaluation.probe import NormRatioCurve, norm_ratio_curve
from immunize.evaluation.verdicts import Verdicts, verdicts_of

__all__ = [
    "EvaluationSettings",
    "NormRatioCurve",
    "PartEvaluation",
    "Verdicts",
    "check_group_size",
    "evaluate_deep",
    "evaluate_part",
    "least_squares_targets",
    "norm_ratio_curve",
    "part_numbers",
    "verdicts_of",
]
