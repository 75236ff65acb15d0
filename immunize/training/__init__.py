"""Minimizing an objective with Lightning."""

from immunize.training.module import DeepModule, ImmunizationModule, LinearModule

__all__ = ["DeepModule", "ImmunizationModule", "LinearModule"]
