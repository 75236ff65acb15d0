"""The runs of one experiment: which there are, which are missing, and their numbers by method and pair of data sets."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Transformer
from omegaconf import OmegaConf

from immunize.config import NOT_HASHED, config_dir
from immunize.errors import some
from immunize.records import diverged_cross_fit, leaves, whole_config
from immunize.report.loading import infinite, verdict_on
from immunize.report.naming import in_order, pair_label, pair_title, side_label
from immunize.report.table import NOTHING, share, short, span, summary_text
from immunize.report.templates import filled_in

EXPERIMENT_STATUSES = ("finished", "diverged")
"""A diverged run is an outcome of its method; an interrupted one is a missing run."""

FAST = "_fast"
"""What the presets of reduced experiments are called by, after the experiment's name."""

THRESHOLD = "0.1"
"""The norm ratio of Eq. (16) that the probe has to reach."""

RunId = tuple[str, str, int]
"""Pair, method, seed."""

_NOT_COMPARED = (*NOT_HASHED, "seed", "method.seed", "model.checkpoint")
"""θ_0 is compared by what it is, not by its file; every seed may have its own."""

_MOST_NAMED = 8


class Collection:
    """Records, and what there is in them."""

    records: Sequence[dict[str, Any]]
    reduced: bool

    def mark(self, text: str) -> str:
        """A title, marked where the numbers are not to be reported."""
        return f"REDUCED {text}" if self.reduced else text

    @property
    def methods(self) -> list[str]:
        """In the order of the tables."""
        return in_order(record["method"] for record in self.records)

    @property
    def pairs(self) -> list[str]:
        """Labels of the pairs of data sets, sorted."""
        return sorted({pair_label(record) for record in self.records})

    @property
    def seeds(self) -> list[int]:
        """All seeds, ascending."""
        return sorted({record["seed"] for record in self.records})


