"""What every report says in the same words, and the thresholds of its verdicts. Imports no other room and no torch."""

from __future__ import annotations

__all__ = ["HARDER_BY", "LAMBDAS", "NO_HARDER", "PARTS", "RATIOS", "REDUCED"]

PARTS = ("fit", "held_out")
"""The rows θ was immunized with, and those it never saw, as records call them."""

RATIOS = ("ratio_harmful", "ratio_pretrain", "rir")
"""(i), (ii) and RIR, as records call them."""

LAMBDAS = ("lambda_well", "lambda_ill")
"""λ_P and λ_H, as records call them."""

HARDER_BY, NO_HARDER = 2.0, 1.0
"""Verdicts (a) and (b) of Definition 3.1 as this package decides them: (i) ≥ 2 and (ii) ≤ 1. What is applied is
`immunize.spectrum.HARDER_BY`, which this room does not import; a test holds the two together."""

REDUCED = "**REDUCED**: a shortened version that shows the code path; its numbers are not those of the experiment."
