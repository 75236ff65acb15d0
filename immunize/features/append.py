"""A linear immunization as one layer on any network: θ after the features, its inverse folded into the classifier head.

The head of a classifier computes, for a row of features f (1, D),

    logits = f Wᵀ + b                          W = `nn.Linear.weight`, (C, D)

and with the map θ in between, nothing changes if the head undoes it:

    g = fθ                                     the map, an `nn.Linear` whose weight is θᵀ; g are the features released
    logits = g (W θ⁻ᵀ)ᵀ + b = fθ θ⁻¹Wᵀ + b     the head's new weight is W' = Wθ⁻ᵀ, its bias stays

so the network's own task loses nothing, while a probe trained on g meets H(θ) = θᵀKθ instead of K.

Arithmetic. The fold is computed in float64, for the map as it is *stored*: θ̂ being θ rounded to the head's dtype,
W'ᵀ solves θ̂W'ᵀ = Wᵀ, so that neither that rounding nor an inexact θ⁻¹ counts. What is left is the rounding of g and of
W'. An error ε·|f|·|θ_j| in g_j (θ_j the columns) meets row j of W'ᵀ, so the fold multiplies the head's own rounding by

    a = ‖diag(|θ_1|, …, |θ_D|) θ⁻¹Wᵀ‖_F / ‖W‖_F ≤ cond(θ)

and a = 1 where the columns of θ are orthogonal, whatever cond(θ) is.

A network as it was released is the weights of a run or of any file, with the map that was appended, if any.

Shapes: N images (N, 3, height, width), D features, C classes; θ (D, D) acts on rows.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from immunize.errors import CheckpointError
from immunize.features.boundary import takes_channels_last
from immunize.features.deep import DeepExtractor
from immunize.features.weights import pooled, stages_of, state_digest

FOLD_TOLERANCE = 1e-4
FOLD_TOLERANCE_FLOAT64 = 1e-9
"""Largest relative change of the logits that a fold may cause: of a float32 head, and of a float64 one."""

ROUNDING = 10.0
"""Relative error of the logits in units of a·ε: 1 to 11 on ResNet, ViT and ConvNeXt with random weights (float32)."""

INVERSE_TOLERANCE = 1e-6
"""Largest entry of θθ⁻¹ - I for which the two matrices count as inverse to each other."""

USUAL_NAMES = ("fc", "head", "classifier", "head.fc", "heads.head")
"""Where a classifier is looked for in a module that does not say (`get_classifier`) where it has it."""


class AppendedHead(nn.Module):
    """The map and, after it, the head that undoes it; stands where the head stood.

    Args:
        map: f → fθ, without bias; its output are the released features.
        head: the classifier on them.
    """

    def __init__(self, map: nn.Linear, head: nn.Linear) -> None:
        super().__init__()
        self.map = map
        self.head = head

    @property
    def in_features(self) -> int:
        """D, as a linear head has it."""
        return self.map.in_features

    @property
    def out_features(self) -> int:
        """C, as a linear head has it."""
        return self.head.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Logits (…, C) of the features (…, D) that enter the map."""
        logits: Tensor = self.head(self.map(x))
        return logits


