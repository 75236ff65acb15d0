"""The attack grid, `attack=standard`, against its limits.

    6,500 × 512 features of 196 classes     made up, one extractor, one seed              at most 6 minutes, 4 GB
    a pair of MNIST                         from start to exit: three tasks, extractors
                                            and seeds, all controls                       at most 4 minutes, 4 GB

Stanford Cars as a ResNet18 shows it has the size of the first. What the features say changes how far the attacks get
and hardly how long they take: budgets of steps and operations end them. Writes attack.csv; without MNIST in
IMMUNIZE_DATA its line is left out, and said.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from experiments.bench.machine import timed_command, write_csv
from immunize.attack import entries_of
from immunize.config import config_dir, register
from immunize.evaluation.attacks import AttackData, Budget, Rows
from immunize.evaluation.attacks.grid import attack_all
from immunize.processes import closing_pool
from immunize.records import peak_memory_mib
from immunize.threads import cpu_threads

ROWS, FEATURES, CLASSES = 6_500, 512, 196
GENERATED = f"{ROWS:,} × {FEATURES} features, {CLASSES} classes, one extractor"
PAIR = "a pair of MNIST, all controls, start to exit"
CASES = {GENERATED: 360.0, PAIR: 240.0}
"""Limits in seconds."""
LIMIT_GB = 4.0
MNIST = ("harmful=mnist", "harmful.pair=[0,1]")


def generated(rows: int, n_features: int, n_classes: int, validation: float) -> AttackData:
    """Classes around centres of their own, and the same through an ill-conditioned map, with the former as θ_0's view.

    Args:
        rows: N of the attacker, to learn from and to tune on; as many of another quarter to be measured on.
        n_features: D.
        n_classes: C.
        validation: share of the attacker's rows to tune on.
    """
    import numpy as np  # by then it is told how its threads wait

    draws = np.random.default_rng(0)
    centres = draws.normal(size=(n_classes, n_features))
    decay = np.logspace(0, -3, n_features)
    n_validation = int(rows * validation)
    seen, plain = {}, {}
    for name, n in (("train", rows - n_validation), ("validation", n_validation), ("test", rows // 4)):
        y = draws.integers(n_classes, size=n)
        x = centres[y] + draws.normal(scale=2.0, size=(n, n_features))
        plain[name], seen[name] = Rows(x, y), Rows(x * decay, y)
    reference = AttackData(plain["train"], plain["validation"], plain["test"], n_classes)
    return AttackData(seen["train"], seen["validation"], seen["test"], n_classes, reference=reference)


def measure(rows: int, n_features: int, n_classes: int, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Run the grid; meant for a fresh process, whose memory is looked at.

    Args:
        rows: N, as in :func:`generated`.
        n_features: D.
        n_classes: C.
        overrides: of `conf/attack.yaml`.

    Returns:
        a row of attack.csv; `peak_gb` is the largest resident set of the process in 10⁹ bytes.
    """
    register()
    with initialize_config_dir(config_dir(), version_base="1.3"):
        cfg = compose("attack", list(overrides))
    data = generated(rows, n_features, n_classes, cfg.validation_fraction)
    entries, budget = entries_of(cfg), Budget(cfg.attack.budget.steps, cfg.attack.budget.flops)
    wall, process = time.perf_counter(), time.process_time()
    with cpu_threads(cfg.threads):
        cells = attack_all(data, entries, budget, 0, tell=lambda text: print(text, file=sys.stderr, flush=True))
    return {
        "case": GENERATED,
        "attacks": sum(cell["status"] != "skipped" for cell in cells.values()),
        "seconds": round(time.perf_counter() - wall, 1),
        "process_seconds": round(time.process_time() - process, 1),
        "peak_gb": round(peak_memory_mib() * 2**20 / 1e9, 2),
        "threads": cfg.threads,
    }


def measure_pair() -> dict[str, Any]:
    """Immunize a pair, and time the command that attacks it.

    Returns:
        a row of attack.csv; `peak_gb` is that of the largest process.

    Raises:
        UserError: a command failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        python = [sys.executable, "-m"]
        timed_command([*python, "immunize.train", *MNIST, "figure=false", f"hydra.run.dir={folder}"])
        seconds, processor_s, _ = timed_command([*python, "immunize.attack", f"run={folder}"])
        record = json.loads((Path(folder) / "attack_record.json").read_text(encoding="utf-8"))
    statuses = (
        attack["status"]
        for extractors in record["attacks"].values()
        for attacks in extractors.values()
        for attack in attacks.values()
    )
    return {
        "case": PAIR,
        "attacks": len(record["config"]["seeds"]) * sum(status != "skipped" for status in statuses),
        "seconds": round(seconds, 1),
        "process_seconds": round(processor_s, 1),
        "peak_gb": round(record["peak_memory_mib"] * 2**20 / 1e9, 2),
        "threads": record["hardware"]["threads"],
    }


def run(out: Path) -> None:
    """Run both, print what they took and write `attack.csv`.

    Args:
        out: the folder of results.
    """
    with closing_pool(1, 1) as pool:  # a fresh process, which does not outlive this one
        rows = [pool.submit(measure, ROWS, FEATURES, CLASSES).result()]
    data = os.environ.get("IMMUNIZE_DATA")
    if data and (Path(data) / "MNIST").is_dir():
        rows.append(measure_pair())
    else:
        print(f"left out, no MNIST in IMMUNIZE_DATA: {PAIR}", file=sys.stderr)
    write_csv(out / "attack.csv", rows)
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
