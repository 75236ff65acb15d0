"""Feature extractors f_θ, the gradient preconditioning of Algorithm 1, and a map appended to any network."""

from immunize.features.append import (
    AppendedHead,
    Released,
    StageOutputs,
    append_map,
    released_features,
    released_network,
)
from immunize.features.boundary import NoBoundaryError, split_network
from immunize.features.deep import DeepExtractor, matching_parameters
from immunize.features.extract import Features, Once, Place, cache_place, cached_trunk, device_of, extract
from immunize.features.linear import (
    OF_LINEAR,
    OF_NETWORKS,
    LinearExtractor,
    Precondition,
    SpectralView,
    preconditioned_features,
    preconditioned_linear,
    refuse_precondition,
)
from immunize.features.lora import add_lora
from immunize.features.weights import build_network, load_weights, save_weights, state_digest

__all__ = [
    "OF_LINEAR",
    "OF_NETWORKS",
    "AppendedHead",
    "DeepExtractor",
    "Features",
    "LinearExtractor",
    "NoBoundaryError",
    "Once",
    "Place",
    "Precondition",
    "Released",
    "SpectralView",
    "StageOutputs",
    "add_lora",
    "append_map",
    "build_network",
    "cache_place",
    "cached_trunk",
    "device_of",
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
