"""What happens around a step: balancing, guarding, watching, stopping, reporting progress."""

from immunize.training.callbacks.guard import GradientBalance, TheoremGuard
from immunize.training.callbacks.monitor import ImmunityMonitor, NetworkMonitor
from immunize.training.callbacks.stopping import Progress, Resuming, ValidationStop

__all__ = [
    "GradientBalance",
    "ImmunityMonitor",
    "NetworkMonitor",
    "Progress",
    "Resuming",
    "TheoremGuard",
    "ValidationStop",
]
