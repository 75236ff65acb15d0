"""What the grid is pointed at, whatever the model: a run or a checkpoint, tasks seen through three extractors, splits.

:mod:`immunize.attack_grid.linear` has linear models, :mod:`immunize.attack_grid.network` networks. Sees every room; no
room sees it.

Shapes: N samples, D features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from immunize.data.splits import random_generator
from immunize.errors import CheckpointError, DataError, UserError
from immunize.files import read_object
from immunize.records import CHECKPOINT, file_digest, write_record

if TYPE_CHECKING:
    import torch

    from immunize.data import Role, SourceBase
    from immunize.evaluation.attacks import AttackData, Budget

EXTRACTORS = ("theta_0", "immunized", "random_orthogonal")
"""What every attack is run on; the first is the reference, the last the control."""

SPLIT_STREAM, CONTROL_STREAM = 0x5EED, 0xC0DE
"""Tell the attacker's draws apart from those of the data sets with the same seed."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """A task of the grid, split into the attacker's rows for one seed.

    Attributes:
        kind: "harmful", "pretrain" or "benign".
        about: in words.
        data: as θ_0 shows it.
        seen_by: the same through one of `EXTRACTORS`, with θ_0's view as the reference.
        moved: rows that were drawn to be tuned ("validation") and measured on ("test") and are trained on instead:
            they leave the span of the training rows; empty where none can be.
    """

    kind: str
    about: str
    data: AttackData
    seen_by: Callable[[str], AttackData]
    moved: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GridPlan:
    """What is tried, beside the attacks.

    Attributes:
        seeds: of the attacker's draws.
        threads: of every attack.
        jobs: processes; None for one a core, and for 1 where there are few rows and no network.
        budget: of every attack.
        tasks: names of those that are wanted; None for all.
        validation_fraction: share of the attacker's rows that it tunes on.
        own_rows: it has held-out rows, which the immunization never saw, and none of `fit`.
        test_fraction: share of the rows that it is measured on, where these are not all that are held out.
    """

    seeds: tuple[int, ...]
    threads: int
    jobs: int | None
    budget: Budget
    tasks: tuple[str, ...] | None
    validation_fraction: float
    own_rows: bool
    test_fraction: float

    def wanted(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are asked for, in their order.

        Raises:
            UserError: one is asked for that there is not, or the harmful one is left out.
        """
        there = list(names)
        if self.tasks is None:
            return there
        if unknown := [name for name in self.tasks if name not in there]:
            raise UserError(f"there is no task {unknown[0]!r} here; there are {', '.join(there)}")
        if "harmful" not in self.tasks:
            raise UserError("the verdict is about the harmful task: tasks=[...] has to name it")
        return [name for name in there if name in self.tasks]

    def split(
        self, n: int, n_held: int, stream: tuple[int, ...], classes: Numbers | None
    ) -> tuple[Numbers, Numbers, Numbers]:
        """The attacker's training, validation and test rows among those of `fit`, and of `held_out` behind them.

        Where all three are drawn from one pool every class has its share in each: a class with more training rows
        would have fewer test rows, and the best constant answer less than its share of them.

        Args:
            n: N of `fit`.
            n_held: of `held_out`; 0 where a data set has none.
            classes: of all these rows; None of a regression.
            stream: the seed first, then what sets this task apart.

        Raises:
            DataError: an attacker with rows of its own, and none are held out; or too few rows for three sets.
        """
        if self.own_rows and not n_held:
            raise DataError("own_rows=true takes held-out rows, and these data have none of their own")
        first, count = (n, n_held) if self.own_rows else (0, n)
        draws = random_generator(stream[0], SPLIT_STREAM, *stream[1:])
        order = first + draws.permutation(count)
        if n_held and not self.own_rows:
            test = n + np.arange(n_held)
        else:
            order = order if classes is None else order[_evenly(classes[order], draws)]
            n_test = round(count * self.test_fraction)
            test, order = order[:n_test], order[n_test:]
        n_aside = round(len(order) * self.validation_fraction)
        parts = order[n_aside:], order[:n_aside], test
        if min(map(len, parts)) < (2 if classes is None else 1):
            raise DataError(
                "an attacker would have {} rows to train on, {} to tune on and {} to be measured on: it needs more "
                "rows, or another validation_fraction or test_fraction".format(*map(len, parts))
            )
        return parts


