"""`python -m immunize.train`: assemble, fit, evaluate, record.

`main` only parses; :func:`run` does the work and returns the record.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from immunize.cli import command, in_sweep, output_folder, pasted, sigint_restored, tell, teller
from immunize.config import hash_of_run, is_deep, resolved
from immunize.effects import asked_for
from immunize.errors import UserError
from immunize.instantiate import NOT_ARGUMENTS, build, sources_of
from immunize.processes import is_first, process_count, run_processes, started_outside
from immunize.records import RECORD, read_record
from immunize.settings import alone_in, check_folder, check_settings, refuse_finished
from immunize.sweeping import done_record, value_of


def run(cfg: DictConfig, folder: Path, *, quiet: bool = False, given: Sequence[str] = ()) -> dict[str, Any]:
    """Immunize, evaluate, and write `record.json` and `checkpoint.safetensors` into `folder`.

    A linear model also leaves `norm_ratio.png` there. What the configuration comes to is an
    :class:`~immunize.pipeline.experiment.Experiment`, linear or of a network; the path is the same.

    Args:
        cfg: the composed configuration (`conf/train.yaml`).
        folder: the output folder.
        quiet: show no progress.
        given: settings that somebody has asked for, which have to have an effect.

    Returns:
        The record, as written; with `resume`, the one that is there if it needs no repeating.

    Raises:
        UserError: anything in the configuration or the data that the user has to mend.
        KeyboardInterrupt: Ctrl-C before there was anything to keep.
        SystemExit: SIGTERM; what was trained so far is kept, of a network for `resume=true`.
    """
    check_settings(cfg)
    if cfg.resume and not cfg.overwrite and (record := done_record(folder, hash_of_run(cfg))) is not None:
        return record
    # Missing files are reported before the imports below, which take seconds.
    sources = sources_of(cfg)
    refuse_finished(folder, cfg.overwrite)
    check_folder(folder)
    pretrain, harmful = sources
    teller(quiet)(f"{cfg.method.name}: {pretrain.name} against {harmful.name}, seed {cfg.seed}: loading")
    from immunize.pipeline.assemble import assemble
    from immunize.pipeline.experiment import new_record
    from immunize.pipeline.experiment import run as fit_evaluate_record

    clock, settings = time.perf_counter(), resolved(cfg)
    method = build(cfg.method, leave_out=NOT_ARGUMENTS)
    record = new_record(settings, method, given)
    count = process_count(cfg.trainer) if is_deep(cfg) and method.trains else 1
    with alone_in(folder, cfg.overwrite) if is_first() else contextlib.nullcontext(), sigint_restored():
        if count > 1 and not started_outside():
            spec = {"config": settings, "command": record["command"], "quiet": quiet}
            run_processes(spec, folder, count, "immunize.pipeline")
            return read_record(folder)
        return fit_evaluate_record(assemble(cfg, sources), record, folder, clock, quiet=quiet)


@command("train")
def main(cfg: DictConfig) -> float | None:
    """One job: print the table, then the record's path as the last line of stdout; in a sweep, nothing."""
    folder, among_others = output_folder(), in_sweep()
    record = run(cfg, folder, quiet=among_others, given=asked_for())
    if not among_others and is_first():
        from immunize.report import show_record  # it asks for what a run does not

        show_record(record)
        if record["status"] == "finished":
            tell(f"who learns the harmful task all the same: python -m immunize.attack {pasted('run', folder)}")
        print(folder / RECORD, flush=True)
    if record["status"] == "interrupted":
        raise KeyboardInterrupt
    if record["status"] != "finished" and not among_others:  # for a sweep it is one result among many
        raise UserError(
            f"the run {record['status']}: its record says where, the checkpoint holds the last finite θ; a smaller "
            "objective.learning_rate may mend it"
        )
    return value_of(record) if is_first() else None  # beside it there are no numbers


if __name__ == "__main__":
    main()
