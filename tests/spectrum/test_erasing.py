"""Erasure in closed form: what is gone, that nothing else could change D_P less, and which rank and ρ are chosen."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.linear_model import LinearRegression, Ridge
from torch import Tensor

import immunize
from immunize.objective.erase import Erase
from immunize.spectrum.erasing import Erasure, directions_of, erasing_map, ridge_weights, root_of, same_data
from immunize.spectrum.erasing_choice import FEW, FOLDS, PROBES, SHRINKAGES, EraseTrial, _Judge, _within_range, erase
from immunize.spectrum.separability import cross_fitted_correlation, folds_of
from immunize.spectrum.shrinkage import ledoit_wolf
from tests import reference as ref
from tests.spectrum.making import diagonal

D = 9


def data(classes: int = 4, n: int = 120, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """D_P's rows; D_H's rows and labels, of which some classes are rarer."""
    scale = torch.logspace(0.7, -0.7, D, dtype=torch.float64)
    pretrain = ref.gaussian(150, D, seed=seed + 1) * scale + 2
    y = torch.arange(n) % (2 * classes) % classes
    y[: n // 4] = 0
    means = 3 * ref.gaussian(classes, D, seed=seed + 2) * scale.flip(0)
    return pretrain, ref.gaussian(n, D, seed=seed + 3) * scale.flip(0) + means[y] - 1, y


X_P, X_H, Y = data()
Y_P = (X_P[:, 0] > 2).long()
"""Labels of D_P."""


def left(r: Erasure, x: Tensor, y: Tensor) -> float:
    """The largest covariance of a column with the labels behind the map, as a share of that before it."""
    columns = ref.one_hot(y) if not y.is_floating_point() else y[:, None]
    after, before = ((of - of.mean(0)).T @ (columns - columns.mean(0)) for of in (r(x), x))
    return float(after.abs().max() / before.abs().max())


@pytest.mark.parametrize("shrinkage", [0.0, 1e-3, 1.0, "auto"])
def test_covariance_with_the_labels_is_zero_and_erasing_again_changes_nothing(shrinkage: float | str) -> None:
    r = erase(X_P, X_H, Y, shrinkage=shrinkage)
    assert (r.rank, r.available) == (3, 3)
    assert left(r, X_H, Y) < 1e-10
    torch.testing.assert_close(r(r(X_H)), r(X_H), rtol=1e-10, atol=1e-10)
    assert int(torch.linalg.matrix_rank(r.matrix)) == D - 3
    torch.testing.assert_close(r(X_P).mean(0), X_P.mean(0))  # D_P's mean stays where it is
    taken = (X_P - r(X_P)).square().sum() / (X_P - X_P.mean(0)).square().sum()
    assert r.changed == pytest.approx(float(taken), rel=1e-9)


def test_no_other_erasing_projection_changes_d_p_less() -> None:
    u, centred = directions_of(X_H, Y), X_P - X_P.mean(0)
    r = erasing_map(X_P, u, 0.0)
    best = float((centred - centred @ r.matrix).square().sum())
    draws = ref.generator(5)
    for trial in range(200):
        # M = A(UᵀA)⁻¹Uᵀ + N with UᵀN = 0: every M with UᵀM = Uᵀ, near the best one and far from it
        free = torch.randn(D, D, dtype=torch.float64, generator=draws)
        free = free - u @ torch.linalg.solve(u.T @ u, u.T @ free)
        taken = torch.eye(D, dtype=torch.float64) - r.matrix + 10.0 ** (-4 + trial % 5) * free
        torch.testing.assert_close(u.T @ taken, u.T)
        assert float((centred @ taken).square().sum()) > best


def test_it_is_leace_where_the_metric_is_that_of_d_h_and_equivariant_to_invertible_maps_of_all_features() -> None:
    torch.testing.assert_close(erase(X_H, X_H, Y, shrinkage=0.0)(X_H), ref.leace(X_H, Y), rtol=1e-9, atol=1e-9)
    x_p, x_h = (x @ ref.extractor(D, seed=4) + 5 for x in (X_P, X_H))
    wanted = erase(X_P, X_H, Y, shrinkage=0.0)(X_H) @ ref.extractor(D, seed=4) + 5
    torch.testing.assert_close(erase(x_p, x_h, Y, shrinkage=0.0)(x_h), wanted, rtol=1e-8, atol=1e-8)


def test_a_target_is_one_direction_and_explains_nothing_afterwards() -> None:
    y = X_H[:, 3] + 0.1 * ref.gaussian(len(X_H), seed=9)
    r = erase(X_P, X_H, y)
    assert r.rank == 1
    assert left(r, X_H, y) < 1e-10


@pytest.mark.parametrize("power", [-600, -300, 300, 600])
def test_targets_are_erased_and_judged_alike_in_every_unit(power: int) -> None:
    y_p, y_h = (x[:, 0] + x[:, 1] ** 2 for x in (X_P, X_H))
    known, found = (erase(X_P, X_H, y_h * unit, y_pretrain=y_p * unit) for unit in (1.0, 2.0**power))
    assert found.trials == known.trials
    assert torch.equal(found.matrix, known.matrix)


def test_every_harmful_set_is_erased_and_directions_that_they_share_go_once() -> None:
    _, x, y = data(3, 90, seed=20)
    r = erase(X_P, [X_H, x], [Y, y])
    assert torch.equal(r.matrix, erase(X_P, (X_H, x), (Y, y)).matrix)  # type: ignore[arg-type]
    assert r.rank == r.available == 5
    assert max(left(r, X_H, Y), left(r, x, y)) < 1e-10
    assert erase(X_P, [X_H, 2 * X_H + 1], [Y, Y]).rank == 3


def test_a_smaller_rank_takes_the_strongest_directions() -> None:
    means, shares = ref.class_means(X_H, Y), torch.bincount(Y).double() / len(Y)
    between, within = means.T @ (shares[:, None] * means), ref.covariance(X_H).numpy()
    for rank in (1, 2, 3):
        r = erase(X_P, X_H, Y, rank=rank).matrix
        strengths = scipy.linalg.eigh((r.T @ between @ r).numpy(), within, eigvals_only=True)
        assert int((strengths > 1e-9).sum()) == 3 - rank
    assert erase(X_P, X_H, Y, rank=8).rank == 3  # there are no more
    chosen = erase(X_P, X_H, Y, rank=8, y_pretrain=torch.arange(len(X_P)) % 2)
    assert {trial.rank for trial in chosen.trials} == {0, 3}


def test_protection_keeps_a_probe_of_d_p_as_it_is() -> None:
    plain, r = (erase(X_P, X_H, Y, y_pretrain=Y_P, protect=on, shrinkage=0.1) for on in (False, True))
    probe = LinearRegression().fit(X_P.numpy(), Y_P.numpy())
    before, after = (probe.score(x.numpy(), Y_P.numpy()) for x in (X_P, r(X_P)))
    assert before == pytest.approx(after, abs=0.02)
    assert left(plain, X_H, Y) < 1e-10 < left(r, X_H, Y) < 1
    # maps are judged as they are made: what is protected of D_P is left to D_H
    assert r.trials[-1].harmful > plain.trials[-1].harmful + 0.1
    u = directions_of(X_H, Y)
    with pytest.raises(ValueError, match="every direction"):
        erasing_map(X_P, u, 0.0, protected=torch.linalg.inv(ref.covariance(X_P)) @ u)


def test_rank_and_shrinkage_are_those_of_the_best_probe_of_d_p_that_is_affordable() -> None:
    y_p = torch.arange(300) % 2
    x_p = ref.gaussian(300, D, seed=1)
    x_p[:, 0] += 3 * y_p
    y = torch.arange(200) % 4
    means = torch.zeros(4, D, dtype=torch.float64)
    means[:, 1], means[:, 2] = torch.tensor([6.0, -6, 6, -6]), torch.tensor([2.0, 2, -2, -2])
    means[0, 0] = 1.0  # the third direction is the one that D_P needs
    x_h = ref.gaussian(200, D, seed=2) + means[y]
    r = erase(x_p, x_h, y, y_pretrain=y_p)
    assert (r.available, r.rank, r.feasible, r.shrinkage_chosen_by) == (3, 1, True, "auto")
    raw, *tried, chosen = r.trials
    assert (raw.rank, raw.shrinkage) == (0, 0.0)
    assert raw.pretrain - chosen.pretrain <= 0.02
    full = [trial for trial in (*tried, chosen) if trial.rank == 3]
    assert sorted(trial.shrinkage for trial in full) == list(SHRINKAGES)
    assert all(raw.pretrain - trial.pretrain > 0.02 for trial in full)
    assert r.shrinkage == chosen.shrinkage == max(full, key=lambda trial: trial.pretrain).shrinkage
    held = folds_of(y, FOLDS) == 0
    half = folds_of(y[held], 2) == 0
    both = [cross_fitted_correlation(x_h[held], y[held], judged, PROBES) for judged in (half, ~half)]
    assert raw.harmful == pytest.approx(float(((both[0] + both[1]) / 2).max()))  # of the ρ that is best for both halves
    assert chosen.harmful < raw.harmful
    assert erase(x_p, x_h, y, y_pretrain=y_p, slack=1.0).rank == 3
    never = erase(x_p, x_h, y, y_pretrain=y_p, slack=0.0, seed=1)
    assert never.rank in (1, 3)
    assert never.feasible is (never.trials[0].pretrain <= never.trials[-1].pretrain)
    given = erase(x_p, x_h, y, y_pretrain=y_p, rank=2, shrinkage=0.1)
    assert (given.rank, given.shrinkage, given.shrinkage_chosen_by, len(given.trials)) == (2, 0.1, "given", 2)


def test_labels_of_one_value_or_none_of_d_p_leave_nothing_to_choose_by() -> None:
    for labels in (None, torch.zeros(len(X_P))):
        r = erase(X_P, X_H, Y, y_pretrain=labels)
        assert (r.rank, r.shrinkage_chosen_by, r.trials, r.feasible) == (3, "ledoit_wolf", (), None)
        assert r.shrinkage == pytest.approx(ledoit_wolf(X_P - X_P.mean(0)), rel=1e-12)


@pytest.mark.parametrize("y_p", [None, Y_P])
def test_classes_with_one_image_too_few_to_be_judged_by_are_erased_all_the_same(y_p: Tensor | None) -> None:
    y = Y.clone()
    y[-1] = 9
    r = erase(X_P, X_H, y, y_pretrain=y_p, slack=1.0)
    assert r.rank == r.available == 4
    assert left(r, X_H, y) < 1e-10


@pytest.mark.parametrize("target", [False, True])
def test_directions_are_those_of_a_shrunk_linear_discriminant_analysis(target: bool) -> None:
    x, y = X_H, X_H @ ref.gaussian(D, seed=7) + 1 if target else Y
    shrunk = ref.shrunk(ref.covariance(x), ledoit_wolf(x - x.mean(0)))
    columns = (y - y.mean())[:, None] if target else ref.one_hot(y)
    means = (x.T @ (columns - columns.mean(0)) / columns.square().sum(0).sqrt()) / len(x) ** 0.5
    inner = torch.linalg.inv(torch.linalg.cholesky(shrunk)) @ means
    right = torch.linalg.eigh(inner.T @ inner).eigenvectors.flip(1)
    expected = (means @ right)[:, : 1 if target else 3]
    expected = expected / expected.norm(dim=0)
    found = directions_of(x, y)
    assert found.shape == expected.shape
    torch.testing.assert_close((found * expected).sum(0).abs(), torch.ones(expected.shape[1], dtype=torch.float64))


def test_rows_of_d_p_that_leave_the_span_of_the_others_do_not_judge() -> None:
    """A category of which every row may be set aside: a row of its own says nothing of a map of the others."""
    x = ref.gaussian(40, 4, seed=3) + 5
    x[:, 3] = 0
    x[7, 3] = 2.0
    fitted = torch.arange(40) != 7
    within = _within_range(x, fitted, ref.covariance(x[fitted]))
    assert torch.equal(within, fitted)
    assert _within_range(x, torch.ones(40, dtype=torch.bool), ref.covariance(x)).all()


def test_directions_that_differ_by_rounding_are_one() -> None:
    """What is left of the second behind the first is noise, along which nothing may be erased."""
    u = directions_of(X_H, Y)[:, :1]
    for apart, rank in ((1e-7, 1), (1e-3, 2)):
        assert erasing_map(X_P, torch.cat([u, u + apart * ref.gaussian(D, 1, seed=4)], 1), 0.0).rank == rank


def test_public_name_takes_arrays_and_labels_with_a_gradient() -> None:
    r = immunize.erase(X_P.float().numpy(), X_H.numpy(), Y.numpy(), rank=None, shrinkage="auto")
    assert (r.matrix.dtype, r.rank) == (torch.float64, 3)
    target = (X_H @ ref.gaussian(D, seed=7)).requires_grad_()
    assert torch.equal(erase(X_P, X_H, target).matrix, erase(X_P, X_H, target.detach()).matrix)
    drawn, seed = (erase(X_P, X_H, Y, y_pretrain=Y_P, seed=of).trials for of in (np.int64(3), 3))
    assert drawn == seed
    with pytest.raises(TypeError, match="integer"):
        erase(X_P, X_H, Y, y_pretrain=Y_P, seed=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_harmful": torch.zeros(120)}, "same label.*method=ours"),
        ({"y_harmful": None}, "y_harmful is missing.*two at least.*method=ours"),
        ({"y_harmful": torch.arange(120)}, "every class of D_H has one image.*method=ours"),
        ({"rank": D}, "below the 9 features"),
        ({"y_harmful": torch.arange(120) // 2}, "labels of D_H use 9 directions"),
        ({"y_harmful": torch.arange(119)}, "120 rows"),
        ({"y_harmful": torch.full((120,), math.nan)}, "NaN"),
        ({"protect": True}, "labels of D_P"),
        ({"x_harmful": torch.ones(120, 4)}, "4 features"),
        ({"x_harmful": torch.ones(120, D)}, "all 9 columns of D_H's features are constant: the 120 rows"),
        ({"x_pretrain": torch.ones(150, D)}, "all 9 columns of D_P's features are constant: the 150 rows"),
        ({"x_pretrain": X_P[:1]}, "D_P has too few rows: 1,"),
        ({"x_pretrain": [np.ones((150, D)), np.ones((9, D))]}, r"^x_pretrain has to be one matrix \(rows, columns\)"),
        ({"x_pretrain": [np.ones((150, D))] * 2}, "^x_pretrain must be a non-empty matrix .* not of shape .2, 150, 9."),
        ({"x_pretrain": X_P[:5], "y_pretrain": torch.arange(5) % 2}, "D_P has too few rows, 5, to judge a map"),
        ({"y_harmful": np.array(["cat", "dog"] * 60)}, "^y_harmful has to hold numbers, and they are str.*np.unique"),
        ({"y_pretrain": [None] * 150}, "^y_pretrain has to hold numbers, and they are object"),
        ({"y_harmful": [torch.arange(120) % 2]}, "y_harmful"),
        ({"x_harmful": [torch.ones(120, D)], "y_harmful": []}, "1 harmful data sets and 0"),
    ],
)
def test_bad_input_is_refused_with_the_reason(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        erase(**{"x_pretrain": X_P, "x_harmful": X_H, "y_harmful": Y} | changes)


BAD_TYPES = (("rank", 2.0), ("rank", "2"), ("rank", True), ("slack", "0"), ("shrinkage", None))
BAD_VALUES = (("rank", 0), ("slack", -1), ("shrinkage", "ledoit_wolf"), ("shrinkage", -1e-3), ("shrinkage", math.inf))


@pytest.mark.parametrize(
    ("name", "value", "error"), [*((*of, TypeError) for of in BAD_TYPES), *((*of, ValueError) for of in BAD_VALUES)]
)
def test_bad_settings_are_refused_with_words_here_and_of_the_method(name: str, value: Any, error: Any) -> None:
    words = f"{name} has to be a.*, it is {value!r}"
    with pytest.raises(error, match=f"^{words}"):
        erase(X_P, X_H, Y, **{name: value})
    with pytest.raises(error, match=f"^method.{words}"):
        Erase(**{name: value})


def test_the_same_data_twice_and_a_singular_covariance_are_refused() -> None:
    with pytest.raises(ValueError, match="same data"):
        erase(X_H, X_H.flip(0), Y.flip(0), y_pretrain=Y)
    assert erase(X_H, X_H, Y, y_pretrain=(Y == 1).long(), slack=1.0).rank == 3  # other labels of the same rows
    flat = X_P * (torch.arange(D) > 0)
    with pytest.raises(ValueError, match="shrinkage above 0"):
        erase(flat, X_H, Y, shrinkage=0.0)
    assert erase(flat, X_H, Y).rank == 3
    for unit in (1e-20, 1.0, 1e20):
        root_of(unit * diagonal(1.0, 1e-15), 0.0)
        with pytest.raises(ValueError, match="shrinkage above 0"):
            root_of(unit * diagonal(1.0, 1e-17), 0.0)


def test_data_that_share_a_large_offset_are_not_the_same() -> None:
    """Such as a column with the time of day in seconds since 1970."""
    one, other = (1e6 * torch.ones(4).double() + ref.gaussian(50, 4, seed=seed) for seed in (0, 1))
    y = torch.arange(50) % 2
    assert same_data([(one, y)], [(one.flip(0), y.flip(0))])
    assert not same_data([(one, y)], [(other, y)])


@pytest.mark.parametrize("n", range(60, 65))
def test_a_label_of_one_row_is_never_set_aside_alone(n: int) -> None:
    y = torch.zeros(n, dtype=torch.int64)
    y[n // 2] = 1
    x_p, x_h = ref.gaussian(80, 4, seed=1), ref.gaussian(n, 4, seed=2)
    for seed in range(4):
        assert erase(x_p, x_h, y, y_pretrain=torch.arange(80) % 2, seed=seed).rank == 1
    y[0] = 2  # a third, of one row as well: whatever judges, what was asked for is erased
    assert {erase(x_p, x_h, y, y_pretrain=torch.arange(80) % 2, rank=k, seed=1).rank for k in (2, 3)} == {2}


def test_a_direction_that_looks_like_another_beside_a_tiny_column_is_not_left() -> None:
    means = torch.tensor([[1.0, 1, 0, 0], [-1, 1, 0, 0], [0, -2, 0, 0]], dtype=torch.float64)
    y = torch.arange(300) % 3
    x_p, x_h = ref.gaussian(400, 4, seed=1), ref.gaussian(300, 4, seed=2) + 3 * means[y]
    x_p[:, 0] *= 1e-7
    with pytest.raises(ValueError, match="shrinkage above 0, or auto: directions that differ look alike"):
        erase(x_p, x_h, y, shrinkage=0.0)
    found = erase(x_p, x_h, y, shrinkage=1e-12)
    assert found.rank == 2
    assert left(found, x_h, y) < 1e-6


def test_rows_that_span_nothing_together_choose_nothing() -> None:
    y = torch.arange(90) % 3
    with pytest.raises(ValueError, match="no row of D_P lies in the span of the others"):
        erase(ref.gaussian(90, 120, seed=0), ref.gaussian(80, 120, seed=1), torch.arange(80) % 4, y_pretrain=y)


@pytest.mark.parametrize(("rows", "size", "rank"), [(400, 20, 20), (80, 20, 20), (60, 40, 15)])
@pytest.mark.parametrize("constant", [False, True])
def test_a_trial_is_the_correlation_of_a_probe_behind_the_map(rows: int, size: int, rank: int, constant: bool) -> None:
    y = torch.arange(rows) % 3
    x = (ref.gaussian(rows, rank, seed=0) + ref.gaussian(3, rank, seed=1)[y]) @ ref.gaussian(rank, size, seed=3)
    x_h, y_h = ref.gaussian(120, size, seed=2), torch.arange(120) % 4
    x[:, 0] *= 0.0 if constant else 1.0
    judge = _Judge((x, y), [(x_h, y_h)], False, 0)
    assert judge.turns == (1 if rows >= 4 * size else FOLDS)  # of few rows each fold judges
    assert erase(x, x_h, y_h, y_pretrain=y).trials[0].pretrain == judge.pretrain(None)
    for trial in (None, EraseTrial(2, 0.1, 0.0)):
        wanted = []
        for fold in range(judge.turns):
            seen = judge.x if trial is None else judge.map(trial, fold)(judge.x)
            rows_of = _within_range(judge.x, judge.folds != fold, judge.grams[fold])
            wanted.append(
                cross_fitted_correlation(seen[rows_of], judge.y[rows_of], (judge.folds == fold)[rows_of], PROBES)
            )
        assert judge.pretrain(trial) == pytest.approx(float(torch.stack(wanted).mean(0).max()), rel=1e-8)


def test_a_trial_that_leaves_next_to_nothing_is_judged_by_rows() -> None:
    """All but 1e-5 of D_P lies where D_H's classes differ; what is left tells its classes apart."""
    y, y_h = torch.arange(300) % 3, torch.arange(200) % 3
    x, x_h = ref.gaussian(300, 6, seed=0), ref.gaussian(200, 6, seed=1)
    x[:, 2:] = 1e-5 * (x[:, 2:] + 3 * ref.gaussian(3, 4, seed=2)[y])
    x_h[:, :2] += 5 * ref.gaussian(3, 2, seed=3)[y_h]
    x_h[:, 2:] *= 1e-7
    judge, trial = _Judge((x, y), [(x_h, y_h)], False, 0), EraseTrial(2, 1e-3, 0.0)
    assert judge.moments[0].correlation(judge.taking(trial, 0)) is None
    wanted = cross_fitted_correlation(judge.map(trial, 0)(judge.x), judge.y, judge.folds == 0, PROBES)
    assert judge.pretrain(trial) == pytest.approx(float(wanted.max()), rel=1e-12)
    assert judge.pretrain(trial) > 0.5


