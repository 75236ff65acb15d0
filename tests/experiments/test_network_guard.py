"""How often a network's steps keep the promise of Theorem 4.3: shares of what the guard counted, by setting."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from experiments import network_guard
from immunize.errors import UserError
from immunize.records import RECORD
from tests.report.making import written

# (method, preconditioning) to the steps of ten in which κ(H_P) did not rise, κ(H_H) did not fall; seed 1 has one more
PLANTED: dict[tuple[str, str], tuple[int, int]] = {
    ("ours", "none"): (4, 6),
    ("ours", "features"): (5, 7),
    ("ill_only", "none"): (0, 9),
}


@pytest.fixture
def runs(finished_network: Path, tmp_path: Path) -> Path:
    stored: dict[str, Any] = json.loads((finished_network / RECORD).read_text())
    records = []
    for (method, precondition), (well, ill) in PLANTED.items():
        for seed in (0, 1):
            record = copy.deepcopy(stored) | {"method": method, "seed": seed}
            weights = {"lambda_ill": 1.0} | ({"lambda_well": 1.0} if method == "ours" else {})
            record["config"]["method"] = {"name": method, "precondition": precondition}
            record["without_effect"]["method"] = weights  # where λ are balanced
            record["training"]["fit"]["guard"] = {
                "theorem_step": False, "steps": 10, "eta_lambda_within_bounds": 3, "promises_kept": min(well, ill),
                "well_kept": well + seed, "ill_kept": ill + seed, "broken_within_bounds": 2 * seed,
            }  # fmt: skip
            records.append(record)
    return written(records, tmp_path / "runs")


def test_shares_of_the_steps_by_setting(runs: Path, tmp_path: Path) -> None:
    out = network_guard.run(["experiment=guard_digits", f"runs={runs}", f"out={tmp_path / 'out'}"])
    text = (out / "table.md").read_text()
    for row in (
        "| `ours` | none | 2 | 20 | 45 (40 to 50) | 65 (60 to 70) | 40 (40 to 40) | 30 (30 to 30) | 10 (0 to 20) |",
        "| `ours` | features | 2 | 20 | 55 (50 to 60) | 75 (70 to 80) | 50 (50 to 50) | 30 (30 to 30) | 10 (0 to 20) |",
        "| `ill_only` | none | 2 | 20 | – | 95 (90 to 100) | 0 (0 to 0) | 30 (30 to 30) | 10 (0 to 20) |",
    ):
        assert row in text
    assert {path.name for path in out.iterdir()} >= {"README.md", "kept.png", "kept.pdf", "results.csv.gz"}
    again = network_guard.run(["experiment=guard_digits", f"runs={out}", f"out={tmp_path / 'again'}"])
    assert (again / "table.md").read_text() == text  # from the records that it left


def test_runs_without_a_guard_are_refused(finished_network: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="guard=warn"):
        network_guard.run(["experiment=guard_digits", f"runs={finished_network}", f"out={tmp_path / 'out'}"])
    with pytest.raises(UserError, match="experiment=: needed"):
        network_guard.run([])
