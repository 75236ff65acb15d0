"""The record of a run: what is known before it, the files in the end, and its numbers as loggers take them.

Sees every room; no room sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

from immunize.effects import Run, refuse_idle, told
from immunize.objective import Objective
from immunize.pipeline.fit import quiet_lightning
from immunize.records import FIGURE, begun, provenance, reset_peak_memory, write_record
from immunize.report import result_rows
from immunize.training.loggers import close_loggers, log_results

__all__ = ["flat_curves", "flat_metrics", "logged_run", "new_record", "save"]


def new_record(settings: dict[str, Any], method: Objective, given: Iterable[str] = ()) -> dict[str, Any]:
    """A record with everything that is known before training; the peak of memory is counted from here.

    Args:
        settings: all of them, plain and resolved.
        method: that they name.
        given: names of settings that have to have an effect.

    Raises:
        UserError: one of them has none.
    """
    reset_peak_memory()
    idle = Run(settings, method).idle
    refuse_idle(given, idle)
    return {
        **begun(),
        "method": settings["method"]["name"],
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
    chosen = " ".join(f"{sign}={value:g}" for sign, value in told.items() if value is not None)
    words = (record["method"], record["model"], pair, chosen, f"seed={record['seed']}", record["config_hash"][:6])
    return {
        "name": " ".join(word for word in words if word),
        "group": experiment or f"{record['model']}: {pair}",
        "tags": list(dict.fromkeys((record["method"], record["model"], *names, *([experiment] if experiment else [])))),
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
    drawn.unlink(missing_ok=True)  # of a run that this one overwrites
    write_record(folder, record)
    done = record["status"] == "finished"
    try:
        if done:
            if figure and "norm_ratio" in record["curves"]:
                from immunize.report.curves import norm_ratio_figure  # half a second of import time

                norm_ratio_figure(record, drawn)
            numbers, curves = (_of_sets(record, what) for what in (flat_metrics, flat_curves))
            with quiet_lightning():
                log_results(loggers, numbers, result_rows(record), curves, drawn if drawn.exists() else None, step=step)
        close_loggers(loggers, success=done)
    except (OSError, RuntimeError, ValueError) as error:  # a full disk, a logger's server: the run itself is safe
        logging.getLogger(__name__).warning("the record is written, but not the figure or the log: %s", error)


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
        `pretrain_accuracy` as "pretrain_accuracy/which", `separability` as "part/role/which/measure/ρ".
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
    learned = {
        f"{part}/{role}/{which}/{measure}/{rho}": value
        for part, roles in record["separability"].items()
        for role, extractors in roles.items()
        for which, measures in extractors.items()
        for measure, of in measures.items()
        for rho, value in of.items()
    }
    return ratios | kept | learned


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
