"""MNIST 0 → 1 and House Prices, `method=ours`, as a user runs them: a fresh process, against the promised limits.

    table 4       its 30 epochs of mini-batches of 64                              at most 90 s
    default       conf/objective/linear_mnist.yaml, to the same or better RIR     at most 30 s, 5 ms a step
    full batch    Algorithm 1 on the exact K, to the same or better RIR           at most 30 s
    all                                                                           at most 0.8 GB of memory
    House Prices  its default, fit and cross-fit                                  at most 8 s of work, after imports

Writes mnist.csv and housing.csv. released_code.csv beside it holds what was measured with the authors' released code.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.bench.machine import HERE, read, show, timed_command, write_csv

CASES: dict[str, tuple[float, tuple[str, ...]]] = {  # name: limit in seconds, overrides
    "table 4": (90.0, ("objective=linear_mnist_table4",)),
    "default": (30.0, ("objective=linear_mnist",)),
    "full batch": (30.0, ("objective=linear_mnist_full_batch",)),
}
LIMIT_GB, STEP_MS, WORK_S = 0.8, 5.0, 8.0
HOUSING = ("harmful=housing", "method=ours", "seed=0")
PAIR = ("harmful=mnist", "harmful.pair=[0,1]", "method=ours", "seed=0")
PARTS = ("fit", "held_out")
ESTIMATORS = ("released", "spectrum", "ridge")


def measure(overrides: Sequence[str]) -> dict[str, Any]:
    """One run of `python -m immunize.train` in a process of its own.

    Args:
        overrides: of the command.

    Returns:
        `seconds` from start to exit of the process; `work_s` without imports, of which `training_s` and
        `evaluation_s`; `peak_gb`, the largest resident set of the process in 10⁹ bytes; and RIR by part and estimator.

    Raises:
        UserError: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "immunize.train", *overrides, "logger=none", f"hydra.run.dir={folder}"]
        seconds, _, peak_bytes = timed_command(command)
        record = json.loads((Path(folder) / "record.json").read_text(encoding="utf-8"))
    training = record["training"].values()
    steps, training_s = sum(one["steps"] for one in training), sum(one["seconds"] for one in training)
    return {
        "steps": steps,
        "seconds": round(seconds, 1),
        "work_s": round(record["seconds"], 1),
        "training_s": round(training_s, 1),
        "evaluation_s": round(record["seconds_evaluating"], 1),
        "ms_a_step": round(1e3 * training_s / steps, 2) if steps else None,
        "peak_mib": round(peak_bytes / 1024**2),
        "peak_gb": round(peak_bytes / 1e9, 2),
        **{f"rir_{part}_{name}": record["metrics"][part][name]["rir"] for part in PARTS for name in ESTIMATORS},
        "cores": record["hardware"]["cores"],
        "threads": record["hardware"]["threads"],
    }


def run(out: Path) -> None:
    """Run all, print them beside the released code's numbers, and write `mnist.csv` and `housing.csv`.

    Args:
        out: the folder of results.

    Raises:
        UserError: a run failed.
    """
    rows = []
    for name, (limit, settings) in CASES.items():
        overrides = [*PAIR, *settings]
        command = f"python -m immunize.train {' '.join(overrides)}"
        print(command, file=sys.stderr)
        rows.append({"run": name, **measure(overrides), "limit_s": limit, "command": command})
    write_csv(out / "mnist.csv", rows)
    write_csv(out / "housing.csv", [measure(HOUSING)])
    left_out = ("command", "cores", "threads", "peak_mib", "source")
    every = [*rows, *read(HERE / "released_code.csv")]
    show("MNIST 0 → 1, ours, one process", [{k: v for k, v in row.items() if k not in left_out} for row in every])
