"""Feature extractors f_θ, the gradient preconditioning of Algorithm 1, and a map appended to any network."""

from immunize.features.append import append_map, released_features
from immunize.features.deep import DeepExtractor
from immunize.features.linear import LinearExtractor
from immunize.features.weights import load_weights

__all__ = ["DeepExtractor", "LinearExtractor", "append_map", "load_weights", "released_features"]