@dataclass(frozen=True)
class Runs(Collection):
    """Checked records of one experiment; make it with :meth:`of`.

    Attributes:
        records: finished and diverged runs.
        name: `experiment.name` of all of them.
        reduced: `experiment.reduced` of all of them: a shortened version, whose numbers are not the experiment's.
        missing: runs that the preset or the other runs lead to expect, and that are not there.
    """

    records: Sequence[dict[str, Any]]
    name: str
    reduced: bool
    missing: Sequence[RunId]

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]], name: str, expected: Iterable[RunId] | None = None) -> Runs:
        """Check that the records are runs of one experiment that may be put into one table.

        Args:
            records: finished and diverged runs, each once.
            name: the experiment they have to be of.
            expected: the runs that belong to it; by default every method on every pair with every seed that occurs.

        Raises:
            ValueError: runs of another experiment or of more than one, full and reduced ones together, a run twice,
                runs of one method with different settings, or a pair with different data.
        """
        found = {experiment_of(record) for record in records}
        if names := {other for other, _ in found} - {name}:
            raise ValueError(f"experiment={name} needs runs of {name}; there are also runs of {_listed(names)}")
        if len(found) > 1:
            raise ValueError(f"full and reduced runs of {name} are in one folder; report them apart")
        _check_settings(records)
        ids = [(pair_label(record), record["method"], record["seed"]) for record in records]
        if expected is None:
            pairs, methods, seeds = (dict.fromkeys(part) for part in zip(*ids, strict=True))
            expected = [(p, m, s) for p in pairs for m in methods for s in seeds]
        missing = sorted(set(expected) - set(ids))
        return cls(tuple(records), name, next(iter(found))[1], missing)

    @property
    def preset(self) -> str:
        """The name of the preset in conf/experiment that makes these runs."""
        return f"{self.name}{FAST}" if self.reduced else self.name

    @property
    def model(self) -> str:
        """The network of the first run, as `conf/model` calls it."""
        return str(self.records[0]["model"])

    @property
    def title(self) -> str:
        """Its pair of data sets: "imagenet against cars" and the like, D_P first."""
        return pair_title(self.records[0])

    @property
    def finished(self) -> list[dict[str, Any]]:
        """The runs that have numbers."""
        return [record for record in self.records if record["status"] == "finished"]

    @property
    def once_a_seed(self) -> list[dict[str, Any]]:
        """One of them a seed, for numbers that are the same whatever the method."""
        return list({record["seed"]: record for record in self.finished}.values())

    def check_finished(self) -> None:
        """Refuse to draw nothing.

        Raises:
            ValueError: no run has numbers.
        """
        if not self.finished:
            raise ValueError(f"every run of {self.name} diverged: there is nothing to draw")

    def of_method(self, method: str, part: str = "fit") -> list[dict[str, Any]]:
        """Its finished runs, as far as they were measured on a part."""
        return [record for record in measured_on(self.finished, part) if record["method"] == method]

    def diverged(self, method: str) -> int:
        """How many of its runs diverged."""
        return sum(r["method"] == method and r["status"] == "diverged" for r in self.records)

    def held(self, method: str, part: str, kind: str = "metrics") -> list[str]:
        """In how many of its runs that were measured on a part each of (a), (b) and (c) holds there, and all."""
        return held_text(verdict_on(run, part, kind) for run in self.of_method(method, part))

    def numbers(
        self, method: str, part: str, estimator: str, name: str, kind: str = "metrics"
    ) -> dict[str, list[float | None]]:
        """A number of a record, by pair, one a run that was measured there; None where it is not finite.

        Args:
            method: whose runs.
            part: "fit" or "held_out".
            estimator: of κ.
            name: of the number.
            kind: "metrics", or "metrics_groups" of networks.
        """
        found: dict[str, list[float | None]] = defaultdict(list)
        for run in self.of_method(method, part):
            found[pair_label(run)].append(run[kind][part][estimator][name])
        return dict(sorted(found.items()))

    def pair_means(self, method: str, part: str, estimator: str) -> dict[str, float]:
        """The mean RIR over seeds, by pair; infinite where that of a run is: κ of D_H beyond floating point."""
        found = self.numbers(method, part, estimator, "rir")
        return {pair: float(np.mean([infinite(v) for v in numbers])) for pair, numbers in found.items()}

    def text(self, method: str, part: str, estimator: str, name: str, kind: str = "metrics") -> str:
        """The same as a cell of a table."""
        return summary_text(list(self.numbers(method, part, estimator, name, kind).values()))

    def middle_steps(self, method: str, part: str, role: str, which: str) -> str:
        """After how many steps a probe of one data set has reached `THRESHOLD`, in the median run."""
        steps, limits = [], set()
        for run in self.of_method(method, part):
            if found := run["steps_to_norm_ratio"][part][role][which]:  # empty where there is nothing to learn
                steps.append(infinite(found[THRESHOLD]))
                limits.add(run["config"]["probe_steps"])
        if not steps:
            return NOTHING
        middle = float(np.median(steps))
        return f"{middle:,.0f}" if math.isfinite(middle) else f"> {max(limits):,}"

    def interval(self, method: str, kind: str, estimator: str) -> str:
        """Geometric means over the runs of the ends of the held-out interval of RIR."""
        ends = [run[kind]["held_out"][estimator]["interval"]["rir"] for run in self.of_method(method)]
        if not ends:
            return NOTHING
        if any(low is None or high is None or not low > 0 for low, high in ends):
            return "unbounded"
        low, high = (math.exp(sum(math.log(end[side]) for end in ends) / len(ends)) for side in (0, 1))
        return f"{short(low)} to {short(high)}"

    def count_text(self, method: str) -> str:
        """How many runs a row stands for: "5", "3 + 2 diverged", or "5 (4 held out)" where a cross-fit diverged."""
        return count_text([record for record in self.records if record["method"] == method])

    def size_text(self, part: str = "fit") -> str:
        """The runs that were measured on a part, in a heading: "n = 5", or "n = 3 to 5"."""
        return f"n = {span((len(self.of_method(method, part)) for method in self.methods), '{}')}"

    def seeds_text(self) -> str:
        """The seeds of a method's runs, counted: "3 seeds", or "1 to 3 seeds" where methods have more and fewer."""
        return f"{span(len({r['seed'] for r in self.records if r['method'] == m}) for m in self.methods)} seeds"

    def completeness(self) -> str:
        """One sentence: how many runs there are, which are missing, which diverged, and which have no held-out part."""
        return filled_in("completeness.txt", runs=self, most=_MOST_NAMED).rstrip("\n")


def measured_on(records: Sequence[dict[str, Any]], part: str) -> list[dict[str, Any]]:
    """Those of finished runs that have numbers on a part: where a cross-fit diverged there are none on `held_out`."""
    return [record for record in records if part != "held_out" or diverged_cross_fit(record) is None]


def held_out_text(records: Sequence[dict[str, Any]]) -> str:
    """How many finished runs there are, and how many of them have held-out numbers if not all: "5 (4 held out)"."""
    held_out = len(measured_on(records, "held_out"))
    return f"{len(records):,}" + (f" ({held_out:,} held out)" if held_out < len(records) else "")


def held_text(verdicts: Iterable[dict[str, Any] | None]) -> list[str]:
    """In how many of the verdicts that there are each of (a), (b) and (c) holds, and all."""
    found = [verdict for verdict in verdicts if verdict is not None]
    counts = [*(sum(v[name] for v in found) for name in "abc"), sum(all(v[name] for name in "abc") for v in found)]
    return [share(count, len(found)) for count in counts]


def verdict_counts(records: Iterable[dict[str, Any]], part: str) -> str:
    """In how many of the runs that were measured on a part (a), (b) and (c) hold: "3/3 2/3 3/3"."""
    found = [of for record in records if (of := verdict_on(record, part)) is not None]
    return " ".join(held_text(found)[:3]) if found else NOTHING


