"""Immunization methods: one file each, all seen by training only through :class:`Objective` and :class:`Step`."""

from immunize.objective.base import Head, Objective, Step, TaskLoss, new_head, task_loss
from immunize.objective.deep import DeepSide, DeepStep
from immunize.objective.linear import LinearStep, Side
from immunize.objective.ranks import all_finite, gather_rows, mean_over_ranks, world_size

__all__ = [
    "DeepSide",
    "DeepStep",
    "Head",
    "LinearStep",
    "Objective",
    "Side",
    "Step",
    "TaskLoss",
    "all_finite",
    "gather_rows",
    "mean_over_ranks",
    "new_head",
    "task_loss",
    "world_size",
]
