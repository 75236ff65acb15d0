"""Pages of many runs of networks: RIR against D_P's accuracy, and how often a step keeps the promise of Theorem 4.3.

Points are means over seeds of one setting, and the front is what nothing beats.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from experiments import network_front, network_guard
from immunize.errors import UserError
from immunize.records import RECORD
from tests.report.making import written

Planted = Callable[[Iterable[Any], Callable[[dict[str, Any], Any, int], None]], Path]


@pytest.fixture
def planted(finished_network: Path, tmp_path: Path) -> Planted:
    """A folder of runs, two seeds of each setting, changed from one real run."""
    stored: dict[str, Any] = json.loads((finished_network / RECORD).read_text())

    def write(settings: Iterable[Any], change: Callable[[dict[str, Any], Any, int], None]) -> Path:
        records = []
        for setting in settings:
            for seed in (0, 1):
                records.append(copy.deepcopy(stored) | {"seed": seed})
                change(records[-1], setting, seed)
        return written(records, tmp_path / "runs")

    return write


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


def test_a_row_is_the_mean_of_the_seeds_and_the_front_is_what_nothing_beats(planted: Planted, tmp_path: Path) -> None:
    runs = planted(OF_FRONT, of_front)
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


# (method, preconditioning), the steps of ten in which κ(H_P) did not rise, κ(H_H) did not fall; seed 1 has one more
OF_GUARD = ((("ours", "none"), (4, 6)), (("ours", "features"), (5, 7)), (("ill_only", "none"), (0, 9)))


def of_guard(record: dict[str, Any], setting: Any, seed: int) -> None:
    (method, precondition), (well, ill) = setting
    record["method"] = method
    record["config"]["method"] = {"name": method, "precondition": precondition}
    weights = {"lambda_ill": 1.0} | ({"lambda_well": 1.0} if method == "ours" else {})
    record["without_effect"]["method"] = weights  # where λ are balanced
    counted = {"steps": 10, "eta_lambda_within_bounds": 3, "promises_kept": min(well, ill)}
    counted |= {"well_kept": well + seed, "ill_kept": ill + seed, "broken_within_bounds": 2 * seed}
    record["training"]["fit"]["guard"] = {"theorem_step": False} | counted


def test_shares_of_the_steps_by_setting(planted: Planted, tmp_path: Path) -> None:
    runs = planted(OF_GUARD, of_guard)
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
