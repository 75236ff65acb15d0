"""Attack records of many runs, from a folder of attacks or a committed `results.csv.gz`: read, checked, and asked.

A record of `immunize.attack` says of what run it is; here that is laid out as in a run's own record, so that names,
writing and reading are those of all other experiments. The numbers of θ_0 stand beside the immunized model's in every
tier, so that θ_0's own column of the record is not kept; of the curves those of the harmful tasks against steps are.

Imports no other room and no torch.
"""

from __future__ import annotations

import itertools
import json
import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from immunize.records import ATTACK_RECORD, RESULTS, check_versions, read_file, whole_config
from immunize.report.attacks.one_run import NAMES, TIERS, middle, where_known
from immunize.report.loading import Record, load_records
from immunize.report.naming import pair_label
from immunize.report.runs import Collection, check_once
from immunize.report.table import share, summary_text, under

Run = tuple[str, str, str, int]
"""Data sets and model, pair, method and seed."""

_SAID = ("method", "model", "pretrain", "harmful", "data", "data_hash")
_KEPT = (
    *("schema_version", "kind", "status", "started", "seconds", "peak_memory_mib", "config_hash", "git_commit"),
    *("versions", "hardware", "tasks", "verdicts", "control", "attack_versions"),
)
_EXTRACTORS = ("immunized", "random_orthogonal")
_RULES = ("attack", "tiers", "validation_fraction", "own_rows", "test_fraction", "images", "benign_digits")
"""Settings of the grid that have to agree within one table."""
_SETTINGS = (*_RULES, "tasks", "seeds", "threads")
"""What of the configuration is kept, as far as it is there: what changes numbers, and no place on a disk."""

Numbers = list[float | None]
"""A number a run, task and attacker's seed; None for never, or where there is none."""
Alone = dict[tuple[str, str, str], dict[str, list[Any]]]
"""What each attack reaches by itself, by task, tier and name: `score` and `horizon`."""
KINDS = {"harmful": "harmful", "pretrain": "pre-training", "benign": "benign"}
"""Kinds of tasks, to be made costly, and the two that are not, to what tables call them."""

THETA_0, CONTROL = NAMES["theta_0"], NAMES["random_orthogonal"]
"""Rows of the tables that are no methods."""

REPAIRS = ("T3", "T5")
"""Tiers in which something is mended before the probe: the features, or the way back to θ_0's."""


def load_attacks(folder: Path) -> list[Record]:
    """Every `attack_record.json` below a folder, and what its `results.csv.gz` has of other runs.

    Returns:
        by data, model, method and seed.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file is not the attack record of a run, or records are of different schema versions, or of an
            unknown one.
    """
    records = []
    for path in sorted(folder.rglob(ATTACK_RECORD)):
        try:
            records.append(collected(read_file(path, "an attack record")))
        except KeyError as error:
            raise ValueError(f"{path} is not the attack record of a run: it has no {error}") from None
    there = load_records(folder / RESULTS) if (folder / RESULTS).is_file() else []
    earlier = [record for record in there if "subject" in record]
    if not (found := with_earlier(records, earlier)):
        raise FileNotFoundError(f"{folder} holds no {ATTACK_RECORD}: attack its runs first, python -m immunize.attack")
    check_versions(found, folder)
    return found


def with_earlier(records: Sequence[Record], earlier: Sequence[Record]) -> list[Record]:
    """Records, and of the earlier ones those of other runs."""
    there = {run_of(record) for record in records}
    return sorted([*records, *(record for record in earlier if run_of(record) not in there)], key=run_of)


def collected(record: Record) -> Record:
    """The part of an attack record that the report is made of, laid out as a run's record; no path of a machine.

    Raises:
        KeyError: it lacks something that every attack record has.
    """
    subject, config = record["subject"], whole_config(record)
    return {
        **{name: record[name] for name in _KEPT},
        **{name: subject[name] for name in _SAID},
        **({"cells": record["cells"]} if "cells" in record else {}),  # which older records lack
        "method": subject["method"] or "checkpoint",  # of before such were called by their file
        "seed": config["seeds"][0] if subject["run_seed"] is None else subject["run_seed"],
        "subject": {name: value for name, value in subject.items() if name not in (*_SAID, "run_seed")},
        "config": {name: value for name, value in config.items() if name in _SETTINGS},
        "results": {task: {name: of[name] for name in _EXTRACTORS} for task, of in record["results"].items()},
        "by_attack": {
            task: {name: {attack: _alone(found) for attack, found in attacks.items()} for name, attacks in of.items()}
            for task, of in record["attacks"].items()
        },
    }


