"""The path of every run: fit, evaluate, record. What differs from model to model is what a `Model` is asked for.

The record has what is known before the run, then its numbers, which loggers take as well. Sees every room; no room sees
it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning.pytorch.loggers import CSVLogger, Logger

from immunize.cli import teller
from immunize.data import ROLES
from immunize.data.pair import Pair
from immunize.effects import idle_in_run, refuse_idle, told
from immunize.errors import CheckpointError, DivergedError, UserError
from immunize.objective import Objective
from immunize.pipeline.fit import TRAINING, Fit, Telling, quiet_lightning
from immunize.processes import beside, can_fork, is_first
from immunize.records import (
    CHECKPOINT,
    FIGURE,
    MADE_OF_A_RUN,
    METRICS,
    RECORD,
    begun,
    leaves,
    peak_memory_mib,
    provenance,
    reset_peak_memory,
    write_record,
)
from immunize.threads import cpu_threads, threads_in_force
from immunize.training.loggers import close_loggers, log_results

log = logging.getLogger(__name__)


def new_record(settings: dict[str, Any], method: Any, given: Iterable[str] = ()) -> dict[str, Any]:
    """A record with everything that is known before training; the peak of memory is counted from here.

    Args:
        settings: all of them, plain and resolved.
        method: that they name.
        given: names of settings that have to have an effect.

    Raises:
        UserError: one of them has none, or the method is none.
    """
    if not isinstance(method, Objective):
        raise UserError(f"method._target_ has to make an Objective, it makes a {type(method).__name__}")
    reset_peak_memory()
    idle = idle_in_run(settings, method)
    refuse_idle(given, idle)
    return {
        **begun(),
        "method": settings["method"]["name"],
        "aims_at_kappa": method.aims_at_kappa,
        "model": settings["model"]["name"],
        "pretrain": None,
        "harmful": None,
        "seed": settings["seed"],
        **told(settings, idle),
        **provenance(),
    }


def logged_run(record: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """What W&B is told of a run before it begins, so that those of a sweep can be told apart, grouped and plotted.

    Args:
        record: new.
        names: of D_P and D_H.

    Returns:
        "name", "group" (the experiment, or network and data sets), "tags" and "config", the settings in force.
    """
    config, pair = record["config"], f"{names[0]} against {names[1]}"
    experiment = config["experiment"]["name"]
    objective, method = config.get("objective", {}), config["method"]
    weights = {"λ_P": "lambda_well", "λ_H": "lambda_ill"}
    told = {sign: method.get(key, objective.get(key)) for sign, key in weights.items()} | {
        "η": objective.get("learning_rate")
    }
    numbers = {sign: f"{value:g}" if isinstance(value, int | float) else value for sign, value in told.items()}
    chosen = " ".join(f"{sign}={value}" for sign, value in numbers.items() if value is not None)
    words = (record["method"], record["model"], pair, chosen, f"seed={record['seed']}", record["config_hash"][:6])
    tags = (record["method"], record["model"], *names, *([experiment] if experiment else []))
    return {
        "name": " ".join(word for word in words if word),
        "group": experiment or f"{record['model']}: {pair}",
        "tags": list(dict.fromkeys(tag[:64] for tag in tags)),  # W&B takes no longer ones, as several data sets have
        "config": {**config, "config_hash": record["config_hash"]},
    }


def save(record: dict[str, Any], folder: Path, loggers: list[Logger], step: int, *, figure: bool) -> None:
    """Write the record, then what can be drawn from it again: the figure and the loggers' summary.

    Args:
        record: complete.
        folder: the output folder, with the checkpoint.
        loggers: they are closed.
        step: the last.
        figure: draw the norm ratios.
    """
    drawn = folder / FIGURE
    drawn.unlink(missing_ok=True)
    if (folder / RECORD).is_file():  # of a run that this one overwrites
        logged = any(isinstance(logger, CSVLogger) for logger in loggers)  # which began its file anew
        for made in MADE_OF_A_RUN if logged else (METRICS, *MADE_OF_A_RUN):
            with contextlib.suppress(OSError):  # none there, or none of ours
                (folder / made).unlink()
    write_record(folder, record)
    done = record["status"] == "finished"
    try:
        if done:
            if figure and "norm_ratio" in record["curves"]:
                from immunize.report.curves import norm_ratio_figure  # half a second of import time

                norm_ratio_figure(record, drawn)
            numbers, curves = (_of_sets(record, what) for what in (flat_metrics, flat_curves))
            with quiet_lightning():
                log_results(loggers, numbers, curves, drawn if drawn.exists() else None, step=step)
        close_loggers(loggers, success=done)
    except (OSError, RuntimeError, ValueError, UserError) as error:
        # A full disk, a logger's server: the run itself is safe.
        log.warning("the record is written, but not the figure or the log: %s", error)


def _of_sets(record: dict[str, Any], what: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Numbers or curves by name; of several harmful data sets the weakest's, and each set's by its name."""
    named = {f"{name}/": of for name, of in record.get("harmful_sets", {}).items()}
    return {
        f"{before}{name}": value for before, of in {"": record, **named}.items() for name, value in what(of).items()
    }


