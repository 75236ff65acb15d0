"""Linear models under the grid: the map of a run or checkpoint, its tasks, and what it is compared with.

θ_0 is the identity, the baseline of RIR: the attacker has the raw rows. The control is a random orthogonal map, an
immunization that changes nothing.

Tasks. Where a data set has targets to tell its rows apart (regression, classes), the task is its own. The digit
pairs have one class a data set: the harmful task is to tell D_H's digit from D_P's, the binary task of App. C.2, and a
benign task tells a third digit from D_P's, so that nothing but the digit differs between harmful and benign.

Sees every room; no room sees it. Shapes: N samples, D features.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig

from immunize.attacking.targets import EXTRACTORS, Task, pointed_at, random_rotation, split_rows, wanted_tasks
from immunize.building import build
from immunize.checkpoints import load_checkpoint
from immunize.data.loading import load_pair
from immunize.data.parts import ROLES, Splits
from immunize.errors import CheckpointError, DataError, UserError
from immunize.evaluation.attacks import AttackData, Rows
from immunize.records import file_digest

if TYPE_CHECKING:
    from torch import Tensor

    from immunize.data import Source

__all__ = ["LinearTarget", "RawTask", "Subject", "extractors", "seen_by", "subject_of", "tasks_of"]

RANGE_TOLERANCE = 1e-8
"""A row leaves the span of others if so much of it, relative to its length, does; rounding is at 1e-13."""


@dataclass(frozen=True)
class Subject:
    """An immunized linear extractor and the data it was immunized on.

    Attributes:
        theta: (D, D) float64, acting on rows.
        sources: D_P and D_H.
        splits: their rows.
        nodes: their configurations, D_P first.
        facts: for the record.
    """

    theta: Tensor
    sources: tuple[Source, Source]
    splits: tuple[Splits, Splits]
    nodes: tuple[DictConfig, DictConfig]
    facts: dict[str, Any]


Split = tuple[AttackData, dict[str, int]]
"""The attacker's rows, and how many were moved among them, by the set they were drawn for; empty where none can be."""

NO_BENIGN = "these data have two targets and no third, so nothing is known of what else was made hard"


@dataclass(frozen=True)
class RawTask:
    """A task in the rows' own coordinates.

    Attributes:
        kind: "harmful", "pretrain" or "benign".
        about: in words.
        data: as θ_0 = I shows it.
        moved: rows to be tuned and measured on that are trained on instead, see :func:`_within_range`.
    """

    kind: str
    about: str
    data: AttackData
    moved: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LinearTarget:
    """A linear model as the grid sees it.

    Attributes:
        subject: the model.
        cfg: the composed configuration.
    """

    subject: Subject
    cfg: DictConfig

    @property
    def facts(self) -> dict[str, Any]:
        """For the record."""
        paired = getattr(self.subject.sources[1], "digits", None) is not None
        return self.subject.facts | ({} if paired else {"benign": NO_BENIGN})

    @property
    def has_network(self) -> bool:
        """There are no weights but θ itself."""
        return False

    def tasks(self, seed: int) -> dict[str, Task]:
        """Every wanted task by name, split with this seed."""
        maps = extractors(self.subject, seed)

        def task_of(raw: RawTask) -> Task:
            return Task(raw.kind, raw.about, raw.data, lambda extractor: seen_by(maps[extractor], raw.data), raw.moved)

        raws = tasks_of(self.subject, self.cfg, seed)
        return {name: task_of(raws[name]) for name in wanted_tasks(self.cfg, raws)}


def subject_of(cfg: DictConfig) -> Subject:
    """The map that the configuration points at, with its data.

    Args:
        cfg: composed (`conf/attack.yaml`).

    Raises:
        UserError: neither or both of `run` and `checkpoint`, a run that did not finish, a checkpoint or data that are
            not those of the run, a model that is not linear.
    """
    pointed = pointed_at(cfg)
    if pointed.deep:
        raise UserError(f"model={pointed.nodes.model.name} is a network, not a linear model")
    return _load(pointed.nodes, pointed.path, pointed.record)


def _load(nodes: DictConfig, path: Path, record: dict[str, Any]) -> Subject:
    sources: tuple[Source, Source] = (build(nodes.pretrain), build(nodes.harmful))
    for source in sources:
        source.require()
    loaded = load_pair(*sources)
    splits = (loaded.splits["pretrain"], loaded.splits["harmful"])
    n_features, data_hash = splits[1].fit.x.shape[1], loaded.hash
    if record and data_hash != record["data_hash"]:
        raise CheckpointError("the data are not those of the run: their hash differs from the record's")
    theta = load_checkpoint(path, n_features, config_hash=record.get("config_hash"))["fit"]
    facts = {
        "model": nodes.model.name,
        "method": record.get("method"),
        "pretrain": sources[0].name,
        "harmful": sources[1].name,
        "run_seed": record.get("seed"),
        "run_config_hash": record.get("config_hash"),
        "data": {role: source.describe() for role, source in zip(ROLES, sources, strict=True)},
        "data_hash": data_hash,
        "checkpoint_sha256": file_digest(path),
    }
    return Subject(theta, sources, splits, (nodes.pretrain, nodes.harmful), facts)


