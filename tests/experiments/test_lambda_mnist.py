"""What a larger λ_H buys: every cell from records that differ in pair, λ_H and seed alone."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from experiments.lambda_mnist import __main__ as lambda_mnist
from immunize.errors import UserError
from immunize.records import RECORD


@pytest.fixture
def runs(finished_run: Path, tmp_path: Path) -> Path:
    """Two pairs, two weights, two seeds; RIR on `fit` by `spectrum` is λ_H, times 4 with the second seed."""
    stored: dict[str, Any] = json.loads((finished_run / RECORD).read_text())
    for pair in ([0, 1], [3, 8]):
        for weight in (1e12, 1e15):
            for seed in (0, 1):
                record = copy.deepcopy(stored)
                record["harmful"], record["seed"] = "mnist", seed
                for role, digit in zip(("pretrain", "harmful"), pair, strict=True):
                    record["data"][role]["digit"] = digit
                record["config"]["objective"]["lambda_ill"] = weight
                record["metrics"]["fit"]["spectrum"]["rir"] = weight * 4**seed
                record["verdicts"]["a"] = weight > 1e12 and seed == 0
                record["verdicts"]["held_out"] = {"a": weight > 1e12}
                folder = tmp_path / "runs" / f"{pair}{weight}{seed}"
                folder.mkdir(parents=True)
                (folder / RECORD).write_text(json.dumps(record))
    return tmp_path / "runs"


def test_a_row_is_the_mean_of_the_seeds(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = lambda_mnist.run([f"runs={runs}", f"out={tmp_path / 'out'}"])
    assert capsys.readouterr().out == f"{out}\n"
    rows = [line.split(" | ") for line in (out / "table.md").read_text().splitlines()[2:] if line.startswith("|")]
    assert len(rows) == 4
    cells = [cell.strip("| ") for cell in rows[1]]
    assert (*cells[:3], cells[4], *cells[-2:]) == ("0→1", "1e+15", "2", "2.00e+15", "1/2", "2/2")
    again = tmp_path / "again"
    lambda_mnist.run([f"runs={out}", f"out={again}"])  # from the records that it left
    assert (again / "table.md").read_text() == (out / "table.md").read_text()


def test_other_settings_do_not_go_together(runs: Path, tmp_path: Path) -> None:
    path = next(runs.rglob(RECORD))
    record = json.loads(path.read_text())
    record["config"]["objective"]["epochs"] += 1
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match="differ in more than"):
        lambda_mnist.run([f"runs={runs}", f"out={tmp_path / 'out'}"])
    with pytest.raises(UserError, match="no folder"):
        lambda_mnist.run([f"runs={tmp_path / 'nothing'}", f"out={tmp_path / 'out'}"])