def flat_metrics(record: dict[str, Any]) -> dict[str, float]:
    """Numbers of a record as loggers take them.

    Args:
        record: of a run, or what it has of one harmful data set.

    Returns:
        `metrics` as "part/estimator/name", those of a network's groups as "part/groups/estimator/name",
        `pretrain_accuracy` as "pretrain_accuracy/which", `separability` as "separability/part/role/which/measure/ρ".
    """
    ratios = {
        f"{part}/{of}{estimator}/{name}": value
        for of, kind in {"": "metrics", "groups/": "metrics_groups"}.items()
        for part, estimators in record.get(kind, {}).items()
        for estimator, numbers in estimators.items()
        for name, value in numbers.items()
        if isinstance(value, float)
    }
    kept = {f"pretrain_accuracy/{which}": value for which, value in record.get("pretrain_accuracy", {}).items()}
    return ratios | kept | {"/".join(keys): value for keys, value in leaves({"separability": record["separability"]})}


def flat_curves(record: dict[str, Any]) -> dict[str, tuple[list[int], list[float]]]:
    """The probe's curves of a record as loggers take them, steps and values.

    Args:
        record: of a run, or what it has of one harmful data set.

    Returns:
        norm ratios as "norm_ratio/part/role/which"; a network's accuracies as "probe/optimizer/role/which" (Fig. 3).
    """
    return {
        f"{what}/{of}/{role}/{which}": (curve["steps"], curve[values])
        for what, values in {"norm_ratio": "ratio", "probe": "accuracy"}.items()
        for of, roles in record["curves"].get(what, {}).items()
        for role, extractors in roles.items()
        for which, curve in extractors.items()
        if curve is not None
    }