def append_map(
    model: nn.Module,
    theta: Tensor,
    inverse: Tensor | None,
    *,
    head: str | None = None,
    tolerance: float | None = None,
) -> nn.Module:
    """A copy of `model` that releases features·θ and, where θ has an inverse, has the same logits on every input.

    A model that has a map already keeps one: its features become f·θ_1·θ, the fold is that of the product. Appending
    (θ⁻¹, θ) therefore removes the map. A θ without an inverse (`inverse=None`) leaves the head as it is: its logits are
    then other ones, and it has to be fitted again.

    Args:
        model: any timm model, or any module with a linear head; it is not changed.
        theta: (D, D) float64, acts on rows.
        inverse: (D, D) float64, θ⁻¹; None where there is none.
        head: dotted name of the `nn.Linear` that is the head; default the model's `get_classifier()`, its
            `pretrained_cfg["classifier"]`, or else one of the usual names.
        tolerance: refuse a fold whose expected relative error in the logits is larger; default `FOLD_TOLERANCE`, or
            `FOLD_TOLERANCE_FLOAT64` for a float64 head.

    Returns:
        The copy; where the head was it has an :class:`AppendedHead` with the head's device, dtype, `requires_grad`
        and mode.

    Raises:
        TypeError: θ or θ⁻¹ not float64.
        ValueError: no linear head, or several; a head that computes something else than xWᵀ + b, or whose weight is
            not a plain parameter; matrices that are not D×D, not finite or not inverse to each other; a fold that is
            less accurate than `tolerance`.
    """
    name = _head_name(model, head)
    released = copy.deepcopy(model)
    old = released.get_submodule(name)
    plain = old.head if isinstance(old, AppendedHead) else old
    _check_head(plain, name)
    assert isinstance(plain, nn.Linear)
    total = theta.detach().cpu()
    _check_maps(total, None if inverse is None else inverse.detach().cpu(), plain.in_features, name)

    readout = plain.weight.detach().cpu().double().T  # (D, C), logits = f·readout + b
    if isinstance(old, AppendedHead):
        before = old.map.weight.detach().cpu().double().T
        total, readout = before @ total, readout if inverse is None else before @ readout
    dtype = plain.weight.dtype
    stored = total.T.to(dtype).T.double()
    folded = readout
    if inverse is not None:
        folded, _ = torch.linalg.solve_ex(stored, readout)
        _check_fold(stored, folded, readout, dtype, tolerance)

    mapping = nn.Linear(len(total), len(total), bias=False, device="meta", dtype=dtype)  # no random numbers are drawn
    mapping.weight, plain.weight = _like(plain.weight, stored.T), _like(plain.weight, folded.T)
    appended = AppendedHead(mapping, plain).train(plain.training)
    if not name:  # the model is nothing but a head
        return appended
    released.set_submodule(name, appended)
    return released


