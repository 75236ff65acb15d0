"""The head of a card as hubs of models read it: YAML with tags, data sets and main results. Imports no other room.

The licence is the publisher's to choose: its line is a comment. Results are those of rows that the model never saw,
where there are any.
"""

from __future__ import annotations

import math
import re
from typing import Any

from omegaconf import OmegaConf

from immunize.report.nulls import with_infinities

__all__ = ["front_matter"]

_LICENSE = "# license: choose one before you publish"
_RATIOS = {"ratio_harmful": "(i)", "ratio_pretrain": "(ii)", "rir": "RIR"}


def front_matter(card: dict[str, Any]) -> list[str]:
    """The lines, with the dashes around them.

    Args:
        card: from `immunize.report.card.card_of`.
    """
    data = card["data"]
    head = {
        "library_name": "immunize",
        "tags": ["model-immunization", card["method"], card["model"]],
        "datasets": list(dict.fromkeys(_slug(data[role]["name"]) for role in ("pretrain", "harmful"))),
        "metrics": ["relative-immunization-ratio", *(["accuracy"] if "pretrain_accuracy" in card else [])],
        "model-index": [{"name": card["title"], "results": [_own(card), *_attacked(card)]}],
    }
    text = OmegaConf.to_yaml(OmegaConf.create(head))
    return ["---", _LICENSE, *text.splitlines(), "---", ""]


def _own(card: dict[str, Any]) -> dict[str, Any]:
    """What the model itself is measured by: the ratios, and a network's accuracy on D_P."""
    part = "held_out" if "held_out" in card["ratios"] else "fit"
    metrics = [
        _metric("relative-immunization-ratio", f"{name} by {estimator}, {part}", with_infinities(of)[key])
        for estimator, of in card["ratios"][part].items()
        for key, name in _RATIOS.items()
    ]
    if "pretrain_accuracy" in card:
        metrics.append(_metric("accuracy", "accuracy on D_P, %", card["pretrain_accuracy"]["after"]))
    return _result(card, "pretrain", "its own task, D_P", metrics)


def _attacked(card: dict[str, Any]) -> list[dict[str, Any]]:
    """The best score of each tier of attackers on the harmful task; nothing where none was tried in earnest."""
    if card["attack"] is None or card["attack"]["reduced"]:
        return []
    kind = "r_squared" if card["data"]["harmful"]["task"] == "regression" else "accuracy"
    metrics = [
        _metric(kind, f"best attacker of {tier}, the lower the better", of["score"]["mean"])
        for tier, of in card["attack"]["tasks"]["harmful"]["tiers"].items()
    ]
    return [_result(card, "harmful", "the harmful task, D_H", metrics)]


def _result(card: dict[str, Any], role: str, name: str, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    data = card["data"][role]
    rows = "tabular-regression" if data["task"] == "regression" else "tabular-classification"
    return {
        "task": {"type": "image-classification" if "groups" in card else rows, "name": name},
        "dataset": {"type": _slug(data["name"]), "name": data["name"]},
        "metrics": metrics,
    }


def _metric(kind: str, name: str, value: float | None) -> dict[str, Any]:
    """A value that is no number is left out of YAML's numbers: hubs refuse it."""
    known = value is not None and math.isfinite(value)
    return {"type": kind, "name": name, "value": float(f"{value:.4g}") if known else str(value)}


def _slug(name: str) -> str:
    return re.sub(r"[^\w.]+", "-", name.lower()).strip("-")
