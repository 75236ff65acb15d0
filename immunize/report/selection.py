"""Which split selected the hyper-parameters of an experiment, as the rows of `conf/objective/tuned` tell it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from immunize.config import config_dir
from immunize.records import whole_config
from immunize.report.runs import Runs

__all__ = ["selection_text"]


def selection_text(runs: Runs) -> str:
    """A section for a README: the source of each method's row, if the records were made with it."""
    search = f"search_{runs.records[0]['harmful']}"
    lines = [
        "## Selection",
        "",
        f"What selected each method's hyper-parameters, from its row in `conf/objective/tuned/{_folder(runs)}`; the "
        f"search is in [{search}](../{search}):",
        "",
    ]
    for method in runs.methods:
        config = next(whole_config(record) for record in runs.records if record["method"] == method)
        path = Path(config_dir()) / "objective" / "tuned" / _folder(runs) / f"{method}.yaml"
        lines.append(f"- `{method}`: {_source(path, config)}")
    return "\n".join(lines) + "\n"


def _folder(runs: Runs) -> str:
    first = runs.records[0]
    return f"{first['model']}_{first['harmful']}"


def _source(path: Path, config: dict[str, Any]) -> str:
    if not path.is_file():
        return "there is no row for it; its settings are those of the table above."
    comments = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comments.append(line.lstrip("# "))
    _, _, source = " ".join(comments).partition("Source: ")
    row = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(row, dict)
    row.pop("defaults", None)
    if differing := _differing(row, config):
        return f"not its row there: the runs differ from it in {', '.join(differing)}."
    return source or "its row names no source."


def _differing(row: dict[Any, Any], config: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            inner = config.get(key)
            found += _differing(value, inner if isinstance(inner, dict) else {}, f"{name}.")
        elif key not in config or not _equal(value, config[key]):
            found.append(name)
    return found


def _equal(one: Any, other: Any) -> bool:
    numbers = (int, float)
    if isinstance(one, numbers) and isinstance(other, numbers):
        return float(one) == float(other)
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