def released_features(model: nn.Module, x: Any, *, head: str | None = None) -> Tensor:
    """What enters the classifier: features after the appended map, or those of a model that has none.

    Runs ``model(x)`` in the model's own mode, with gradients where they are on, and reads the input of the head.

    Args:
        model: as for :func:`append_map`.
        x: a batch.
        head: as for :func:`append_map`.

    Returns:
        (N, D), or whatever shape the head gets.

    Raises:
        ValueError: no linear head, or several; or a forward pass that does not use it exactly once.
    """
    name = _head_name(model, head)
    module = model.get_submodule(name)
    seen: list[Tensor] = []

    def read(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(args[0] if args else next(iter(kwargs.values())))

    classifier = module.head if isinstance(module, AppendedHead) else module
    with classifier.register_forward_pre_hook(read, with_kwargs=True):
        model(x)
    if len(seen) != 1:
        raise ValueError(f"one forward pass went through the head {name!r} {len(seen)} times: name the head to read")
    return seen[0]


# --- finding the head -----------------------------------------------------------------------------------------------


def _head_name(model: nn.Module, head: str | None) -> str:
    """Dotted name of the head, an `nn.Linear` or an `AppendedHead`; "" for a model that is one itself."""
    modules = dict(model.named_modules(remove_duplicate=False))
    appended = [name for name, module in modules.items() if isinstance(module, AppendedHead)]
    inner = {f"{outer}.{name}".lstrip(".") for outer in appended for name in ("map", "head")}
    linear = [name for name, module in modules.items() if isinstance(module, nn.Linear) and name not in inner]
    if head is not None:
        name = head.rpartition(".")[0] if head in inner else head
        if name not in modules:
            raise ValueError(f"the model has no module {head!r}; its linear layers are {_listed(linear + appended)}")
        if name not in linear + appended:
            kind = type(modules[name]).__name__
            raise ValueError(f"{head!r} is a {kind}, not an nn.Linear; the linear layers are {_listed(linear)}")
        found = [name]
    else:
        found = appended or _declared(model, modules, linear)
    if len(found) != 1:
        what = "several linear heads" if found else "no linear head that could be recognized"
        raise ValueError(f"the model has {what}: give head=, one of {_listed(found or linear)}")
    shared = [name for name, module in modules.items() if module is modules[found[0]]]
    if len(shared) > 1:
        raise ValueError(f"the head stands in the model under several names ({_listed(shared)}): give each its own")
    return found[0]


def _declared(model: nn.Module, modules: dict[str, nn.Module], linear: list[str]) -> list[str]:
    """The head as the model names it, timm's way; a model that does not has only one linear layer, or a usual name."""
    get_classifier = getattr(model, "get_classifier", None)
    if callable(get_classifier):
        answer = get_classifier()
        heads = answer if isinstance(answer, list | tuple) else [answer]
        return [name for name in linear if any(modules[name] is one for one in heads)]
    config = getattr(model, "pretrained_cfg", None)
    names = config.get("classifier") if isinstance(config, dict) else None
    if names:
        return [name for name in linear if name in ([names] if isinstance(names, str) else names)]
    return linear if len(linear) == 1 else [name for name in linear if name in USUAL_NAMES]


def _listed(names: list[str]) -> str:
    shown = [repr(name) for name in names[-6:]]
    return (", ".join(shown) if len(names) == len(shown) else f"…, {', '.join(shown)}") or "none"


def _like(parameter: Tensor, values: Tensor) -> nn.Parameter:
    """New values with the device, dtype and `requires_grad` of a parameter."""
    values = values.to(parameter.dtype).contiguous().to(parameter.device)
    return nn.Parameter(values, requires_grad=parameter.requires_grad)


# --- checks ---------------------------------------------------------------------------------------------------------


def _check_head(head: nn.Module, name: str) -> None:
    weight = head._parameters.get("weight")
    if weight is None:  # weight_norm, parametrize, pruning: the weight is computed anew from other parameters
        raise ValueError(f"the weight of the head {name!r} is not a plain parameter; remove its parametrization first")
    if nn.parameter.is_lazy(weight) or weight.is_meta:
        raise ValueError(f"the weight of the head {name!r} has no values yet; load the model first")
    if not weight.is_floating_point():
        raise ValueError(f"the head {name!r} is quantized ({weight.dtype}); append the map before quantizing")
    if not bool(torch.isfinite(weight).all()):
        raise ValueError(f"the weight of the head {name!r} contains NaN or infinite values")
    if type(head).forward is not nn.Linear.forward:  # a subclass, such as timm's, that may do something else
        row = torch.linspace(-1, 1, weight.shape[1], device=weight.device, dtype=weight.dtype)[None]
        with torch.no_grad():
            if not torch.allclose(head(row), nn.functional.linear(row, weight, head._parameters.get("bias"))):
                raise ValueError(f"the head {name!r} ({type(head).__name__}) does not compute xWᵀ + b: nothing to fold")


def _check_maps(theta: Tensor, inverse: Tensor | None, size: int, name: str) -> None:
    for matrix, what in ((theta, "theta"), (inverse, "inverse")):
        if matrix is None:
            continue
        if matrix.dtype != torch.float64:
            raise TypeError(f"{what} has to be float64, it is {matrix.dtype}; the layer takes the head's dtype anyway")
        if matrix.shape != (size, size):
            raise ValueError(
                f"{what} has to be {size}×{size}, the width of the features that enter {name!r}; it is "
                f"{'×'.join(map(str, matrix.shape)) or 'a single number'}"
            )
        if not bool(torch.isfinite(matrix).all()):
            raise ValueError(f"{what} contains NaN or infinite values")
    if inverse is None:
        return
    gap = float((theta @ inverse - torch.eye(size, dtype=torch.float64)).abs().max())
    if not gap <= INVERSE_TOLERANCE:
        raise ValueError(
            f"theta and inverse are not inverse to each other: an entry of θθ⁻¹ - I is {gap:.2g}, above "
            f"{INVERSE_TOLERANCE:g}; pass both as `closed_form` returns them, for row vectors"
        )


def _check_fold(stored: Tensor, folded: Tensor, readout: Tensor, dtype: torch.dtype, tolerance: float | None) -> None:
    if tolerance is None:
        tolerance = FOLD_TOLERANCE_FLOAT64 if dtype == torch.float64 else FOLD_TOLERANCE
    if not bool(torch.isfinite(stored).all() and torch.isfinite(folded.to(dtype)).all()):
        raise ValueError(f"the map or its inverse cannot be stored as {dtype}: use a model of a wider dtype")
    scale = float(readout.norm())
    growth = float((stored.norm(dim=0)[:, None] * folded).norm()) / scale if scale > 0 else 1.0
    expected = ROUNDING * growth * torch.finfo(dtype).eps
    if not expected <= tolerance:
        raise ValueError(
            f"with the inverse of this map in a {dtype} head the logits would change by about {expected:.1g} (relative)"
            f", more than {tolerance:g}: use more shrinkage and a smaller budget, such as shrinkage=0.01, budget=100, "
            f"a model of a wider dtype (model.double()), or raise tolerance"
        )


# --- a network as it was released ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Released:
    """A network and what it releases.

    Attributes:
        net: the network without the map.
        map: (D, D), acts on rows of features after `net`; None where nothing was appended.
    """

    net: DeepExtractor
    map: Tensor | None = None

    @torch.no_grad()
    def mapped(self, features: Tensor) -> Tensor:
        """What is released (N, D) where the network itself gives these features (N, D)."""
        return features if self.map is None else nn.functional.linear(features, self.map.T.to(features))

    @property
    def key(self) -> str:
        """SHA-256 of the network below the classifier, what of it may be trained, its input, and the map."""
        state = {"map": torch.empty(0) if self.map is None else self.map}
        facts = json.dumps(self.net.cache_facts(), sort_keys=True)
        return state_digest(state) + hashlib.sha256(facts.encode()).hexdigest()

    @property
    def appended(self) -> AppendedHead | None:
        """The map with the classifier behind it; None where nothing was appended."""
        return None if self.map is None else AppendedHead(_linear(self.map), self.net.head)

    def whole(self) -> nn.Module:
        """A copy: images → released features, of plain layers, in eval mode; every parameter of it may be trained."""
        network = copy.deepcopy(self.net.network)
        network.set_submodule(_place_of_head(self.net), nn.Identity() if self.map is None else _linear(self.map))
        return network.requires_grad_(True).eval()

    def tail(self) -> nn.Module:
        """A copy: trunk outputs → released features; what `net` may train and the map are trainable."""
        net = copy.deepcopy(self.net)
        trained = {id(parameter) for _, parameter in net.trainable_parameters()}
        tail = net.tail
        for parameter in tail.parameters():
            parameter.requires_grad_(id(parameter) in trained)
        return tail if self.map is None else nn.Sequential(tail, _linear(self.map))


def released_network(net: DeepExtractor, state: Mapping[str, Tensor], source: str) -> Released:
    """The network with other weights of the same architecture, those of a network with a map appended among them.

    Args:
        net: says what the architecture is; it is not changed.
        state: by the names of `DeepExtractor.full_state_dict`, or with ``<head>.map.weight`` and ``<head>.head.*`` in
            place of the head (`append_map`).
        source: of the state, for messages.

    Raises:
        CheckpointError: the weights do not fit.
    """
    head = _place_of_head(net)
    weight = state.get(f"{head}.map.weight")
    if weight is not None and weight.shape != (net.n_features, net.n_features):
        raise CheckpointError(f"{source}: the appended map is {tuple(weight.shape)}, {net.name} has {net.n_features}")
    inner = f"{head}.head."
    plain = {
        (f"{head}.{name.removeprefix(inner)}" if name.startswith(inner) else name): value
        for name, value in state.items()
        if name != f"{head}.map.weight"
    }
    other = copy.deepcopy(net)
    other.load_full_state_dict(plain if weight is not None else state, source)
    return Released(other, None if weight is None else weight.T.contiguous())


def _place_of_head(net: DeepExtractor) -> str:
    return next(name for name, module in net.network.named_modules() if module is net.head)  # type: ignore[no-any-return]


def _linear(theta: Tensor) -> nn.Linear:
    layer = nn.Linear(len(theta), len(theta), bias=False, device="meta")  # no random numbers are drawn
    layer.weight = nn.Parameter(theta.T.clone(memory_format=torch.contiguous_format))
    return layer


MAP_OFF = "the appended map taken off"
"""Name of the stage in front of it."""


class StageOutputs(nn.Module):
    """Images → (N, ΣD_s), the outputs of all stages side by side; a copy of the network, in eval mode.

    Args:
        released: the network.
        example: (N, ...) images, which show how wide each stage is.

    Attributes:
        columns: which of the columns are whose, by the name of the stage, in their order.
    """

    def __init__(self, released: Released, example: Tensor) -> None:
        super().__init__()
        self.network = replace(released, map=None).whole().requires_grad_(False)
        if example.device.type == "cpu" and takes_channels_last(self.network, example):
            self.network.to(memory_format=torch.channels_last)
        self._map_off = released.map is not None
        self._found: dict[str, Tensor] = {}
        for name, channels in stages_of(self.network).items():
            self.network.get_submodule(name).register_forward_hook(partial(self._keep, name, channels))
        widths = {name: output.shape[1] for name, output in self._outputs(example).items()}
        ends = itertools.accumulate(widths.values())
        self.columns = {name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}

    def forward(self, images: Tensor) -> Tensor:
        """All of them."""
        return torch.cat(list(self._outputs(images).values()), dim=1)

    def _outputs(self, images: Tensor) -> dict[str, Tensor]:
        self._found.clear()
        with torch.no_grad():
            features = self.network(images)
        found = dict(self._found)
        self._found.clear()
        return found | ({MAP_OFF: features} if self._map_off else {})

    def _keep(self, name: str, channels: int | None, module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim >= 2:
            self._found[name] = pooled(output, channels)
