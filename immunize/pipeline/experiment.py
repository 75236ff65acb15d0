"""The path of every run: fit, evaluate, record. What differs from model to model is what an `Experiment` is asked for.

Sees every room; no room sees it.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import Logger

from immunize.cli import teller
from immunize.data import ROLES, PairedData
from immunize.data.images import ImagePair
from immunize.errors import DivergedError
from immunize.objective import Objective
from immunize.pipeline.fit import TRAINING, Fit, Training
from immunize.pipeline.record import logged_run, save
from immunize.processes import is_first
from immunize.records import CHECKPOINT, peak_memory_mib
from immunize.threads import cpu_threads, threads_in_force

__all__ = ["HEAD_STREAM", "Experiment", "run"]

HEAD_STREAM = 2**40
"""Added to the seed for ω, so that no run's ω comes from the draw of another run's θ."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """One run as objects: data, extractor, method, how it is trained and how it is measured.

    Attributes:
        seed: of every draw.
        pair: D_P and D_H, set up.
        new_method: makes the method; every training has one of its own.
        training: how a training goes.
        new_loggers: (folder, what the run is called and made of) to loggers.
        selection: "validation" measures on rows set aside from `fit` instead of the held-out ones; or None.
        threads: CPU threads that are asked for; None leaves it to the model.
        figure: draw the norm ratios.
        on_cpu: the trainer has no accelerator.
    """

    seed: int
    pair: PairedData | ImagePair
    new_method: Callable[[], Objective]
    training: Training
    new_loggers: Callable[[Path, Mapping[str, Any]], list[Logger]]
    selection: str | None
    threads: int | None
    figure: bool
    on_cpu: bool

    @property
    def threads_wanted(self) -> int | None:
        """CPU threads that the run is to have; None for all cores."""
        return self.threads

    @property
    def facts(self) -> dict[str, Any]:
        """What the record says of the extractor before training."""
        return {}

    @abstractmethod
    def fit_each(
        self, folder: Path, config_hash: str, loggers: list[Logger], *, quiet: bool
    ) -> Generator[tuple[str, Fit], None, None]:
        """Train, once or more: the names of the trainings and what came of them, until one does not finish.

        Args:
            folder: the output folder.
            config_hash: of the run.
            loggers: of the first.
            quiet: show no progress.

        Raises:
            UserError: a setting that the method, callbacks, trainer or data refuse.
        """

    @abstractmethod
    def evaluate(self, fits: dict[str, Fit], say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        """Every number of the record; none in a process beside the first.

        Args:
            fits: of :meth:`fit_each`, the first of which has finished.
            say: gets a line where seconds go by.

        Raises:
            DivergedError: the last step went too far, which no later step could notice.
        """

    @abstractmethod
    def data_facts(self) -> dict[str, Any]:
        """What both data sets are."""

    @abstractmethod
    def write_weights(self, path: Path, fits: dict[str, Fit], config_hash: str) -> None:
        """The checkpoint of the record."""

    @abstractmethod
    def again(self, path: Path, record: dict[str, Any]) -> dict[str, Any]:
        """The numbers of a finished run, from its checkpoint.

        Args:
            path: the checkpoint.
            record: of the run.

        Raises:
            CheckpointError: a checkpoint that is missing, damaged, of another run, or does not go with the data.
            DivergedError, ZeroMatrixError: one that gives no numbers any more.
        """


def run(experiment: Experiment, record: dict[str, Any], folder: Path, clock: float, *, quiet: bool) -> dict[str, Any]:
    """Fit, evaluate, record.

    Args:
        experiment: see there.
        record: new; it is completed in place.
        folder: the output folder.
        clock: when the run began, by `time.perf_counter`.
        quiet: show no progress.

    Returns:
        The record. In the processes of a run beside the first it has no numbers and is not written.

    Raises:
        UserError: anything in the configuration or the data that the user has to mend.
        KeyboardInterrupt: Ctrl-C before there was anything to keep.
        SystemExit: SIGTERM; what was trained so far is kept.
    """
    pair, say = experiment.pair, teller(quiet)
    names: dict[str, Any] = {role: pair.source(role).name for role in ROLES}
    fits: dict[str, Fit] = {}
    with cpu_threads(threads_in_force(experiment.threads_wanted)):
        record |= experiment.facts
        loggers = experiment.new_loggers(folder, logged_run(record, list(names.values())))
        try:
            with closing(experiment.fit_each(folder, record["config_hash"], loggers, quiet=quiet)) as each:
                fits.update(each)
            if _status(fits) == "finished":
                started = time.perf_counter()
                record.update(experiment.evaluate(fits, say))
                record["seconds_evaluating"] = time.perf_counter() - started
        except DivergedError as error:
            fits["fit"].diverged(error)
            log.error("%s: after the last step: %s", experiment.training.method, error)
        except KeyboardInterrupt:  # between or after the trainings, which see to it themselves
            if not fits:
                raise
            fits = {name: replace(done, status="interrupted") for name, done in fits.items()}
        record.update(
            names,
            status=_status(fits),
            data=experiment.data_facts(),  # now that all images have been read, with the count of unreadable ones
            data_hash=pair.data_hash,
            held_out_protocol=pair.held_out_protocol if experiment.selection is None else None,
            training={name: {"steps": fit.steps, "seconds": fit.seconds, **fit.facts} for name, fit in fits.items()},
            seconds=time.perf_counter() - clock,
            peak_memory_mib=peak_memory_mib(),
        )
        record["hardware"]["threads"] = torch.get_num_threads()  # those that were used, see `threads`
        if is_first():
            folder.mkdir(parents=True, exist_ok=True)
            experiment.write_weights(folder / CHECKPOINT, fits, record["config_hash"])
            save(record, folder, loggers, fits["fit"].steps, figure=experiment.figure)
            if record["status"] != "interrupted":
                (folder / TRAINING).unlink(missing_ok=True)
    if signalled := next((fit.signal for fit in fits.values() if fit.signal), 0):
        raise SystemExit(128 + signalled)
    return record


def _status(fits: dict[str, Fit]) -> str:
    """Of the run: a cross-fit that diverged costs its part alone."""
    statuses = [fit.status for fit in fits.values()]
    return "interrupted" if "interrupted" in statuses else statuses[0]
