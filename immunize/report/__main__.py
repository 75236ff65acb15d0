"""`python -m immunize.report runs=<folder> [out=<folder>]`: a table of many runs, from their records alone."""

from __future__ import annotations

from pathlib import Path

import hydra
from omegaconf import DictConfig

from immunize.cli import entry_point, explain_errors
from immunize.config import config_dir, register
from immunize.errors import UserError
from immunize.report.summary import load_records, summary_table, write_summary


@entry_point
def main() -> None:
    """Entry point of `python -m immunize.report`."""
    register()
    _hydra_main()


@hydra.main(version_base="1.3", config_path=config_dir(), config_name="report")
@explain_errors
def _hydra_main(cfg: DictConfig) -> None:
    try:
        records = load_records(Path(cfg.runs))
    except (FileNotFoundError, ValueError) as error:
        raise UserError(str(error)) from None
    print(summary_table(records), end="")
    if cfg.out is not None:
        write_summary(records, Path(cfg.out))


if __name__ == "__main__":
    main()
