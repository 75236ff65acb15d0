"""A linear model in a run: θ in memory, full batches or rows, norm ratios.

Sees every room; no room sees it. Shapes: N samples, D features, C outputs.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.loggers import Logger
from torch import Tensor

from immunize.checkpoints import load_checkpoint, save_checkpoint
from immunize.data import Role
from immunize.data.pair import PairedData
from immunize.errors import CheckpointError, UserError
from immunize.evaluation import evaluate_part, part_numbers
from immunize.features.linear import LinearExtractor
from immunize.instantiate import check_loss
from immunize.memoize import give_back_memory
from immunize.objective import Objective, new_head
from immunize.pipeline.fit import HEAD_STREAM, Fit, Telling, Training, facts_of, train
from immunize.records import diverged_cross_fit
from immunize.spectrum.ranges import joint_basis, lift_map, restrict_map
from immunize.training import LinearModule, compressed
from immunize.training.callbacks import ImmunityMonitor, ValidationStop

COLUMNS = ("auto", "joint", "all")
"""Values of `model.columns`."""

JOINT_FROM, JOINT_BELOW = 256, 0.9
"""`model.columns=auto` trains on the joint range where D is at least the first, and n/D at most the second."""

ONE_THREAD_UP_TO = 1024
"""Largest D at which a run keeps to one thread: a second one saves a quarter of the time at most, and other numbers of
cores would round otherwise."""


@dataclass(frozen=True, kw_only=True)
class LinearModel:
    """f_θ(x) = xᵀθ, of a run with one pair or with a second one to be cross-fitted.

    Attributes:
        seed: of every draw.
        pairs: what each training is of, set up.
        new_method: makes the method; every training has one of its own.
        training: how a training goes.
        new_extractor: D to f_θ at its start.
        new_start: makes what computes the start of θ; None where θ starts as `new_extractor` says.
        columns: in which θ is trained, one of `COLUMNS`.
        selection: see :class:`~immunize.pipeline.experiment.Experiment`.
        rho: ρ of the `ridge` estimator.
        probe_steps: length of the norm-ratio curves.
    """

    seed: int
    pairs: Mapping[str, PairedData]
    new_method: Callable[[], Objective]
    training: Training
    new_extractor: Callable[[int], LinearExtractor]
    new_start: Callable[[], Objective] | None
    columns: str
    selection: str | None
    rho: float
    probe_steps: int

    def fit(
        self, pair: PairedData, loggers: list[Logger], telling: Telling, kept: tuple[Path, str] | None = None
    ) -> Fit:
        """Find θ for a pair; see :class:`~immunize.pipeline.experiment.Model`."""
        del kept  # one that was interrupted begins again
        seed_everything(self.seed, workers=True, verbose=False)
        started = time.perf_counter()
        objective = self.new_method()
        solved = _solve(objective, pair)
        start = None if solved or self.new_start is None else _solve(self.new_start(), pair)
        if start is not None:
            # D_P's features as large as behind a rotation, for which learning rates are made; no κ sees it.
            x, (theta, told) = pair.fit["pretrain"].x, start
            start = theta * (x.norm() / (x @ theta).norm()), told
        basis = None if solved else _basis(self.columns, pair, stopping=self.training.row.early_stopping)
        seen = pair if basis is None else pair.in_coordinates(basis)
        rows = {role: x if basis is None else x @ basis for role, x in compressed(pair.fit).items()}
        facts: dict[str, Any] = {"columns": {"of": pair.n_features, "trained": seen.n_features}}
        if basis is not None:
            pair.to_disk()  # the raw rows would be half the memory of the run
            give_back_memory()
        module = self.module(seen, objective, rows)
        for name, found in (("closed_form", solved), ("init", start)):
            if found is not None:
                theta, facts[name] = found
                with torch.no_grad():
                    module.extractor.theta.copy_(theta if basis is None else restrict_map(theta, basis))
        label = telling.label
        monitor = ImmunityMonitor(seen.fit, self.training.monitor_every, label, quiet=telling.quiet, rows=rows)
        callbacks = self.training.callbacks(
            objective, monitor, telling, lambda: f"RIR {monitor.latest['RIR']:.4g}" if monitor.latest else ""
        )
        row = self.training.row
        if row.early_stopping and solved is None:  # first: the monitor's last look is at the θ that is put back
            assert seen.validation is not None
            callbacks.insert(0, ValidationStop(seen.validation, row.check_every, row.patience))
        trainer = self.training.trainer(loggers, callbacks, seen)
        if (processes := trainer.num_devices * trainer.num_nodes) > 1:
            raise UserError(f"a linear model trains in one process, not in {processes}: set trainer.devices=1")
        if trainer.strategy.root_device.type != "cpu" or trainer.precision not in ("32-true", "64-true"):
            raise UserError(
                "a linear model trains on the CPU in float64: choose trainer=cpu, without trainer.precision"
            )
        fit = train(module, seen, trainer, label=label) if solved is None else Fit(facts=facts_of(callbacks, module))
        fit.seconds, fit.facts = time.perf_counter() - started, facts | fit.facts
        fit.theta, fit.head = module.extractor.theta.detach(), module.head.detach()
        if basis is not None:
            del seen, module, monitor, callbacks, trainer  # Lightning's cycles hold the rows' coordinates
            gc.collect()
            give_back_memory()
            fit.theta, fit.head = lift_map(fit.theta, basis), basis @ fit.head
        return fit

    def module(self, pair: PairedData, objective: Objective, rows: Mapping[Role, Tensor] | None = None) -> LinearModule:
        """θ, ω and the method, ready to train on a pair, whose compressed `rows` full batches need.

        Raises:
            UserError: a bad setting of `model` or `objective`.
        """
        if pair.tasks["pretrain"] == "classification" and pair.n_outputs("pretrain") < 2:
            raise UserError("D_P has one class, which leaves its classifier nothing to tell apart")
        if objective.takes_harmful_loss:
            check_loss(self.training.row.loss, pair.sources["harmful"])
        generator = torch.Generator().manual_seed(self.seed + HEAD_STREAM)
        objective.bind(pair.n_features, generator, pair.n_outputs("harmful"))
        return LinearModule(
            self.new_extractor(pair.n_features),
            new_head(pair.n_features, generator, pair.n_outputs("pretrain")),
            rows=rows or compressed(pair.fit) if pair.full_batch else None,
            **self.training.of(objective),
        )

    def numbers(self, fits: dict[str, Fit], say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        """`metrics`, `verdicts`, `separability`, `steps_to_norm_ratio`, `curves` and `spectra`, each by part."""
        say("measuring")
        tasks, held_by = self.pairs["fit"].tasks, "cross_fit" if "cross_fit" in self.pairs else "fit"
        held = self.pairs[held_by]
        rows = {"fit": (self.pairs["fit"].fit, fits["fit"])}
        if held_by in fits and fits[held_by].status == "finished":
            other = ("held_out", held.held_out) if self.selection is None else (self.selection, held.validation)
            assert other[1] is not None
            rows[other[0]] = other[1], fits[held_by]
        parts = {}
        for name, (part, fit) in rows.items():
            assert fit.theta is not None
            parts[name] = evaluate_part(fit.theta, part, tasks, rho=self.rho, probe_steps=self.probe_steps)
        return part_numbers(parts)

    def read(self, path: Path, record: dict[str, Any]) -> dict[str, Fit]:
        """Every θ that the record has numbers of."""
        thetas = load_checkpoint(path, self.pairs["fit"].n_features, config_hash=record["config_hash"])
        measured = self.pairs.keys() - ({"cross_fit"} if diverged_cross_fit(record) else set())
        if absent := measured - thetas.keys():
            raise CheckpointError(f"{path} lacks theta.{absent.pop()}, which the record has numbers of")
        return {name: Fit(theta=thetas[name]) for name in measured}

    def write(self, path: Path, fits: dict[str, Fit], config_hash: str) -> None:
        """θ and ω of every training."""
        scale = self.pairs["fit"].scale
        tensors = {
            "theta": {name: fit.theta for name, fit in fits.items() if fit.theta is not None},
            "head": {name: fit.head for name, fit in fits.items() if fit.head is not None},
        }
        if scale is not None:
            tensors["columns"] = {"mean": torch.from_numpy(scale.mean), "scale": torch.from_numpy(1 / scale.std)}
        save_checkpoint(path, tensors, config_hash=config_hash)


def _solve(objective: Objective, pair: PairedData) -> tuple[Tensor, dict[str, Any]] | None:
    """θ (D, D) and facts about it from an objective that computes it; None from one that trains it.

    Raises:
        UserError: the data do not allow it, or what it computes is no map.
    """
    try:
        solved = objective.solve(pair.fit["pretrain"], pair.fit["harmful"])
    except ValueError as error:
        raise UserError(str(error)) from None
    if solved is not None and (solved[0].shape != (pair.n_features,) * 2 or not bool(solved[0].isfinite().all())):
        raise UserError(
            f"{type(objective).__name__}.solve has to give a finite θ of {pair.n_features}×{pair.n_features}; "
            f"it gives one of {'×'.join(map(str, solved[0].shape))}, or with NaN or infinite values"
        )
    return solved


def _basis(columns: str, pair: PairedData, *, stopping: bool) -> Tensor | None:
    """The basis in which θ is trained, (D, n); None for all D columns.

    Args:
        columns: one of `COLUMNS`.
        pair: set up.
        stopping: validation rows are looked at in these coordinates; otherwise they are measured in all D columns.

    Raises:
        UserError: unknown columns.
    """
    if columns not in COLUMNS:
        raise UserError(f"unknown model.columns {columns!r}; there are {', '.join(COLUMNS)}")
    if columns == "all" or (columns == "auto" and pair.n_features < JOINT_FROM):
        return None
    parts = [of for of in (pair.fit, pair.validation if stopping else None) if of]
    basis = joint_basis(*(x for of in parts for x in compressed(of).values()))
    return None if columns == "auto" and basis.shape[1] > JOINT_BELOW * pair.n_features else basis