class Model(Protocol):
    """What is immunized: what differs between a linear model (`linear.py`) and a network (`network.py`)."""

    def fit(self, pair: Any, loggers: list[Logger], telling: Telling, kept: tuple[Path, str] | None = None) -> Fit:
        """Train it on a pair.

        Args:
            pair: D_P and D_H, set up.
            loggers: where metrics go; empty for none.
            telling: what is told meanwhile.
            kept: where an interrupted training is kept, and the hash of its configuration.

        Raises:
            UserError: a setting that the method, callbacks, trainer or data refuse.
        """

    def numbers(self, fits: dict[str, Fit], say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        """Every number of the record; none in a process beside the first.

        Args:
            fits: what came of the trainings, the first of which has finished.
            say: gets a line where seconds go by.

        Raises:
            DivergedError: the last step went too far, which no later step could notice.
        """

    def read(self, path: Path, record: dict[str, Any]) -> dict[str, Fit]:
        """What came of the trainings of a finished run, from its checkpoint.

        Raises:
            CheckpointError: one that is missing, damaged, of another run, or does not go with the data.
        """

    def write(self, path: Path, fits: dict[str, Fit], config_hash: str) -> None:
        """The checkpoint of the record."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One run as objects: data, what is immunized, how it is trained and how it is measured.

    Where a data set has no held-out part of its own (House Prices), a second extractor is fitted the same way on a
    random half of each data set and measured on the other half. Where the second one diverges the run is finished
    nevertheless, with the numbers of `fit` alone.

    Attributes:
        pairs: what each training is of, set up: "fit", and "cross_fit" where there is something to be cross-fitted.
        model: what is immunized.
        facts: what the record says of the model before training.
        new_loggers: (folder, what the run is called and made of) to loggers.
        selection: "validation" measures on rows set aside from `fit` instead of the held-out ones; or None.
        threads: CPU threads that the run is to have; None for all cores.
        figure: draw the norm ratios.
        on_cpu: the trainer has no accelerator.
    """

    pairs: Mapping[str, Pair]
    model: Model
    facts: dict[str, Any]
    new_loggers: Callable[[Path, Mapping[str, Any]], list[Logger]]
    selection: str | None
    threads: int | None
    figure: bool
    on_cpu: bool

    @property
    def pair(self) -> Pair:
        """D_P and D_H, set up."""
        return self.pairs["fit"]

    def fit_each(
        self, folder: Path, config_hash: str, loggers: list[Logger], *, quiet: bool
    ) -> Generator[tuple[str, Fit], None, None]:
        """Train on every pair, which do not depend on each other: names and what came of them, until one is unfinished.

        Where a second core is free for it, the second is fitted in a fork of this process meanwhile, to the same bits;
        not in a sweep, whose other runs have the cores.

        Args:
            folder: the output folder.
            config_hash: of the run.
            loggers: of the first.
            quiet: show no progress.

        Raises:
            UserError: a setting that the method, callbacks, trainer or data refuse.
        """
        works: dict[str, Callable[[], Fit]] = {}
        with contextlib.ExitStack() as forks:
            alone = torch.get_num_threads() == 1 and self.on_cpu and can_fork(len(self.pairs))
            for name, pair in self.pairs.items():
                fit, telling = partial(self.model.fit, pair), Telling(name.replace("_", "-"), quiet)
                if not works:
                    works[name] = partial(fit, loggers, telling, (folder / TRAINING, config_hash))
                elif quiet or not alone:
                    works[name] = partial(fit, [], telling)
                else:  # a terminal has room for one line
                    one_line = replace(telling, progress=not sys.stderr.isatty())
                    works[name] = forks.enter_context(beside(partial(fit, [], one_line)))
            for name, run in works.items():
                done = run()
                yield name, done
                if done.status != "finished":
                    break

    def again(self, path: Path, record: dict[str, Any]) -> dict[str, Any]:
        """The numbers of a finished run, from its checkpoint.

        Args:
            path: the checkpoint.
            record: of the run.

        Raises:
            CheckpointError: as `Model.read`, or other data.
            DivergedError, ZeroMatrixError: a checkpoint that gives no numbers any more.
        """
        if self.pair.data_hash != record["data_hash"]:
            raise CheckpointError("the data are not those of the run: their hash differs from the record's")
        return self.model.numbers(self.model.read(path, record))


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
    names: dict[str, Any] = {role: pair.sources[role].name for role in ROLES}
    fits: dict[str, Fit] = {}
    with cpu_threads(threads_in_force(experiment.threads)), contextlib.ExitStack() as unfinished:
        record |= experiment.facts
        loggers = experiment.new_loggers(folder, logged_run(record, list(names.values())))
        unfinished.callback(close_loggers, loggers, success=False)
        try:
            with contextlib.closing(experiment.fit_each(folder, record["config_hash"], loggers, quiet=quiet)) as each:
                fits.update(each)
            if _status(fits) == "finished":
                started = time.perf_counter()
                record.update(experiment.model.numbers(fits, say))
                record["seconds_evaluating"] = time.perf_counter() - started
        except DivergedError as error:
            fits["fit"].diverged(error)
            log.error("%s: after the last step: %s", record["method"], error)
        except KeyboardInterrupt:  # between or after the trainings, which see to it themselves
            if not fits:
                raise
            fits = {name: replace(done, status="interrupted") for name, done in fits.items()}
        record.update(
            names,
            status=_status(fits),
            data=pair.describe(),  # now that all images have been read, with the count of unreadable ones
            data_hash=pair.data_hash,
            held_out_protocol=pair.held_out_protocol if experiment.selection is None else None,
            training={name: {"steps": fit.steps, "seconds": fit.seconds, **fit.facts} for name, fit in fits.items()},
            seconds=time.perf_counter() - clock,
            peak_memory_mib=peak_memory_mib(),
        )
        record["hardware"]["threads"] = torch.get_num_threads()  # those that were used, see `threads`
        unfinished.pop_all()  # of a run that is recorded `save` closes them
        if is_first():
            folder.mkdir(parents=True, exist_ok=True)
            experiment.model.write(folder / CHECKPOINT, fits, record["config_hash"])
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
