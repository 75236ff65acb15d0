"""Schemas and resolvers registered with Hydra and OmegaConf, the hash of a configuration, and where `conf/` lies."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from immunize import schemas
from immunize.records import whole_config
from immunize.threads import threads_in_force

NOT_HASHED = (
    *("data_root", "overwrite", "resume", "experiment", "threads", "workers"),
    *("logger", "log_every", "monitor_every", "figure"),
)
"""Settings that change no number but by rounding: where things lie, how they are shown, which sweep a run belongs to,
how many threads compute and how many processes read. Left out of the config hash, but for the threads of a network: its
training amplifies rounding to another θ. Reports put runs that differ in them alone into one row."""

NOT_HASHED_DEEP = ("workers", "batch_size", "cache_dir")
"""The same of the settings below `deep`."""

OF_DEEP_NETS = (
    *("label_smoothing", "weight_decay", "head_weight_decay", "epochs_on", "max_steps"),
    *("augment", "cache_frozen"),
)
"""Settings of `objective` that the linear model does not have: there they are null, and not part of its hash."""

GONE = ("precondition", "harmful")
"""The same in records of before: `method.precondition` alone says the first, the second was to sum over several D_H."""

ADDED = ("lr_decay", "balance_multiplier_ill", "images")
"""Settings of `objective` and `deep` that came later; null is what there was before, and then not part of the hash."""

SCHEMAS = {
    "train": schemas.TrainConfig,
    "evaluate": schemas.EvaluateConfig,
    "verify": schemas.EvaluateConfig,
    "forecast": schemas.ForecastConfig,
    "attack": schemas.AttackConfig,
    "report": schemas.ReportConfig,
    "card": schemas.CardConfig,
    "html": schemas.HtmlConfig,
    "export": schemas.ExportConfig,
    "pretrain": schemas.PretrainConfig,
}
"""Of each command, under whose name with "_schema" its primary configuration starts."""

LONGEST_NAME = 120
"""Characters of a folder name; file systems allow 255 bytes a name, and 4,096 or fewer a path."""


def config_dir() -> str:
    """The folder `conf/`: inside the package when installed from a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return str(inside if inside.is_dir() else package.parent / "conf")


def folder_name(number: int | str, overrides: str) -> str:
    """What a multirun calls a run's folder: its number, then its overrides as far as a file system can take them.

    Args:
        number: of the run; makes the name unique.
        overrides: "key=value,...", in which brackets and quotes are left out, and slashes and the like become "-".
    """
    bare = re.sub(r"[\[\]{}()'\"]", "", str(overrides))
    return f"{number}_{re.sub(r'[^A-Za-z0-9._=,+-]+', '-', bare)}"[:LONGEST_NAME].rstrip("_-,.=")


def data_folder(given: str | None = None) -> str | None:
    """Where data sets lie: as given, or by the environment variable IMMUNIZE_DATA, or nowhere said (None).

    Args:
        given: an option's value; an empty one, as an empty variable, counts as not given.
    """
    return given or os.environ.get("IMMUNIZE_DATA") or None


def hash_of_run(_root_: DictConfig) -> str:
    """What a preset calls a run's folder: the `config_hash` of its record, known before the run.

    Args:
        _root_: the composed configuration of one run, with or without Hydra's own node.
    """
    return config_hash(resolved(_root_))


def config_hash(config: dict[str, Any]) -> str:
    """A hash of everything in the resolved configuration that can change a number.

    Settings that a model of this kind does not have are left out, so that new ones for others change no hash.

    Args:
        config: the plain, resolved configuration of a run.
    """
    kept = _without(config, *NOT_HASHED)
    deep, of_training = is_deep(config), isinstance(config.get("model"), dict) and "objective" in config
    if of_training:
        own = {key: value for key, value in config["objective"].items() if not (key in ADDED and value is None)}
        if deep:
            # Their sum was once a choice, and is hashed as it was then.
            summed = {"harmful": "sum"} if "sets" in config.get("harmful", {}) else {}
            kept["objective"] = _without(own, "harmful") | summed
            later = [key for key in ADDED if config["deep"].get(key) is None]
            kept["deep"] = _without(config["deep"], *NOT_HASHED_DEEP, *later)
        else:
            kept = _without(kept, "deep") | {"objective": _without(own, *OF_DEEP_NETS, *GONE)}
            kept["model"] = _without(config["model"], "kind")
    if deep and config.get("threads") is not None:  # records of before they were resolved have null
        kept["rounded_by_threads"] = config["threads"]
    # The same configuration on another machine has the same hash: the data folder is not part of it.
    kept = _moved(kept, str(config.get("data_root")), "<data_root>")
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in names}


def settings_of(record: dict[str, Any], data_root: str | None) -> dict[str, Any]:
    """The whole configuration of a record, with its data folder replaced wherever it or a file below it occurs.

    Args:
        record: of a run.
        data_root: where data sets lie now; None where the run had them. A `root` or `file` of a data set's own, or
            the `checkpoint` of θ_0, that is not there any more is looked for here by its name.
    """
    config = whole_config(record)
    if data_root is None:
        return config
    elsewhere = _moved(config, config["data_root"], data_root)
    for node, key in _of_its_own(elsewhere):
        if not Path(node[key]).expanduser().exists() and (here := Path(data_root) / Path(node[key]).name).exists():
            node[key] = str(here)
    assert isinstance(elsewhere, dict)
    return elsewhere


def _of_its_own(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """The nodes of a configuration, at any depth, that name a folder or file of their own, and by which key."""
    if isinstance(value, dict):
        yield from ((value, key) for key in ("root", "file", "checkpoint") if isinstance(value.get(key), str))
        for item in value.values():
            yield from _of_its_own(item)


def resolved(cfg: DictConfig, threads: int | None = None) -> dict[str, Any]:
    """The plain, resolved configuration of a run, without Hydra's own node; of a network with the threads in force.

    Args:
        cfg: the composed configuration.
        threads: what `threads: null` stands for where a network will be trained; None is what it does here.

    Raises:
        OmegaConfBaseException: a reference to a setting that does not exist.
    """
    own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    plain = OmegaConf.to_container(own, resolve=True)
    assert isinstance(plain, dict)
    found = {str(key): value for key, value in plain.items()}
    if is_deep(found) and "threads" in found:
        given = found["threads"]
        found["threads"] = threads if given is None and threads is not None else threads_in_force(given)
    return found


def register() -> None:
    """Register the schemas under the names that the primary configs start with, and the resolvers of folder names."""
    OmegaConf.register_new_resolver("immunize.folder_name", folder_name, replace=True)
    OmegaConf.register_new_resolver("immunize.data_folder", lambda: data_folder() or "data", replace=True)
    OmegaConf.register_new_resolver("immunize.config_hash", hash_of_run, replace=True)
    # Hydra copies the store with whatever it composes, and 166 times for --help; nobody writes into such a copy.
    ConfigStore.__deepcopy__ = lambda store, memo: store  # type: ignore[attr-defined]
    store = ConfigStore.instance()
    for name, node in SCHEMAS.items():
        store.store(name=f"{name}_schema", node=node)


def is_deep(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is of a network."""
    model = config.get("model")
    return isinstance(model, Mapping) and model.get("kind") == "deep"


def _moved(value: Any, old: str, new: str) -> Any:
    """The same with another name for a folder, and for what lies below it, such as θ_0's weights."""
    if isinstance(value, dict):
        return {key: _moved(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, old, new) for item in value]
    below = isinstance(value, str) and old and f"{value}/".startswith(f"{old}/")
    return new + value.removeprefix(old) if below else value
