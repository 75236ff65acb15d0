"""From trained extractors to a record: evaluate, save the checkpoint, and lay every number out by name.

Sees every room; used by the entry points only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig
from torch import Tensor

from immunize.checkpoints import save_checkpoint
from immunize.config import config_hash, resolved
from immunize.data import ROLES, PairedData
from immunize.effects import apart, idle_in_training, refuse_idle
from immunize.evaluation import PartEvaluation, Verdicts, evaluate_part
from immunize.evaluation.numbers import ratio_numbers, spectrum_numbers
from immunize.records import (
    CHECKPOINT,
    FIGURE,
    SCHEMA_VERSION,
    peak_memory_mib,
    provenance,
    reset_peak_memory,
    write_record,
)
from immunize.report import result_rows
from immunize.running.assembling import build_objective
from immunize.running.experiment import Fit, quiet_lightning
from immunize.training.loggers import close_loggers, log_results

__all__ = ["evaluate_fits", "evaluate_thetas", "flat_curves", "flat_metrics", "logged_run", "new_record", "save"]


def new_record(cfg: DictConfig, given: Iterable[str] = ()) -> dict[str, Any]:
    """A record with everything that is known before training; the peak of memory is counted from here.

    Args:
        cfg: the composed configuration.
        given: settings that have to have an effect.

    Raises:
        UserError: one of them has none, or a bad `method` setting.
    """
    reset_peak_memory()
    plain = resolved(cfg)
    idle = idle_in_training(plain, build_objective(cfg))
    refuse_idle(given, idle)
    config, without_effect = apart(plain, idle)
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "started",
        "method": cfg.method.name,
        "model": cfg.model.name,
        "pretrain": None,
        "harmful": None,
        "seed": cfg.seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "config": config,
        "without_effect": without_effect,
        "config_hash": config_hash(plain),
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


def data_facts(data: PairedData) -> dict[str, Any]:
    """What both data sets are, and how many rows of them are immunized on."""
    told: dict[str, Any] = {role: data.source(role).describe() | {"fit_rows": len(data.fit.of(role))} for role in ROLES}
    if data.scale is not None:
        told["harmful"]["constant_columns"] = data.scale.dropped
    return told


def evaluate_fits(
    record: dict[str, Any], cfg: DictConfig, fits: dict[str, Fit], pairs: dict[str, PairedData], clock: float
) -> None:
    """Complete `record` in place with data facts, timings since `clock` and, for finished fits, every number."""
    data, statuses = pairs["fit"], [f.status for f in fits.values()]
    record.update(
        status="interrupted" if "interrupted" in statuses else statuses[0],  # a cross-fit that diverged costs its part
        pretrain=data.pretrain.name,
        harmful=data.harmful.name,
        data=data_facts(data),
        data_hash=data.data_hash,
        held_out_protocol=data.held_out_protocol if cfg.selection is None else None,
        training={name: {"steps": f.steps, "seconds": f.seconds, **f.facts} for name, f in fits.items()},
    )
    if record["status"] == "finished":
        started = time.perf_counter()
        thetas = {name: f.theta for name, f in fits.items() if f.status == "finished"}
        record.update(evaluate_thetas(thetas, pairs, cfg.rho, cfg.probe_steps, cfg.selection))
        record["seconds_evaluating"] = time.perf_counter() - started
    record["seconds"] = time.perf_counter() - clock
    record["peak_memory_mib"] = peak_memory_mib()
    record["hardware"]["threads"] = torch.get_num_threads()  # those that were used, see `threads` in conf/train.yaml


def evaluate_thetas(
    thetas: dict[str, Tensor],
    pairs: dict[str, PairedData],
    rho: float,
    probe_steps: int,
    selection: str | None = None,
) -> dict[str, Any]:
    """`metrics`, `verdicts`, `separability`, `steps_to_norm_ratio`, `curves` and `spectra` of a run.

    Args:
        thetas: "fit", and "cross_fit" where the data set is cross-fitted; without it there are no held-out numbers.
        pairs: the data that each of them was fitted on.
        rho: ρ of the `ridge` estimator.
        probe_steps: length of the norm-ratio curves.
        selection: "validation" measures on the validation rows of "fit" instead of the held-out part.
    """
    held_by = "cross_fit" if "cross_fit" in pairs else "fit"
    fitted, held = pairs["fit"], pairs[held_by]
    assert fitted.fit is not None
    parts = {"fit": evaluate_part(thetas["fit"], fitted.fit, fitted.tasks, rho=rho, probe_steps=probe_steps)}
    if held_by in thetas:
        other, rows = ("held_out", held.held_out) if selection is None else (selection, held.validation)
        assert rows is not None
        parts[other] = evaluate_part(thetas[held_by], rows, held.tasks, rho=rho, probe_steps=probe_steps)
    return {
        "metrics": {
            part: {estimator: ratio_numbers(ratio) for estimator, ratio in of.ratios.items()}
            for part, of in parts.items()
        },
        "verdicts": {
            **_known(parts["fit"].verdicts),
            "part": "fit",
            **{part: _known(of.verdicts) for part, of in parts.items() if part != "fit"},
        },
        "separability": {part: _by_role(of.separability) for part, of in parts.items()},
        "steps_to_norm_ratio": {part: _by_curve(of, "steps_to") for part, of in parts.items()},
        "curves": {"norm_ratio": {part: _by_curve(of, "curve") for part, of in parts.items()}},
        "spectra": {
            part: _by_role({key: spectrum_numbers(spectrum) for key, spectrum in of.spectra.items()})
            for part, of in parts.items()
        },
    }


def save(record: dict[str, Any], folder: Path, fits: dict[str, Fit], data: PairedData, loggers: list[Logger]) -> None:
    """Write checkpoint and record, then what can be drawn from them again: the figure and the loggers' summary."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FIGURE).unlink(missing_ok=True)  # of a run that this one overwrites
    scale = None if data.scale is None else (torch.from_numpy(data.scale.mean), torch.from_numpy(1 / data.scale.std))
    save_checkpoint(
        folder / CHECKPOINT,
        {name: f.theta for name, f in fits.items()},
        {name: f.head for name, f in fits.items()},
        config_hash=record["config_hash"],
        columns=scale,
    )
    write_record(folder, record)
    done = record["status"] == "finished"
    try:
        if done:
            figure = folder / FIGURE if record["config"]["figure"] else None
            if figure is not None:
                from immunize.report.figures import norm_ratio_figure  # half a second of import time

                norm_ratio_figure(record, figure)
            final = (flat_metrics(record), result_rows(record), flat_curves(record), figure)
            with quiet_lightning():
                log_results(loggers, *final, step=fits["fit"].steps)
        close_loggers(loggers, success=done)
    except (OSError, RuntimeError, ValueError) as error:  # a full disk, a logger's server: the run itself is safe
        logging.getLogger(__name__).warning("the record is written, but not the figure or the log: %s", error)


def _known(verdicts: Verdicts) -> dict[str, Any]:
    return {name: value for name, value in asdict(verdicts).items() if value is not None}


def _by_curve(part: PartEvaluation, what: str) -> dict[str, dict[str, Any]]:
    laid_out: dict[str, dict[str, Any]] = {"pretrain": {}, "harmful": {}}
    for (name, which), curve in part.curves.items():
        if curve is None:
            laid_out[name][which] = None if what == "curve" else {}
        elif what == "curve":
            steps, ratio = curve.thinned()
            laid_out[name][which] = {"steps": steps, "ratio": ratio}
        else:
            laid_out[name][which] = {f"{threshold:g}": step for threshold, step in curve.steps_to.items()}
    return laid_out


def _by_role(found: dict[tuple[str, str], Any]) -> dict[str, dict[str, Any]]:
    laid_out: dict[str, dict[str, Any]] = {"pretrain": {}, "harmful": {}}
    for (name, which), numbers in found.items():
        laid_out[name][which] = numbers
    return laid_out


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
