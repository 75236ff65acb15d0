"""How a run is called in titles. Imports no other room and no torch."""

from __future__ import annotations

from typing import Any

__all__ = ["data_name", "run_title"]


def data_name(record: dict[str, Any], role: str) -> str:
    """The data set in one role, with its digit where it is one digit's images: "mnist 3", "housing"."""
    facts = (record.get("data") or {}).get(role) or {}
    digit = facts.get("digit")
    return f"{record[role]}" if digit is None else f"{record[role]} {digit}"


def run_title(record: dict[str, Any]) -> str:
    """Method, D_P, D_H and seed of a run."""
    pair = f"{data_name(record, 'pretrain')} against {data_name(record, 'harmful')}"
    return f"{record['method']}: {pair}, seed {record['seed']}"
