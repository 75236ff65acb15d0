"""One table of everything that was measured: a row a run, part, kind, estimator and quantity. No torch.

    immunize.report.frame("experiments/table1").query("part == 'held_out' and quantity == 'rir'")

Its columns:

- `run`: config hash of the run.
- `experiment`, `status`: name of the preset, or "none"; "finished" or "diverged" (which has no ratios).
- `model`, `pretrain`, `harmful`, `pair`: network, D_P, D_H, and both in short ("3→8").
- `method`, `seed`, `lambda_well`, `lambda_ill`: the method with its λ_P and λ_H as configured; NaN where it has none.
- `kind`, `part`, `estimator`, `quantity`: which number this is.
- `value`: float; verdicts are 0 or 1, infinity is an infinite κ or a probe that never gets there, NaN what is not
  known.

Its kinds, with the part, the estimator and the quantities of each:

- `pooled`, `groups`: of all rows, or the mean over groups of rows. Parts `fit`, `held_out` or `validation`; estimators
  `spectrum`, `released`, `ridge`. Quantities `ratio_harmful` (i), `ratio_pretrain` (ii), `rir`, the four `kappa_…`,
  `interval/rir/low` and `/high` (95 %), `facts/<κ>/rank` and the like.
- `verdict`, `verdict_groups`: the same parts; the estimator of the verdict. `a`, `b`, `c`, and the losses or accuracies
  (percent) behind (c).
- `probe_steps`: parts `fit`, `held_out`. `<data>/<features>/<norm ratio>`: gradient steps.
- `probe_accuracy`: part `held_out`; the optimizer of the probe. `<data>/<features>/<steps>`: percent.
- `accuracy`: a network's own accuracy on D_P `before` and `after`, percent.
- `separability`: parts as `pooled`; estimator `ridge`. Correlation of a ridge probe on rows it was not fitted on.
- `training`, `cost`: `fit/steps` and the like; `seconds`, `peak_memory_mib`.
- `attack`: the part is the task, the estimator the tier. `<features>/score/values` (accuracy or R²),
  `<features>/to_target/steps`, `…/retention/values`: a row a seed of the attacker.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from immunize.records import ATTACK_RECORD, RECORD, RESULTS, leaves, whole_config
from immunize.report.attacks.records import load_attacks
from immunize.report.loading import Record, judged, load_records, measured
from immunize.report.naming import LAMBDAS, PROTOCOLS, pair_label
from immunize.report.runs import EXPERIMENT_STATUSES, experiment_of

if TYPE_CHECKING:
    import pandas as pd


_RUN = ("run", "experiment", "status", "model", "pretrain", "harmful", "pair", "method", "seed", *LAMBDAS)
_MEASURED = ("kind", "part", "estimator", "quantity", "value")
COLUMNS = (*_RUN, *_MEASURED)
"""Of a frame, in their order."""

_ALONE = ("seconds", "peak_memory_mib")
_Row = tuple[str, str, str, str, float]


def frame(source: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """What runs have measured, or what attackers made of them, in long form.

    Args:
        source: a folder with runs or attacked runs below it, one with a `results.csv.gz`, that file, the record of one
            run, or several of these; what several of them hold counts once.

    Returns:
        `COLUMNS`; `value` is a float, a verdict 0 or 1.

    Raises:
        FileNotFoundError: there is no record.
        ValueError: a file is not one of these.
    """
    sources = [source] if isinstance(source, str | Path) else source
    found = {json.dumps(record, sort_keys=True): record for one in sources for record in _records(Path(one))}
    return frame_of(found.values())


def frame_of(records: Collection[Record]) -> pd.DataFrame:
    """The same of records that were read already."""
    import pandas as pd

    runs = pd.DataFrame([_identity(record) for record in records], columns=_RUN)
    rows = [(index, *row) for index, record in enumerate(records) for row in _measured(record)]
    numbers = pd.DataFrame(rows, columns=["index", *_MEASURED]).astype({"value": float})
    found = runs.loc[numbers.pop("index")].reset_index(drop=True)
    return pd.concat([found, numbers], axis=1)


def _records(place: Path) -> list[Record]:
    kinds = (RECORD, ATTACK_RECORD) if place.name not in (RECORD, ATTACK_RECORD) else (place.name,)
    place = place.parent if place.name in kinds else place
    runs, attacks = (kind in kinds and next(place.rglob(kind), None) is not None for kind in (RECORD, ATTACK_RECORD))
    collected = (place / RESULTS).is_file()
    found = load_records(place, EXPERIMENT_STATUSES) if runs or collected or not attacks else []
    if place.is_dir() and (attacks or any("subject" in record for record in found)):
        return [*(record for record in found if "subject" not in record), *load_attacks(place)]
    return found


def _identity(record: Record) -> dict[str, Any]:
    weights = whole_config(record).get("method", {})
    return {
        **{name: record.get(name) for name in _RUN},
        "run": record.get("subject", record).get("run_config_hash", record.get("config_hash")),
        "experiment": experiment_of(record)[0],
        "pair": pair_label(record),
        **{name: weights.get(name, math.nan) for name in LAMBDAS},
    }


def _measured(record: Record) -> Iterator[_Row]:
    for protocol, part, estimator, found in sorted(measured(record), key=lambda of: of[0]):
        where = (PROTOCOLS[protocol], part, estimator)
        yield from _rows(where, found, lambda path: path.rpartition("/")[2][:4] == "gap_")
    for protocol, part, verdict, _ in sorted(judged(record), key=lambda of: of[0]):
        said = {key: value for key, value in verdict.items() if not isinstance(value, dict)}
        yield from _rows((protocol.replace("metrics", "verdict"), part, verdict["estimator"]), said)
    for part, found in record.get("steps_to_norm_ratio", {}).items():
        yield from _rows(("probe_steps", part, ""), found, lambda path: True)
    for optimizer, found in record.get("probe_accuracy", {}).items():
        yield from _rows(("probe_accuracy", "held_out", optimizer), found)
    for part, found in record.get("separability", {}).items():
        yield from _rows(("separability", part, "ridge"), found)
    for kind, name in {"accuracy": "pretrain_accuracy", "training": "training"}.items():
        yield from _rows((kind, "", ""), record.get(name, {}))
    yield from _rows(("cost", "", ""), {name: record[name] for name in _ALONE if name in record})
    for task, extractors in record.get("results", {}).items():
        for features, tiers in extractors.items():
            for tier, found in tiers.items():
                yield from _rows(("attack", task, tier), {features: _with_never(found)})


def _with_never(found: Record) -> Record:
    """Null is never where θ_0 learns the task, and elsewhere not known."""
    learned = found["to_target_reference"]["steps"]

    def told(values: list[float | None]) -> list[float | None]:
        return [math.inf if one is None and of is not None else one for one, of in zip(values, learned, strict=True)]

    paid = [name for name in ("to_target", "to_target_reference", "flops_by_attack") if name in found]
    return found | {name: {key: told(values) for key, values in found[name].items()} for name in paid}


def _rows(where: tuple[str, str, str], tree: Record, endless: Any = lambda path: False) -> Iterator[_Row]:
    """Every number of a tree; null is infinite where `endless` says so of its path, and NaN elsewhere."""
    for keys, value in leaves(tree):
        path = "/".join(keys)
        interval = path.startswith("interval/")
        for index, one in enumerate(value if isinstance(value, list) else [value]):
            name = f"{path}/{('low', 'high')[index]}" if interval else path
            if one is None:
                yield *where, name, math.inf if endless(path) or interval else math.nan
            elif isinstance(one, bool | int | float):
                yield *where, name, float(one)
