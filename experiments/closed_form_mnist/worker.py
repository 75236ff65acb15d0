"""What a worker process of `experiments.closed_form_mnist` does: pairs of digits from their images to files of numbers.

A module of its own, because a process that is spawned cannot find what stands in the `__main__.py` that began it.

Shapes: N images, D = 784 pixels.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.closed_form_mnist.pair import RHO, SETTINGS, Side, measure_pair
from immunize.files import write_text

if TYPE_CHECKING:
    from torch import Tensor


def run_pairs(pairs: list[tuple[int, int]], *, root: str, cache: Path) -> list[tuple[int, int]]:
    """Both orders of a pair of digits, or one; writes a file each."""
    import torch

    torch.set_num_threads(1)
    sides, pixels = _images(root, tuple(sorted(pairs[0])))
    for pair in pairs:
        clock = time.process_time()
        pretrain, harmful = pair
        row = measure_pair(sides[pretrain], sides[harmful])
        spent = {"cpu_seconds": time.process_time() - clock}
        spent |= time_alone(pixels[pretrain], pixels[harmful], row["validated"]["budget"])
        row = {"pair": list(pair), "settings": SETTINGS, **row, **spent}
        write_text(cache / _file(pair), json.dumps(row) + "\n")
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


def stored(cache: Path, pair: tuple[int, int]) -> dict[str, Any] | None:
    """The numbers of a pair, if they are there."""
    path = cache / _file(pair)
    row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return row if row.get("settings") == SETTINGS else None


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
