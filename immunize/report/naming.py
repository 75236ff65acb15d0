"""How a run is called in titles. Imports no other room and no torch."""

from __future__ import annotations

from typing import Any

__all__ = ["data_name", "run_title"]


def data_name(record: dict[str, Any], role: str) -> str:
    """The data set in one role, with its digit or target: "mnist 3", "housing SalePrice"."""
    facts = (record.get("data") or {}).get(role) or {}
    which = facts.get("digit", facts.get("target"))
    return str(record[role]) if which is None else f"{record[role]} {which}"


def run_title(record: dict[str, Any]) -> str:
    """Method, D_P, D_H and seed of a run."""
    pair = f"{data_name(record, 'pretrain')} against {data_name(record, 'harmful')}"
    return f"{record['method']}: {pair}, seed {record['seed']}"
