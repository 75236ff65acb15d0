"""Linear models under the grid: the map of a run or checkpoint, its tasks, and what it is compared with.

θ_0 is the identity, the baseline of RIR: the attacker has the raw rows. The control is a random orthogonal map, an
immunization that changes nothing.

Tasks. Where a data set has targets to tell its rows apart (regression, classes), the task is its own. The digit
pairs have one class a data set: the harmful task is to tell D_H's digit from D_P's, the binary task of App. C.2, and a
benign task tells a third digit from D_P's, so that nothing but the digit differs between harmful and benign.

Sees every room; no room sees it. Shapes: N samples, D features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from immunize.attack_grid.target import EXTRACTORS, GridPlan, Pointed, Target, Task, random_rotation
from immunize.checkpoints import load_checkpoint
from immunize.data.digits import DigitPairSource
from immunize.data.loading import LoadedPair, load_pair
from immunize.data.splits import ROLES, Role, Splits
from immunize.errors import DataError, UserError
from immunize.evaluation.attacks import AttackData, Rows
from immunize.spectrum.ranges import within_span

if TYPE_CHECKING:
    from immunize.data import SourceBase

Split = tuple[AttackData, dict[str, int]]
"""The attacker's rows, and how many were moved among them, by the set they were drawn for; empty where none can be."""

NO_BENIGN = "these data have two targets and no third, so nothing is known of what else was made hard"


@dataclass(frozen=True)
class LinearTarget(Target):
    """An immunized linear extractor and the data it was immunized on, as the grid sees them.

    Attributes:
        theta: (D, D) float64, acting on rows.
        sources: D_P and D_H.
        splits: their rows.
        new_splits: the same for another pair of digits.
        benign_digits: how many third digits are tried.
    """

    theta: Tensor
    sources: tuple[SourceBase, SourceBase]
    splits: tuple[Splits, Splits]
    new_splits: Callable[[list[int]], tuple[Splits, Splits]]
    benign_digits: int

    def tasks(self, seed: int) -> dict[str, Task]:
        """As the base class has it; of digits the harmful one and other digits beside D_P's."""
        maps = self.extractors(seed)

        def task(kind: str, about: str, split: Split) -> Task:
            return Task(kind, about, split[0], lambda extractor: seen_by(maps[extractor], split[0]), split[1])

        found: dict[str, Task] = {}
        digits = _digits(self.sources[1])
        if digits is None:
            kinds = ("harmful", "pretrain")
            for kind in self.plan.wanted(kinds):
                which = ROLES.index(kind)
                source, rows = self.sources[which], self.splits[which]
                found[kind] = task(kind, _about(source), _own(source, rows, self.plan, (seed, kinds.index(kind))))
            return found
        p, h = digits
        about = f"{self.sources[1].name}: tell {{}} from {p}"
        found["harmful"] = task("harmful", about.format(h), _pooled(*self.splits, self.plan, (seed, 0, h)))
        others = [digit for digit in range(10) if digit not in (p, h)]
        for q in others[: self.benign_digits]:
            own = _pooled(*self.new_splits([p, q]), self.plan, (seed, 0, q))
            found[f"benign_{q}"] = task("benign", about.format(q), own)
        return {name: found[name] for name in self.plan.wanted(found)}

    def extractors(self, seed: int) -> dict[str, Tensor | None]:
        """Maps by name, in the order of `EXTRACTORS`; None is the identity."""
        control = torch.from_numpy(random_rotation(len(self.theta), seed))
        return dict(zip(EXTRACTORS, (None, self.theta, control), strict=True))


