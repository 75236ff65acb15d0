"""What happens around a step: balancing, guarding, watching, stopping, reporting progress."""

from immunize.training.callbacks.balance import GradientBalance
from immunize.training.callbacks.early_stop import ValidationStop
from immunize.training.callbacks.guard import TheoremGuard
from immunize.training.callbacks.monitor import ImmunityMonitor
from immunize.training.callbacks.progress import progress
from immunize.training.callbacks.signatures import FailureSignatures

__all__ = ["FailureSignatures", "GradientBalance", "ImmunityMonitor", "TheoremGuard", "ValidationStop", "progress"]
