"""RIR against D_P's accuracy: points are means over seeds of one setting, and the front is what nothing beats."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from experiments import network_front
from immunize.errors import UserError
from immunize.records import RECORD
from tests.report.making import written

# (layers, η, multiplier of λ_H) to (RIR of seed 0, change of the accuracy); seed 1 has four times the RIR, a point less
PLANTED: dict[tuple[str, float, float | None], tuple[float, float]] = {
    ("layer4", 0.01, None): (10.0, -1.0),
    ("layer4", 0.01, 5.0): (30.0, -4.0),
    ("layer4", 0.03, 5.0): (20.0, -5.0),  # beaten by the one before
    ("layer3", 0.01, None): (2.0, 0.0),
}


@pytest.fixture
def runs(finished_network: Path, tmp_path: Path) -> Path:
    stored: dict[str, Any] = json.loads((finished_network / RECORD).read_text())
    records = []
    for (layers, rate, own), (rir, gain) in PLANTED.items():
        for seed in (0, 1):
            record = copy.deepcopy(stored)
            record["seed"] = seed
            record["config"]["model"]["trainable"] = [layers]
            record["config"]["objective"] |= {
                "learning_rate": rate, "balance_multiplier": 1.0, "balance_multiplier_ill": own
            }  # fmt: skip
            record["metrics_groups"]["held_out"]["spectrum"]["rir"] = rir * 4**seed
            record["pretrain_accuracy"] = {"before": 90.0, "after": 90.0 + gain - seed}
            records.append(record)
    return written(records, tmp_path / "runs")


def test_a_row_is_the_mean_of_the_seeds_and_the_front_is_what_nothing_beats(runs: Path, tmp_path: Path) -> None:
    out = network_front.run(["experiment=front_digits", f"runs={runs}", f"out={tmp_path / 'out'}"])
    lines = [line for line in (out / "table.md").read_text().splitlines() if line.startswith("| `layer")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [(row[0], *row[1:5], row[5], row[8], row[9]) for row in cells] == [
        ("`layer3`", "0.01", "1", "1", "2", "4", "-0.50", "yes"),
        ("`layer4`", "0.01", "1", "1", "2", "20", "-1.50", "yes"),
        ("`layer4`", "0.01", "1", "5", "2", "60", "-4.50", "yes"),
        ("`layer4`", "0.03", "1", "5", "2", "40", "-5.50", ""),
    ]
    assert {path.name for path in out.iterdir()} >= {"README.md", "front.png", "front.pdf", "results.csv.gz"}
    again = network_front.run(["experiment=front_digits", f"runs={out}", f"out={tmp_path / 'again'}"])
    assert (again / "table.md").read_text() == (out / "table.md").read_text()  # from the records that it left


def test_runs_of_a_linear_model_are_refused(finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sweep_lambda"):
        network_front.run(["experiment=front_digits", f"runs={finished_run}", f"out={tmp_path / 'out'}"])
    with pytest.raises(UserError, match="experiment=: needed"):
        network_front.run([])
