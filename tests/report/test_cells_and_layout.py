"""Cells of tables against plain recomputation, and tables as Markdown."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from immunize.report.loading import with_infinities
from immunize.report.naming import RATIOS
from immunize.report.table import NOTHING, Table, short, summary_of, summary_text, under

numbers = st.floats(min_value=1e-6, max_value=1e9)


@given(st.lists(numbers, min_size=2, max_size=9))
def test_one_pair_gives_mean_and_standard_deviation(values: list[float]) -> None:
    found = summary_of([values])
    assert found is not None
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.spread == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-6 * max(values))
    assert found.median == pytest.approx(statistics.median(values))
    assert found.geometric == pytest.approx(math.exp(statistics.fmean(map(math.log, values))))


@given(st.lists(st.lists(numbers, min_size=2, max_size=4), min_size=2, max_size=6))
def test_many_pairs_give_the_mean_over_pairs_of_both(groups: list[list[float]]) -> None:
    """The convention of Table 2: "computed over 3 random seeds and averaged over all digit pairs"."""
    found = summary_of(groups)
    assert found is not None
    assert found.mean == pytest.approx(statistics.fmean(statistics.fmean(of) for of in groups))
    spread = statistics.fmean(statistics.stdev(of) for of in groups)
    assert found.spread == pytest.approx(spread, rel=1e-6, abs=1e-6 * max(map(max, groups)))


def test_pairs_count_alike_however_many_seeds_they_have() -> None:
    found = summary_of([[1.0, 1.0, 1.0], [4.0]])
    assert found is not None
    assert found.mean == 2.5
    assert found.spread == 0.0  # of the one pair that has a spread


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([[2.0, 4.0]], "3 ± 1.41"),
        ([[3.0]], "3"),
        ([[3.0], [5.0]], "4"),
        ([[25.43] * 3], "25.4 ± 0"),  # whose mean is another number in float64
        ([[25.43, 25.43, 25.44]], "25.4 ± 0.00577"),
        ([[]], NOTHING),
        ([], NOTHING),
        ([[None, None]], "∞"),
        ([[2.0, 4.0, None]], "3 ± 1.41 (∞ in 1 of 3)"),
        ([[1.0, 1.0, 100.0]], "34 ± 57.2 (median 1, geo. mean 4.64)"),
        ([[-1.0, 1.0, 1.0]], "0.333 ± 1.15 (median 1)"),
    ],
)
def test_cell_text(groups: list[list[float | None]], text: str) -> None:
    assert summary_text(groups) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (0.1234, "0.123"),
        (99.95, "100"),
        (123.4, "123"),
        (12345.6, "12,346"),
        (1.5e6, "1.50e+06"),
        (0.00012, "1.20e-04"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, NOTHING),
        (None, NOTHING),
    ],
)
def test_short(value: float | None, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (8.0, 0.5, 16.0)),
        ({"kappa_harmful": None, "ratio_harmful": None, "rir": None}, (math.inf, 0.5, math.inf)),
        ({"kappa_pretrain": None, "ratio_pretrain": None, "rir": 0.0}, (8.0, math.inf, 0.0)),
        ({"ratio_harmful": None, "ratio_pretrain": None, "rir": None}, (math.inf, math.inf, math.nan)),
        ({"kappa_harmful_baseline": None, "ratio_harmful": None, "rir": None}, (math.nan, 0.5, math.nan)),
        ({"kappa_harmful_baseline": None, "ratio_harmful": 0.0, "rir": 0.0}, (0.0, 0.5, 0.0)),
    ],
)
def test_null_is_infinite_but_for_one_infinity_by_another(
    changes: dict[str, float | None], expected: tuple[float, ...]
) -> None:
    kappas = {"kappa_harmful": 80.0, "kappa_harmful_baseline": 10.0, "kappa_pretrain": 2.0}
    numbers = kappas | {"kappa_pretrain_baseline": 4.0, "ratio_harmful": 8.0, "ratio_pretrain": 0.5, "rir": 16.0}
    found = with_infinities({**numbers, **changes, "facts": {}})
    assert [found[name] for name in RATIOS] == pytest.approx(expected, nan_ok=True)
    assert {name: found[name] for name in kappas} == {
        name: math.inf if value is None else value for name, value in ({**kappas, **changes}).items() if name in kappas
    }
    given = {name: value for name, value in {**numbers, **changes}.items() if name in RATIOS}
    assert with_infinities(given).keys() == set(RATIOS)


TABLE = Table(
    "A_title & more",
    ["method", "runs", *under("fit, spectrum", ("(i) ↑", "RIR ↑"))],
    [["`ill_only`", "5", "1.20e-04 ± 3", "a|b"], ["`ours`", "4 + 1 diverged", "–", "∞"]],
    ["50 % of `a_b` {x}"],
)


def test_markdown_heads_every_column_with_its_group() -> None:
    assert TABLE.markdown() == (
        "## A_title & more\n"
        "\n"
        "| method | runs | (i) ↑ fit, spectrum | RIR ↑ fit, spectrum |\n"
        "| --- | --- | --- | --- |\n"
        "| `ill_only` | 5 | 1.20e-04 ± 3 | a\\|b |\n"
        "| `ours` | 4 + 1 diverged | – | ∞ |\n"
        "\n"
        "- 50 % of `a_b` {x}\n"
    )