def linear_target(pointed: Pointed, plan: GridPlan, benign_digits: int) -> LinearTarget:
    """The map that is pointed at, with its data.

    Args:
        pointed: the run or checkpoint.
        plan: how rows are split.
        benign_digits: how many third digits are tried.

    Raises:
        UserError: a checkpoint or data that are not those of the run.
    """

    def new_splits(digits: list[int]) -> tuple[Splits, Splits]:
        return _measured(load_pair(*(pointed.new_source(role, pair=digits) for role in ROLES)), pointed)

    sources = (pointed.new_source("pretrain"), pointed.new_source("harmful"))
    for source in sources:
        source.require()
    loaded = load_pair(*sources)
    splits = _measured(loaded, pointed)
    of_role = dict(zip(ROLES, sources, strict=True))
    facts = pointed.facts(of_role, loaded.hash)
    if _digits(sources[1]) is None:
        facts["benign"] = NO_BENIGN
    thetas = load_checkpoint(pointed.path, splits[1].fit.x.shape[1], config_hash=pointed.record.get("config_hash"))
    theta = thetas["fit"]
    if plan.own_rows and "cross_fit" in thetas and not pointed.record:
        raise UserError("own_rows=true needs run=: which half of the rows this checkpoint never saw, its record knows")
    if plan.own_rows and "cross_fit" in thetas:  # which was fitted on one half of the rows, and never saw the other
        halves = load_pair(*sources, cross_fit=pointed.record["seed"]).splits
        theta, splits = thetas["cross_fit"], (halves["pretrain"], halves["harmful"])
    return LinearTarget(facts, plan, None, theta, sources, splits, new_splits, benign_digits)


def _measured(loaded: LoadedPair, pointed: Pointed) -> tuple[Splits, Splits]:
    """The rows of both data sets, without held-out ones if the run was not judged by these.

    In their place are then those of `fit` that the run had set aside, and of another digit as many, drawn likewise.
    """
    if pointed.selection is None:
        return loaded.splits["pretrain"], loaded.splits["harmful"]
    from immunize.data.pair import part_in_two  # Lightning is long to load

    def within_fit(role: Role) -> Splits:
        fit = loaded.splits[role].fit
        return Splits(*part_in_two(fit, **pointed.aside, role=role, what=f"{len(fit)} rows ({role})"))

    return within_fit("pretrain"), within_fit("harmful")


def seen_by(theta: Tensor | None, raw: AttackData) -> AttackData:
    """A task as an extractor shows it, with θ_0's view as the reference.

    Args:
        theta: (D, D) float64; None is θ_0 itself.
        raw: as θ_0 = I shows it.
    """
    referring = AttackData(raw.train, raw.validation, raw.test, raw.n_classes, reference=raw)
    return referring if theta is None else referring.mapped(lambda x: x @ theta.numpy())


def _digits(source: SourceBase) -> tuple[int, int] | None:
    return source.digits if isinstance(source, DigitPairSource) else None


def _about(source: SourceBase) -> str:
    facts = source.describe()
    return f"{source.name}: {facts['target']}" if "target" in facts else f"{source.name}, {source.task}"


def _own(source: SourceBase, splits: Splits, plan: GridPlan, stream: tuple[int, ...]) -> Split:
    """The data set's own targets."""
    x, y = splits.fit.x.numpy(), splits.fit.y.numpy()
    held = None if splits.held_out is None else (splits.held_out.x.numpy(), splits.held_out.y.numpy())
    n_classes = {"regression": 0, "binary": 2}.get(source.task, int(y.max()) + 1)
    return _split(x, y, held, n_classes, plan, stream=stream)


def _pooled(first: Splits, second: Splits, plan: GridPlan, stream: tuple[int, ...]) -> Split:
    """Rows of two data sets with one class each."""

    def together(parts: list[Any]) -> tuple[Any, Any]:
        x = np.concatenate([part.x.numpy() for part in parts])
        return x, np.repeat(np.arange(len(parts)), [len(part) for part in parts])

    x, y = together([first.fit, second.fit])
    return _split(x, y, together([first.held_out, second.held_out]), 2, plan, stream=stream)


def _split(x: Any, y: Any, held: Any, n_classes: int, plan: GridPlan, *, stream: tuple[int, ...]) -> Split:
    """The attacker's rows, and those that it is measured on."""
    n, n_held = len(x), 0 if held is None else len(held[0])
    if held is not None:
        x, y = (np.concatenate(both) for both in zip((x, y), held, strict=True))
    stays, aside, test = plan.split(n, n_held, stream, y if n_classes else None)
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
        within = within_span(torch.from_numpy(x), torch.from_numpy(stays)).numpy()
        if all(within[rows].all() for rows in others):
            return stays, *others
        stays = np.concatenate([stays, *(rows[~within[rows]] for rows in others)])
        others = tuple(rows[within[rows]] for rows in others)
