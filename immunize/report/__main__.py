"""`python -m immunize.report`: tables and figures of many runs, from their records alone.

`runs=<folder> [out=<folder>]` summarizes any runs; with `experiment=<name>` it writes the report of that experiment.
`card run=<folder>` writes the immunization card of one run, `html run=<folder>` or `html sweep=<folder>` a page to read
in a browser.
"""

from __future__ import annotations

import sys
from pathlib import Path

from omegaconf import DictConfig

from immunize.cli import command
from immunize.errors import UserError


def main() -> None:
    """Entry point of `python -m immunize.report`."""
    command_of = {"card": _card, "html": _html}.get("".join(sys.argv[1:2]))
    if command_of is not None:
        del sys.argv[1]  # the others are for Hydra, which reads them there
    (command_of or _tables)()


@command("report/report")
def _tables(cfg: DictConfig) -> None:
    from immunize.report.loading import lacking_is_told, load_records

    folder, out = Path(cfg.runs), None if cfg.out is None else Path(cfg.out)
    if cfg.keep and (out is None or cfg.experiment not in ("table_attacks", "table1", "table2")):
        raise UserError("keep=true belongs to experiment=table_attacks, table1 or table2 with out=<what has results>")
    try:
        with lacking_is_told(f"a record below {folder}"):
            if cfg.experiment is not None:
                from immunize.report.experiments import Request, report_experiment

                text = report_experiment(Request(cfg.experiment, folder, out, Path(cfg.published), cfg.keep))
                # Wide tables are read in the page; without a folder for it they are Markdown to be passed on.
                print(text.rstrip("\n") if out is None else out / "README.md")
                return
            from immunize.report.summary import show_summary, write_summary

            records = load_records(folder)
            if out is not None:
                write_summary(records, out)
            show_summary(records)
    except (FileNotFoundError, ValueError) as error:
        raise UserError(str(error)) from None


@command("report/card")
def _card(cfg: DictConfig) -> None:
    from immunize.report.card import write_card

    folder = Path(cfg.run)
    print(write_card(folder, folder if cfg.out is None else Path(cfg.out)))


@command("report/html")
def _html(cfg: DictConfig) -> None:
    given = {name: Path(cfg[name]) for name in ("run", "sweep") if cfg[name] is not None}
    if len(given) != 1:
        raise UserError("give one of run=<folder> and sweep=<folder>")
    from immunize.report.html import write_run_page, write_sweep_page

    ((what, folder),) = given.items()
    write = write_run_page if what == "run" else write_sweep_page
    print(write(folder, folder if cfg.out is None else Path(cfg.out)))


if __name__ == "__main__":
    main()
