"""A run with a deep net, from its configuration to its record: data, network, θ_0, fit, features, evaluation.

Sees every room; no room sees it. `python -m immunize.running.deep_experiment <file>` is what the processes of a run
that needs several are started with (:mod:`immunize.processes`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import seed_everything
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from immunize.cli import teller
from immunize.config import config_hash, resolved
from immunize.data import ROLES
from immunize.errors import DivergedError, UserError
from immunize.features import DeepExtractor, save_weights
from immunize.features.store import Features
from immunize.objective import Head, Objective
from immunize.processes import end_with_parent, is_first, process_count, run_processes, started_outside
from immunize.records import CHECKPOINT, peak_memory_mib, read_record, write_record
from immunize.report import result_rows
from immunize.running.appending import append_computed
from immunize.running.assembling import build_loggers, build_objective
from immunize.running.deep_assembling import build_deep_module, build_pair, device_of_run, method_of, theta_0_facts
from immunize.running.deep_evaluation import cached_sets, data_facts, evaluated, mapped
from immunize.running.deep_fit import TRAINING, DeepFit, train
from immunize.running.experiment import quiet_lightning
from immunize.running.measuring import Measured, both_features, by_set, fingerprints, head_of, measured_sets
from immunize.running.preparing import prepare
from immunize.running.recording import flat_curves, flat_metrics, logged_run, new_record
from immunize.threads import cpu_threads, threads_in_force
from immunize.training.loggers import close_loggers, log_results

__all__ = ["run"]

log = logging.getLogger(__name__)


def run(cfg: DictConfig, folder: Path, *, quiet: bool = False, given: Sequence[str] = ()) -> dict[str, Any]:
    """Immunize a network, evaluate it, and write `record.json` and `checkpoint.safetensors` into `folder`.

    Args:
        cfg: the composed configuration, checked.
        folder: the output folder.
        quiet: show no progress.
        given: settings that have to have an effect.

    Returns:
        The record, as written. In the processes of a run beside the first it has no numbers and is not written.

    Raises:
        UserError: anything in the configuration or the data that the user has to mend.
        KeyboardInterrupt: Ctrl-C before there was anything to keep.
        SystemExit: SIGTERM; what was trained so far is kept for `resume=true`.
    """
    record = new_record(cfg, given)
    count = process_count(cfg.trainer) if build_objective(cfg).trains else 1
    if count > 1 and not started_outside():
        spec = {"config": resolved(cfg), "command": record["command"], "quiet": quiet}
        run_processes(spec, folder, count, "immunize.running.deep_experiment")
        return read_record(folder)
    return _run_here(cfg, folder, record, quiet=quiet)


def _run_here(cfg: DictConfig, folder: Path, record: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    clock = time.perf_counter()
    say = teller(quiet)
    seed_everything(cfg.seed, workers=True, verbose=False)
    with cpu_threads(threads_in_force(cfg.threads)):  # all cores unless told: a network is worth them
        pair, net = build_pair(cfg)
        reference = net.reference()
        objective = method_of(cfg, net, pair.n_classes("harmful"))
        record["network"] = _network_facts(net) | theta_0_facts(cfg, net)
        cached = bool(cfg.objective.cache_frozen) and objective.trains
        sets = measured_sets(pair, cfg.selection, cfg.deep, whole=("fit",) if cached else ())  # which is trained on
        images, device = fingerprints(cfg, sets), device_of_run(cfg)
        if cached:
            sets = cached_sets(cfg, net, sets, device)
            for role in ROLES:
                pair.replace_fit(role, sets["fit"][role])
        loggers = build_loggers(cfg, folder, logged_run(record, [pair.source(role).name for role in ROLES]))
        fit, classes = DeepFit("finished", 0.0, 0), tuple(pair.harmful_sets.values())
        if objective.trains:
            prepare(cfg, objective, net, sets["fit"], classes=classes, device=device, cached=cached)
            module = build_deep_module(cfg, net, objective, reference, cached=cached, harmful_classes=classes)
            begins = f"{record['config_hash']} {record['network']['theta_0_sha256']}"
            fit = train(cfg, module, pair, reference, folder=folder, loggers=loggers, run_hash=begins, quiet=quiet)
        record.update(
            status=fit.status,
            data_hash=pair.data_hash,
            pretrain=pair.source("pretrain").name,
            harmful=pair.source("harmful").name,
            held_out_protocol=pair.held_out_protocol if cfg.selection is None else None,
        )
        released: nn.Module = net.network
        if fit.status == "finished":
            started = time.perf_counter()
            say("measuring: features of all images")
            trained = net if objective.trains else None
            features = both_features(trained, reference, sets, cfg, device, images=images, cached=cached)
            if features is not None:  # the first process
                after = head_of(net)
                if not objective.trains:
                    released, after, fit.facts["closed_form"] = _append(
                        objective, net, features, pair.harmful_sets if cfg.objective.harmful == "worst" else {}
                    )
                say("measuring: condition numbers with intervals, then probes")
                try:
                    heads = after, head_of(reference)
                    record.update(evaluated(cfg, features, heads, pair.harmful_sets, step=fit.steps))
                except DivergedError as error:  # the very last step went too far, which no later step could notice
                    fit.status = record["status"] = "diverged"
                    fit.facts["diverged"] = {"step": error.step, "term": error.term, "value": str(error.value)}
                    log.error("%s: after the last step: %s", cfg.method.name, error)
            record["seconds_evaluating"] = time.perf_counter() - started
        record["data"] = data_facts(pair)  # now that all images have been read, with the count of unreadable ones
        record["training"] = {"fit": {"steps": fit.steps, "seconds": fit.seconds, **fit.facts}}
        record["seconds"] = time.perf_counter() - clock
        record["peak_memory_mib"] = peak_memory_mib()
        record["hardware"]["threads"] = torch.get_num_threads()
        if is_first():
            _save(record, folder, released, loggers, fit)
    if fit.signal:
        raise SystemExit(128 + fit.signal)
    return record


def _append(
    objective: Objective, net: DeepExtractor, features: Measured, sets: dict[str, int]
) -> tuple[nn.Module, Head, dict[str, Any]]:
    """Append the map that the method computes from the features, in place of those of the immunized network.

    Args:
        objective: the method.
        net: θ_0.
        features: of all images; those of the immunized network are replaced.
        sets: classes of each of several harmful data sets, where their worst case is wanted; else all rows are one.

    Returns:
        the released network, its classifier behind the map, and facts.

    Raises:
        UserError: the features do not allow it.
    """
    several = by_set(features, sets).values() if len(sets) > 1 else [features]
    each = [Features(*of["theta_0"]["fit"]["harmful"]) for of in several]
    pretrain = Features(*features["theta_0"]["fit"]["pretrain"])
    released, appended, facts = append_computed(objective, net.network.cpu(), pretrain, each)
    return released, mapped(features, appended), facts


def _network_facts(net: DeepExtractor) -> dict[str, Any]:
    """What was trained and what was not."""
    trained = net.trainable_parameters()
    return {
        "architecture": net.name,
        "features": net.n_features,
        "parameters": sum(parameter.numel() for parameter in net.network.parameters()),
        "trained": [name for name, _ in trained],
        "trained_parameters": sum(parameter.numel() for _, parameter in trained),
        "split": net.no_split_reason or "at the first trained module",
        "input": {key: str(value) for key, value in net.data_config.items()},
    }


def _save(record: dict[str, Any], folder: Path, released: nn.Module, loggers: list[Any], fit: DeepFit) -> None:
    """Write the released network and the record; the training's own checkpoint is of no use after that."""
    state: dict[str, Tensor] = released.state_dict()
    save_weights(folder / CHECKPOINT, state, {"config_hash": record["config_hash"]})
    write_record(folder, record)
    done = fit.status == "finished"
    if fit.status != "interrupted":
        (folder / TRAINING).unlink(missing_ok=True)
    try:
        if done:
            with quiet_lightning():
                numbers, curves = (_of_sets(record, what) for what in (flat_metrics, flat_curves))
                log_results(loggers, numbers, result_rows(record), curves, None, step=fit.steps)
        close_loggers(loggers, success=done)
    except (OSError, RuntimeError, ValueError) as error:  # a full disk, a logger's server: the run itself is safe
        log.warning("the record is written, but not the log: %s", error)


def _of_sets(record: dict[str, Any], what: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Numbers or curves by name; of several harmful data sets the weakest's, and each set's by its name."""
    named = {f"{name}/": of for name, of in record.get("harmful_sets", {}).items()}
    return {
        f"{before}{name}": value for before, of in {"": record, **named}.items() for name, value in what(of).items()
    }


def _explained(work: Callable[[], Any]) -> int:
    try:
        work()
    except UserError as error:
        if is_first():
            print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _process(path: Path) -> None:
    """One of several processes: do what the file says."""
    end_with_parent()
    spec = json.loads(path.read_text(encoding="utf-8"))
    cfg = OmegaConf.create(spec["config"])
    record = new_record(cfg) | {"command": spec["command"]}
    assert record["config_hash"] == config_hash(spec["config"])
    _run_here(cfg, path.parent, record, quiet=spec["quiet"])
    if record["status"] == "interrupted":
        raise KeyboardInterrupt


if __name__ == "__main__":
    code = _explained(lambda: _process(Path(sys.argv[1])))
    with contextlib.suppress(RuntimeError, ValueError):
        torch.distributed.destroy_process_group()
    sys.exit(code)
