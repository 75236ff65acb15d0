"""What a record holds of a deep extractor: layout, planted truths, verdicts, refusals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from immunize.data import ROLES
from immunize.errors import UserError
from immunize.evaluation.deep import PARTS, WHICH, EvaluationSettings, evaluate_deep
from tests import reference as ref

D, CLASSES = 8, 3
SMALL = EvaluationSettings(0.01, 4, 20, 10, {"gd": 40, "adam": 20}, pretrain_probe_steps=30, probe_rows=None)
SAME = {"before": 80.0, "after": 80.0}
Features = dict[str, dict[str, dict[str, tuple[Tensor, Tensor]]]]


def features(harmful: Tensor | None = None) -> Features:
    """Features of θ_0, and those of a θ_I that multiplies D_H's by a matrix."""
    found: Features = {which: {part: {} for part in PARTS} for which in WHICH}
    for seed, (part, role) in enumerate(itertools.product(PARTS, ROLES)):
        y = torch.arange(90 if part == "fit" else 60) % CLASSES
        x = ref.gaussian(CLASSES, D, seed=100)[y] + 0.5 * ref.gaussian(len(y), D, seed=seed)
        found["theta_0"][part][role] = x.float(), y
        found["immunized"][part][role] = (x if harmful is None or role == "pretrain" else x @ harmful).float(), y
    return found


def stretched(kappa: float, seed: int = 0) -> Tensor:
    return ref.matrix_with_singular_values(torch.logspace(0, -math.log10(kappa) / 2, D), D, D, seed)


@pytest.fixture(scope="module")
def immunized() -> dict[str, Any]:
    """A θ_I that makes D_H hard and leaves D_P's features as they are, but for an accuracy that fell."""
    return evaluate_deep(features(stretched(1e4)), {"before": 80.0, "after": 78.0}, seed=0, settings=SMALL)


def test_planted_immunization_is_found(immunized: dict[str, Any]) -> None:
    for kind in ("metrics", "metrics_groups"):
        for part in PARTS:
            numbers = immunized[kind][part]["spectrum"]
            assert numbers["ratio_harmful"] > 100
            assert numbers["ratio_pretrain"] == 1
            low, high = numbers["interval"]["ratio_harmful"]
            assert low < numbers["ratio_harmful"] < high
    for kind in ("verdicts", "verdicts_groups"):
        for verdict in (immunized[kind], immunized[kind]["held_out"]):
            assert (verdict["a"], verdict["b"], verdict["c"]) == (True, True, False)
            assert verdict["estimator"] == "spectrum"
    assert immunized["verdicts"]["part"] == "fit"
    assert immunized["pretrain_accuracy"] == {"before": 80.0, "after": 78.0}


def test_probe_of_the_immunized_features_is_slower(immunized: dict[str, Any]) -> None:
    curves = immunized["curves"]["probe"]
    assert curves.keys() == {"gd", "adam"}
    for (optimizer, steps), role, which in itertools.product(SMALL.probe_steps.items(), ROLES, WHICH):
        curve = curves[optimizer][role][which]
        assert curve["steps"][-1] == (min(steps, 30) if role == "pretrain" else steps)
        assert immunized["probe_accuracy"][optimizer][role][which]["end"] == curve["accuracy"][-1]
    at_30 = {which: immunized["probe_accuracy"]["gd"]["harmful"][which]["30"] for which in WHICH}
    assert at_30["immunized"] < at_30["theta_0"]
    assert curves["gd"]["pretrain"]["immunized"] == curves["gd"]["pretrain"]["theta_0"]


def test_spectra_are_those_that_kappa_is_over(immunized: dict[str, Any]) -> None:
    for part, role, (which, of) in itertools.product(PARTS, ROLES, (("immunized", ""), ("theta_0", "_baseline"))):
        spectrum, numbers = immunized["spectra"][part][role][which], immunized["metrics"][part]["spectrum"]
        assert spectrum["rank"] == numbers["facts"][f"kappa_{role}{of}"]["rank"] == len(spectrum["index"])
        assert numbers["facts"][f"kappa_{role}{of}"]["n_samples"] == (90 if part == "fit" else 60)
        assert spectrum["sigma"][0] / spectrum["sigma"][-1] == pytest.approx(numbers[f"kappa_{role}{of}"], rel=1e-12)


def test_a_seed_repeats_and_another_draws_other_groups() -> None:
    given = features(stretched(50))
    one, again = (evaluate_deep(given, SAME, seed=3, settings=SMALL) for _ in range(2))
    assert one == again
    other = evaluate_deep(given, SAME, seed=4, settings=SMALL)
    assert other["metrics_groups"]["fit"]["spectrum"]["rir"] != one["metrics_groups"]["fit"]["spectrum"]["rir"]
    pooled = [of["metrics"]["fit"]["spectrum"]["rir"] for of in (one, other)]
    assert pooled[0] == pytest.approx(pooled[1], rel=1e-9)  # all rows, whatever the seed


@pytest.mark.parametrize(
    ("which", "part", "role", "change", "message"),
    [
        (WHICH, "held_out", "harmful", lambda x, y: (x[:19], y[:19]), r"harmful data has 19 images, .* \(20\)"),
        (["immunized"], "fit", "pretrain", lambda x, y: (x, y.flip(0)), "different pretrain images in fit"),
        (["immunized"], "held_out", "pretrain", lambda x, y: (math.nan * x, y), "features of immunized .* not finite"),
        (["immunized"], "fit", "harmful", lambda x, y: (0 * x, y), "zero"),
    ],
)
def test_mistakes_are_told(which: Sequence[str], part: str, role: str, change: Any, message: str) -> None:
    given = features()
    for one in which:
        given[one][part][role] = change(*given[one][part][role])
    with pytest.raises((UserError, ValueError), match=message):
        evaluate_deep(given, SAME, seed=0, settings=SMALL)