def tasks_of(subject: Subject, cfg: DictConfig, seed: int) -> dict[str, RawTask]:
    """Every task of the grid, split into the attacker's rows for one seed.

    Args:
        subject: what is attacked.
        cfg: its `validation_fraction`, `test_fraction` and `benign_digits`.
        seed: of the splits.

    Raises:
        DataError: too few rows.
    """
    pretrain, harmful = subject.sources
    digits = getattr(harmful, "digits", None)
    if digits is None:
        rows = {"harmful": (harmful, subject.splits[1]), "pretrain": (pretrain, subject.splits[0])}
        return {
            kind: RawTask(kind, _about(source), *_own(source, splits, cfg, (seed, place)))
            for place, (kind, (source, splits)) in enumerate(rows.items())
        }
    p, h = digits
    tasks = {
        "harmful": RawTask(
            "harmful", f"{harmful.name}: tell {h} from {p}", *_pooled(*subject.splits, cfg, (seed, 0, h))
        )
    }
    others = [digit for digit in range(10) if digit not in (p, h)]
    for q in others[: cfg.benign_digits]:
        own = [_with_pair(node, [p, q]).load() for node in subject.nodes]
        about = f"{harmful.name}: tell {q} from {p}"
        tasks[f"benign_{q}"] = RawTask("benign", about, *_pooled(own[0], own[1], cfg, (seed, 0, q)))
    return tasks


def extractors(subject: Subject, seed: int) -> dict[str, Tensor | None]:
    """Maps by name, in the order of `EXTRACTORS`; None is the identity."""
    import torch

    control = torch.from_numpy(random_rotation(len(subject.theta), seed))
    return dict(zip(EXTRACTORS, (None, subject.theta, control), strict=True))


def seen_by(theta: Tensor | None, raw: AttackData) -> AttackData:
    """A task as an extractor shows it, with θ_0's view as the reference.

    Args:
        theta: (D, D) float64; None is θ_0 itself.
        raw: as θ_0 = I shows it.
    """
    referring = AttackData(raw.train, raw.validation, raw.test, raw.n_classes, reference=raw)
    return referring if theta is None else referring.mapped(lambda x: x @ theta.numpy())


def _about(source: Source) -> str:
    facts = source.describe()
    return f"{source.name}: {facts['target']}" if "target" in facts else f"{source.name}, {source.task}"


def _with_pair(node: DictConfig, pair: list[int]) -> Any:
    changed = copy.deepcopy(node)
    changed.pair = pair
    return build(changed)


def _own(source: Source, splits: Splits, cfg: DictConfig, stream: tuple[int, ...]) -> Split:
    """The data set's own targets."""
    x, y = splits.fit.x.numpy(), splits.fit.y.numpy()
    held = None if splits.held_out is None else (splits.held_out.x.numpy(), splits.held_out.y.numpy())
    n_classes = {"regression": 0, "binary": 2}.get(source.task, int(y.max()) + 1)
    return _split(x, y, held, n_classes, cfg, stream=stream)


def _pooled(first: Splits, second: Splits, cfg: DictConfig, stream: tuple[int, ...]) -> Split:
    """Rows of two data sets with one class each."""

    def together(parts: list[Any]) -> tuple[Any, Any]:
        x = np.concatenate([part.x.numpy() for part in parts])
        return x, np.repeat(np.arange(len(parts)), [len(part) for part in parts])

    x, y = together([first.fit, second.fit])
    return _split(x, y, together([first.held_out, second.held_out]), 2, cfg, stream=stream)


def _split(x: Any, y: Any, held: Any, n_classes: int, cfg: DictConfig, *, stream: tuple[int, ...]) -> Split:
    """The attacker's rows; held-out ones, if there are any, are those it is measured on."""
    stays, aside, test = split_rows(len(x), cfg, stream, held_out=held is not None)
    if held is not None:
        test = np.arange(len(x), len(x) + len(held[0]))
        x, y = (np.concatenate(both) for both in zip((x, y), held, strict=True))
    moved = {}
    if not n_classes:  # R² is one row's to ruin, accuracy is not
        drawn = {"validation": len(aside), "test": len(test)}
        stays, aside, test = _within_range(x, stays, aside, test)
        moved = {"validation": drawn["validation"] - len(aside), "test": drawn["test"] - len(test)}
        if name := next((name for name, rows in (("validation", aside), ("test", test)) if len(rows) < 2), None):
            raise DataError(
                f"{moved[name]} of {drawn[name]} {name} rows leave the span of the attacker's training rows in these "
                f"{x.shape[1]} columns, where no probe knows anything: an attack needs more rows, or fewer columns"
            )
    kind = np.int64 if n_classes else np.float64
    parts = ((x[np.sort(rows)], y[np.sort(rows)]) for rows in (stays, aside, test))
    train, validation, measured = (Rows(np.ascontiguousarray(a), b.astype(kind)) for a, b in parts)
    return AttackData(train, validation, measured, n_classes), moved


def _within_range(x: Any, stays: Any, *others: Any) -> tuple[Any, ...]:
    """Move rows that leave the span of the training rows (centred) into the training rows, whatever their set.

    A category that no training row has is a direction of which no probe knows anything. What it predicts there is an
    accident of its coordinates: with the raw rows the minimum-norm solution says 0, under any θ that is not orthogonal
    something else, and one such row in 230 of House Prices takes R² from 0.86 to -7.7. That is no protection. Without
    them least squares predicts the same under every invertible θ. Decided on the raw rows, for every extractor alike,
    also where the data set has held-out rows of its own: those that are moved are rows more for the attacker.
    """
    while True:
        mean = x[stays].mean(axis=0)
        _, sigma, vt = np.linalg.svd(x[stays] - mean, full_matrices=False)
        basis = vt[sigma > RANGE_TOLERANCE * sigma[0]]
        outside = []
        for rows in others:
            centred = x[rows] - mean
            rest = np.linalg.norm(centred - centred @ basis.T @ basis, axis=1)
            outside.append(rest > RANGE_TOLERANCE * np.linalg.norm(centred, axis=1))
        if not any(found.any() for found in outside):
            return stays, *others
        stays = np.concatenate([stays, *(rows[found] for rows, found in zip(others, outside, strict=True))])
        others = tuple(rows[~found] for rows, found in zip(others, outside, strict=True))
