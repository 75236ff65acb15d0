"""`python -m immunize.train`: compose, build, fit, evaluate, record.

`main` only parses; :func:`run` does the work and returns the record.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from immunize.building import build_sources
from immunize.cli import entry_point, explain_errors, sigint_restored, teller
from immunize.config import config_dir, hash_of_run, register
from immunize.effects import asked_for
from immunize.errors import UserError
from immunize.processes import is_first
from immunize.settings import check_folder, check_settings, refuse_finished
from immunize.sweeping import done_record, value_of

__all__ = ["main", "run"]


def run(cfg: DictConfig, folder: Path, *, quiet: bool = False, given: Sequence[str] = ()) -> dict[str, Any]:
    """Immunize, evaluate, and write `record.json` and `checkpoint.safetensors` into `folder`.

    A linear model also leaves `norm_ratio.png` there; a deep one is the business of
    :mod:`immunize.running.deep_experiment`.

    Where the data set has no held-out part of its own (House Prices), a second extractor is fitted the same way on a
    random half of each data set and measured on the other half; the record says so (`held_out_protocol`). Where the
    second one diverges the run is finished nevertheless, with the numbers of `fit` alone.

    Args:
        cfg: the composed configuration (`conf/train.yaml`).
        folder: the output folder.
        quiet: show no progress.
        given: settings that somebody has asked for, which have to have an effect.

    Returns:
        The record, as written; with `resume`, the one that is there if it needs no repeating.

    Raises:
        UserError: anything in the configuration or the data that the user has to mend.
    """
    check_settings(cfg)
    if cfg.resume and not cfg.overwrite and (record := done_record(folder, hash_of_run(cfg))) is not None:
        return record
    pretrain, harmful = build_sources(cfg)  # missing files are reported before the imports below, which take seconds
    refuse_finished(folder, cfg.overwrite)
    check_folder(folder)
    say = teller(quiet)
    say(f"{cfg.method.name}: {pretrain.name} against {harmful.name}, seed {cfg.seed}: loading")
    if cfg.model.get("kind") == "deep":
        from immunize.running import deep_experiment

        with sigint_restored():
            return deep_experiment.run(cfg, folder, quiet=quiet, given=given)
    from immunize.running.assembling import build_loggers
    from immunize.running.experiment import build_cross_fit, build_data, fit_each, threads
    from immunize.running.recording import evaluate_fits, logged_run, new_record, save

    clock = time.perf_counter()
    record = new_record(cfg, given)
    data = build_data(cfg)
    loggers = build_loggers(cfg, folder, logged_run(record, (data.pretrain.name, data.harmful.name)))

    pairs, fits = {"fit": data}, {}
    if data.held_out_protocol == "cross_fit" and cfg.selection is None:
        pairs["cross_fit"] = build_cross_fit(cfg, data)
    with sigint_restored(), threads(cfg, data.n_features):
        try:
            with closing(fit_each(cfg, pairs, loggers, quiet=quiet)) as each:
                for name, done in each:
                    fits[name] = done
            say("measuring")
            evaluate_fits(record, cfg, fits, pairs, clock)
        except KeyboardInterrupt:  # between or after the trainings, which see to it themselves
            if not fits:
                raise
            fits = {name: replace(done, status="interrupted") for name, done in fits.items()}
            evaluate_fits(record, cfg, fits, pairs, clock)
        save(record, folder, fits, data, loggers)
    return record


@entry_point
def main() -> None:
    """Entry point of `python -m immunize.train` and `immunize-train`."""
    register()
    _hydra_main()


@hydra.main(version_base="1.3", config_path=config_dir(), config_name="train")
@explain_errors
def _hydra_main(cfg: DictConfig) -> float | None:
    """One job: print the table, then the record's path as the last line of stdout; in a sweep, nothing."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from immunize.records import RECORD
    from immunize.report import show_record

    hydra_cfg = HydraConfig.get()
    folder = Path(hydra_cfg.runtime.output_dir)
    in_sweep = hydra_cfg.mode == RunMode.MULTIRUN
    record = run(cfg, folder, quiet=in_sweep, given=asked_for())
    if not in_sweep and is_first():
        show_record(record)
        print(folder / RECORD, flush=True)
    if record["status"] == "interrupted":
        raise KeyboardInterrupt
    if record["status"] != "finished" and not in_sweep:  # for a sweep it is one result among many
        raise UserError(f"the run {record['status']}: its record says where, the checkpoint holds the last finite θ")
    return value_of(record)


if __name__ == "__main__":
    main()
