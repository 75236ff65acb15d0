"""Is a deep extractor immunized? Everything that a record holds of it, from feature matrices and two accuracies.

This file knows no network. The features of θ_0 and of the immunized θ_I are those of the same images in the same order,
of two parts of the data: `fit`, which θ was immunized on (the paper's protocol), and `held_out`, which it never saw.

metrics           RIR_θ0 (Eq. 17) over all rows of a part, see `ratios`
metrics_groups    the same by the paper's 20 groups of 100; same keys
verdicts          Definition 3.1 by `spectrum` and the pooled numbers, `verdicts_groups` by those of the groups
separability      what a ridge probe can learn of each data set, see `separability`
probe_accuracy    of a probe trained on `fit`, measured on `held_out`, after some steps; `curves` has all, see
                  `feature_probe`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from immunize.data import ROLES, Role
from immunize.errors import UserError
from immunize.evaluation.feature_probe import MILESTONES, ProbeCurve, probe
from immunize.evaluation.numbers import by_extractor, spectrum_numbers
from immunize.evaluation.ratios import (
    block_grams,
    draw_groups,
    generator,
    group_numbers,
    group_spectra,
    pooled_ratios,
)
from immunize.evaluation.verdicts import VERDICTS_BY, verdict_numbers, verdicts_of
from immunize.spectrum.condition import ESTIMATORS
from immunize.spectrum.separability import separability

PARTS = ("fit", "held_out")
WHICH = ("immunized", "theta_0")

Rows = tuple[Tensor, Tensor]
"""Features (N, D), float32 or float64, and labels (N,) int64 from 0."""
Features = Mapping[str, Mapping[str, Mapping[str, Rows]]]
"""`WHICH` -> `PARTS` -> "pretrain" or "harmful" -> rows."""


@dataclass(frozen=True)
class EvaluationSettings:
    """How large the evaluation of a deep extractor is.

    Attributes:
        rho: ρ of the `ridge` estimator.
        n_groups: groups of the paper's protocol, which has 20.
        group_size: samples in each, there 100.
        replicates: of the bootstraps; fewer than 2 give no intervals.
        probe_steps: optimizer to steps of the probe on D_H; an optimizer that is not named is left out.
        pretrain_probe_steps: most steps of each probe on D_P.
        probe_rows: most rows that a probe is trained on, drawn at random; null takes all.
    """

    rho: float
    n_groups: int
    group_size: int
    replicates: int
    probe_steps: Mapping[str, int]
    pretrain_probe_steps: int
    probe_rows: int | None


def evaluate_deep(
    features: Features,
    pretrain_accuracy: Mapping[str, float],
    *,
    seed: int,
    settings: EvaluationSettings,
) -> dict[str, Any]:
    """Everything that a record holds of an evaluation, for `record.update`.

    Args:
        features: of both extractors, both parts and both roles.
        pretrain_accuracy: "before" (θ_0) and "after" (the released network, its head included): top-1 on held-out
            images of D_P, percent.
        seed: of the groups, the bootstraps, the rows of a probe and its mini-batches.
        settings: see there.

    Raises:
        UserError: fewer images than a group.
        ValueError: features that are not finite or all zero, or not of the same images for both extractors.
    """
    _check(features, settings)
    pooled = {part: _pooled(features, part, seed, settings) for part in PARTS}
    metrics, spectra = ({part: of[i] for part, of in pooled.items()} for i in range(2))
    groups = {part: _groups(features, part, seed, settings) for part in PARTS}
    accuracy = {name: float(pretrain_accuracy[name]) for name in ("before", "after")}
    curves = _probes(features, seed, settings)
    return {
        "metrics": metrics,
        "metrics_groups": groups,
        "verdicts": _verdicts(metrics, accuracy),
        "verdicts_groups": _verdicts(groups, accuracy),
        "separability": {
            part: {role: {which: separability(*features[which][part][role]) for which in WHICH} for role in ROLES}
            for part in PARTS
        },
        "pretrain_accuracy": accuracy,
        "probe_accuracy": {optimizer: by_extractor(of, _at_milestones) for optimizer, of in curves.items()},
        "curves": {"probe": {optimizer: by_extractor(of, asdict) for optimizer, of in curves.items()}},
        "spectra": spectra,
    }


def check_group_size(count: int, part: str, role: str, group_size: int) -> None:
    """That a part of a data set has as many images as a group.

    Args:
        count: N.
        part: "fit" or "held_out".
        role: "pretrain" or "harmful".
        group_size: images in a group.

    Raises:
        UserError: fewer.
    """
    if count < group_size:
        raise UserError(
            f"the {part.replace('_', '-')} part of the {role} data has {count:,} images, fewer images than a group of "
            f"the evaluation ({group_size:,}); use more images, or smaller groups: deep.group_size"
        )


def _check(features: Features, settings: EvaluationSettings) -> None:
    for part in PARTS:
        for role in ROLES:
            (x, y), (x_0, y_0) = (features[which][part][role] for which in WHICH)
            if x.shape != x_0.shape or not torch.equal(y, y_0):
                raise ValueError(f"θ_I and θ_0 have features of different {role} images in {part}")
            check_group_size(len(x), part, role, settings.group_size)
            for which in WHICH:
                if not bool(torch.isfinite(features[which][part][role][0]).all()):
                    raise ValueError(f"the features of {which} on the {role} images of {part} are not finite")


def _pooled(
    features: Features, part: str, seed: int, settings: EvaluationSettings
) -> tuple[dict[str, Any], dict[Role, Any]]:
    """The ratios over all rows of a part, and the four spectra behind them."""
    sums = {(which, role): block_grams(features[which][part][role][0], seed=seed) for which in WHICH for role in ROLES}
    draws = generator(seed, "pooled", part)
    ratios = pooled_ratios(*sums.values(), rho=settings.rho, replicates=settings.replicates, draws=draws)
    spectra = {role: {which: spectrum_numbers(sums[which, role].spectrum()) for which in WHICH} for role in ROLES}
    return {estimator: ratio.numbers() for estimator, ratio in ratios.items()}, spectra


def _groups(features: Features, part: str, seed: int, settings: EvaluationSettings) -> dict[str, Any]:
    sizes = {"n_groups": settings.n_groups, "group_size": settings.group_size}
    samples = {role: len(features["theta_0"][part][role][0]) for role in ROLES}
    drawn = {role: draw_groups(n, generator(seed, "groups", part, role), **sizes) for role, n in samples.items()}
    sides = [group_spectra(features[which][part][role][0], drawn[role]) for which in WHICH for role in ROLES]
    return {
        estimator: group_numbers(
            *sides,
            estimator=estimator,
            n_samples=(samples["pretrain"], samples["harmful"]),
            rho=settings.rho,
            replicates=settings.replicates,
            draws=generator(seed, "bootstrap of groups", part),
        )
        for estimator in ESTIMATORS
    }


def _verdicts(metrics: Mapping[str, Any], accuracy: Mapping[str, float]) -> dict[str, Any]:
    return verdict_numbers({part: verdicts_of(metrics[part][VERDICTS_BY], accuracy).numbers() for part in PARTS})


Curves = dict[str, dict[str, dict[str, ProbeCurve]]]
"""Optimizer -> role -> which -> curve."""


def _probes(features: Features, seed: int, settings: EvaluationSettings) -> Curves:
    curves: Curves = {}
    for optimizer, steps in settings.probe_steps.items():
        # without mini-batches nothing depends on the seed, and θ_0's curve is remembered across seeds
        order = seed if optimizer == "sgd" else 0
        for role in ROLES:
            most = steps if role == "harmful" else min(steps, settings.pretrain_probe_steps)
            rows = _drawn_rows(len(features["theta_0"]["fit"][role][0]), seed, role, settings.probe_rows)
            found = curves.setdefault(optimizer, {}).setdefault(role, {})
            for which in WHICH:
                (x, y), unseen = (features[which][part][role] for part in PARTS)
                found[which] = probe(x[rows], y[rows], *unseen, optimizer, most, order)
    return curves


def _drawn_rows(n: int, seed: int, role: str, most: int | None) -> slice | Tensor:
    if most is None or n <= most:
        return slice(None)
    return torch.randperm(n, generator=generator(seed, "probe rows", role))[:most]


def _at_milestones(curve: ProbeCurve) -> dict[str, float]:
    """Accuracy in percent at the milestones that the curve reaches, and at its end."""
    at = {str(step): value for step in MILESTONES if (value := curve.at(step)) is not None}
    return at | {"end": curve.accuracy[-1]}
