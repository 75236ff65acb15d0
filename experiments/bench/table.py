"""Every benchmark in one table, from the files of the parts and the records of the experiments: README.md.

A line has what was measured, the limit, and whether it is met; and the machine, date, load and commit it was measured
with, which differ from line to line where parts were repeated. What was not measured yet is a line that says how to.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.bench import attack, busy, deep, defence, in_place, mnist, start
from experiments.bench.machine import MACHINE, read
from immunize.files import read_object
from immunize.report.loading import load_records
from immunize.report.provenance import made_with
from immunize.report.runs import EXPERIMENT_STATUSES
from immunize.report.table import Table

README = "README.md"
TABLE2_RUNS, DIGITS_RUNS = 270, 36
UNITS = {"h": (3600, 2), "min": (60, 1)}
"""Their seconds, and decimals that are told."""
NOT_YET = "not measured yet"
PARTS, ESTIMATORS = ("fit", "held_out"), ("released", "spectrum", "ridge")


@dataclass(frozen=True)
class Line:
    """One benchmark.

    Attributes:
        name: of what was measured.
        measured: in words; `NOT_YET` without numbers.
        limit: in words.
        met: whether it is within the limit; None without numbers.
        made: of `_MADE`, by name.
        command: that measures it.
    """

    name: str
    measured: str
    limit: str
    met: bool | None
    made: dict[str, str]
    command: str


_MADE = ("machine", "threads", "date", "load", "commit")
Row = dict[str, Any]
Told = tuple[str, str, str, bool | None]
"""The first four attributes of a `Line`."""


def lines(results: Path, experiments: Path) -> list[Line]:
    """Every benchmark.

    Args:
        results: the folder of the parts' files.
        experiments: the folder with the experiments' records.
    """
    table2 = [record for record in _records(experiments / "table2") if record["method"] == "ours"]
    digits = _records(experiments / "table3_digits")
    return [
        *_of_part(results, "start", "start.csv", _start),
        *_of_part(results, "busy", "busy.csv", _busy),
        *_of_part(results, "mnist", "mnist.csv", _mnist),
        *_of_part(results, "mnist", "housing.csv", _housing),
        *_of_runs("Table 2, `ours`", table2, TABLE2_RUNS, (2.0, "h"), "make table2"),
        *_of_part(results, "deep", "deep_step.csv", _steps),
        *_of_part(results, "in_place", "in_place.csv", _in_place),
        *_of_part(results, "defence", "defence.csv", _defence),
        *_of_runs("Table 3 at `SCALE=digits`", digits, DIGITS_RUNS, (10.0, "min"), "make table3 SCALE=digits"),
        *_of_part(results, "attack", "attack.csv", _attack),
        *_over(results),
    ]


def readme(results: Path, experiments: Path) -> str:
    """The page.

    Args:
        results: as in :func:`lines`.
        experiments: likewise.
    """
    found = lines(results, experiments)
    verdicts = [line.met for line in found]
    rows = [
        [
            *(line.name, line.measured, line.limit, {True: "yes", False: "**no**", None: "–"}[line.met]),
            *(line.made.get(name, "–") for name in _MADE),
            f"`{line.command}`",
        ]
        for line in found
    ]
    columns = ("benchmark", "measured", "limit", "met", *_MADE, "command")
    missed = verdicts.count(False)
    counts = f"{verdicts.count(True)} of {len(found)} limits are met, {missed} {'is' if missed == 1 else 'are'} missed"
    absent = verdicts.count(None)
    missing = f", {absent} {'was' if absent == 1 else 'were'} not measured yet" if absent else ""
    table = Table("", columns, rows).markdown(heading=False)
    page = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")
    return page.format(counts=f"{counts}{missing}", table=table, released=_released(results))


def _released(results: Path) -> str:
    """A section: runs of one MNIST pair beside the released code's."""
    theirs, ours = read(results / "released_code.csv"), read(results / "mnist.csv")
    if not theirs or not ours:
        return ""
    rirs = [f"rir_{part}_{estimator}" for part in PARTS for estimator in ESTIMATORS]
    rows = [
        [
            *(row["run"] if row in theirs else f"`ours`, {row['run']}", f"{row['steps']:,}", f"{row['seconds']:,.0f}"),
            *(f"{row['ms_a_step']:.3g}", f"{row['peak_gb']:.3g}", *(f"{row[name]:.3g}" for name in rirs)),
        ]
        for row in (*theirs, *ours)
    ]
    shown = ("steps", "start to exit, s", "a step, ms", "peak memory, GB")
    columns = ("MNIST 0 → 1", *shown, *(f"RIR {part}, {estimator}" for part in PARTS for estimator in ESTIMATORS))
    note = f"released code: {theirs[0]['source']}."
    return Table("Beside the released code", columns, rows, [note]).markdown() + "\n"


