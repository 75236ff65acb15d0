"""Minimizing an objective with Lightning."""

from immunize.training.deep import DeepModule
from immunize.training.linear import LinearModule
from immunize.training.module import ImmunizationModule

__all__ = ["DeepModule", "ImmunizationModule", "LinearModule"]
