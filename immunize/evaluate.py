"""`python -m immunize.evaluate run=<folder>`: every number of a record again, from its checkpoint and data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from immunize.cli import command, tell
from immunize.config import config_hash, data_folder, settings_of
from immunize.errors import CheckpointError, DivergedError
from immunize.instantiate import check_parts, sources_of
from immunize.records import CHECKPOINT, RELATIVE_TOLERANCE, differences, plain, read_immunized, whole_config, without
from immunize.threads import cpu_threads

OF_SEVERAL_SETS = ("weakest", "harmful_sets")
"""Parts of a record that only a run against several harmful data sets has."""

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
    record = read_immunized(folder)
    if record["status"] != "finished":
        raise CheckpointError(f"the run in {folder} is '{record['status']}', it has no numbers to check")
    cfg = OmegaConf.create(settings_of(record, data_folder(data_root)))
    check_parts(cfg.pretrain, cfg.harmful, cfg.method, cfg.model, cfg.get("init"))
    # Missing files are reported before the heavier imports below, which take seconds.
    sources = sources_of(cfg)
    tell(f"{folder}: every number again, from checkpoint and data")
    from immunize.pipeline.assemble import assemble
    from immunize.spectrum.condition import ZeroMatrixError

    path = folder / CHECKPOINT
    with cpu_threads(record["hardware"]["threads"]):  # another number of them rounds differently
        experiment = assemble(cfg, sources, record)
        try:
            again = plain(experiment.again(path, record) | {"data": experiment.pair.describe()})
        except (DivergedError, ZeroMatrixError) as error:  # or infinite: nothing counts beside the largest eigenvalue
            raise CheckpointError(f"{path} gives no numbers any more: {error}") from None
    compared = [key for key in again if key in record or key not in WHERE_KEPT]
    compared += [key for key in OF_SEVERAL_SETS if key in record and key not in again]
    if missing := [key for key in compared if key not in record and key not in OF_SEVERAL_SETS]:
        raise CheckpointError(f"the record in {folder} lacks {', '.join(missing)}")
    old, new = without(record, "folder"), without(again, "folder")  # names of which may be others where data lie now
    differing = [line for key in compared for line in differences(old.get(key), new.get(key), key)]
    said = {"method": cfg.method.name, "model": cfg.model.name, "seed": cfg.seed}
    differing += [line for key, value in said.items() for line in differences(record.get(key), value, key)]
    if config_hash(whole_config(record)) != record["config_hash"]:
        differing.append(f"config_hash: {record['config_hash']} is not that of the configuration beside it")
    return {**record, **again}, differing


@command("evaluate", values=True)
def main(folder: str, data_root: str | None) -> None:
    """Every number again; exit code 1 if one differs."""
    from immunize.report import show_record

    record, differing = run(Path(folder), data_root, tell)
    show_record(record)
    if differing:
        print("these numbers differ from the record:", *differing, sep="\n  ")
        sys.exit(1)
    print(f"every number agrees with the record (relative tolerance {RELATIVE_TOLERANCE:g})")


if __name__ == "__main__":
    main()