def _over(results: Path) -> Iterator[Line]:
    """Studies that are over: their lines are those of the commit that still had the code."""
    path = results / "over.csv"
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines() if path.is_file() else []):
        made = {name: row[name] for name in _MADE}
        yield Line(row["benchmark"], row["measured"], row["limit"], row["met"] == "yes", made, row["command"])


def _of_part(results: Path, part: str, name: str, tell: Callable[[list[Row]], Iterator[Told]]) -> list[Line]:
    rows = read(results / name)
    facts = (read_object(results / MACHINE) or {}).get(part)
    made: dict[str, str] = {}
    if rows and facts is not None:
        hardware, load = facts["hardware"], facts["load_average_before"]
        made = {
            "machine": f"{hardware['processor']}, {hardware['cores']} cores",
            "threads": str(rows[0].get("threads", hardware["threads"])),
            "date": facts["date"],
            "load": "–" if load is None else str(load),
            "commit": _short_commit(facts["git_commit"]),
        }
    return [Line(*told, made, f"make bench PART={part}") for told in tell(rows)]


def _start(rows: list[Row]) -> Iterator[Told]:
    for name, (limit, _) in start.CASES.items():
        told = "{seconds} s, {processor_s} s of the processor"
        yield _within(f"`{name}`: start to exit", f"{limit:g} s", _at(rows, command=name), told, "seconds", limit)


def _busy(rows: list[Row]) -> Iterator[Told]:
    for load in busy.LOADS:
        key = f"{load}_ratio"
        worst = max(rows, key=lambda row: float(row[key]), default=None)
        told = f"{{{key}}} times at most, of {len(rows)} commands (`{{command}}`)"
        said = f"commands beside a busy process a core ({load}) against alone"
        yield _within(said, f"{busy.LIMIT:g} times", worst, told, key, busy.LIMIT)


def _mnist(rows: list[Row]) -> Iterator[Told]:
    first = next(iter(mnist.CASES))
    for name, (limit, _) in mnist.CASES.items():
        row, beside = _at(rows, run=name), _at(rows, run=first)
        said = f"MNIST 0 → 1, `ours`, {name}: start to exit"
        yield _within(said, f"{limit:.0f} s", row, "{seconds} s, {steps:,} steps", "seconds", limit)
        for estimator in ("released", "spectrum") if name != first else ():
            key = f"rir_fit_{estimator}"
            told = row and beside and f"{row[key]:.0f} against {beside[key]:.0f}"
            met = row and beside and row[key] >= beside[key]
            yield _line(f"the same: RIR on `fit`, `{estimator}`, beside {first}'s", "≥", told, met)
    row, told = _at(rows, run="default"), "{ms_a_step} ms"
    yield _within("default: a step", f"{mnist.STEP_MS:g} ms", row, told, "ms_a_step", mnist.STEP_MS)
    said, largest = "the same: peak memory of a process", max(rows, key=lambda row: float(row["peak_gb"]), default=None)
    yield _within(said, f"{mnist.LIMIT_GB} GB", largest, "{peak_gb} GB", "peak_gb", mnist.LIMIT_GB)


