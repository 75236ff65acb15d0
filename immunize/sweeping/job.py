"""One run of a sweep in whatever process does it: composed, run, and what became of it told in plain values.

Hydra's own return of a run carries its whole configuration, a megabyte for each of thousands of runs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.errors import HydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from immunize.cli import with_cause
from immunize.config import register
from immunize.errors import CheckpointError
from immunize.records import RECORD, file_digest, read_record

DONE = ("finished", "diverged")
"""Statuses of a record that the same configuration would end with again; an interrupted run is run again."""


@dataclass(frozen=True)
class Outcome:
    """How a run of a sweep ended.

    Attributes:
        status: "finished", "diverged", or "failed".
        value: what the task returned.
        found: it had ended so before this sweep began, and was not run again.
        messages: warnings of the run, and of a failed one the error, a line or a traceback.
    """

    status: str
    value: Any = None
    found: bool = False
    messages: tuple[str, ...] = ()


def done_record(folder: Path, config_hash: str) -> dict[str, Any] | None:
    """The record in a folder, if the run that it tells of needs no repeating; else None.

    Args:
        folder: the output folder of the run.
        config_hash: of the configuration to be run (:func:`immunize.config.config_hash`).
    """
    if not (folder / RECORD).is_file():
        return None
    try:
        record = read_record(folder)
    except CheckpointError:
        return None
    if record["status"] not in DONE or record.get("config_hash") != config_hash:
        return None
    return record if _began_with_what_is_there(record) else None


def _began_with_what_is_there(record: dict[str, Any]) -> bool:
    """Whether the file of θ_0, as far as there is one, is still that of the run: another one may have its name."""
    known = record.get("network", {}).get("checkpoint_sha256")
    if known is None or not (path := Path(record["config"]["model"]["checkpoint"]).expanduser()).is_file():
        return True
    return bool(file_digest(path) == known)


def value_of(record: dict[str, Any]) -> float | None:
    """What a sweeper is told of a run: its RIR (`spectrum`) on `fit`, or on `validation` where that is what it has.

    Returns:
        None where the record has none (a κ that is infinite); NaN for a run that did not finish.
    """
    if record["status"] != "finished":
        return math.nan
    metrics = record["metrics"]
    value = metrics["validation" if "validation" in metrics else "fit"]["spectrum"]["rir"]
    return None if value is None else float(value)


TOLD_BY_RECORD = "immunize.training."
"""Loggers whose warnings stand in the record as well; the reports count them."""


@dataclass
class Jobs:
    """What all runs of a sweep share; can be sent to another process.

    Attributes:
        context: Hydra's.
        task: what a run does.
        master: the configuration of the sweep.
        state: Hydra's singletons.
    """

    context: HydraContext
    task: TaskFunction
    master: DictConfig
    state: Any

    def enter(self) -> None:
        """Make a fresh process one in which :meth:`run` works."""
        Singleton.set_state(self.state)
        self.prepare()

    def prepare(self) -> None:
        """Register what a configuration refers to."""
        setup_globals()
        register()

    def run(self, number: int, overrides: Sequence[str]) -> Outcome:
        """Do one run. Whatever goes wrong in it is told by the outcome; only Ctrl-C passes."""
        with _listening() as messages:
            try:
                cfg = self.context.config_loader.load_sweep_config(self.master, list(overrides))
                with open_dict(cfg):
                    cfg.hydra.job.id = f"{cfg.hydra.job.name}_{number}"
                    cfg.hydra.job.num = number
                done = run_job(
                    hydra_context=self.context,
                    task_function=self.task,
                    config=cfg,
                    job_dir_key="hydra.sweep.dir",
                    job_subdir_key="hydra.sweep.subdir",
                    configure_logging=False,
                )
                value = done._return_value
            except Exception as error:  # a configuration that cannot be composed, a folder that cannot be made
                return Outcome("failed", messages=(_told(error),))
        if isinstance(value, Exception):
            return Outcome("failed", messages=(_told(value),))
        assert done.hydra_cfg is not None
        status = _status(Path(done.hydra_cfg.hydra.runtime.output_dir))
        return Outcome(status, value, messages=tuple(messages))


def job_return(overrides: Sequence[str], outcome: Outcome) -> JobReturn:
    """What Hydra's sweepers read of a run."""
    failed = outcome.status == "failed"
    value = HydraException(outcome.messages[0]) if failed else outcome.value
    return JobReturn(
        overrides=list(overrides), status=JobStatus.FAILED if failed else JobStatus.COMPLETED, _return_value=value
    )


def words(overrides: Sequence[str]) -> str:
    """How a message names a run: its overrides but for Hydra's own and the preset, which all runs share."""
    own = [line for line in overrides if not line.startswith(("hydra.", "hydra/", "experiment="))]
    return " ".join(own) or "the run"


def _status(folder: Path) -> str:
    """Of a run that returned: that of its record, "finished" for a task that writes none."""
    try:
        return str(read_record(folder)["status"])
    except CheckpointError:
        return "finished"


def _told(error: Exception) -> str:
    if isinstance(error, HydraException | OmegaConfBaseException):
        return with_cause(error)
    if isinstance(error, OSError):  # a full disk
        return f"error: {error}"
    return "".join(traceback.format_exception(error)).rstrip()


class _Listener(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(TOLD_BY_RECORD):
            self._messages.append(record.getMessage())


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    """Collect what is logged as a warning or worse, instead of showing it."""
    messages: list[str] = []
    root = logging.getLogger()
    before, root.handlers = root.handlers, [_Listener(messages)]
    try:
        yield messages
    finally:
        root.handlers = before
