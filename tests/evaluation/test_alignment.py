from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch
from scipy.stats import entropy
from torch import Tensor

from immunize.data import ROLES
from immunize.data.synthetic import Synthetic
from immunize.evaluation import alignment
from immunize.evaluation.forecast_verdict import budget_window, judge
from immunize.spectrum.condition import immunization_ratio, spectrum_of
from immunize.spectrum.optimum import frontier
from tests import reference as ref

D = 8
Pair = tuple[Tensor, Tensor]


def rows(n: int, scales: list[float] | Tensor, seed: int) -> Tensor:
    """Gaussian rows with independent columns of the given standard deviations."""
    return ref.gaussian(n, len(scales), seed=seed) * torch.as_tensor(scales, dtype=torch.float64)


def synthetic(angle: float, condition: float = 100.0) -> Pair:
    """Fit rows of the pair with prescribed spectra and angle."""
    sources = (Synthetic(role, n_samples=60, n_features=D, angle=angle, condition=condition) for role in ROLES)
    pretrain, harmful = (source.load().fit.x for source in sources)
    return pretrain, harmful


def grams(pair: Pair) -> Pair:
    return pair[0].T @ pair[0], pair[1].T @ pair[1]


RISING, FALLING = torch.logspace(0, -1, D), torch.logspace(-1, 0, D)


# Effective ranks and rows.