def _housing(rows: list[Row]) -> Iterator[Told]:
    row, said = (rows[0] if rows else None), "House Prices, `ours`, default: fit, cross-fit and measuring"
    yield _within(
        said, f"{mnist.WORK_S:g} s", row, "{work_s} s, {seconds} s from start to exit", "work_s", mnist.WORK_S
    )


def _steps(rows: list[Row]) -> Iterator[Told]:
    for name in deep.NETWORKS:
        said = f"`{name}`: a step with regularizers against one without"
        told = "{ratio} times ({process_ratio} by processor time), batch {batch}"
        limit = f"{deep.STEP_LIMIT:.2f} times"
        yield _within(said, limit, _at(rows, network=name), told, "ratio", deep.STEP_LIMIT)


def _in_place(rows: list[Row]) -> Iterator[Told]:
    for name, (method, _) in in_place.CASES.items():
        said = f"`{name}`, `{method}`: measuring against training in place"
        told = "{ratio:.2g} times ({evaluation_s} against {training_s} s, {steps:,} steps)"
        yield _within(said, f"{in_place.LIMIT:g} times", _at(rows, network=name), told, "ratio", in_place.LIMIT)


def _defence(rows: list[Row]) -> Iterator[Told]:
    for method, (words, key, limit) in defence.CASES.items():
        said = f"`resnet18_64px`, `{method}`: {words}"
        yield _within(said, f"{limit:g} s", _at(rows, method=method), f"{{{key}}} s", key, limit)


def _attack(rows: list[Row]) -> Iterator[Told]:
    for case, limit in attack.CASES.items():
        row, told = _at(rows, case=case), "{seconds} s, {process_seconds} s of the processor"
        yield _within(f"`attack=standard`, {case}", f"{limit:g} s", row, told, "seconds", limit)
        said, most = "the same: peak memory of a process", attack.LIMIT_GB
        yield _within(said, f"{most:g} GB", row, "{peak_gb} GB", "peak_gb", most)


def _at(rows: list[Row], **where: str) -> Row | None:
    """The first row with these cells."""
    return next((row for row in rows if where.items() <= row.items()), None)


def _within(name: str, limit: str, row: Row | None, words: str, *most: Any) -> Told:
    """A row's cells in `words`, and whether that of a key, which stands before its limit, is within it."""
    return _line(name, limit, row and words.format_map(row), row and row[most[0]] <= most[1])


def _of_runs(name: str, records: list[Row], runs: int, limit: tuple[float, str], command: str) -> Iterator[Line]:
    """Runs of an experiment that go side by side, if all of them are there."""
    (most, unit), told, met = limit, None, None
    if len(records) == runs:
        seconds, digits = UNITS[unit]
        taken = _side_by_side(records) / seconds
        told, met = f"{taken:.{digits}f} {unit}", taken <= most
    told_by = _line(f"{name}: {runs} runs, their seconds over the cores", f"{most:g} {unit}", told, met)
    yield Line(*told_by, _made(records) if told else {}, command)


def _line(name: str, limit: str, told: object, met: object) -> Told:
    """What is false, as of a row that is not there, was not measured."""
    return name, str(told or NOT_YET), limit, None if not told else bool(met)


def _side_by_side(records: list[Row]) -> float:
    """Seconds of runs that go side by side over the cores, each with its threads."""
    hardware = records[0]["hardware"]
    side_by_side: int = max(1, hardware["cores"] // hardware["threads"])
    return math.fsum(record["seconds"] for record in records) / side_by_side


def _records(folder: Path) -> list[Row]:
    try:
        return load_records(folder, EXPERIMENT_STATUSES)
    except FileNotFoundError:
        return []


def _made(records: list[Row]) -> dict[str, str]:
    found = dict(made_with(records))
    commits = sorted({_short_commit(str(record.get("git_commit"))) for record in records})
    return {
        "machine": found["machine"],
        "threads": found["threads a run"],
        "date": found["date"],
        "commit": commits[0] if len(commits) == 1 else f"{len(commits)} commits",
    }


def _short_commit(commit: str | None) -> str:
    if commit is None:
        return "–"
    return commit[:10] + ("-dirty" if commit.endswith("-dirty") else "")
