"""`make closed_form_mnist`: the closed form on all 90 MNIST pairs, four budgets each, on `fit` and on held-out data.

    python -m experiments.closed_form_mnist [out=folder] [cache=folder] [data_root=data] [workers=2] [pairs=01,38]

Four budgets a pair, one ρ for all:

validated   the B of `BUDGETS` with the largest RIR (`ridge`) on a fifth of the images of `fit`, set aside
auto        `budget=auto` of `closed_form`, on the same fifth
auto_ridge  the same with ``estimator="ridge", harder_by=1``, which `choose_budget` recommends for such data
defining    the smallest B, to `PRECISION`, with (i) ≥ 2 by `spectrum` on `fit`: where (a) of Definition 3.1 begins

Everything is computed in an orthonormal basis of the span of all images of a pair, training and test (n of D = 784
columns), in which every spectrum is the same (`spectrum.ranges`); ρ counts tr(K)/D as it does in D columns. Pairs that
are done are kept below outputs/closed_form_mnist, so that the same command goes on where it stopped.

What a worker process does is in `worker.py`, the numbers of a pair in `pair.py`, what is made of them in `report.py`.

Shapes: N images, D = 784 pixels.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from experiments.closed_form_mnist.report import NAME, flat, readme_of
from experiments.closed_form_mnist.worker import run_pairs, stored
from experiments.reporting import digit_pairs, key_values, write_csv
from immunize.cli import entry_point, explain_errors
from immunize.config import data_folder
from immunize.processes import end_with_parent


@entry_point
def main() -> None:
    """Run what is missing, then write results.csv and README.md."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> Path:
    """Run the pairs and write the report; see the module's note.

    Raises:
        UserError: a bad argument, or MNIST is missing.
    """
    given = key_values(arguments, {"out", "data_root", "workers", "pairs", "cache"})
    root = data_folder(given.get("data_root")) or "data"
    pairs = digit_pairs(given.get("pairs", ""))
    cache, out = Path(given.get("cache", f"outputs/{NAME}")), Path(given.get("out", f"experiments/{NAME}"))
    from immunize.data.mnist import Mnist

    Mnist(root, pairs[0], "pretrain").require()
    started = time.perf_counter()
    # Both orders of a pair share their images, so that they belong to one worker.
    todo: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for pair in pairs:
        if stored(cache, pair) is None:
            todo.setdefault(tuple(sorted(pair)), []).append(pair)
    workers = int(given.get("workers", 2))
    with ProcessPoolExecutor(workers, get_context("spawn"), end_with_parent, (os.getpid(),)) as pool:
        for done in pool.map(functools.partial(run_pairs, root=root, cache=cache), todo.values()):
            print(f"done: {', '.join(f'{p}→{h}' for p, h in done)}", file=sys.stderr, flush=True)
    wall = time.perf_counter() - started
    rows = [row for pair in pairs if (row := stored(cache, pair)) is not None]
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "results.csv", [flat(row) for row in rows])
    readme = readme_of(rows, wall if sum(map(len, todo.values())) == len(pairs) else None)
    (out / "README.md").write_text(readme, encoding="utf-8")
    print(readme, end="")
    return out


if __name__ == "__main__":
    main()
