"""What Definition 3.1 asks of the ratios (i) = κ(H_H(θ))/κ(H_H(I)) and (ii) = κ(H_P(θ))/κ(H_P(I)), in numbers.

The paper gives none. `immunize.report`, which imports no other room, has its own in `naming`; a test holds the two
together.
"""

from __future__ import annotations

__all__ = ["ACCURACY_SLACK", "EASE_SLACK", "HARDER_BY"]

HARDER_BY = 2.0
"""(a) asks for κ(H_H(θ)) ≫ κ(H_H(I)); at least this factor counts as harder (ours)."""

EASE_SLACK = 1e-9
"""(b) asks for κ(H_P(θ)) ≤ κ(H_P(I)); relative slack for rounding, so that θ = I passes."""

ACCURACY_SLACK = 1.0
"""(c) asks for a competitive performance on D_P; an accuracy may fall by this many points (ours)."""
