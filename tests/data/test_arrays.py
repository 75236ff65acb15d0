"""Two arrays of one's own: read, split, standardized, and through the commands; every mistake named."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sklearn import datasets

from immunize import evaluate, train
from immunize.data import Part
from immunize.data.arrays import Arrays
from immunize.data.loading import load_pair
from immunize.errors import DataError, UserError
from immunize.evaluation.alignment import measure
from immunize.evaluation.forecast_verdict import STRONG
from immunize.pipeline.fit import Telling
from immunize.records import CHECKPOINT
from immunize.spectrum.condition import EASE_SLACK, HARDER_BY
from immunize.spectrum.pencil import generalized_spectrum
from tests.composing import compose_config, data_of, model_of

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((40, 5)), RNG.standard_normal(40) * 7 + 3


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def rows_of(part: Part) -> list[int]:
    """Which rows of X they are."""
    return [X.tolist().index(row) for row in part.x.tolist()]


def test_rows_are_split_and_targets_standardized_by_the_fitted_ones(tmp_path: Path) -> None:
    splits = Arrays("harmful", saved(tmp_path / "a.npz", x=X, y=Y)).load()
    fit, held_out = rows_of(splits.fit), rows_of(splits.held_out)  # type: ignore[arg-type]
    assert (len(fit), len(held_out)) == (30, 10)
    assert sorted(fit + held_out) == list(range(40))
    assert fit == sorted(fit)
    for part, rows in ((splits.fit, fit), (splits.held_out, held_out)):
        np.testing.assert_allclose(part.y.numpy(), (Y[rows] - Y[fit].mean()) / Y[fit].std(ddof=1))  # type: ignore[union-attr]


def test_a_constant_target_has_nothing_in_it(tmp_path: Path) -> None:
    """Its mean and its deviation are rounding, one as large as the other."""
    assert not Arrays("harmful", saved(tmp_path / "a.npz", x=X, y=np.full(40, 3.3))).load().fit.y.any()


def test_split_depends_on_its_seed_and_role_alone(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=X, y=Y)
    first, again, other = (Arrays("harmful", path, split_seed=seed).load().fit.x for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, Arrays("pretrain", path).load().fit.x)


def test_labels_stay_what_they_are(tmp_path: Path) -> None:
    source = Arrays("harmful", saved(tmp_path / "a.npz", x=X.astype("f4"), y=Y > 3))
    assert source.task == "binary"
    assert set(source.load().fit.y.tolist()) == {0.0, 1.0}
    assert Arrays("harmful", saved(tmp_path / "b.npz", x=X, y=Y)).task == "regression"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "no arrays x and y"),
        ({"x": X, "y": Y[:5]}, r"x has the shape \(40, 5\) and y \(5,\)"),
        ({"x": X[:, 0], "y": Y}, r"\(N, D\) and \(N,\)"),
        ({"x": X.astype(str), "y": Y}, "real numbers"),
        ({"x": X, "y": Y.astype(complex)}, "real numbers"),
        ({"x": np.array([[None]] * 40), "y": Y}, "cannot be read"),  # pickled objects are never loaded
        ({"x": X[:5], "y": Y[:5]}, "leave a part without 2 rows"),
        ({"x": X, "y": np.where(np.arange(40) == 3, np.nan, Y)}, "1 targets are NaN or Inf"),
        ({"x": X, "y": Y * 1e200}, "targets of a size of .*e\\+201"),
        ({"x": X, "y": np.arange(40) % 4}, r"4 whole numbers; if they are classes, set harmful\.classes=true"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    source = Arrays("harmful", saved(tmp_path / "a.npz", **arrays))
    with pytest.raises(DataError, match=message):
        load_pair(Arrays("pretrain", saved(tmp_path / "b.npz", x=X, y=Y)), source)


def test_labels_are_classes_if_asked_and_each_is_in_both_parts(tmp_path: Path) -> None:
    y = np.repeat([2, 5, 9], [20, 17, 3])
    source = Arrays("harmful", saved(tmp_path / "a.npz", x=X, y=y), classes=True)
    splits = source.load()
    assert source.task == "classification"
    assert [part.y.bincount().tolist() for part in (splits.fit, splits.held_out)] == [[15, 13, 2], [5, 4, 1]]  # type: ignore[union-attr]
    for part in (splits.fit, splits.held_out):
        assert y[rows_of(part)].tolist() == [(2, 5, 9)[label] for label in part.y.tolist()]  # type: ignore[arg-type,union-attr]
    for wrong, message in ((y + 0.5, "other than whole numbers"), (np.arange(40), "of class 0 there is 1 row")):
        with pytest.raises(DataError, match=message):
            Arrays("harmful", saved(tmp_path / "b.npz", x=X, y=wrong), classes=True).load()


def test_files_that_are_no_archive_and_wrong_options_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    (tmp_path / "b.npz").write_bytes(b"x,y\n1,2\n")
    (tmp_path / "c.npz").write_bytes(b"")
    for made, message in (
        (Arrays("harmful", tmp_path / "a.npy").load, "no arrays"),
        *((Arrays("harmful", tmp_path / name).load, "cannot be read") for name in ("b.npz", "c.npz")),
        (Arrays("harmful", tmp_path / "nowhere.npz").require, r"no file .*nowhere\.npz"),
        (lambda: Arrays("harmful", None), r"harmful\.file="),
        *((lambda of=of: Arrays("harmful", "a.npz", held_out=of), "between 0 and 1") for of in (0.0, 1.0)),
    ):
        with pytest.raises(DataError, match=message):
            made()


# method=ours by its defaults on arrays of one's own: (b), and half of the logarithm of what can be reached.


SHORT = ("probe_steps=20", "logger=none", "figure=false")


def wine_by_class() -> list[Any]:
    """D_P is wines 0 and 1, with labels; D_H is wine 2, all with label 1."""
    x, y = datasets.load_wine(return_X_y=True)
    return [x[y < 2], y[y < 2] * 1.0, x[y == 2], np.ones((y == 2).sum())]


def low_rank() -> list[Any]:
    """Two regressions whose features have 4 and 6 directions and little else."""
    return [
        of
        for rank in (4, 6)
        for of in datasets.make_regression(300, 15, n_informative=5, effective_rank=rank, random_state=rank)
    ]


MADE = {"wine": wine_by_class, "low_rank": low_rank}


def files(folder: Path, x_p: Any, y_p: Any, x_h: Any, y_h: Any) -> list[str]:
    np.savez(folder / "pretrain.npz", x=x_p, y=y_p)
    np.savez(folder / "harmful.npz", x=x_h, y=y_h)
    return ["harmful=arrays", *(f"{role}.file={folder / role}.npz" for role in ("pretrain", "harmful"))]


@pytest.mark.parametrize(
    ("method", "of_both", "refused"),
    [
        *((method, of_both, "") for method in ("erase", "closed_form") for of_both in (False, True)),
        ("imma", False, r"objective\.loss=mse knows no classes, but arrays \(harmful\)"),
        ("ours", True, r"objective\.loss=mse knows no classes, .*choose objective\.loss=ce"),
    ],
)
def test_classes_need_a_loss_of_their_own_only_where_steps_are_taken_with_it(
    method: str, of_both: bool, refused: str, tmp_path: Path
) -> None:
    x_p, y_p, x_h, _ = low_rank()
    given = files(tmp_path, x_p, np.arange(len(x_p)) % 3 if of_both else y_p, x_h, np.arange(len(x_h)) % 3)
    classes = "harmful.classes=true", f"pretrain.classes={str(of_both).lower()}"
    cfg = compose_config(*given, *classes, f"method={method}", *SHORT)
    with pytest.raises(UserError, match=refused) if refused else contextlib.nullcontext():
        record = train.run(cfg, tmp_path / "run", quiet=True)
        assert (record["status"], record["data"]["harmful"]["task"]) == ("finished", "classification")


@pytest.mark.parametrize("name", MADE)
def test_half_of_the_bound_is_reached_with_b_true_whatever_the_units(name: str, tmp_path: Path) -> None:
    cfg = compose_config(*files(tmp_path, *MADE[name]()), "logger=none")
    model = model_of(cfg)
    data = model.pairs["fit"]
    rows = data.fit["pretrain"].x, data.fit["harmful"].x
    grams = [x.T @ x for x in rows]
    theory = generalized_spectrum(*grams, n_samples=(len(rows[0]), len(rows[1])), shrinkage=1e-3)
    assert theory.rir_star > STRONG  # the forecast says "possible" on these rows
    found = model.fit(data, [], Telling(quiet=True))
    ratio = measure(found.theta, rows)["spectrum"]
    assert found.status == "finished"
    assert found.steps == 300
    assert ratio.ratio_pretrain <= 1 + EASE_SLACK
    assert math.log(ratio.rir) >= 0.5 * math.log(theory.rir_star)
    assert ratio.ratio_harmful >= HARDER_BY  # (a) too


Wine = tuple[Path, list[str], dict[str, Any]]


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Wine:
    folder = tmp_path_factory.mktemp("wine")
    data = MADE["wine"]()
    data[0], data[2] = (np.column_stack([x, np.full(len(x), 7.0)]) for x in (data[0], data[2]))
    given = files(folder, *data)
    return folder, given, train.run(compose_config(*given, *SHORT), folder / "run")


def test_theta_can_be_used_on_rows_as_they_were_read(wine: Wine) -> None:
    folder, given, record = wine
    saved = load_file(folder / "run" / CHECKPOINT)
    data = data_of(compose_config(*given))
    for role in ("pretrain", "harmful"):
        own = data.sources[role].load()  # type: ignore[arg-type]
        for part, standardized in ((own.fit, data.fit), (own.held_out, data.held_out)):
            mapped = (part.x.numpy() - saved["columns.mean"]) * saved["columns.scale"]
            np.testing.assert_allclose(mapped, standardized[role].x.numpy(), rtol=1e-12, atol=1e-12)  # type: ignore[arg-type]
    torch.testing.assert_close(data.fit["pretrain"].x[:, :13].mean(0), torch.zeros(13, dtype=torch.float64))
    torch.testing.assert_close(data.fit["pretrain"].x[:, :13].std(0), torch.ones(13, dtype=torch.float64))
    assert data_of(compose_config(*given, "harmful.standardize=false")).scale is None  # rows as they were read
    assert record["data"]["harmful"]["constant_columns"] == [13]
    assert record["config"]["harmful"]["standardize"] is True
    assert evaluate.run(folder / "run")[1] == []


def test_columns_that_are_constant_are_named(wine: Wine, caplog: pytest.LogCaptureFixture) -> None:
    data_of(compose_config(*wine[1], "harmful.held_out=0.3"))
    assert "1 of 14 columns are constant in D_P and D_H and are left out: 13" in caplog.text


@pytest.mark.parametrize("name", ["wine", "low_rank"])
def test_one_file_in_both_roles_is_refused(name: str, tmp_path: Path) -> None:
    """Although each role holds out other rows, by which a regression's target is scaled."""
    rows = MADE[name]()[:2]
    for method in ("ours", "erase"):
        with pytest.raises(UserError, match="D_P and D_H are the same data"):
            model_of(compose_config(*files(tmp_path, *rows, *rows), f"method={method}"))


def test_d_p_of_one_class_has_nothing_to_tell_apart(tmp_path: Path) -> None:
    rows = (X, np.zeros(40, dtype=np.int64), X[::-1].copy(), np.arange(40) % 3)
    words = ("harmful.classes=true", "pretrain.classes=true", "objective.loss=ce")
    with pytest.raises(UserError, match="D_P has one class"):
        train.run(compose_config(*files(tmp_path, *rows), *words, *SHORT), tmp_path / "run")
