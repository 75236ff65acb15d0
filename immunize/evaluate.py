"""`python -m immunize.evaluate run=<folder>`: every number of a record again, from its checkpoint and data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from immunize.building import build_sources
from immunize.checkpoints import load_checkpoint
from immunize.cli import entry_point, explain_errors, tell
from immunize.comparing import RELATIVE_TOLERANCE, differences
from immunize.config import config_dir, config_hash, data_folder, moved, register
from immunize.errors import CheckpointError, DivergedError
from immunize.records import CHECKPOINT, diverged_cross_fit, read_record, whole_config
from immunize.threads import cpu_threads

__all__ = ["main", "run"]

COMPARED = ("data", "metrics", "verdicts", "steps_to_norm_ratio")
"""Parts of a linear run's record that are recomputed and compared."""

COMPARED_DEEP = (
    *("data", "metrics", "metrics_groups", "verdicts", "verdicts_groups"),
    *("pretrain_accuracy", "probe_accuracy", "curves"),
)
"""The same of a run with a deep net."""

OF_SEVERAL_SETS = ("weakest", "harmful_sets")
"""Those that only a run against several harmful data sets has."""

WHERE_KEPT = ("curves", "spectra", "separability")
"""Those that records made before they were kept do not have."""


def run(
    folder: Path, data_root: str | None = None, tell: Callable[[str], None] = lambda text: None
) -> tuple[dict[str, Any], list[str]]:
    """Recompute the numbers of a run.

    Args:
        folder: its output folder.
        data_root: where data sets lie now; None is the environment variable IMMUNIZE_DATA, or where the run had them.
        tell: gets a line where seconds go by.

    Returns:
        The record with its numbers replaced by the recomputed ones, and the names of those that differ.

    Raises:
        UserError: an unreadable record or checkpoint, missing or different data.
    """
    record = read_record(folder)
    deep = record["config"].get("model", {}).get("kind") == "deep"
    compared: tuple[str, ...] = COMPARED_DEEP if deep else COMPARED
    if record["status"] != "finished":
        raise CheckpointError(f"the run in {folder} is '{record['status']}', it has no numbers to check")
    if missing := [key for key in compared if key not in record]:
        raise CheckpointError(f"the record in {folder} lacks {', '.join(missing)}")
    whole = whole_config(record)
    config = moved(whole, data_folder(data_root))
    cfg = OmegaConf.create(config)
    build_sources(cfg)  # missing files are reported before the heavy imports below, which take seconds
    tell(f"{folder}: every number again, from checkpoint and data")
    again = _deep(cfg, folder, record) if deep else _linear(cfg, folder, record)
    compared += tuple(key for key in OF_SEVERAL_SETS if key in record or key in again)
    compared += tuple(key for key in WHERE_KEPT if key in record and key not in compared)
    differing = [line for key in compared for line in differences(_here(record.get(key)), _here(again.get(key)), key)]
    said = {"method": config["method"]["name"], "model": config["model"]["name"], "seed": config["seed"]}
    differing += [line for key, value in said.items() for line in differences(record.get(key), value, key)]
    if config_hash(whole) != record["config_hash"]:
        differing.append(f"config_hash: {record['config_hash']} is not that of the configuration beside it")
    return {**record, **again}, differing


def _here(value: Any) -> Any:
    """The same without the names of folders, which may be others where the data lie now."""
    return {key: _here(item) for key, item in value.items() if key != "folder"} if isinstance(value, dict) else value


def _deep(cfg: DictConfig, folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    from immunize.running.deep_evaluation import recomputed

    try:
        return recomputed(cfg, folder, record)
    except DivergedError as error:
        raise CheckpointError(f"{folder / CHECKPOINT} gives no numbers any more: {error}") from None


def _linear(cfg: DictConfig, folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    from immunize.running.experiment import build_cross_fit, build_data
    from immunize.running.recording import data_facts, evaluate_thetas
    from immunize.spectrum import ZeroMatrixError

    data = build_data(cfg)
    thetas = load_checkpoint(folder / CHECKPOINT, data.n_features, config_hash=record["config_hash"])
    if data.data_hash != record["data_hash"]:
        raise CheckpointError("the data are not those of the run: their hash differs from the record's")
    pairs = {"fit": data}
    if record["held_out_protocol"] == "cross_fit":
        pairs["cross_fit"] = build_cross_fit(cfg, data)
    measured = pairs.keys() - ({"cross_fit"} if diverged_cross_fit(record) else set())
    if absent := measured - thetas.keys():
        raise CheckpointError(f"{folder / CHECKPOINT} lacks theta.{absent.pop()}, which the record has numbers of")
    with cpu_threads(record["hardware"]["threads"]):  # another number of them rounds differently
        try:
            found = evaluate_thetas(
                {name: thetas[name] for name in measured}, pairs, cfg.rho, cfg.probe_steps, cfg.get("selection")
            )
        except ZeroMatrixError as error:  # or infinite: nothing counts beside the largest eigenvalue
            raise CheckpointError(f"{folder / CHECKPOINT} gives no numbers any more: {error}") from None
    return found | {"data": data_facts(data)}


@entry_point
def main() -> None:
    """Entry point of `python -m immunize.evaluate` and `immunize-evaluate`."""
    register()
    _hydra_main()


@hydra.main(version_base="1.3", config_path=config_dir(), config_name="evaluate")
@explain_errors
def _hydra_main(cfg: DictConfig) -> None:
    from immunize.report import show_record

    record, differing = run(Path(cfg.run), cfg.data_root, tell)
    show_record(record)
    if differing:
        print("these numbers differ from the record:", *differing, sep="\n  ")
        sys.exit(1)
    print(f"every number agrees with the record (relative tolerance {RELATIVE_TOLERANCE:g})")


if __name__ == "__main__":
    main()
