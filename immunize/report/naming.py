"""What runs, methods and pairs of data sets are called in titles and tables. Imports no other room and no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_METHODS = (
    *("ours", "ours_rir", "closed_form", "opt_kappa", "opt_kappa_fit", "imma", "ill_only", "well_only"),
    *("erase", "censor", "contract", "simulated", "none"),
)


def _which(record: dict[str, Any], role: str) -> Any:
    """The digit, target or folder of images in one role; None where the data set is known by its name alone."""
    facts = data_facts(record, role)
    return next((facts[name] for name in ("digit", "target", "folder") if name in facts), None)


def data_facts(record: dict[str, Any], role: str) -> dict[str, Any]:
    """What the record says of the data set in one role; nothing where it says nothing."""
    return (record.get("data") or {}).get(role) or {}


def _sets(record: dict[str, Any], role: str) -> str:
    """The data set in one role by its name; each of several with its folder of images: "cars+imagefolder bad"."""
    sets = data_facts(record, role).get("sets") or {}
    if not any("folder" in of for of in sets.values()):
        return str(record[role])
    return "+".join(f"{name} {of['folder']}" if "folder" in of else name for name, of in sets.items())


def data_name(record: dict[str, Any], role: str) -> str:
    """The data set in one role, with what it is of: "mnist 3", "housing SalePrice", "imagefolder bad"."""
    which = _which(record, role)
    return _sets(record, role) if which is None else f"{record[role]} {which}"


def part_words(part: str, protocol: str = "metrics") -> str:
    """A part of the data in a sentence, and a key of `PROTOCOLS`: "held out", "held out, groups"."""
    return part.replace("_", " ") + ("" if protocol == "metrics" else f", {PROTOCOLS[protocol]}")


def fit_rows(facts: dict[str, Any]) -> int:
    """Rows or images of a data set in `fit`, from what a record says of it."""
    return int(facts["images"]["fit"] if "images" in facts else facts["fit_rows"])


def pair_title(record: dict[str, Any]) -> str:
    """The two data sets of a run or forecast, D_P first: "mnist 3 against mnist 8"."""
    return f"{data_name(record, 'pretrain')} against {data_name(record, 'harmful')}"


def pair_label(record: dict[str, Any]) -> str:
    """The pair as short as it can be told: "3→8" for digits, else "LotArea→SalePrice", "mine→bad", or the names."""
    sides = {role: _which(record, role) for role in ("pretrain", "harmful")}
    return "→".join(_sets(record, role) if which is None else str(which) for role, which in sides.items())


def side_label(side: Any) -> str:
    """One side of a configured pair as `pair_label` has it: "3", or "0 vs 1" of two labels."""
    return " vs ".join(map(str, side)) if isinstance(side, list) else str(side)


def run_title(record: dict[str, Any]) -> str:
    """Method, D_P, D_H and seed of a run."""
    return f"{record['method']}: {pair_title(record)}, seed {record['seed']}"


def in_order(methods: Iterable[str]) -> list[str]:
    """Methods in the order of the tables: ours, the closed form, the baselines; then others by name."""
    return sorted(set(methods), key=lambda m: (_METHODS.index(m) if m in _METHODS else len(_METHODS), m))


PARTS = ("fit", "held_out")
"""The rows θ was immunized with, and those it never saw, as records call them."""

PROTOCOLS = {"metrics_groups": "groups", "metrics": "pooled"}
"""Where numbers stand in a record: means over small groups of rows (of networks alone), and those of all rows."""

RATIO_HEADS = {"ratio_harmful": "(i) ↑", "ratio_pretrain": "(ii) ↓", "rir": "RIR ↑"}
"""(i), (ii) and RIR, as records call them, to what tables do; arrows say whether they are to be large or small."""

RATIOS = tuple(RATIO_HEADS)
"""As records call them."""

RATIO_NAMES = {name: head[:-2] for name, head in RATIO_HEADS.items()}
"""The heads without their arrows."""

LAMBDAS = ("lambda_well", "lambda_ill")
"""λ_P and λ_H, as records call them."""

HARDER_BY, NO_HARDER = 2.0, 1.0
"""Verdicts (a) and (b) of Definition 3.1 as this package decides them: (i) ≥ 2 and (ii) ≤ 1. What is applied is
`immunize.spectrum.condition.HARDER_BY`, which this room does not import; a test holds the two together."""
