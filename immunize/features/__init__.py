"""Feature extractors f_θ and the gradient preconditioning of Algorithm 1."""

from immunize.features.linear import LinearExtractor, SpectralView
from immunize.features.precondition import PRECONDITIONS, Precondition, preconditioned_linear

__all__ = ["PRECONDITIONS", "LinearExtractor", "Precondition", "SpectralView", "preconditioned_linear"]
