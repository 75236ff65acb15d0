"""`python -m immunize.verify run=<folder>`: every number of a run, of its attacks and of its card, computed again.

1. the record      from checkpoint and data, as `immunize.evaluate` does
2. the attacks     the whole grid again, without the cells it has kept
3. the card        from the two records

Every number that is measured is compared, to a relative 1e-6; a grid of many training steps gives the same numbers on
the same machine and number of threads, and on another one it may not. Seconds are the machine's, and how the
training went (`training`: its steps, losses and warnings) is not done again: these are not compared.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from immunize.cli import command, now_and_then
from immunize.config import data_folder
from immunize.errors import CheckpointError
from immunize.instantiate import check_parts
from immunize.records import CARD_JSON, CARD_MD, differences, without

NOT_COMPARED = "seconds"


def run(folder: Path, data_root: str | None = None, tell: Callable[[str], None] = lambda text: None) -> list[str]:
    """Recompute everything in a folder.

    Args:
        folder: of a run, with or without an attack record and a card.
        data_root: where data sets lie now; None is IMMUNIZE_DATA, or where the run had them.
        tell: gets a line for every finished attack.

    Returns:
        One line for each number that differs; empty if all agree.

    Raises:
        UserError: files that are missing or cannot be read, or other data.
    """
    from immunize import evaluate
    from immunize.report.card import card_of, card_text
    from immunize.report.loading import lacking_is_told, read_sources

    with lacking_is_told(f"the attack record in {folder}"):
        record, attack = read_sources(folder)
    tell("the record: from checkpoint and data")
    _, found = evaluate.run(folder, data_root)
    differing = [f"record: {line}" for line in found]
    if attack is not None:
        differing += [f"attacks: {line}" for line in _attacks(folder, attack, data_root, tell)]
    if (folder / CARD_JSON).exists() or (folder / CARD_MD).exists():
        tell("the card: from the records")
        with lacking_is_told(f"the record or attack record in {folder}"):
            card = card_of(record, attack)
            text = card_text(card, attack)
        if (folder / CARD_JSON).exists():
            stored, again = _json(folder / CARD_JSON), json.loads(json.dumps(card))
            differing += [f"card: {line}" for line in differences(stored, again, "card")]
        else:
            differing.append(f"card: {CARD_JSON} is missing, {CARD_MD} is there")
        if not (folder / CARD_MD).is_file() or (folder / CARD_MD).read_text(encoding="utf-8") != text:
            differing.append(f"card: {CARD_MD} is not what the records say")
    return differing


def main() -> None:
    """Entry point of `python -m immunize.verify` and `immunize-verify`."""
    first = "".join(sys.argv[1:2])
    if "--data-root" in " ".join(sys.argv) or (first and not first.startswith("-") and "=" not in first):
        sys.exit("error: folders are named, as in all commands: immunize.verify run=<folder> [data_root=<folder>]")
    _verify()


@command("verify", values=True)
def _verify(folder: str, data_root: str | None) -> None:
    differing = run(Path(folder), data_root, now_and_then())
    if differing:
        print("these numbers differ:", *differing, sep="\n  ")
        sys.exit(1)
    print("every number agrees")


def _attacks(folder: Path, attack: dict[str, Any], data_root: str | None, tell: Callable[[str], None]) -> list[str]:
    from immunize.attack import assemble, hash_of_grid, measure
    from immunize.attack_grid.run import RESULTS
    from immunize.records import plain, whole_config
    from immunize.report.loading import lacking_is_told

    if missing := [key for key in (*RESULTS, "config") if key not in attack]:
        raise CheckpointError(f"the attack record in {folder} lacks {', '.join(missing)}")
    with lacking_is_told(f"the attack record in {folder}"):
        whole = whole_config(attack)
        if whole["run"] is None:
            raise CheckpointError(
                f"the attack record in {folder} is of a checkpoint, not of this run: attack run={folder}"
            )
        cfg = OmegaConf.merge(whole, {"run": str(folder), "data_root": data_folder(data_root)})
        assert isinstance(cfg, DictConfig)
        check_parts(cfg.attack, cfg.get("benign"))
    again = plain(measure(assemble(cfg), tell=tell))
    old, new = without(attack, NOT_COMPARED), without(again, NOT_COMPARED)
    new |= {"kind": "attack", "status": "finished"}
    told = [key for key in ("kind", "status", "attack_versions") if key in old]
    found = [line for key in (*RESULTS, *told) for line in differences(old[key], new[key], key)]
    if hash_of_grid(whole) != attack.get("config_hash"):
        found.append(f"config_hash: {attack.get('config_hash')} is not that of the grid beside it")
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


if __name__ == "__main__":
    main()