def _alone(found: Record) -> Record:
    horizon = {"horizon": found["horizon"]} if "horizon" in found else {}
    return {"tier": found["tier"], "score": (found.get("score") or {}).get("values", []), **horizon}  # skipped: none


def run_of(record: Record) -> Run:
    """Which run a record, as :func:`collected` lays it out, is of."""
    return _group_name(record), pair_label(record), record["method"], record["seed"]


def _group_name(record: Record) -> str:
    sets = list(dict.fromkeys((record["pretrain"], record["harmful"])))
    name = " against ".join(sets)
    return name if record["model"] == "linear" else f"{name}, {record['model']}"


@dataclass(frozen=True)
class Tried:
    """Every run of one method against one tier, on the tasks of one kind; all of it empty where there is none.

    Attributes:
        score: by pair and task, one number a run and attacker's seed; None where no attack had a finite output.
        paid: by resource ("steps", "seconds", "samples", "flops") what 90 % of θ_0's score cost, None for never.
        held: whether the task stayed costlier or less accurate than from θ_0; None where that is not decided; of θ_0
            itself nothing.
        undecided: why not, in a few words.
        retention: what is left of θ_0's score above chance, "values" and their "errors" over test rows; of θ_0 itself
            nothing, and of records from before it was kept.
    """

    score: Mapping[str, Numbers]
    paid: Mapping[str, Numbers]
    held: list[bool | None]
    undecided: set[str]
    retention: Mapping[str, Numbers]

    @property
    def counts(self) -> str:
        """In how many of the decided cases the tier held: "16/18", with those that are not decided."""
        left = self.held.count(None)
        text = share(self.held.count(True), len(self.held) - left)
        return f"{text} ({left} undecided)" if left else text


def extractor_of(method: str) -> str:
    """Where a record has the numbers of a method or of `CONTROL`; those of `THETA_0` stand beside the first ones."""
    return "random_orthogonal" if method == CONTROL else "immunized"


def _before_any_method(record: Record) -> tuple[Any, ...]:
    """Pair, θ_0 and rows of the attacker, which are those of the run where images or rows are set aside."""
    subject, config = record["subject"], record["config"]
    own = config.get("own_rows") or subject.get("selection")
    return pair_label(record), subject.get("theta_0_sha256"), record["seed"] if own else None, *config["seeds"]


