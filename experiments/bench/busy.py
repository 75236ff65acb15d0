"""Commands of the README beside busy processes: at most what a fair share of the cores costs.

Each command runs alone, beside one plain loop a core, and beside one process a core that multiplies matrices with
torch, as another run does. A process that wants one core then gets half of one at least: at most 2.5 times as long is
promised, half a time for what sharing costs beside. Commands whose data are not in IMMUNIZE_DATA are left out, and
said. Writes busy.csv.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.bench.machine import show, timed_command, write_csv
from immunize.threads import WAITING, cores

LIMIT = 2.5
LOADS = {
    "loops": "print(flush=True)\nwhile True: pass",
    "torch": "import torch\ntorch.set_num_threads(1)\nx = torch.randn(600, 600)\nprint(flush=True)\nwhile True: x @ x",
}
"""What each of the busy processes runs, by name of the load; a line tells that it has begun."""

RUN = "{folder}/demo"
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {  # name: what has to be in IMMUNIZE_DATA, arguments of Python
    "train harmful=digits": ("", ("immunize.train", f"hydra.run.dir={RUN}", "overwrite=true")),
    "attack run=outputs/demo attack=quick": ("", ("immunize.attack", f"run={RUN}", "attack=quick", "overwrite=true")),
    "evaluate run=outputs/demo": ("", ("immunize.evaluate", f"run={RUN}")),
    "train harmful=housing method=ours": ("house_prices", ("immunize.train", "harmful=housing", "method=ours")),
    "train harmful=mnist harmful.pair=[0,1] method=ours": (
        "MNIST",
        ("immunize.train", "harmful=mnist", "harmful.pair=[0,1]", "method=ours"),
    ),
    "train harmful=mnist harmful.pair=[6,2] method=closed_form": (
        "MNIST",
        ("immunize.train", "harmful=mnist", "harmful.pair=[6,2]", "method=closed_form"),
    ),
    "forecast harmful=mnist harmful.pair=[3,8]": (
        "MNIST",
        ("immunize.forecast", "harmful=mnist", "harmful.pair=[3,8]"),
    ),
    "pretrain model=resnet_small pretrain=digits": (
        "",
        ("immunize.pretrain", "model=resnet_small", "pretrain=digits", "augment=false", "overwrite=true"),
    ),
}


@contextlib.contextmanager
def loaded(load: str, count: int) -> Iterator[None]:
    """Keep the cores busy within.

    Args:
        load: one of `LOADS`.
        count: how many processes.
    """
    environment = {name: value for name, value in os.environ.items() if name not in WAITING}
    command = [sys.executable, "-c", LOADS[load]]
    busy = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in busy:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in busy:
            process.kill()
            process.communicate()


def measure(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """One command alone and beside each load.

    Args:
        name: to call it by.
        arguments: of `python -m`.

    Returns:
        `command`, `idle_s`, and by load its seconds and the ratio.

    Raises:
        UserError: the command failed.
    """

    def timed() -> float:
        with tempfile.TemporaryDirectory() as fresh:  # attacks that are there would not be done again
            own = [f"cells={fresh}"] if arguments[0] == "immunize.attack" else []
            seconds, *_ = timed_command([sys.executable, "-m", *arguments, *own])
        return seconds

    idle = timed()
    row: dict[str, Any] = {"command": name, "idle_s": idle}
    for load in LOADS:
        with loaded(load, cores()):
            seconds = timed()
        row |= {f"{load}_s": seconds, f"{load}_ratio": round(seconds / idle, 2)}
    return row


def run(out: Path) -> None:
    """Measure all, print the ratios, and write `busy.csv`.

    Args:
        out: the folder of results.

    Raises:
        UserError: a command failed.
    """
    rows, data = [], os.environ.get("IMMUNIZE_DATA")
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (needs, arguments)) in enumerate(COMMANDS.items()):
            if needs and not (data and (Path(data) / needs).is_dir()):
                print(f"left out, no {needs} in IMMUNIZE_DATA: {name}", file=sys.stderr)
                continue
            print(name, file=sys.stderr)
            words = [word.format(folder=folder) for word in arguments]
            if not any(RUN.format(folder=folder) in word for word in words):
                words += [f"hydra.run.dir={folder}/{number}", "overwrite=true"]
            rows.append(measure(name, words))
    write_csv(out / "busy.csv", rows)
    show(f"beside one busy process a core, at most {LIMIT:g} times", rows)
