"""RIR over all rows and over the paper's groups, against plain matrices and loops; intervals against truths."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from immunize.evaluation import ratios
from immunize.spectrum.condition import ESTIMATORS, Estimator
from tests import reference as ref

RHO = 0.01
D = 6
Four = tuple[Tensor, Tensor, Tensor, Tensor]
"""Features of D_P and D_H under θ_I, then under θ_0."""


def four(n: int = 60, d: int = 8) -> Four:
    x_p, x_h = ref.gaussian(n, d, seed=0), ref.gaussian(n + 5, d, seed=1) + 2
    theta = ref.matrix_with_singular_values(torch.logspace(0, -1.5, d), d, d, 2)
    return x_p @ theta, x_h @ theta, x_p, x_h


# Over groups.


@pytest.mark.parametrize("n", [100, 199, 250, 1999, 2000, 2099])
def test_no_group_holds_a_row_twice_and_no_two_share_one_where_there_are_enough(n: int) -> None:
    draw = functools.partial(ratios.draw_groups, n, n_groups=20, group_size=100)
    groups = draw(ref.generator(0))
    assert groups.shape == (20, 100)
    assert all(len(set(group.tolist())) == 100 for group in groups)
    assert torch.bincount(groups.flatten(), minlength=n).max() <= math.ceil(20 / (n // 100))
    assert torch.equal(groups, draw(ref.generator(0)))
    assert not torch.equal(groups, draw(ref.generator(1)))
    assert 0.4 * n < float(groups.double().mean()) < 0.6 * n


def test_each_purpose_has_draws_of_its_own() -> None:
    purposes = [(0, ["groups", "fit"]), (0, ["groups", "held_out"]), (1, ["groups", "fit"]), (0, ["groupsfit"])]
    first = {float(torch.rand(1, generator=ratios.generator(seed, *purpose))) for seed, purpose in purposes}
    assert len(first) == 4


def averaged(
    x: Four, estimator: Estimator = "spectrum", *, n_groups: int = 5, group_size: int = 10, seed: int = 0
) -> tuple[dict[str, Any], list[Tensor]]:
    """What is said of groups, and their rows of D_P and of D_H."""
    sizes = {"n_groups": n_groups, "group_size": group_size}
    groups = [ratios.draw_groups(len(of), ref.generator(seed + 999 * i), **sizes) for i, of in enumerate(x[:2])]
    sides = [ratios.group_spectra(one, groups[i % 2]) for i, one in enumerate(x)]
    options = {"n_samples": (len(x[0]), len(x[1])), "rho": RHO, "replicates": 60, "draws": ref.generator(seed)}
    return ratios.group_numbers(*sides, estimator=estimator, **options), groups


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("group_size", [6, 20])  # fewer rows than features, and more
def test_averages_are_those_of_a_loop(estimator: Estimator, group_size: int) -> None:
    x = four()
    found, groups = averaged(x, estimator, group_size=group_size)
    hessians = [[ref.hessian(one[rows]) for rows in groups[i % 2]] for i, one in enumerate(x)]
    kappas = np.array([[ref.kappa_by(estimator, h, group_size, RHO) for h in of_side] for of_side in hessians])
    harder, easier = kappas[1] / kappas[3], kappas[0] / kappas[2]
    for name, values in (("ratio_harmful", harder), ("ratio_pretrain", easier), ("rir", harder / easier)):
        assert found[name] == pytest.approx(values.mean(), rel=1e-6)
        assert found["spread"][name] == pytest.approx(values.std(ddof=1), rel=1e-5)
    p, h, p_0, h_0 = kappas.mean(axis=1)
    assert found["of_means"]["rir"] == pytest.approx(h / h_0 / (p / p_0), rel=1e-6)
    assert found["kappa_harmful"] == pytest.approx(h, rel=1e-6)
    assert (found["n_groups"], found["group_size"]) == (5, group_size)


def test_facts_are_those_of_the_least_favourable_group() -> None:
    x = four()
    _, groups = averaged(x)
    x[1][groups[1][3], 0] = 0  # one group loses a direction
    facts = averaged(x)[0]["facts"]
    assert [facts[name]["rank"] for name in ("kappa_harmful", "kappa_pretrain")] == [7, 8]


def test_a_single_group_has_no_spread_and_no_interval() -> None:
    found, _ = averaged(four(), n_groups=1)
    assert found["spread"] is None
    assert found["interval"]["rir"] == [0, math.inf]


# Over all rows.


def pooled(x: Four, replicates: int = 0, seed: int = 0) -> dict[Estimator, ratios.PooledRatio]:
    sides = [ratios.block_grams(one, seed=seed) for one in x]
    return ratios.pooled_ratios(*sides, rho=RHO, replicates=replicates, draws=ref.generator(seed + 1))


@pytest.mark.parametrize("n", [1, 31, 999])
def test_blocks_add_up_to_the_whole_and_differ_by_a_row_at_most(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratios, "CHUNK", 5)  # rows are dealt 40 at a time
    x = ref.gaussian(n, D, seed=n)
    for rows in (x, x.float()):
        sums, whole = ratios.block_grams(rows, seed=0), rows.double().T @ rows.double()
        assert sums.n_samples == n
        assert (sums.blocks.sum(0) - whole).abs().max() < 1e-11
        assert (ratios.gram(rows) - whole).abs().max() < 1e-11
    # rows of length 1 make the trace a count
    counts = ratios.block_grams(x / x.norm(dim=1, keepdim=True), seed=0).blocks.diagonal(dim1=1, dim2=2).sum(1)
    assert (counts - counts.round()).abs().max() < 1e-9
    assert set(counts.round().int().tolist()) <= {n // 32, -(-n // 32)}


def test_rows_are_dealt_at_random() -> None:
    """A sorted data set: each block has rows of the whole range."""
    x = torch.arange(2560, dtype=torch.float64)[:, None].sqrt()
    means = ratios.block_grams(x, seed=0).blocks.flatten() / 80
    assert means.std() / means.mean() < 0.2
    assert not torch.equal(means, ratios.block_grams(x, seed=1).blocks.flatten() / 80)


def test_blocks_stay_below_their_memory() -> None:
    assert [ratios.blocks_for(d) for d in (64, 512, 768, 1024, 2048)] == [32, 32, 28, 16, 8]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("n", [4, 700])  # fewer rows than features, and more
def test_ratios_are_those_of_the_whole_matrices(n: int, estimator: Estimator) -> None:
    x = four(n, D)
    p, h, p0, h0 = (ref.kappa_by(estimator, ref.hessian(one), len(one), RHO) for one in x)
    found = pooled(x)[estimator]
    assert found.intervals["rir"] == (0, math.inf)  # nothing is known without replicates
    expected = ref.immunization_ratio(h, p, h0, p0)
    assert [getattr(found.ratio, name) for name in ratios.RATIOS] == pytest.approx(expected, rel=1e-6)
    assert found.ratio.kappa_harmful.n_samples == n + 5


# Intervals.


def test_resamples_are_as_large_as_the_sample() -> None:
    counts = ratios.bootstrap_counts(7, 500, ref.generator(0))
    assert (counts.sum(1) == 7).all()
    assert counts.mean(0).sub(1).abs().max() < 0.2
    assert counts.var(0).mean() == pytest.approx(6 / 7, abs=0.1)  # of a multinomial


@pytest.mark.parametrize(
    ("estimate", "replicates", "units"), [(2.0, [], 9), (2.0, [1.0, 3.0], 1), (math.inf, [1, 2], 5)]
)
def test_where_nothing_is_known_the_interval_is_unbounded(estimate: float, replicates: list[float], units: int) -> None:
    assert ratios.log_interval(estimate, replicates, units) == (0, math.inf)


def test_a_resample_is_the_matrix_with_repeated_rows() -> None:
    x = ref.gaussian(32, D, seed=10)
    sums = ratios.block_grams(x, seed=0)  # one row a block
    rows = [int((sums.blocks[i] - torch.einsum("ni,nj->nij", x, x)).abs().sum((1, 2)).argmin()) for i in range(32)]
    assert sorted(rows) == list(range(32))
    counts = torch.tensor([3, 0, 2] + [1] * 27 + [0, 0], dtype=torch.float64)
    repeated = torch.cat([x[row].repeat(int(count), 1) for row, count in zip(rows, counts, strict=True)])
    expected = torch.linalg.svdvals(repeated).square()
    (resample,) = ratios._resampled(sums.blocks, sums.n_samples, counts[None])
    assert (resample.values / expected - 1).abs().max() < 1e-9


def test_of_features_that_have_not_changed_the_ratio_is_1_in_every_resample() -> None:
    x_p, x_h = ref.gaussian(90, D, seed=31), ref.gaussian(80, D, seed=32)
    first = pooled((x_p @ ref.extractor(D, 33), x_h, x_p, x_h), replicates=5)
    second = pooled((x_p, x_h @ ref.extractor(D, 34), x_p, x_h), replicates=5)
    assert first["spectrum"].intervals["ratio_harmful"] == (1, 1)
    assert second["spectrum"].intervals["ratio_pretrain"] == (1, 1)


def test_fewer_rows_than_blocks() -> None:
    x, theta = ref.gaussian(9, 3, seed=13), ref.extractor(3, 1)
    low, high = pooled((x @ theta, x @ theta, x, x), replicates=30)["spectrum"].intervals["ratio_harmful"]
    assert 0 < low < high < math.inf


def test_intervals_cover_the_mean_over_groups_with_rows_of_their_own_and_with_shared_ones() -> None:
    theta = torch.diag(torch.logspace(0, -1, 4).double())

    def found(n: int, seed: int, n_groups: int = 20) -> dict[str, Any]:
        x_p, x_h = ref.gaussian(n, 4, seed=2 * seed), ref.gaussian(n, 4, seed=2 * seed + 1)
        return averaged((x_p, x_h @ theta, x_p, x_h), n_groups=n_groups, group_size=20, seed=seed)[0]

    truth = found(20_000, 0, 1000)["ratio_harmful"]
    for n, least, most in ((60, 0.93, 1), (100, 0.9, 1), (400, 0.9, 0.985)):
        ends = [found(n, trial)["interval"] for trial in range(1, 80)]
        covered = np.mean([low <= truth <= high for low, high in (of["ratio_harmful"] for of in ends)])
        assert least <= covered <= most
        assert all(of["rir"][1] / of["rir"][0] > of["ratio_pretrain"][1] / of["ratio_pretrain"][0] == 1 for of in ends)
    assert found(20, 1)["interval"]["ratio_harmful"] == [0, math.inf]  # all groups are one and the same


def test_intervals_cover_the_ratio_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with independent columns of known variance under θ_0, mixed by θ_I: both κ of the distribution are known."""
    monkeypatch.setattr(ratios, "ESTIMATORS", ("spectrum",))
    d, n, trials = 4, 400, 60
    deviations = torch.logspace(0, -0.5, d, dtype=torch.float64)
    theta = ref.matrix_with_singular_values(torch.logspace(0, -0.6, d), d, d, 3)
    values = torch.linalg.svdvals(deviations[:, None] * theta).square()
    truth = float(values[0] / values[-1]) / float((deviations[0] / deviations[-1]) ** 2)
    plain = ref.gaussian(40, d, seed=0)
    hits, widths = 0, []
    for trial in range(trials):
        # Laplace: heavier tails than a Gaussian's
        uniform = torch.rand(n, d, generator=ref.generator(trial), dtype=torch.float64) - 0.5
        x = -uniform.sign() * torch.log1p(-2 * uniform.abs()) / math.sqrt(2) * deviations
        found = pooled((plain, x @ theta, plain, x), replicates=40, seed=trial)["spectrum"]
        low, high = found.intervals["ratio_harmful"]
        hits += low <= truth <= high
        widths.append(math.log(high / low))
        assert low < found.ratio.ratio_harmful < high
    assert 0.88 <= hits / trials <= 0.99
    assert sum(widths) / trials < 1  # and they say something
