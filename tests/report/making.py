"""Records of many runs for the tests of reports: one real run, its numbers varied by method, pair and seed."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from immunize.report import show_record
from immunize.report.experiments import Request, report_experiment
from immunize.report.naming import PARTS

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
METHODS = ("none", "ill_only", "well_only", "imma", "opt_kappa", "ours", "closed_form")
Record = dict[str, Any]
Tables = dict[str, list[dict[str, str]]]


def record_of(base: Record, method: str, seed: int, *, pair: tuple[int, int] | None = None, name: str) -> Record:
    """The base record as a run of another method, seed and pair, every measured number changed."""
    record = copy.deepcopy(base)
    random_ = random.Random(f"{method} {seed} {pair}")
    record |= {"method": method, "seed": seed, "config_hash": f"{random_.getrandbits(64):016x}"}
    record["config"] |= {"seed": seed, "experiment": {"name": name, "reduced": False}}
    record["config"]["method"] = {"_target_": f"immunize.objective.{method}", "name": method}
    if pair is not None:
        record["data_hash"] = f"hash of {pair}"
        for role, digit in zip(("pretrain", "harmful"), pair, strict=True):
            record["data"][role] = {"digit": digit, "fit_rows": 40}
            record["config"][role]["pair"] = list(pair)
    record["training"]["fit"].pop("warnings", None)
    for part in PARTS:
        for numbers in record["metrics"][part].values():
            numbers["ratio_harmful"] *= random_.lognormvariate(0, 0.7)
            numbers["ratio_pretrain"] *= random_.lognormvariate(0, 0.7)
            numbers["rir"] = numbers["ratio_harmful"] / numbers["ratio_pretrain"]
    for verdicts in (record["verdicts"], record["verdicts"]["held_out"]):
        verdicts.update({name: random_.random() < 0.6 for name in "abc"})
    for of_part in record["steps_to_norm_ratio"].values():
        for of_role in of_part.values():
            of_role["immunized"]["0.1"] = random_.choice([None, random_.randrange(1, 200)])
    for of_part in record["curves"]["norm_ratio"].values():
        for of_role in of_part.values():
            curve = of_role["immunized"]
            power = random_.uniform(0.5, 2)
            curve["ratio"] = [value**power for value in curve["ratio"]]
    return record


def table1_records(base: Record, seeds: Sequence[int] = range(5), methods: Iterable[str] = METHODS) -> list[Record]:
    """All runs of a Table 1."""
    return [record_of(base, method, seed, name="table1") for method in methods for seed in seeds]


def table2_records(
    base: Record, pairs: Sequence[tuple[int, int]], seeds: Sequence[int] = range(3), methods: Iterable[str] = METHODS
) -> list[Record]:
    """All runs of a Table 2 on some pairs of digits."""
    return [record_of(base, m, s, pair=p, name="table2") for m in methods for p in pairs for s in seeds]


def diverged(record: Record) -> Record:
    """The same run, had it diverged: no numbers."""
    lost = ("metrics", "verdicts", "steps_to_norm_ratio", "curves")
    return {key: value for key, value in record.items() if key not in lost} | {"status": "diverged"}


def with_change(record: Record, **changes: Any) -> Record:
    """The record itself, a value set at each path: `config__objective__epochs=9`."""
    for path, value in changes.items():
        *outer, last = path.split("__")
        functools.reduce(lambda of, key: of[key], outer, record)[last] = value
    return record


def without_held_out(record: Record) -> Record:
    """The same run, had its cross-fit diverged: numbers of `fit` alone."""
    left = copy.deepcopy(record) | {"held_out_protocol": "cross_fit"}
    for key in ("metrics", "verdicts", "steps_to_norm_ratio", "separability", "spectra"):
        left.get(key, {}).pop("held_out", None)
    left["curves"]["norm_ratio"].pop("held_out")
    facts = {"steps": 17, "seconds": 1.0, "diverged": {"step": 17, "term": "ill", "value": "inf"}}
    left["training"]["cross_fit"] = facts
    return left


def written(records: Iterable[Record], folder: Path, *, own: int | None = None) -> Path:
    """A folder of runs, each with its `record.json`, as a sweep leaves it, whose own runs are the first so many."""
    for index, record in enumerate(records):
        run = folder / f"run{index:04d}"
        run.mkdir(parents=True, exist_ok=True)
        (run / "record.json").write_text(json.dumps(record), encoding="utf-8")
    if own is not None:
        (folder / "sweep.json").write_text(json.dumps({"runs": [f"run{index:04d}" for index in range(own)]}))
    return folder


def row(tables: Tables, heading: str, method: str, model: str | None = None) -> dict[str, str]:
    """That of a method, of several networks that of one, in the first table with these words in its heading."""
    rows = next(rows for title, rows in tables.items() if heading in title)
    (one,) = [r for r in rows if r["method"].strip("`") == method and (model is None or r["network"] == f"`{model}`")]
    return one


def tables_of(markdown: str) -> Tables:
    """Heading to rows, each column to its cell."""
    found: Tables = {}
    for section in re.split(r"^## ", markdown, flags=re.M)[1:]:
        title, _, body = section.partition("\n")
        lines = [line for line in body.splitlines() if line.startswith("| ")]
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
        found[title] = [dict(zip(head, row, strict=True)) for row in rows]
    return found


def shown(record: Record) -> str:
    """What is printed of one run."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        show_record(record)
    return out.getvalue()


def reported(name: str, records: list[Record], folder: Path, published: Path | None = None) -> tuple[str, Path]:
    """What the report of an experiment prints, and the folder written."""
    runs, out = written(records, folder / "runs"), folder / "out"
    return report_experiment(Request(name, runs, out, published or EXPERIMENTS / name / "published.csv")), out
