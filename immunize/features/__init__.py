"""Feature extractors f_θ, the gradient preconditioning of Algorithm 1, and a map appended to any network."""

from immunize.features.append import (
    AppendedHead,
    Released,
    StageOutputs,
    append_map,
    released_features,
    released_network,
)
from immunize.features.boundary import split_network
from immunize.features.deep import DeepExtractor, matching_parameters
from immunize.features.extract import Features, cached_trunk, extract
from immunize.features.linear import (
    OF_NETWORKS,
    LinearExtractor,
    Precondition,
    SpectralView,
    preconditioned_features,
    preconditioned_linear,
    refuse_precondition,
)
from immunize.features.lora import add_lora
from immunize.features.watching import NoBoundaryError
from immunize.features.weights import load_weights, save_weights, state_digest

__all__ = [
    "OF_NETWORKS",
    "AppendedHead",
    "DeepExtractor",
    "Features",
    "LinearExtractor",
    "NoBoundaryError",
    "Precondition",
    "Released",
    "SpectralView",
    "StageOutputs",
    "add_lora",
    "append_map",
    "cached_trunk",
    "extract",
    "load_weights",
    "matching_parameters",
    "preconditioned_features",
    "preconditioned_linear",
    "refuse_precondition",
    "released_features",
    "released_network",
    "save_weights",
    "split_network",
    "state_digest",
]
