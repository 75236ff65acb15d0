"""The paper's groups: which rows they hold, and their averages against loops over plain matrices."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch import Tensor

from immunize.evaluation.groups import N_GROUPS, GroupRatio, draw_groups, group_ratio, group_spectra
from immunize.evaluation.resampling import bootstrap_counts, generator, log_interval
from immunize.spectrum import ESTIMATORS, Estimator, Spectrum
from tests import reference as ref

RHO = 0.01
Four = tuple[Tensor, Tensor, Tensor, Tensor]


def four(n: int = 60, d: int = 8, seed: int = 0) -> Four:
    """Features of D_P and D_H under θ_I, then under θ_0."""
    x_p, x_h = ref.gaussian(n, d, seed=seed), ref.gaussian(n + 5, d, seed=seed + 1) + 2
    theta = ref.matrix_with_singular_values(torch.logspace(0, -1.5, d), d, d, seed + 2)
    return x_p @ theta, x_h @ theta, x_p, x_h


def averaged(x: Four, groups: tuple[Tensor, Tensor], estimator: Estimator) -> GroupRatio:
    spectra = [group_spectra(one, groups[i % 2]) for i, one in enumerate(x)]
    sides = (spectra[0], spectra[1], spectra[2], spectra[3])
    return group_ratio(*sides, estimator=estimator, rho=RHO, replicates=50, draws=ref.generator(0))


def groups_of(x: Four, n_groups: int = 5, group_size: int = 10) -> tuple[Tensor, Tensor]:
    sizes = {"n_groups": n_groups, "group_size": group_size}
    return draw_groups(len(x[0]), ref.generator(1), **sizes), draw_groups(len(x[1]), ref.generator(2), **sizes)


# Which rows.


@pytest.mark.parametrize("n", [2000, 2001, 2099, 9000])
def test_groups_are_disjoint_where_there_are_enough_rows(n: int) -> None:
    rows = draw_groups(n, ref.generator(0)).flatten().tolist()
    assert len(set(rows)) == 2000
    assert set(rows) <= set(range(n))


@pytest.mark.parametrize("n", [100, 101, 199, 250, 1999])
def test_with_fewer_rows_no_group_holds_a_row_twice(n: int) -> None:
    groups = draw_groups(n, ref.generator(0))
    assert groups.shape == (20, 100)
    assert all(len(set(group.tolist())) == 100 for group in groups)
    used = torch.bincount(groups.flatten(), minlength=n)
    assert used.max() <= math.ceil(20 / (n // 100))


def test_rows_are_drawn_at_random_from_all() -> None:
    groups = draw_groups(10_000, ref.generator(0))
    assert 4_000 < float(groups.double().mean()) < 6_000
    assert not torch.equal(groups, draw_groups(10_000, ref.generator(1)))
    assert torch.equal(groups, draw_groups(10_000, ref.generator(0)))


def test_each_purpose_has_draws_of_its_own() -> None:
    purposes: list[tuple[int, list[str]]] = [
        (0, ["groups", "fit"]),
        (0, ["groups", "held_out"]),
        (1, ["groups", "fit"]),
        (0, ["groupsfit"]),
    ]
    first = [torch.rand(4, generator=generator(seed, *purpose)).tolist() for seed, purpose in purposes]
    assert len({tuple(one) for one in first}) == 4


# Averages.


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("group_size", [6, 10, 20])  # fewer rows than features, and more
def test_averages_are_those_of_a_loop(estimator: Estimator, group_size: int) -> None:
    x = four()
    groups = groups_of(x, group_size=group_size)
    kappas = [
        [ref.kappa_by(estimator, ref.hessian(one[rows]), group_size, RHO) for rows in groups[i % 2]]
        for i, one in enumerate(x)
    ]
    harder = [h / h0 for h, h0 in zip(kappas[1], kappas[3], strict=True)]
    easier = [p / p0 for p, p0 in zip(kappas[0], kappas[2], strict=True)]
    rirs = [i / ii for i, ii in zip(harder, easier, strict=True)]
    found = averaged(x, groups, estimator)
    for name, values in (("ratio_harmful", harder), ("ratio_pretrain", easier), ("rir", rirs)):
        assert getattr(found.ratio, name) == pytest.approx(statistics.fmean(values), rel=1e-6)
        assert found.spread is not None
        assert found.spread[name] == pytest.approx(statistics.stdev(values), rel=1e-5)
    means = [statistics.fmean(of) for of in kappas]
    assert found.of_means["rir"] == pytest.approx(means[1] / means[3] / (means[0] / means[2]), rel=1e-6)
    assert found.ratio.kappa_harmful.value == pytest.approx(means[1], rel=1e-6)
    assert (found.n_groups, found.group_size) == (5, group_size)


def test_features_of_either_precision_give_the_same() -> None:
    x = four()
    groups = groups_of(x)
    single = (x[0].float(), x[1].float(), x[2].float(), x[3].float())
    assert averaged(single, groups, "spectrum").ratio.rir == pytest.approx(
        averaged(x, groups, "spectrum").ratio.rir, rel=1e-4
    )


def test_facts_are_those_of_the_least_favourable_group() -> None:
    x_p, x_h, *_ = four()
    x_h[groups_of((x_p, x_h, x_p, x_h))[1][3], 0] = 0  # one group loses a direction
    found = averaged((x_p, x_h, x_p, x_h), groups_of((x_p, x_h, x_p, x_h), group_size=10), "spectrum")
    assert found.ratio.kappa_harmful.rank == 7
    assert found.ratio.kappa_pretrain.rank == 8


def test_a_single_group_has_no_spread_and_no_interval() -> None:
    x = four()
    found = averaged(x, groups_of(x, n_groups=1), "spectrum")
    assert found.spread is None
    assert found.intervals["rir"] == (0, math.inf)


# Intervals.


def test_resamples_are_as_large_as_the_sample() -> None:
    counts = bootstrap_counts(7, 500, ref.generator(0))
    assert (counts.sum(1) == 7).all()
    assert counts.mean(0).sub(1).abs().max() < 0.2
    assert counts.var(0).mean() == pytest.approx(6 / 7, abs=0.1)  # of a multinomial


@pytest.mark.parametrize(
    ("estimate", "replicates", "units"), [(2.0, [], 9), (2.0, [1.0, 3.0], 1), (math.inf, [1, 2], 5)]
)
def test_where_nothing_is_known_the_interval_is_unbounded(estimate: float, replicates: list[float], units: int) -> None:
    assert log_interval(estimate, replicates, units) == (0, math.inf)


def test_intervals_cover_the_true_mean() -> None:
    """κ_g(θ_I)/κ_g(θ_0) is log-normal with mean exp(s²/2); 95 % intervals from 20 groups, 400 times."""
    s, trials, hits = 0.4, 400, 0
    plain = [_spectrum(1.0)] * N_GROUPS
    for trial in range(trials):
        logs = torch.randn(N_GROUPS, generator=ref.generator(trial), dtype=torch.float64) * s
        harmful = [_spectrum(10 * math.exp(float(z))) for z in logs]
        baseline = [_spectrum(10.0)] * N_GROUPS
        found = group_ratio(plain, harmful, plain, baseline, replicates=60, draws=ref.generator(trial + 10_000))
        low, high = found.intervals["ratio_harmful"]
        assert low < found.ratio.ratio_harmful < high
        hits += low <= math.exp(s**2 / 2) <= high
    assert 0.90 <= hits / trials <= 0.985


def _spectrum(kappa: float) -> Spectrum:
    return Spectrum(torch.tensor([kappa, 1.0], dtype=torch.float64), 100, 2, 1e-12)
