"""`method=ours` by its defaults on arrays of one's own: (b), and half of the logarithm of what can be reached."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.numpy import load_file
from sklearn import datasets

from immunize import evaluate, train
from immunize.errors import DataError
from immunize.evaluation.alignment import measure
from immunize.evaluation.forecast_verdict import STRONG
from immunize.pipeline.fit import Telling
from immunize.records import CHECKPOINT
from immunize.report import show_record
from immunize.spectrum import EASE_SLACK, HARDER_BY, generalized_spectrum
from tests.composing import compose_config, data_of, model_of

SHORT = ("probe_steps=20", "logger=none", "figure=false")


def by_class(data: Any, parts: tuple[tuple[int, ...], tuple[int, ...]]) -> list[Any]:
    """Rows of some classes against those of others, and which of the classes a row has."""
    found: list[Any] = []
    for classes in parts:
        rows = np.isin(data[1], classes)
        found += [data[0][rows], (data[1][rows] == classes[-1]) * 1.0]
    return found


MADE: dict[str, Any] = {
    "wine": lambda: by_class(datasets.load_wine(return_X_y=True), ((0, 1), (2,))),
    "breast_cancer": lambda: by_class(datasets.load_breast_cancer(return_X_y=True), ((1,), (0,))),
    "diabetes": lambda: by_sex(*datasets.load_diabetes(return_X_y=True)),
    "redundant": lambda: by_class(
        datasets.make_classification(400, 12, n_informative=6, n_redundant=3, random_state=0), ((0,), (1,))
    ),
    "classes": lambda: by_class(
        datasets.make_classification(500, 20, n_informative=10, n_redundant=0, n_classes=4, random_state=1),
        ((0, 1), (2, 3)),
    ),
    "low_rank": lambda: [
        of
        for rank in (4, 6)
        for of in datasets.make_regression(300, 15, n_informative=5, effective_rank=rank, random_state=rank)
    ],
}


def by_sex(x: Any, y: Any) -> list[Any]:
    first = x[:, 1] > 0
    return [x[first], y[first], x[~first], y[~first]]


def files(folder: Path, x_p: Any, y_p: Any, x_h: Any, y_h: Any) -> list[str]:
    np.savez(folder / "pretrain.npz", x=x_p, y=y_p)
    np.savez(folder / "harmful.npz", x=x_h, y=y_h)
    return ["harmful=arrays", *(f"{role}.file={folder / role}.npz" for role in ("pretrain", "harmful"))]


@pytest.mark.parametrize("name", MADE)
def test_half_of_the_bound_is_reached_with_b_true_whatever_the_units(name: str, tmp_path: Path) -> None:
    cfg = compose_config(*files(tmp_path, *MADE[name]()), "logger=none")
    model = model_of(cfg)
    data = model.pairs["fit"]
    rows = data.fit.pretrain.x, data.fit.harmful.x
    grams = [x.T @ x for x in rows]
    theory = generalized_spectrum(*grams, n_samples=(len(rows[0]), len(rows[1])), shrinkage=1e-3)
    assert theory.rir_star > HARDER_BY  # the forecast says no "cannot" on these rows
    found = model.fit(data, [], Telling(quiet=True))
    ratio = measure(found.theta, rows)["spectrum"]
    assert found.status == "finished"
    assert found.steps == 300
    assert ratio.ratio_pretrain <= 1 + EASE_SLACK
    assert math.log(ratio.rir) >= 0.5 * math.log(theory.rir_star)
    assert ratio.ratio_harmful >= HARDER_BY or theory.rir_star < STRONG  # (a) too where the forecast says "possible"


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("wine")
    data = MADE["wine"]()
    data[0], data[2] = (np.column_stack([x, np.full(len(x), 7.0)]) for x in (data[0], data[2]))
    given = files(folder, *data)
    return folder, given, train.run(compose_config(*given, *SHORT), folder / "run")


def test_theta_can_be_used_on_rows_as_they_were_read(wine: tuple[Path, list[str], dict[str, Any]]) -> None:
    folder, given, record = wine
    saved = load_file(folder / "run" / CHECKPOINT)
    raw = {role: np.load(folder / f"{role}.npz")["x"] for role in ("pretrain", "harmful")}
    data = data_of(compose_config(*given))
    assert data.held_out is not None
    assert data.scale is not None
    for role in ("pretrain", "harmful"):
        own = data.source(role).load()  # type: ignore[arg-type]
        for part, standardized in ((own.fit, data.fit), (own.held_out, data.held_out)):
            assert part is not None
            mapped = (part.x.numpy() - saved["columns.mean"]) * saved["columns.scale"]
            np.testing.assert_allclose(mapped, standardized.of(role).x.numpy(), rtol=1e-12, atol=1e-12)  # type: ignore[arg-type]
        assert len(raw[role]) == len(data.fit.of(role)) + len(data.held_out.of(role))  # type: ignore[arg-type]
    torch.testing.assert_close(data.fit.pretrain.x[:, :13].mean(0), torch.zeros(13, dtype=torch.float64))
    torch.testing.assert_close(data.fit.pretrain.x[:, :13].std(0), torch.ones(13, dtype=torch.float64))
    assert record["data"]["harmful"]["constant_columns"] == [13]
    assert record["config"]["harmful"]["standardize"] is True
    assert evaluate.run(folder / "run")[1] == []


def test_columns_that_are_constant_are_named(
    wine: tuple[Path, list[str], dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, given, _ = wine
    data_of(compose_config(*given, "harmful.held_out=0.3"))
    assert "1 of 14 columns are constant in D_P and D_H and are left out: 13" in caplog.text
    x_p, y_p, x_h, y_h = MADE["wine"]()
    same = files(tmp_path, x_p, y_p, np.ones_like(x_h) * x_h[0], y_h)
    with pytest.raises(DataError, match=r"arrays \(harmful, fit\): all 13 columns are constant \(0, 1, .* 9, …\)"):
        data_of(compose_config(*same))


def test_rows_are_taken_as_they_are_if_asked(wine: tuple[Path, list[str], dict[str, Any]]) -> None:
    folder, given, _ = wine
    data = data_of(compose_config(*given, "harmful.standardize=false"))
    assert data.scale is None
    raw = np.load(folder / "pretrain.npz")["x"]
    assert {tuple(row) for row in data.fit.pretrain.x.tolist()} <= {tuple(row) for row in raw.tolist()}


def test_the_last_line_says_where_nothing_was_immunized(tmp_path: Path) -> None:
    x_p, y_p, _, y_h = MADE["wine"]()
    given = files(tmp_path, x_p, y_p, x_p[: len(y_h)] + 1e-3, y_h)
    record = train.run(compose_config(*given, *SHORT, "init=none", "objective.epochs=3"), tmp_path / "run")
    assert not record["verdicts"]["a"]
    text = io.StringIO()
    show_record(record, Console(file=text, width=400, soft_wrap=True))
    last = text.getvalue().strip().splitlines()[-1]
    assert last.startswith("NOT IMMUNIZED on fit, (a) fails with (i) = ")
    assert "python -m immunize.forecast" in last
    assert "method=closed_form" in last
