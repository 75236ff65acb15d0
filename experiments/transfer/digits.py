"""The transfer matrix over the ten MNIST digits: maps of finished runs, attacked with every digit.

Shapes: N images, D = 784 pixels, k numerical rank.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.closed_form_mnist.pair import DIGITS, LIMIT, PIXELS, steps_of
from experiments.reporting import kept
from experiments.transfer.measures import Cell, Similarities, ratios
from immunize.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from immunize.evaluation.decomposition import Rows

METHODS = ("closed_form", "ours")
MOST, SECOND = 1, 7
"""The digits with the most images: a pair with them drops none of the other digit's."""


def digit_cells(runs: Path, pretrain: Sequence[int], seeds: Sequence[int], root: Path, cache: Path) -> list[Cell]:
    """Every cell for which there is a finished run of table2.

    Args:
        runs: the sweep's folder.
        pretrain: digits that are D_P, a matrix each.
        seeds: of the runs.
        root: of the data.
        cache: where the numbers of a map are kept.

    Raises:
        UserError: no such run.
        MissingDataError: MNIST is not there.
    """
    maps = found_maps(runs, pretrain, seeds)
    if not maps:
        raise UserError(
            f"{runs} holds no finished run of {' or '.join(METHODS)} on MNIST with D_P = "
            f"{', '.join(map(str, pretrain))}; make table2 first, or name its folder with runs="
        )
    digits = Digits(root)
    alikes = Similarities(lambda name: digits.gram(int(name)))
    cells = []
    for (method, p, h, seed), folder in maps.items():
        theta = (folder / "checkpoint.safetensors").read_bytes()
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        numbers = kept(
            cache / "mnist" / f"{method}_{p}{h}_{seed}.json",
            functools.partial(digits.measured, folder, p),
            f"{method}, {p}→{h}, seed {seed}",
            [hashlib.sha256(theta).hexdigest(), record["data_hash"], LIMIT],
        )
        for target, of in numbers.items():
            alike = asdict(alikes.of(str(p), str(h), target))
            cells.append(Cell("mnist", method, str(p), seed, str(h), target, **of, **alike))
    return cells


def found_maps(runs: Path, pretrain: Sequence[int], seeds: Sequence[int]) -> dict[tuple[str, int, int, int], Path]:
    """Folders of the finished runs by method, D_P's digit, D_H's digit and seed."""
    found: dict[tuple[str, int, int, int], Path] = {}
    for path in sorted(runs.glob("*/record.json")):
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if record.get("status") != "finished" or record["harmful"] != "mnist" or record["method"] not in METHODS:
            continue
        p, h = record["config"]["harmful"]["pair"]
        if p in pretrain and record["seed"] in seeds:
            found[record["method"], p, h, record["seed"]] = path.parent
    return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][1], item[0][3], item[0][2])))


class Digits:
    """Images of all digits, each read and reduced on first use.

    Args:
        root: of the data.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._grams: dict[int, Tensor] = {}
        self._held_out: dict[int, Rows] = {}
        self._steps: dict[int, float | None] = {}

    def gram(self, digit: int) -> Tensor:
        """K of the training images, (D, D) float64."""
        self._read(digit)
        return self._grams[digit]

    def measured(self, folder: Path, pretrain: int) -> dict[str, dict[str, float | None]]:
        """A run's θ attacked with every digit but D_P's, by digit: the numbers of a cell, on test images."""
        from immunize.checkpoints import load_checkpoint
        from immunize.evaluation.decomposition import decompose

        theta = load_checkpoint(folder / "checkpoint.safetensors", PIXELS)["fit"]
        plain = {digit: decompose(self.held_out(digit)) for digit in DIGITS}
        after = decompose(self.held_out(pretrain), theta)
        steps_pretrain = steps_of(after)
        numbers = {}
        for target in DIGITS:
            if target == pretrain:
                continue
            mine = decompose(self.held_out(target), theta)
            numbers[str(target)] = {
                **ratios((after, mine), (plain[pretrain], plain[target])),
                "probe": steps_of(mine),
                "probe_theta_0": self._raw_steps(target),
                "probe_pretrain": steps_pretrain,
                "probe_pretrain_theta_0": self._raw_steps(pretrain),
            }
        return numbers

    def held_out(self, digit: int) -> Rows:
        """Test images, reduced."""
        self._read(digit)
        return self._held_out[digit]

    def _raw_steps(self, digit: int) -> float | None:
        from immunize.evaluation.decomposition import decompose

        if digit not in self._steps:
            self._steps[digit] = steps_of(decompose(self.held_out(digit)))
        return self._steps[digit]

    def _read(self, digit: int) -> None:
        if digit in self._grams:
            return
        import torch

        from immunize.data.mnist import Mnist
        from immunize.evaluation.decomposition import compress

        splits = Mnist(self.root, (digit, SECOND if digit == MOST else MOST), "pretrain").load()
        self._grams[digit] = splits.fit.x.T @ splits.fit.x
        assert splits.held_out is not None  # MNIST has a test set
        # The targets are constant: a sign changes neither spectrum nor norm ratio.
        held = splits.held_out.x
        self._held_out[digit] = compress(held, torch.ones(len(held), dtype=torch.float64))