def count_text(records: Sequence[dict[str, Any]]) -> str:
    """How many runs there are, by status: "5", "3 + 2 diverged"."""
    counts = Counter(record["status"] for record in records)
    finished = held_out_text([record for record in records if record["status"] == "finished"])
    others = (f"{counts[status]:,} {status}" for status in ("diverged", "interrupted") if counts[status])
    return " + ".join([finished, *others])


def experiment_of(record: dict[str, Any]) -> tuple[str, bool]:
    """`experiment.name` of a run, "none" where it has none, and `experiment.reduced`."""
    node = record["config"].get("experiment") or {}
    reduced = bool(node.get("reduced", False))
    name = str(node.get("name") or "none")
    return name.removesuffix(FAST) if reduced else name, reduced


def _check_settings(records: Sequence[dict[str, Any]]) -> None:
    settings: dict[str, dict[str, str]] = {}
    starts: dict[tuple[str, int], str | None] = {}
    for record in records:
        flat = flat_settings(record)
        if differing := {name for name, _ in settings.setdefault(record["method"], flat).items() ^ flat.items()}:
            raise ValueError(
                f"runs of method {record['method']} differ in {_listed(differing)}; move those of an older "
                "configuration out of the folder"
            )
        start = theta_0_of(record)
        if len({start, starts.setdefault((pair_label(record), record["seed"]), start)} - {None}) > 1:
            raise ValueError(
                f"runs on {pair_label(record)} with seed {record['seed']} began with different θ_0; move those of an "
                "older one out of the folder"
            )
    check_once(records, pair_label)


def check_once(records: Sequence[dict[str, Any]], name_of: Callable[[dict[str, Any]], str]) -> None:
    """Refuse records of one run, or of different data under one name.

    Args:
        records: of runs or of attacks on them.
        name_of: a record's data sets.

    Raises:
        ValueError: a run is there twice, or runs on data sets of one name have different data.
    """
    hashes: dict[str, str | None] = {}
    for record in records:
        if record.get("data_hash") != hashes.setdefault(name_of(record), record.get("data_hash")):
            raise ValueError(f"runs on {name_of(record)} were made on different data: their data hashes differ")
    for (method, name, seed), count in Counter((r["method"], name_of(r), r["seed"]) for r in records).items():
        if count > 1:
            raise ValueError(f"the run {method}, {name}, seed {seed} is there twice")


def theta_0_of(record: dict[str, Any]) -> str | None:
    """A digest of θ_0's weights; None of a linear model, whose θ_0 is the identity, and in records of before."""
    digest: str | None = (record.get("network") or {}).get("theta_0_sha256")
    return digest


def flat_settings(record: dict[str, Any]) -> dict[str, str]:
    """What has to agree between runs of a method: its settings less the seeds, the digits of a pair, and places.

    A setting that is null is one that runs of before it was there do not have.
    """
    found = [(keys, value) for keys, value in leaves(whole_config(record)) if value not in (None, {})]
    return {
        ".".join(keys): json.dumps(value, sort_keys=True)
        for keys, value in found
        if not {"pair", "root"} & {*keys} and not {*_NOT_COMPARED} & {*accumulate(keys, "{}.{}".format)}
    }


def _listed(names: Iterable[str]) -> str:
    return some(sorted(names), _MOST_NAMED)


def expected_runs(name: str, records: Sequence[dict[str, Any]]) -> list[RunId] | None:
    """Every run of a preset, by pair, method and seed.

    Args:
        name: of the experiment; reduced records belong to the preset `<name>_fast`.
        records: which tell whether the reduced preset is meant, and the pair of a preset that sweeps over none.

    Returns:
        None where the preset does not exist, or does not sweep over methods and seeds.
    """
    reduced = any(experiment_of(record)[1] for record in records)
    params = swept(f"{name}{FAST if reduced else ''}")
    if not {"method", "seed"} <= params.keys():
        return None
    pairs = ["→".join(map(side_label, pair)) for pair in params.get("harmful.pair", [])]
    pairs = pairs or sorted({pair_label(record) for record in records})
    return [(pair, str(m), int(s)) for pair in pairs for m in params["method"] for s in params["seed"]]


def swept(preset: str) -> dict[str, list[Any]]:
    """Setting to its values in the `hydra.sweeper.params` of a preset and of those it builds on; empty without it."""
    path = Path(config_dir(), "experiment", f"{preset}.yaml")
    if not path.is_file():
        return {}
    content = OmegaConf.load(path)
    found: dict[str, list[Any]] = {}
    for base in OmegaConf.select(content, "defaults") or []:
        if isinstance(base, str) and base != "_self_":
            found |= swept(base)
    params = OmegaConf.select(content, "hydra.sweeper.params") or {}
    for one in OverridesParser.create().parse_overrides([f"{key}={value}" for key, value in params.items()]):
        sweeps = one.is_sweep_override()
        found[one.key_or_group] = list(one.sweep_iterator(Transformer.identity)) if sweeps else [one.value()]
    return found
