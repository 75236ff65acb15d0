"""What a card says of its threat model, in plain words (docs/threat_model.md); the numbers beside it are the run's own.

Imports no other room and no torch.
"""

from __future__ import annotations

__all__ = ["threat_model"]

_PROMISE = (
    "The defender releases a feature extractor; the attacker trains a head on its features for the harmful task and "
    "leaves the extractor as it is.",
    "What is made harder is gradient descent on that head: the harmful features are badly conditioned. Nothing is "
    "removed from them.",
)
_LIMITS = {
    "linear": "An invertible linear map can be undone. An attacker who solves the head in closed form, uses "
    "second-order methods, whitens the features, removes the map, or uses θ_0 instead is expected to succeed; the "
    "table says who did.",
    "deep": "A condition number does not slow down an attacker who solves the head in closed form, uses second-order "
    "methods, whitens the features, removes a map that was appended, fine-tunes the network itself, or uses θ_0 "
    "instead; the table says who succeeded.",
}
_SILENCE = (
    "Tiers that are not in the table were not tried. No statement is made about them, nor about other harmful tasks "
    "or data."
)


_ERASED = (
    _PROMISE[0],
    "What is taken away is what a linear head can learn of the harmful labels, whatever its solver; condition numbers "
    "do not measure that. A head that is not linear is expected to succeed.",
)
_ERASED_LIMITS = {
    "linear": "θ has no inverse, but whoever has θ_0 has the raw features.",
    "deep": "The map is a layer that can be taken off: whoever edits the network, probes another layer, fine-tunes it, "
    "or uses θ_0 instead is expected to succeed; the table says who did.",
}


_CENSORED = (
    _PROMISE[0],
    "What is taken away is what a probe, linear or of an RBF kernel, can learn of the harmful labels, in the weights "
    "themselves; condition numbers do not measure that. Something is left, and the table says how much.",
)
_CENSORED_LIMITS = {
    "deep": "Whoever fine-tunes the network, probes a layer before those that were trained, or uses θ_0 instead is "
    "expected to succeed; the table says who did.",
}
_SAID = {"erase": (_ERASED, _ERASED_LIMITS), "censor": (_CENSORED, _CENSORED_LIMITS)}


def threat_model(kind: str, method: str = "") -> list[str]:
    """Sentences.

    Args:
        kind: of the model, "linear" or "deep".
        method: of the run; all but "erase" and "censor" promise the same.
    """
    promise, limits = _SAID.get(method, (_PROMISE, _LIMITS))
    return [*promise, limits[kind], _SILENCE]
