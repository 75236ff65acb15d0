"""Minimizing an objective with Lightning."""

from immunize.training.module import ImmunizationModule

__all__ = ["ImmunizationModule"]
