"""`python -m immunize.report`: tables and figures of many runs, from their records alone.

`runs=<folder> [out=<folder>]` summarizes any runs; with `experiment=<name>` it writes the report of that experiment.
`card run=<folder>` writes the immunization card of one run, `html run=<folder>` or `html sweep=<folder>` a page to read
in a browser.
"""

from __future__ import annotations

import sys
from pathlib import Path

from immunize.cli import command
from immunize.errors import UserError


def main() -> None:
    """Entry point of `python -m immunize.report`."""
    command_of = {"card": _card, "html": _html}.get("".join(sys.argv[1:2]))
    if command_of is not None:
        del sys.argv[1]  # the others are for Hydra, which reads them there
    (command_of or _tables)()


@command("report/report", values=True)
def _tables(runs: str, experiment: str | None, out: str | None, keep: bool, published: str) -> None:
    from immunize.report.loading import lacking_is_told, load_finished

    folder, to = Path(runs), None if out is None else Path(out)
    if keep and (to is None or experiment not in ("table_attacks", "table1", "table2")):
        raise UserError("keep=true belongs to experiment=table_attacks, table1 or table2 with out=<what has results>")
    with lacking_is_told(f"a record below {folder}"):
        if experiment is not None:
            from immunize.report.experiments import Request, report_experiment

            text = report_experiment(Request(experiment, folder, to, Path(published), keep))
            # Wide tables are read in the page; without a folder for it they are Markdown to be passed on.
            print(text.rstrip("\n") if to is None else to / "README.md")
            return
        from immunize.report.summary import show_summary, write_summary

        records, note = load_finished(folder)
        if to is not None:
            write_summary(records, to, note)
        show_summary(records)
        if note:
            print(note)


@command("report/card", values=True)
def _card(run: str, out: str | None) -> None:
    from immunize.report.card import write_card

    print(write_card(Path(run), Path(run if out is None else out)))


@command("report/html", values=True)
def _html(run: str | None, sweep: str | None, out: str | None) -> None:
    if bool(run) == bool(sweep):
        raise UserError("give one of run=<folder> and sweep=<folder>")
    from immunize.report.html import write_run_page, write_sweep_page

    folder, write = str(sweep or run), write_sweep_page if sweep else write_run_page
    print(write(Path(folder), Path(folder if out is None else out)))


if __name__ == "__main__":
    main()