@dataclass(frozen=True)
class Group(Collection):
    """The records of one kind of model and data sets: one table each.

    Attributes:
        name: "mnist" or "tiny_imagenet against stanford_cars", and the model where it is not the linear one.
        records: as :func:`collected` lays them out.
    """

    name: str
    records: Sequence[Record]

    def titled(self, words: str = "") -> str:
        """The name, with these words behind it, in lines that fit one panel of a figure."""
        return textwrap.fill(f"{self.name}: {words}" if words else self.name, 44)

    @property
    def tiers(self) -> list[str]:
        """Those that some task was attacked in."""
        return sorted({tier for *_, tier, _ in _cells(self.records)}, key=TIERS.index)

    @property
    def judged_by_intervals(self) -> bool:
        """Verdicts of records from before were decided by the scores alone."""
        return all("difference" in found for *_, found in _cells(self.records))

    @property
    def draws(self) -> int:
        """Seeds of runs and attackers that a mean is over."""
        return len({(record["seed"], seed) for record in self.records for seed in record["config"]["seeds"]})

    @property
    def kinds(self) -> list[str]:
        """Kinds of tasks that were attacked."""
        return sorted({kind for _, _, kind, *_ in _cells(self.records)}, key=[*KINDS].index)

    @property
    def wanted_columns(self) -> list[str]:
        """A column a kind of task and tier, and whether its scores are to be small."""
        arrows = {"harmful": "↓"}
        return [c for kind in self.kinds for c in under(f"{KINDS[kind]} {arrows.get(kind, '↑')}", self.tiers)]

    @property
    def broken(self) -> list[str]:
        """Tiers in which no method held in every run."""
        return [t for t in self.tiers if not any({*self.tried(m, "harmful", t).held} == {True} for m in self.methods)]

    def harming(self, kind: str) -> list[str]:
        """Methods that made the tasks of a kind as hard, in most runs and the lowest tier."""
        held = ((method, self.tried(method, kind, self.tiers[0]).held) for method in self.methods)
        return [method for method, of in held if of.count(True) > of.count(False)]

    @property
    def undecided(self) -> list[str]:
        """Why some case of a method is not decided, in a few words each."""
        places = itertools.product(self.methods, self.kinds, self.tiers)
        return sorted({reason for place in places for reason in self.tried(*place).undecided})

    def scores(self, method: str, kind: str) -> list[str]:
        """The best score of every tier on the tasks of a kind."""
        return [summary_text([*self.tried(method, kind, tier).score.values()], "none") for tier in self.tiers]

    def unbroken(self, method: str) -> str:
        """Up to which tier the harmful tasks of a run were unbroken, in how many runs: "T1", or "T1 in 16, none in 2".

        Args:
            method: a method or `CONTROL`.
        """
        counts: Counter[str] = Counter()
        for record in self.of_method(method):
            harmful = [task for task, facts in record["tasks"].items() if facts["kind"] == "harmful"]
            reached = {record["verdicts"][task][extractor_of(method)]["unbroken_up_to"] for task in harmful}
            counts["none" if None in reached else min(reached, default="none")] += 1
        told = [f"{tier} in {n}" for tier, n in counts.most_common()]
        return ", ".join(told if len(told) > 1 else counts)

    @property
    def repairs(self) -> tuple[dict[str, dict[tuple[str, str], Numbers]], list[tuple[str, str]], float]:
        """FLOPs of each repair in all by method, its tiers and names, and those of gradient descent from θ_0."""
        costs = {method: self.flops_by_attack(method, REPAIRS) for method in [*self.methods, CONTROL]}
        base = middle(self.tried(THETA_0, "harmful", TIERS[0]).paid.get("flops", []))
        return costs, sorted({key for of in costs.values() for key in of}) if 0 < base < math.inf else [], base

    @property
    def alone(self) -> tuple[dict[str, Alone], list[tuple[str, str, str]]]:
        """What each attack reaches by itself, by method, and their tasks, tiers and names, task by task."""
        each = {method: self.by_attack(method) for method in [THETA_0, *self.methods, CONTROL]}
        there = dict.fromkeys(key for of in each.values() for key in of)
        tasks = list(dict.fromkeys(task for task, *_ in there))
        return each, sorted(there, key=lambda key: (tasks.index(key[0]), key))

    def of_method(self, method: str) -> list[Record]:
        """Its records; for θ_0 and the control those of one method, where the methods' are the same."""
        if method in (THETA_0, CONTROL):
            return list({_before_any_method(record): record for record in self.records}.values())
        return [record for record in self.records if record["method"] == method]

    def tried(self, method: str, kind: str, tier: str) -> Tried:
        """What a method met in a tier on the tasks of a kind.

        Args:
            method: a method, `THETA_0` or `CONTROL`.
            kind: of `KINDS`.
            tier: of `TIERS`.
        """
        side = "_reference" if method == THETA_0 else ""
        tried = Tried(defaultdict(list), defaultdict(list), [], set(), defaultdict(list))
        for record, task, *place, found in _cells(self.of_method(method), extractor_of(method)):
            if place == [kind, tier]:
                judged = {} if side else found
                tried.score[f"{pair_label(record)} {task}"].extend(found[f"score{side}"]["values"])
                tried.held.extend(judged.get("held", []))
                tried.undecided.update(judged.get("undecided", []))
                for name, values in found[f"to_target{side}"].items():
                    tried.paid[name].extend(where_known(found, values))
                for name, values in judged.get("retention", {}).items():
                    tried.retention[name].extend(values)
        return tried

    def own_accuracy(self, method: str) -> list[float]:
        """Percent on D_P of the networks' own classifiers, as their runs measured them; () where they have none.

        Args:
            method: a method or `THETA_0`.
        """
        found = (record["subject"].get("pretrain_accuracy") for record in self.of_method(method))
        return [of["before" if method == THETA_0 else "after"] for of in found if of]

    def chances(self, kind: str) -> list[float]:
        """Scores of the best constant answer to the tasks of a kind; records of before have none."""
        return [c for _, _, of, _, found in _cells(self.records) if of == kind for c in found.get("chance", ())]

    def flops_by_attack(self, method: str, tiers: Sequence[str]) -> dict[tuple[str, str], Numbers]:
        """By tier and attack, what it paid alone for 90 % of θ_0's score on the harmful tasks; None for never.

        Args:
            method: a method or `CONTROL`.
            tiers: of `TIERS`.
        """
        found: dict[tuple[str, str], Numbers] = defaultdict(list)
        for _, _, kind, tier, of in _cells(self.of_method(method), extractor_of(method)):
            if kind == "harmful" and tier in tiers:
                for name, flops in of["flops_by_attack"].items():
                    found[tier, name] += where_known(of, flops)
        return found

    def by_attack(self, method: str) -> Alone:
        """By task, tier and attack, what it reaches alone, one a run and attacker's seed as far as there is something.

        Args:
            method: a method, `THETA_0` or `CONTROL`.

        Returns:
            `score`, None without a finite output, and `horizon` of attacks that move weights, the numbers of its
            curves (`evaluation/attacks/curves.py`).
        """
        extractor = "theta_0" if method == THETA_0 else extractor_of(method)
        found: Alone = {}
        for record in self.of_method(method):
            for task, of in record.get("by_attack", {}).items():
                for attack, alone in of.get(extractor, {}).items():
                    place = found.setdefault((task, alone["tier"], attack), {"score": [], "horizon": []})
                    place["score"] += alone["score"]
                    place["horizon"] += [one for one in alone.get("horizon", []) if one is not None]
        return found


