"""Loggers that need more than their constructor, and what a run writes to them at its end."""

from __future__ import annotations

import csv
import netrc
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only

from immunize.errors import UserError


class CurveLogger(CSVLogger):
    """Lightning's logger of `metrics.csv`, which deletes the file of before; a training that goes on keeps its rows.

    Attributes:
        rows: how many lie in the file.
    """

    _before: Sequence[dict[str, str]] = ()
    rows = 0

    @property
    def experiment(self) -> Any:
        """What writes the file."""
        path = Path(self.log_dir) / ExperimentWriter.NAME_METRICS_FILE
        if self._experiment is None and path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                self._before = list(csv.DictReader(file))
        return super().experiment

    def go_on(self, rows: int) -> None:
        """Take over the first rows of before: those after them will come again."""
        kept = self._before[:rows]
        self.experiment.metrics = [{name: value for name, value in row.items() if value} for row in kept]
        self.save()

    @rank_zero_only
    def save(self) -> None:
        """Write the rows that wait."""
        self.rows += len(self.experiment.metrics)
        super().save()


class RunLogger(WandbLogger):
    """Lightning's logger of W&B, whose refusals are the user's to mend; a training that goes on keeps its run."""

    @property
    def experiment(self) -> Any:
        """The W&B run.

        Raises:
            UserError: W&B refuses to begin it.
        """
        from wandb.errors import Error

        try:
            return super().experiment
        except Error as error:
            raise UserError(f"W&B: {error}; log in, or keep the run here with WANDB_MODE=offline") from None

    def go_on(self, run_id: str) -> None:
        """Be the run of that id, before anything is logged."""
        self._wandb_init |= {"id": run_id, "resume": "allow"}


def wandb_logger(project: str, save_dir: str, *, run: Mapping[str, Any] | None = None, **options: Any) -> WandbLogger:
    """A W&B logger that stays offline unless the user is logged in, so that no account is ever needed.

    WANDB_MODE, where set, decides instead.

    Args:
        project: the W&B project.
        save_dir: where `wandb/` is created.
        run: what the run is called and made of, "name", "group", "tags" and "config", unless `options` say otherwise.
        options: further arguments of Lightning's WandbLogger; those that are null are not passed on.
    """
    offline = "WANDB_MODE" not in os.environ and not _logged_in()
    told = {**(run or {}), **{name: value for name, value in options.items() if value is not None}}
    return RunLogger(project=project, save_dir=save_dir, offline=offline, **told)


def log_results(
    loggers: Iterable[Logger],
    numbers: Mapping[str, float],
    curves: Mapping[str, tuple[list[int], list[float]]],
    figure: Path | None,
    *,
    step: int,
) -> None:
    """Write the final numbers to every logger; a W&B run also gets the probe's curves and the figure.

    Args:
        loggers: those of the run.
        numbers: flat names to values.
        curves: name, "<what>/...", to (steps of the probe, values).
        figure: the figure of the curves, PNG; None if none was drawn.
        step: the step they belong to.
    """
    for logger in loggers:
        if not isinstance(logger, WandbLogger):
            logger.log_metrics(dict(numbers), step=step)
            continue
        import wandb

        run = logger.experiment
        for name, (steps, values) in curves.items():
            run.define_metric(name, step_metric="probe_step")
            for probe_step, value in zip(steps, values, strict=True):
                run.log({"probe_step": probe_step, name: value})
        drawn = {} if figure is None else {"figure": wandb.Image(str(figure))}
        run.log({**numbers, **drawn})


def close_loggers(loggers: Iterable[Logger], *, success: bool) -> None:
    """Close every logger. A W&B run left open would be continued by the next run of a multirun; none is begun for it.

    Args:
        loggers: those of the run.
        success: whether the run finished.
    """
    for logger in loggers:
        logger.finalize("success" if success else "failed")
        if isinstance(logger, WandbLogger) and logger._experiment is not None:
            logger.experiment.finish(exit_code=0 if success else 1)


def _logged_in() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    names = os.environ.get("NETRC")
    try:
        server = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
        return netrc.netrc(os.path.expanduser(names) if names else None).authenticators(server) is not None
    except (OSError, ValueError, netrc.NetrcParseError):
        return False
