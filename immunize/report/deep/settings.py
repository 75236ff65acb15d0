"""The runs of Table 3, by network and pair of data sets: what stands in one row of it. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from immunize.config import config_dir
from immunize.report.expected import expected_runs, swept
from immunize.report.naming import pair_title
from immunize.report.runs import FAST, Runs, experiment_of

__all__ = ["SCALES", "DeepSetting", "by_setting", "completeness", "probe_values", "ratio_values", "scale_of"]

SCALES = {"table3": "", "table3_small": "small", "table3_digits": "digits"}
"""`experiment.name` of the presets of Table 3 to their SCALE."""


@dataclass(frozen=True)
class DeepSetting:
    """One network on one pair of data sets.

    Attributes:
        model: as `conf/model` calls it.
        architecture: the network's name in timm or the class of a module, the model's where it is not told.
        harmful: D_H.
        title: "imagenet against cars" and the like, D_P first.
        runs: every method and seed.
    """

    model: str
    architecture: str
    harmful: str
    title: str
    runs: Runs


def scale_of(records: Sequence[dict[str, Any]]) -> str:
    """The experiment that the records are of.

    Raises:
        ValueError: of none in `SCALES`, or of more than one.
    """
    names = {experiment_of(record)[0] for record in records}
    if len(names) != 1 or not names <= SCALES.keys():
        raise ValueError(
            f"Table 3 needs runs of one of {', '.join(SCALES)}; these are of {', '.join(sorted(names))}; report each "
            "from a folder of its own"
        )
    return names.pop()


def by_setting(records: Sequence[dict[str, Any]]) -> list[DeepSetting]:
    """The settings of an experiment, sorted by network and data.

    Args:
        records: finished and diverged runs of one of `SCALES`.

    Raises:
        ValueError: records that may not be put into one table, see :meth:`Runs.of`; or of linear extractors.
    """
    name = scale_of(records)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        if record["status"] == "finished" and "metrics_groups" not in record:
            raise ValueError(f"Table 3 is of deep networks; there is a run of {record['model']!r}")
        groups.setdefault((record["model"], pair_title(record)), []).append(record)
    found = []
    for (model, title), of in sorted(groups.items()):
        runs = Runs.of(of, name, expected_runs(name, of))
        network = of[0].get("network") or {}
        found.append(DeepSetting(model, str(network.get("architecture", model)), str(of[0]["harmful"]), title, runs))
    return found


def completeness(settings: Sequence[DeepSetting]) -> list[str]:
    """One sentence a setting on its runs, and one on settings of the preset of which there is none."""
    notes = [f"{one.model}, {one.title}: {one.runs.completeness()}" for one in settings]
    first = settings[0].runs
    preset = f"{first.name}{FAST if first.reduced else ''}.yaml"
    params = swept(Path(config_dir()) / "experiment" / preset)
    meant = max(len(params.get("model", [])), 1) * max(len(params.get("harmful", [])), 1)
    if meant > len(settings):
        notes.append(f"There are runs of {len(settings)} of {meant} pairs of network and D_H.")
    return notes


def ratio_values(one: DeepSetting, method: str, where: tuple[str, str, str], name: str) -> list[float | None]:
    """A number of a record, one a finished run; None where it is not finite.

    Args:
        one: the setting.
        method: whose runs.
        where: "metrics" or "metrics_groups", part and estimator.
        name: of the number.
    """
    kind, part, estimator = where
    return [run[kind][part][estimator][name] for run in one.runs.of_method(method)]


def probe_values(one: DeepSetting, method: str | None, optimizer: str, role: str, step: str) -> list[float | None]:
    """A probe's accuracy after some steps, one a run; of θ_0, once a seed, where the method is None."""
    if method is None:
        runs, which = list({run["seed"]: run for run in one.runs.finished}.values()), "theta_0"
    else:
        runs, which = one.runs.of_method(method), "immunized"
    found = [run["probe_accuracy"].get(optimizer, {}).get(role, {}).get(which, {}).get(step) for run in runs]
    return [value for value in found if value is not None]