def _cells(records: Sequence[Record], extractor: str = "immunized") -> Iterator[tuple[Record, str, str, str, Record]]:
    """What each run has of each task in each tier: record, task, its kind, tier, numbers."""
    for record in records:
        for task, facts in record["tasks"].items():
            for tier, found in record["results"][task][extractor].items():
                yield record, task, facts["kind"], tier, found


def _rules_of(record: Record) -> str:
    """What has to agree within one table."""
    rows = [record["subject"].get(name) for name in ("selection", "benign_rows")]
    grid = [record["config"].get(name, False) for name in _RULES]
    return json.dumps([record["attack_versions"], *rows, *grid], sort_keys=True)


@dataclass(frozen=True)
class Attacks(Collection):
    """Checked attack records that go into one report; make it with :meth:`of`.

    Attributes:
        records: as :func:`collected` lays them out.
        groups: the same by model and data sets.
        reduced: the grid's numbers are not to be reported.
    """

    records: Sequence[Record]
    groups: Sequence[Group]
    reduced: bool

    @classmethod
    def of(cls, records: Sequence[Record]) -> Attacks:
        """Check that the records may stand side by side.

        Args:
            records: as :func:`collected` lays them out.

        Raises:
            ValueError: different grids, budgets or shares of rows, a run twice, or a pair with different data, tasks or
                numbers of attacker's seeds.
        """
        rules = set(map(_rules_of, records))
        if len(rules) > 1:
            raise ValueError(
                f"the records come from {len(rules)} different grids (attack, its budget or version, tiers, images, "
                "benign digits, selection, validation_fraction, own_rows or test_fraction differ): attack all runs "
                "with the same settings, or report them apart"
            )
        alike = {(*run_of(one)[:2], len(one["config"]["seeds"]), *sorted(one["tasks"])) for one in records}
        if len(alike) > len({of[:2] for of in alike}):
            raise ValueError("runs of one pair differ in tasks, benign or the number of seeds: attack them alike")
        check_once(records, lambda record: " ".join(run_of(record)[:2]))
        by_name: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            by_name[run_of(record)[0]].append(record)
        groups = tuple(Group(name, tuple(of)) for name, of in by_name.items())
        return cls(tuple(records), groups, bool(records[0]["config"]["attack"].get("reduced")))