def test_labels_of_classes_as_floating_point_numbers_are_warned_of() -> None:
    x, x_h, y = ref.gaussian(60, 6, seed=0), ref.gaussian(80, 6, seed=1), torch.arange(80) % 4
    with pytest.warns(UserWarning, match="4 whole values of a floating-point type: it is taken for a target"):
        assert erase(x, x_h, y.double()).rank == 1
    with pytest.warns(UserWarning, match=f"{FEW} whole values"):
        erase(x, x_h, torch.arange(80.0) % FEW)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert erase(x, x_h, y).rank == 3
        erase(x, x_h, torch.arange(80.0) % (FEW + 1))
        erase(x, x_h, y + 0.5)  # a target
        erase(x, x_h, (y > 1).double())  # one direction in either case
        erase(x, x_h, torch.arange(80.0))


def test_what_is_protected_are_directions_that_labels_need_and_none_of_rounding() -> None:
    """Columns of labels add up to nothing: two classes of D_P need one direction, as a target with two values does."""
    x_p, x_h, y = data(3)
    classes, target = (
        erase(x_p, x_h, y, y_pretrain=of, rank=2, shrinkage=0.01, protect=True).matrix for of in (Y_P, Y_P.double())
    )
    torch.testing.assert_close(classes, target, rtol=1e-6, atol=1e-8)


def test_a_ridge_probe_is_scikit_learns_with_ledoit_and_wolfs_penalty() -> None:
    x, labels = X_P, torch.arange(len(X_P)) % 3
    share = ledoit_wolf_shrinkage(x.numpy())  # of the mean variance in a convex combination
    penalty = share / (1 - share) * float(x.var(dim=0, correction=0).mean()) * len(x)
    expected = Ridge(penalty).fit(x.numpy(), ref.one_hot(labels).numpy()).coef_.T
    torch.testing.assert_close(ridge_weights(x, labels), torch.from_numpy(expected))
    with pytest.raises(ValueError, match="of D_H's features are constant"):
        ridge_weights(torch.ones(5, 2, dtype=torch.float64), labels[:5])
