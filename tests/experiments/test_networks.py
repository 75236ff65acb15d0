"""RIR against D_P's accuracy of networks: points are means over seeds, and the front is what nothing beats."""

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

# (layers, η, multiplier of λ_H), (RIR of seed 0, change of the accuracy); seed 1 has four times the RIR, a point less
OF_FRONT: tuple[tuple[tuple[str, float, float | None], tuple[float, float]], ...] = (
    (("layer4", 0.01, None), (10.0, -1.0)),
    (("layer4", 0.01, 5.0), (30.0, -4.0)),
    (("layer4", 0.03, 5.0), (20.0, -5.0)),  # beaten by the one before
    (("layer3", 0.01, None), (2.0, 0.0)),
)


def of_front(record: dict[str, Any], setting: Any, seed: int) -> None:
    (layers, rate, own), (rir, gain) = setting
    record["config"]["model"]["trainable"] = [layers]
    balanced = {"balance_multiplier": 1.0, "balance_multiplier_ill": own}
    record["config"]["objective"] |= {"learning_rate": rate} | balanced
    record["metrics_groups"]["held_out"]["spectrum"]["rir"] = rir * 4**seed
    record["pretrain_accuracy"] = {"before": 90.0, "after": 90.0 + gain - seed}


@pytest.mark.usefixtures("undrawn")
def test_a_row_is_a_mean_of_seeds_and_the_front_what_nothing_beats(finished_network: Path, tmp_path: Path) -> None:
    stored: dict[str, Any] = json.loads((finished_network / RECORD).read_text())
    records = []
    for setting in OF_FRONT:  # two seeds of each, changed from one real run
        for seed in (0, 1):
            records.append(copy.deepcopy(stored) | {"seed": seed})
            of_front(records[-1], setting, seed)
    runs = written(records, tmp_path / "runs")
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
