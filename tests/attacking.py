"""Tiny grids, which the tests of attacks, cards and verification share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from immunize import attack
from immunize.records import without
from tests.composing import compose_config

TINY_GRID = ("attack=quick", "attack.budget.steps=12", "seeds=[0,1]", "~attack.attacks.adam", "~attack.attacks.lbfgs")

TINY_NETWORK_GRID = (
    *TINY_GRID,
    "seeds=[0]",
    "~attack.attacks.nearest_neighbours",
    "~attack.attacks.gd_line_search",
    "jobs=1",
)
SMALLER = "{learning_rates:[0.001],steps:4,measured:30}"
TINY_T4 = (
    "attack=t4",
    "seeds=[0]",
    "tasks=[harmful]",
    "jobs=1",
    "attack.attacks.lora.ranks=[2]",
    *(f"attack.attacks.{name}={SMALLER}" for name in ("last_block", "lora", "full_finetune")),
)


def compose_attack(*overrides: str) -> DictConfig:
    """`conf/attack.yaml` with overrides."""
    return compose_config(*overrides, primary="attack")


def target_of(*overrides: str) -> Any:
    """What a grid would attack, with its data."""
    return attack.assemble(compose_attack(*overrides)).new_target(None, print)


def attack_tiny(folder: Path, *overrides: str) -> dict[str, Any]:
    """The attack record of a run."""
    return attack.run(compose_attack(f"run={folder}", *TINY_GRID, *overrides))


def timeless(value: object) -> object:
    """A record without what a clock measured."""
    return without(value, "seconds")