def test_effective_ranks_against_their_definitions() -> None:
    values = torch.tensor([4.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    for scale in (1.0, 1e-9):
        ranks = alignment.effective_ranks(scale * values)
        assert ranks["entropy"] == pytest.approx(math.exp(entropy(values)))
        assert ranks["participation"] == pytest.approx(8**2 / (4**2 + 2**2 + 1 + 1))


def test_whitening_limit_is_what_whitening_leaves() -> None:
    x = rows(3000, torch.ones(300), seed=0)
    values = torch.linalg.eigvalsh(x.T @ x)
    assert float(values[-1] / values[0]) == pytest.approx(alignment.whitening_limit(3000, 300), rel=0.05)
    assert alignment.whitening_limit(10, 10) == math.inf
    assert alignment.whitening_limit(10, 1) < alignment.whitening_limit(10, 2)
    assert [round(alignment.whitening_limit(n, 1), 1) for n in (10, 2)] == [3.7, 34.0]  # as the documentation says


@pytest.mark.parametrize(("ratio", "words"), [(10, "6.5 in place of 3.7"), (2, "194 in place of 34")])
def test_as_many_new_rows_have_more_than_the_whitening_limit(ratio: int, words: str) -> None:
    whitened, new = (ref.gaussian(ratio * 300, 300, seed=seed) for seed in (1, 2))
    values = torch.linalg.svdvals(new @ torch.linalg.cholesky(whitened.T @ whitened).inverse().T).square()
    assert float(values[0] / values[-1]) == pytest.approx(float(words.split(maxsplit=1)[0]), rel=0.1)
    assert words in str(alignment.whitening_limit.__doc__)


def test_rows_are_described_by_their_numbers() -> None:
    x = rows(40, [3, 2, 1, 0], seed=1)
    facts = alignment.describe_rows(x)
    assert (facts.n_samples, facts.n_features, facts.rank) == (40, 4, 3)
    assert facts.samples_per_feature == 10
    assert facts.samples_per_direction == pytest.approx(40 / 3)
    torch.testing.assert_close(
        facts.eigenvalues, torch.linalg.eigvalsh(x.T @ x / 40).flip(0)[:3], atol=1e-14, rtol=1e-9
    )


# Alignment.


@pytest.mark.parametrize("angle", [0.0, 30.0, 90.0])
def test_prescribed_angle_is_found(angle: float) -> None:
    found = alignment.align(*grams(synthetic(angle)), 3)
    cosine = math.cos(math.radians(angle))
    assert [*found.cosines, found.normalized, found.score / 3] == pytest.approx([cosine] * 5, abs=1e-9)
    # the partners of the first three lie in the other half of the spectrum
    assert found.angles.tolist() == pytest.approx([angle] * 3, abs=1e-5)


def test_alignment_depends_neither_on_scale_nor_on_order_of_the_two() -> None:
    first, second = grams((rows(50, RISING, 0), rows(50, FALLING, 1)))
    there, back = alignment.align(first, 1e6 * second, 4), alignment.align(second, first, 4)
    torch.testing.assert_close(there.cosines, back.cosines)
    torch.testing.assert_close(there.angles, back.angles)
    assert there.smallest_gap == pytest.approx(back.smallest_gap)


def test_random_directions_align_by_chance() -> None:
    found = alignment.align(*grams((rows(2000, torch.ones(200), 0), rows(2000, torch.ones(200), 1))), 200)
    assert found.normalized == pytest.approx(found.chance, rel=0.1)


def test_vectors_that_are_not_unique_show_in_the_gap() -> None:
    eye = torch.eye(D, dtype=torch.float64)
    assert alignment.align(eye, eye, 3).smallest_gap == 1
    assert alignment.align(torch.diag(4.0 ** torch.arange(D, dtype=torch.float64)), eye, 3).smallest_gap == 1


def test_as_many_vectors_as_there_are_where_ten_are_not() -> None:
    narrow, wide = (
        (rows(60, [1.0] * d, 1), rows(60, [1.0] * d, 2)) for d in (alignment.TOP_K - 2, alignment.TOP_K + 2)
    )
    assert alignment.forecast(narrow, (narrow, narrow)).alignment.top_k == alignment.TOP_K - 2
    assert alignment.forecast(wide, (wide, wide)).alignment.top_k == alignment.TOP_K


def test_more_vectors_than_there_are() -> None:
    for top_k in (0, -1, D + 1):
        with pytest.raises(ValueError, match=f"top_k={top_k} .* D = {D}"):
            alignment.align(*grams(synthetic(30)), top_k)


# The map, measured.


@pytest.mark.parametrize("n", [5, 40])
def test_measured_rir_is_that_of_the_features(n: int) -> None:
    pair = rows(n, RISING, 0), rows(n + 1, FALLING, 1)
    theta = rows(D, torch.ones(D), 2)
    spectra = [spectrum_of(x @ of) for of in (theta, torch.eye(D, dtype=torch.float64)) for x in pair]
    for name, found in alignment.measure(theta, pair, rho=0.1).items():
        wanted = immunization_ratio(*spectra, name, rho=0.1)
        assert (found.rir, found.ratio_harmful) == pytest.approx((wanted.rir, wanted.ratio_harmful), rel=1e-9)
        assert found.kappa_pretrain.n_samples == n


def test_bound_is_attained_on_the_rows_of_the_fit() -> None:
    fit = synthetic(40, condition=50)
    found = alignment.forecast(fit, (fit, fit), top_k=3, shrinkage=1e-10)
    assert found.fit.ratios["spectrum"].rir == pytest.approx(found.spectrum.rir_star, rel=1e-6)
    assert found.held_out.ratios == found.fit.ratios


def test_budget_window_holds_what_it_promises() -> None:
    fit = rows(500, RISING, 0), rows(500, FALLING, 1)
    found = alignment.forecast(fit, (fit, fit), top_k=3, shrinkage=1e-10)
    low, high = budget_window(found.spectrum)
    for budget, meets in ((low * 1.001, True), (high * 0.999, True), (high * 1.1, False)):
        ratio = alignment.measure(frontier(found.spectrum, budget).theta, fit)["spectrum"]
        assert (ratio.ratio_harmful >= 2 and ratio.ratio_pretrain <= 1) == meets


def test_words_for_shrinkage_are_chosen_on_the_rows_of_each_map() -> None:
    fit = rows(90, RISING, 0), rows(90, FALLING, 1)
    half = fit[0][:45], fit[1][:45]
    found = alignment.forecast(fit, (half, (fit[0][45:], fit[1][45:])), top_k=3, shrinkage="ledoit_wolf")
    assert found.fit.shrinkage == found.spectrum.shrinkage
    assert found.held_out.shrinkage != found.fit.shrinkage
    assert (found.held_out.fitted_on, found.held_out.measured_on) == ((45, 45), (45, 45))


# Verdicts.

ONES, SIXTY = torch.ones(D), torch.logspace(0, -1, 60)
EASY = rows(2000, RISING, 0), rows(2000, FALLING, 1)
LITTLE = rows(20, FALLING, 1)
WEAK = torch.cat([torch.tensor([1.4]), torch.ones(D - 1)])


@pytest.mark.parametrize(
    ("fit", "held_out", "shrinkage", "code", "words"),
    [
        ((EASY[0], EASY[0].clone()), None, 1e-3, "identical", r"^cannot be immunized: .*κ_gen = 1"),
        (synthetic(2), None, 1e-3, "aligned", r"^cannot be immunized: the covariances are aligned \(κ_gen = 1\."),
        ((rows(5000, ONES, 0), rows(5000, torch.logspace(0, -2, D), 1)), None, 1e-6, "already_hard", r"κ\(K_H\)"),
        (
            (rows(80, SIXTY, 0), rows(80, SIXTY.flip(0), 1)),
            (rows(80, SIXTY, 2), rows(80, SIXTY.flip(0), 3)),
            1e-6,
            "few_rows",
            r"^not enough samples to know K_P: held-out RIR\* is .*80 rows for 60 columns.*shrinkage=auto",
        ),
        ((rows(5000, RISING, 0), LITTLE), (rows(5000, FALLING, 2), LITTLE), 1e-3, "few_rows", "^not enough .* K_H: "),
        (EASY, (rows(2000, FALLING, 4), rows(2000, RISING, 5)), 1e-3, "not_carried_over", "another distribution"),
        (EASY, (rows(1000, RISING, 2), rows(1000, FALLING, 3)), 1e-3, "possible", r"^can be immunized: held-out RIR\*"),
        ((rows(4000, WEAK, 0), rows(4000, WEAK.roll(1), 1)), None, 1e-3, "weak", "can be immunized weakly"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_the_verdict_and_its_reason(fit: Pair, held_out: Pair | None, shrinkage: float, code: str, words: str) -> None:
    found = alignment.forecast(fit, (fit, held_out or fit), top_k=3, shrinkage=shrinkage)
    verdict = judge(found)
    assert (verdict.code, verdict.immunizable) == (code, code in ("possible", "weak"))
    assert re.search(words, verdict.sentence)
    assert "shrinkage=auto" not in judge(found, tunable=False).sentence


def test_notes_name_the_estimators_that_disagree() -> None:
    found = alignment.forecast(EASY, (EASY, EASY), top_k=3)
    ratios = dict(found.held_out.ratios)
    ratios["spectrum"] = replace(ratios["spectrum"], rir=0.5, ratio_pretrain=7.0)
    doubtful = replace(found, held_out=replace(found.held_out, ratios=ratios))
    assert not any("disagree" in note for note in judge(found).notes)
    assert any("disagree" in note and "(ii) = 7" in note for note in judge(doubtful).notes)
    assert judge(doubtful).code == "possible"
