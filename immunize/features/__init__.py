"""Feature extractors f_θ, the gradient preconditioning of Algorithm 1, and a map appended to any network."""

from immunize.features.append import AppendedHead, append_map, released_features
from immunize.features.linear import LinearExtractor, SpectralView
from immunize.features.precondition import PRECONDITIONS, Precondition, preconditioned_linear

__all__ = [
    "PRECONDITIONS",
    "AppendedHead",
    "LinearExtractor",
    "Precondition",
    "SpectralView",
    "append_map",
    "preconditioned_linear",
    "released_features",
]
