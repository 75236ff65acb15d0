"""The trade-off report: the front, the means, what may be put together, and every file from records alone."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from immunize.report.tradeoff import ESTIMATORS, TradeOff, on_front, tradeoff_figure, tradeoff_tables
from tests.report.making import Record, diverged, reported, tables_of, with_change, without_held_out

NUMBER = st.floats(0.01, 100)


def at(record: Record, ill: float, seed: int, numbers: tuple[float | None, float | None] = (3.0, 0.5)) -> Record:
    """The record as a run with other weights would have it, its (i) and (ii) on `fit` by `spectrum` set."""
    new = copy.deepcopy(record)
    new["seed"] = new["config"]["seed"] = seed
    new["config"]["experiment"] = {"name": "sweep_lambda", "reduced": False}
    new["config"]["objective"] |= {"lambda_well": 2.0, "lambda_ill": ill}
    new["config"]["method"] |= {"lambda_well": 2.0, "lambda_ill": ill}
    i, ii = numbers
    new["metrics"]["fit"]["spectrum"] |= {"ratio_harmful": i, "ratio_pretrain": ii}
    return new


@pytest.fixture
def records(record: Record) -> list[Record]:
    """Three weights, two seeds: the middle one is beaten by the last, the first has the smallest (ii)."""
    numbers = {20.0: [(1.0, 0.1), (4.0, 0.4)], 2e3: [(2.0, 0.9), (2.0, 0.9)], 2e5: [(9.0, 0.3), (4.0, 0.3)]}
    return [at(record, ill, seed, pair) for ill, pairs in numbers.items() for seed, pair in enumerate(pairs)]


# The front.


@given(st.lists(st.tuples(NUMBER, NUMBER), max_size=12))
def test_front_has_exactly_what_nothing_beats(values: list[tuple[float, float]]) -> None:
    front = on_front(values)
    for (i, ii), kept in zip(values, front, strict=True):
        beaten = any((a >= i and b < ii) or (a > i and b <= ii) for a, b in values)
        assert kept is not beaten
    assert any(front) is bool(values)


def points_of(trade: TradeOff, part: str = "fit", estimator: str = "spectrum") -> pd.DataFrame:
    return trade.points().query("part == @part and estimator == @estimator")


def row_of(trade: TradeOff) -> list[str]:
    """The cells of the middle weight, by `spectrum`."""
    first = next(iter(tables_of(tradeoff_tables(trade)).values()))
    return next(cells for row in first if (cells := list(row.values()))[0] == "1e+03")


@pytest.mark.usefixtures("drawn")
def test_infinite_number_of_one_seed_makes_the_mean_infinite(records: list[Record], tmp_path: Path) -> None:
    records[4]["metrics"]["fit"]["spectrum"]["ratio_harmful"] = None  # as records store it
    trade = TradeOff.of(records)
    assert points_of(trade)["ratio_harmful"].iloc[2] == math.inf
    text, _ = reported("sweep_lambda", records, tmp_path)
    assert "| 1e+05 | 2 | ∞ | 0.3 | ∞ | yes |" in text
    assert (tmp_path / "out" / "tradeoff.pdf").read_bytes().startswith(b"%PDF")


def test_diverged_runs_are_counted_and_have_no_point(records: list[Record]) -> None:
    records[2:4] = map(diverged, records[2:4])
    trade = TradeOff.of(records)
    assert points_of(trade)["lambda_ratio"].tolist() == [10.0, 1e5]
    row = row_of(trade)
    assert row[1] == "0 + 2 diverged"
    assert set(row[2:]) == {"–"}
    assert "diverged: 2 of `ours`" in trade.runs.completeness()


def test_a_cross_fit_that_diverged_costs_a_point_of_held_out_alone(records: list[Record]) -> None:
    records[2:4] = map(without_held_out, records[2:4])
    trade = TradeOff.of(records)
    assert points_of(trade)["lambda_ratio"].tolist() == [10.0, 1e3, 1e5]
    assert points_of(trade, "held_out")["lambda_ratio"].tolist() == [10.0, 1e5]
    assert row_of(trade)[1] == "2 (0 held out)"


def test_weights_are_those_that_the_method_has(records: list[Record]) -> None:
    for record in records:
        record["config"]["objective"] |= {"lambda_well": 1.0, "lambda_ill": 1.0}  # method.lambda_ill=... was given
    assert points_of(TradeOff.of(records))["lambda_ratio"].tolist() == [10.0, 1e3, 1e5]


# What may be put together.


def test_runs_of_the_preset_that_are_not_there_are_missing(records: list[Record]) -> None:
    weights = [10.0**power for power in range(4, 17) if power != 7]
    trade = TradeOff.of([at(records[0], ill, seed) for ill in weights for seed in range(3)])
    assert "36 of 39 runs; missing: `ours` λ_H/λ_P = 5e+06 seed 0" in trade.runs.completeness()


def test_records_that_do_not_belong_together_are_refused(records: list[Record]) -> None:
    for changes, message in (
        ({"method": "ill_only"}, "trade-off is that of one method"),
        ({"metrics": {"validation": {}}}, "selection=validation have no held-out numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            TradeOff.of([records[0] | changes, *records[1:]])


# The report.


def test_report_is_marked_where_runs_are_reduced(records: list[Record]) -> None:
    reduced = [with_change(record, config__experiment__reduced=True) for record in records]
    assert tradeoff_tables(TradeOff.of(reduced)).count("## REDUCED ") == len(ESTIMATORS)


def test_only_the_preset_s_data_are_rebuilt_by_it(records: list[Record], tmp_path: Path) -> None:
    """Housing's are, as `experiments/sweep_lambda/README.md` has it."""
    _, out = reported("sweep_lambda", [record | {"harmful": "digits"} for record in records], tmp_path)
    assert "Rebuilt by" not in (out / "README.md").read_text()


def test_the_colour_of_a_point_is_its_weight(records: list[Record]) -> None:
    """Also of weights that a logarithm does not have: they get the colours of the ends."""
    panel = tradeoff_figure(TradeOff.of([*records, at(records[0], 0.0, 0, (1.0, 1.0))])).axes[0]
    fit = next(of for of in panel.collections if of.get_label() == "fit")
    assert fit.get_offsets().tolist() == [pytest.approx(at) for at in ([1.0, 1.0], [0.2, 2.0], [0.9, 2.0], [0.3, 6.0])]
    assert fit.get_array().tolist() == [10.0, 10.0, 1e3, 1e5]
