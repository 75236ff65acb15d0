"""The README's main table: cells against means computed here, and the committed one against the committed records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.summary import COLUMNS, EXPERIMENTS, PATH, ROOT, summary_table
from tests.report.making import table2_records, written

VALUES = {(0, 1): [2.0, 4.0], (1, 0): [8.0, 12.0]}
"""RIR by pair and seed."""


def row_of(base: dict[str, Any], values: dict[tuple[int, int], list[float]], folder: Path) -> list[str]:
    records = table2_records(base, list(values), seeds=range(2), methods=["ours"])
    for record in records:
        rir = values[tuple(record["config"]["pretrain"]["pair"])][record["seed"]]
        for part, factor in (("fit", 10.0), ("held_out", 1.0)):
            for numbers in record["metrics"][part].values():
                numbers["rir"] = rir * factor
    written(records, folder)
    head = (ROOT / "table2" / "published.csv").read_text(encoding="utf-8").splitlines()[0]
    (folder / "published.csv").write_text(f"{head}\nTable 2,ours,Ours,rir,,,70,3.3\n", encoding="utf-8")
    return list(summary_table({"MNIST": folder}).rows[0])


def test_cells_are_the_mean_over_pairs_of_the_mean_over_seeds(base: dict[str, Any], tmp_path: Path) -> None:
    spread = np.mean([np.std(of, ddof=1) for of in VALUES.values()])
    cells = [f"{6.5 * factor:.3g} ± {spread * factor:.3g}" for factor in (10, 1)]
    assert row_of(base, VALUES, tmp_path / "table2") == ["`ours`", "70 ± 3.3", *cells]


def test_the_middle_stands_where_outliers_make_the_mean(base: dict[str, Any], tmp_path: Path) -> None:
    row = row_of(base, VALUES | {(1, 0): [6.0, 1000.0]}, tmp_path / "table2")
    assert row[3:] == ["*5*"]


def test_the_committed_table_is_that_of_the_committed_records() -> None:
    table = summary_table({title: ROOT / name for title, name in EXPERIMENTS})
    assert PATH.read_text(encoding="utf-8") == table.markdown(), "python -m experiments.summary writes it"
    assert len(table.rows[0]) == 1 + len(EXPERIMENTS) * (1 + len(COLUMNS))


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=tmp_path.name):
        summary_table({"MNIST": tmp_path})
