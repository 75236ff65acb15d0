"""The runs that a preset of `conf/experiment` sweeps over, to tell which are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Transformer
from omegaconf import OmegaConf

from immunize.config import config_dir
from immunize.report.naming import pair_label, side_label
from immunize.report.runs import FAST, RunId, experiment_of

__all__ = ["expected_runs", "swept"]

_METHOD, _SEED, _PAIR = "method", "seed", "harmful.pair"


def expected_runs(name: str, records: Sequence[Mapping[str, Any]]) -> list[RunId] | None:
    """Every run of a preset, by pair, method and seed.

    Args:
        name: of the experiment; reduced records belong to the preset `<name>_fast`.
        records: which tell whether the reduced preset is meant, and the pair of a preset that sweeps over none.

    Returns:
        None where the preset does not exist, or does not sweep over methods and seeds.
    """
    reduced = any(experiment_of(dict(record))[1] for record in records)
    params = swept(Path(config_dir()) / "experiment" / f"{name}{FAST if reduced else ''}.yaml")
    if _METHOD not in params or _SEED not in params:
        return None
    pairs = ["→".join(map(side_label, pair)) for pair in params.get(_PAIR, [])]
    pairs = pairs or sorted({pair_label(dict(record)) for record in records})
    return [(pair, str(m), int(s)) for pair in pairs for m in params[_METHOD] for s in params[_SEED]]


def swept(preset: Path) -> dict[str, list[Any]]:
    """Setting to its values in the `hydra.sweeper.params` of a preset and of those it builds on; empty without it."""
    if not preset.is_file():
        return {}
    content = OmegaConf.to_container(OmegaConf.load(preset))
    assert isinstance(content, dict)
    found: dict[str, list[Any]] = {}
    for base in content.get("defaults", []):
        if isinstance(base, str) and base != "_self_":
            found |= swept(preset.with_name(f"{base}.yaml"))
    params = ((content.get("hydra") or {}).get("sweeper") or {}).get("params") or {}
    parser = OverridesParser.create()
    for key, value in params.items():
        override = parser.parse_override(f"{key}={value}")
        if override.is_sweep_override():
            found[str(key)] = list(override.sweep_iterator(Transformer.identity))
        else:
            found[str(key)] = [override.value()]
    return found
