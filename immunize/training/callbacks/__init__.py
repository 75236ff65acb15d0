"""What happens around a step: balancing, guarding, watching, stopping, reporting progress."""

from immunize.training.callbacks.balance import MULTIPLIERS, GradientBalance
from immunize.training.callbacks.early_stop import ValidationStop
from immunize.training.callbacks.guard import TheoremGuard
from immunize.training.callbacks.monitor import ImmunityMonitor
from immunize.training.callbacks.network_watch import NetworkWatch
from immunize.training.callbacks.progress import progress
from immunize.training.callbacks.resuming import Resuming, place_in
from immunize.training.callbacks.signatures import FailureSignatures
from immunize.training.callbacks.step_limit import StepLimit
from immunize.training.callbacks.throughput import Throughput

__all__ = [
    "MULTIPLIERS",
    "FailureSignatures",
    "GradientBalance",
    "ImmunityMonitor",
    "NetworkWatch",
    "Resuming",
    "StepLimit",
    "TheoremGuard",
    "Throughput",
    "ValidationStop",
    "place_in",
    "progress",
]
