"""Minimizing an objective with Lightning."""

from immunize.training.module import DeepModule, ImmunizationModule, LinearModule, compressed

__all__ = ["DeepModule", "ImmunizationModule", "LinearModule", "compressed"]
