"""The table of one run, from its record. Imports no other room and no torch."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from immunize.records import diverged_cross_fit
from immunize.report.cells import short
from immunize.report.naming import run_title
from immunize.report.nulls import with_infinities
from immunize.report.one_network import show_deep_record
from immunize.report.separability import carried_over, separability_lines
from immunize.report.several import by_harmful_set
from immunize.report.terminal import printed_table, to_read

__all__ = ["loss_text", "result_rows", "show_record", "warning_lines"]

EXACT = 1e-9
"""A best possible loss below this share of the targets' mean square is zero up to rounding."""

COLUMNS = [
    "part",
    "estimator",
    "(i) harmful ↑",
    "(ii) pretrain ↓",
    "RIR ↑",
    "κ(H_H), identity",
    "κ(H_H), θ",
    "κ(H_P), identity",
    "κ(H_P), θ",
]
_KEYS = [
    "ratio_harmful",
    "ratio_pretrain",
    "rir",
    "kappa_harmful_baseline",
    "kappa_harmful",
    "kappa_pretrain_baseline",
    "kappa_pretrain",
]


def result_rows(record: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Column names, and one row a part and estimator, of networks by groups too; what θ began as stands beside."""
    rows = [
        [f"{part}{of}", estimator, *(numbers[key] for key in _KEYS)]
        for of, kind in {"": "metrics", ", groups": "metrics_groups"}.items()
        for part, estimators in record.get(kind, {}).items()
        for estimator, numbers in estimators.items()
    ]
    return COLUMNS, rows


def show_record(record: dict[str, Any], console: Console | None = None) -> None:
    """Print the numbers and verdicts of one run."""
    console = to_read(console)
    title = run_title(record)
    if not record.get("metrics"):
        console.print(f"{title}: {record['status']}, not evaluated")
        _show_warnings(record, console)
        return
    if "metrics_groups" in record:
        for one in by_harmful_set(record):
            show_deep_record(one, console, run_title(one))
            _show_separability(one, console)
        _show_warnings(record, console)
        return
    table = printed_table(title)
    for column in ("part", "estimator"):
        table.add_column(column)
    for column in ("(i) ↑", "(ii) ↓", "RIR ↑", "κ(H_H): I → θ", "κ(H_P): I → θ"):
        table.add_column(column, justify="right")
    for part, estimators in record["metrics"].items():
        for index, (estimator, of) in enumerate(estimators.items()):
            m = with_infinities(of)
            table.add_row(
                "" if index else part.replace("_", " "),
                estimator,
                *(short(m[key]) for key in ("ratio_harmful", "ratio_pretrain", "rir")),
                f"{short(m['kappa_harmful_baseline'])} → {short(m['kappa_harmful'])}",
                f"{short(m['kappa_pretrain_baseline'])} → {short(m['kappa_pretrain'])}",
            )
        table.add_section()
    console.print(table)
    if (lost := diverged_cross_fit(record)) is not None:
        console.print(f"no held-out numbers: {lost}")
    verdicts = record["verdicts"]
    for part, of_part in (("fit", verdicts), *((p, verdicts[p]) for p in ("held_out", "validation") if p in verdicts)):
        lines = _verdicts(of_part, with_infinities(record["metrics"][part][of_part["estimator"]]))
        console.print(f"Definition 3.1 on {part.replace('_', ' ')}, {of_part['estimator']}:", *lines, sep="\n  ")
    _show_separability(record, console)
    console.print("probe steps to norm ratio 0.1 (gradient descent, exact line search), I → θ:")
    limit = record["config"]["probe_steps"]
    for part, sets in record["steps_to_norm_ratio"].items():
        for name, of in sets.items():
            line = f"{_steps(of['identity'], limit)} → {_steps(of['immunized'], limit)}"
            console.print(f"  {part.replace('_', ' '):9} {name:9} {line}")
    _show_warnings(record, console)
    _say_what_to_do(record, console)


def _show_separability(record: dict[str, Any], console: Console) -> None:
    if lines := separability_lines(carried_over(record, record["metrics"])):
        console.print(*lines, sep="\n  ")


def _show_warnings(record: dict[str, Any], console: Console) -> None:
    """The failure signatures that the trainings of a run showed, if any."""
    if lines := warning_lines(record):
        console.print("warnings:")
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 2)))


def warning_lines(record: dict[str, Any]) -> list[str]:
    """The failure signatures that the trainings of a run showed, a line each."""
    return [
        f"{one['name']} ({name.replace('_', '-')}, step {one['step']}"
        f"{'' if one['at_end'] else ', no longer at the end'}): {one['text']}"
        for name, facts in (record.get("training") or {}).items()
        for one in facts.get("warnings", [])
    ]


def _verdicts(v: dict[str, Any], ratios: dict[str, float]) -> list[str]:
    def word(passed: bool) -> str:
        return "[green]yes[/green]" if passed else "[red]no[/red] "

    return [
        f"(a) harmful task harder           {word(v['a'])}  (i) = {short(ratios['ratio_harmful'])}",
        f"(b) pre-training task no harder   {word(v['b'])}  (ii) = {short(ratios['ratio_pretrain'])}",
        f"(c) pre-training task still done  {word(v['c'])}  {loss_text(v, 'a ridge probe')}",
    ]


def loss_text(v: dict[str, Any], of: str = "the network, or of a ridge probe,") -> str:
    """What verdict (c) rests on.

    Args:
        v: a verdict.
        of: whose accuracy it is, where it is one.
    """
    if "accuracy_before" in v:
        return f"accuracy of {of} {v['accuracy_before']:.2f} % before, {v['accuracy_after']:.2f} % after"
    if v["loss_plain"] <= EXACT * v["loss_zero"]:
        return "says little: any features fit these targets exactly"
    return f"optimal loss {short(v['loss_immunized'])}, best possible {short(v['loss_plain'])}"


def _say_what_to_do(record: dict[str, Any], console: Console) -> None:
    """The last line where θ does not immunize on the very rows it was made for."""
    v = record["verdicts"]
    if record["method"] in ("none", "erase") or (v["a"] and v["b"]):
        return  # what is erased no condition number says; what a probe can learn does, which stands above
    ratios = with_infinities(record["metrics"]["fit"][v["estimator"]])
    failed = [f"(a) fails with (i) = {short(ratios['ratio_harmful'])}"] if not v["a"] else []
    failed += [f"(b) fails with (ii) = {short(ratios['ratio_pretrain'])}"] if not v["b"] else []
    console.print(
        f"NOT IMMUNIZED on fit, {' and '.join(failed)}: `python -m immunize.forecast` with the same data says what a "
        f"linear map can reach, and method=closed_form reaches it"
    )


def _steps(steps_to: dict[str, int | None], limit: int) -> str:
    if not steps_to:
        return "nothing to learn"
    value = steps_to["0.1"]
    return f"> {limit:,}" if value is None else f"{value:,}"
