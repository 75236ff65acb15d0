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

The numbers of a pair are in `experiments.closed_form_pair`, what is made of them in `experiments.closed_form_report`.

Shapes: N images, D = 784 pixels.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.closed_form_pair import RHO, SETTINGS, Side, measure_pair
from experiments.closed_form_report import NAME, flat, readme_of
from experiments.reporting import key_values, write_csv
from immunize.cli import entry_point, explain_errors
from immunize.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

DIGITS = range(10)


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
    root = given.get("data_root") or os.environ.get("IMMUNIZE_DATA", "data")
    pairs = parse_pairs(given.get("pairs", ""))
    cache, out = Path(given.get("cache", f"outputs/{NAME}")), Path(given.get("out", f"experiments/{NAME}"))
    from immunize.data.mnist import Mnist

    Mnist(root, pairs[0], "pretrain").require()
    started = time.perf_counter()
    # Both orders of a pair share their images, so that they belong to one worker.
    todo: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for pair in pairs:
        if _done(cache, pair) is None:
            todo.setdefault(tuple(sorted(pair)), []).append(pair)
    with ProcessPoolExecutor(int(given.get("workers", 2)), get_context("spawn")) as pool:
        for done in pool.map(functools.partial(run_pairs, root=root, cache=cache), todo.values()):
            print(f"done: {', '.join(f'{p}→{h}' for p, h in done)}", file=sys.stderr, flush=True)
    wall = time.perf_counter() - started
    rows = [row for pair in pairs if (row := _done(cache, pair)) is not None]
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "results.csv", [flat(row) for row in rows])
    readme = readme_of(rows, wall if sum(map(len, todo.values())) == len(pairs) else None)
    (out / "README.md").write_text(readme, encoding="utf-8")
    print(readme, end="")
    return out


def parse_pairs(text: str) -> list[tuple[int, int]]:
    """ "01,38" to [(0, 1), (3, 8)]; all 90 ordered pairs for an empty text.

    Raises:
        UserError: not pairs of two different digits.
    """
    if not text:
        return [(p, h) for p in DIGITS for h in DIGITS if p != h]
    words = text.split(",")
    for word in words:
        if len(word) != 2 or not word.isdecimal() or word[0] == word[1]:
            raise UserError(f"pairs={text}: write two different digits a pair, as in pairs=01,38")
    return [(int(word[0]), int(word[1])) for word in words]


def run_pairs(pairs: list[tuple[int, int]], *, root: str, cache: Path) -> list[tuple[int, int]]:
    """Both orders of a pair of digits, or one; writes a file each."""
    import torch

    torch.set_num_threads(1)
    sides, pixels = _images(root, tuple(sorted(pairs[0])))
    for pair in pairs:
        clock = time.process_time()
        row = measure_pair(*(sides[digit] for digit in pair))
        spent = {"cpu_seconds": time.process_time() - clock}
        spent |= time_alone(*(pixels[digit] for digit in pair), row["validated"]["budget"])
        row = {"pair": list(pair), "settings": SETTINGS, **row, **spent}
        cache.mkdir(parents=True, exist_ok=True)
        partial = cache / f".{_file(pair)}"
        partial.write_text(json.dumps(row) + "\n", encoding="utf-8")
        os.replace(partial, cache / _file(pair))
    return pairs


def time_alone(pretrain: Tensor, harmful: Tensor, budget: float) -> dict[str, float]:
    """Seconds that `closed_form` takes from pixels to θ, by the clock and of this process.

    Args:
        pretrain: (N_P, D) training images of D_P's digit.
        harmful: (N_H, D), of D_H's.
        budget: B.
    """
    from immunize.spectrum import closed_form

    wall, cpu = time.perf_counter(), time.process_time()
    closed_form(pretrain, harmful, budget=budget, shrinkage=RHO)
    return {"alone_seconds": time.perf_counter() - wall, "alone_cpu_seconds": time.process_time() - cpu}


def _images(root: str, digits: tuple[int, ...]) -> tuple[dict[int, Side], dict[int, Tensor]]:
    """Both digits' images, balanced against each other as every run has them, in the joint range of all of them.

    And the (N, D) pixels of the training images.
    """
    from immunize.data.mnist import Mnist
    from immunize.spectrum import compress_rows, joint_basis

    parts = {
        digit: Mnist(root, (digit, other), "pretrain").load() for digit, other in zip(digits, digits[::-1], strict=True)
    }
    rows = {digit: (of.fit.x, of.held_out.x) for digit, of in parts.items() if of.held_out is not None}
    basis = joint_basis(*(compress_rows(x) for pair in rows.values() for x in pair))
    sides = {digit: Side(fit @ basis, held_out @ basis) for digit, (fit, held_out) in rows.items()}
    return sides, {digit: fit for digit, (fit, _) in rows.items()}


def _file(pair: tuple[int, int]) -> str:
    return f"{pair[0]}_{pair[1]}.json"


def _done(cache: Path, pair: tuple[int, int]) -> dict[str, Any] | None:
    """The numbers of a pair, if they are there."""
    path = cache / _file(pair)
    row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return row if row.get("settings") == SETTINGS else None


if __name__ == "__main__":
    main()
