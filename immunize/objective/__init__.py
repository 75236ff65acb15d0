"""Immunization methods: one file each, all seen by training only through :class:`Objective`."""

from immunize.objective.base import Objective, Side, Step, TaskLoss, new_head
from immunize.objective.losses import task_loss

__all__ = ["Objective", "Side", "Step", "TaskLoss", "new_head", "task_loss"]
