"""Feature extractors f_θ, the gradient preconditioning of Algorithm 1, and a map appended to any network."""

from immunize.features.append import AppendedHead, append_map, released_features
from immunize.features.deep import DeepExtractor
from immunize.features.extract import cached_trunk, extract
from immunize.features.linear import LinearExtractor, SpectralView
from immunize.features.precondition import PRECONDITIONS, Precondition, preconditioned_linear
from immunize.features.store import Features
from immunize.features.weights import build_network, load_weights, save_weights, state_digest

__all__ = [
    "PRECONDITIONS",
    "AppendedHead",
    "DeepExtractor",
    "Features",
    "LinearExtractor",
    "Precondition",
    "SpectralView",
    "append_map",
    "build_network",
    "cached_trunk",
    "extract",
    "load_weights",
    "preconditioned_linear",
    "released_features",
    "save_weights",
    "state_digest",
]