def _evenly(classes: Numbers, draws: np.random.Generator) -> Numbers:
    """An order of rows in which every stretch has all classes by their shares, to a row, and of rare ones by chance.

    Args:
        classes: of the rows as they come, which is kept within each class.
        draws: where the rows of each class begin.
    """
    place = np.empty(len(classes))
    for one in np.unique(classes):
        rows = np.flatnonzero(classes == one)
        place[rows] = (np.arange(len(rows)) + draws.random()) / len(rows)
    return np.argsort(place, kind="stable")


@dataclass(frozen=True)
class Target(ABC):
    """What is attacked.

    Attributes:
        facts: for the record.
        plan: how rows are split, and which tasks are wanted.
        device: where the network computes whose weights an attacker can move (T4); None of a linear model.
    """

    facts: dict[str, Any]
    plan: GridPlan
    device: torch.device | None

    @abstractmethod
    def tasks(self, seed: int) -> dict[str, Task]:
        """Every wanted task by name, split with this seed.

        Raises:
            DataError: too few rows.
        """


@dataclass(frozen=True)
class Pointed:
    """A run, or a checkpoint with a model and data.

    Attributes:
        model: its name.
        new_source: from a role, and settings of its data set that are to be others, to the data set where it lies now.
        path: of the checkpoint.
        record: of the run; empty for a checkpoint.
    """

    model: str
    new_source: Callable[..., SourceBase]
    path: Path
    record: dict[str, Any]

    @property
    def selection(self) -> str | None:
        """The run's: "validation" where it was judged by rows that it had set aside."""
        return self.record["config"].get("selection") if self.record else None

    @property
    def aside(self) -> dict[str, Any]:
        """How a pair sets aside what the run had set aside to be judged by, if anything: its share, and the seed."""
        if self.selection is None:
            return {}
        objective = self.record["config"]["objective"]
        return {"validation_fraction": objective["validation_fraction"], "seed": self.record["seed"]}

    @property
    def name(self) -> str:
        """What a checkpoint is called by: its file, or where all files have one name its folder."""
        return (self.path.parent.name if self.path.name == CHECKPOINT else "") or self.path.stem

    def facts(self, sources: Mapping[Role, SourceBase], data_hash: str) -> dict[str, Any]:
        """What is attacked, for the record.

        Args:
            sources: D_P and D_H.
            data_hash: of both.

        Raises:
            CheckpointError: the data are not those of the run.
        """
        if self.record and data_hash != self.record["data_hash"]:
            raise CheckpointError("the data are not those of the run: their hash differs from the record's")
        return {
            "model": self.model,
            "method": self.record.get("method", self.name),
            **{role: source.name for role, source in sources.items()},
            "run_seed": self.record.get("seed"),
            "run_config_hash": self.record.get("config_hash"),
            **({} if self.selection is None else {"selection": self.selection, "benign_rows": "fit"}),
            **{name: self.record[name] for name in ("pretrain_accuracy",) if name in self.record},  # of networks
            "data": {role: source.describe() for role, source in sources.items()},
            "data_hash": data_hash,
            "checkpoint_sha256": file_digest(self.path),
        }


def random_rotation(size: int, seed: int) -> npt.NDArray[np.float64]:
    """The control: a random orthogonal map (D, D) for one seed."""
    q, r = np.linalg.qr(random_generator(seed, CONTROL_STREAM).standard_normal((size, size)))
    return np.ascontiguousarray(q * np.sign(np.diag(r)))  # the signs make it Haar


class CellFolder:
    """Finished attacks as files, one a cell with the commit that computed it, written whole or not at all.

    Args:
        folder: made when the first is written.
        commit: of the code that computes.
    """

    def __init__(self, folder: Path, commit: str | None) -> None:
        self.folder, self.commit = folder, commit

    def get(self, key: str) -> dict[str, Any] | None:
        """The cell with this key; None if there is none that can be read."""
        cell = read_object(self.folder / f"{key}.json")
        return {"git_commit": None, **cell} if cell is not None and "curves" in cell else None

    def put(self, key: str, cell: dict[str, Any]) -> None:
        """Write a cell."""
        write_record(self.folder, {**cell, "git_commit": self.commit}, f"{key}.json")
