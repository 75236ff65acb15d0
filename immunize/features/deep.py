"""f_θ of a deep network (§5.2): a frozen trunk, a trainable tail, and the classifier that comes with θ_0.

    images ── trunk ──► h ── tail ──► features f_θ(x) ── head ──► logits
              frozen         last blocks trainable        trainable

The features are what enters the classifier, after pooling. Trunk and tail are two ways through one network
(:mod:`immunize.features.boundary`), whose parameters keep timm's names. Everything is in eval mode, always: BatchNorm
uses θ_0's statistics and never changes them, dropout is off. So a gradient depends on the batch's images alone, cached
trunk outputs give the same gradients as computing them again, and so do several processes with a share of the batch.

What happens to an image before is timm's pretrained configuration's business: sizes in pixels, mean and std in units of
pixel values / 255, one number a channel.

Shapes: N images (N, 3, height, width), h (N, ...), features (N, D), C classes.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from immunize.errors import UserError
from immunize.features.boundary import NoBoundaryError, split_network, working_modules
from immunize.features.extract import Once, device_of
from immunize.features.weights import build_network, check_fit, classifier_name, pooled, stages_of, state_digest

ADJUSTABLE = ("interpolation", "mean", "std", "crop_pct", "crop_mode")
"""What `model.data` may set differently from the pretrained configuration; the size is `model.image_size`."""


def input_config(network: nn.Module, image_size: int | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Size, interpolation, mean, std and crop that a timm network wants.

    Args:
        network: a timm model.
        image_size: side of the square that it gets; None takes the size that it was trained with.
        changes: values of `ADJUSTABLE` that differ from the pretrained configuration.

    Returns:
        as timm's `resolve_data_config`: input_size (3, height, width), interpolation, mean, std, crop_pct, crop_mode.

    Raises:
        UserError: a change that is not one of `ADJUSTABLE`.
    """
    if unknown := sorted(changes.keys() - set(ADJUSTABLE)):
        raise UserError(f"there is no setting model.data.{unknown[0]}; there are {', '.join(ADJUSTABLE)}")
    wanted = {key: value for key, value in changes.items() if value is not None}
    if image_size is not None:
        wanted["input_size"] = (3, image_size, image_size)
    config: dict[str, Any] = _timm_data().resolve_data_config(wanted, model=network)
    return config


def _timm_data() -> Any:
    """The module; imported late, since it takes a second, and untyped, as it is in most versions."""
    import timm.data

    return timm.data


class DeepExtractor(nn.Module):
    """A network of which only named parts are trainable, cut in two where the first of them begins.

    Use :meth:`from_timm` or :meth:`from_module`.

    Args:
        network: the network with its classifier; it becomes this module's own, its `requires_grad` flags are set.
        body: the same without the classifier: images → features. Its modules are the network's.
        head: the classifier, an `nn.Linear` in `network`.
        trainable: names or patterns (`fnmatch`) of modules or parameters of `body`.
        name: for messages and cache keys.
        example: (N ≥ 2, 3, height, width), to find the boundary with; None leaves the network in one piece.
        data_config: what `transform` is made from; None where the caller has his own.

    Attributes:
        network: the only registered child, so that `state_dict`, `to` and DDP see each parameter once.
        no_split_reason: why the network is in one piece; empty if it is not.
        made_with: arguments of the architecture, of which not all show in its modules (heads of attention); of any
            other module what it makes of the example.

    Raises:
        UserError: `trainable` matches nothing, or everything without saying so.
    """

    def __init__(
        self,
        network: nn.Module,
        body: nn.Module,
        head: nn.Linear,
        trainable: str | Sequence[str],
        *,
        name: str,
        example: Tensor | None = None,
        data_config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        network.eval()
        body.eval()
        self.name = name
        self.network = network
        self.data_config = dict(data_config or {})
        self.made_with: dict[str, Any] = {}
        self._trainable = matching_parameters(body, trainable, name)
        scripted = any(isinstance(module, torch.jit.ScriptModule) for module in network.modules())
        if scripted or any(not parameter.is_leaf for parameter in network.parameters()):
            raise UserError(f"{name} is compiled by TorchScript, or computes its weights: give the module it came from")
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        own = dict(body.named_parameters(remove_duplicate=False))
        for parameter in (*(own[key] for key in self._trainable), *head.parameters()):
            parameter.requires_grad_(True)
        self.no_split_reason = "no example of an input was given"
        trunk: nn.Module = nn.Identity()
        tail: nn.Module = body
        if example is not None:
            try:
                trunk, tail = split_network(body, [own[key] for key in self._trainable], example)
                self.no_split_reason = ""
            except NoBoundaryError as error:
                self.no_split_reason = str(error)
        # In a tuple, where nn.Module does not see them: their parameters are the network's and count once.
        self._parts = (body, trunk, tail, head)

    @classmethod
    def from_timm(
        cls,
        architecture: str,
        *,
        trainable: str | Sequence[str],
        pretrained: bool = False,
        checkpoint: str | Path | None = None,
        n_classes: int | None = None,
        image_size: int | None = None,
        fresh_head: bool = False,
        data: Mapping[str, Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> Self:
        """A timm network with weights from its hub, from a file, or random ones.

        Args:
            architecture: timm's name.
            trainable: names or patterns of its modules (or parameters), such as ["layer4"] or ["blocks.11"].
            pretrained: see :func:`immunize.features.weights.build_network`, also for `checkpoint`, `n_classes`,
                `fresh_head`, `kwargs` and `seed`.
            checkpoint: a file of weights.
            n_classes: of D_P; checked against the weights' classifier.
            image_size: side of the images in pixels; None is that of the pretrained configuration.
            fresh_head: a new classifier.
            data: changes to the pretrained configuration's transform, see `ADJUSTABLE`.
            kwargs: further arguments of the architecture.
            seed: of random weights.

        Raises:
            UserError: a setting that is wrong, or weights that cannot be had.
            CheckpointError: a file that does not fit.
        """
        network = build_network(
            architecture,
            pretrained=pretrained,
            checkpoint=checkpoint,
            n_classes=n_classes,
            image_size=image_size,
            fresh_head=fresh_head,
            kwargs=kwargs,
            seed=seed,
        )
        config = input_config(network, image_size, data or {})
        place = classifier_name(network)
        head, body = network.get_submodule(place), _without(network, place)
        assert isinstance(head, nn.Linear)
        example = torch.rand(2, *config["input_size"], generator=torch.Generator().manual_seed(0))
        found = cls(network, body, head, trainable, name=architecture, example=example, data_config=config)
        found.made_with = dict(kwargs or {})
        return found

    @classmethod
    def from_module(
        cls,
        backbone: nn.Module,
        head: nn.Linear,
        trainable: str | Sequence[str],
        *,
        name: str | None = None,
        example: Tensor | None = None,
        data_config: Mapping[str, Any] | None = None,
    ) -> Self:
        """Any torch module.

        Args:
            backbone: (N, ...) → features (N, D). It is used as it is, not copied.
            head: D → C, the classifier of D_P.
            trainable: names or patterns of modules or parameters of `backbone`.
            name: for messages and cache keys; None is the name of the backbone's class.
            example: (N ≥ 2, ...), a batch of inputs in the backbone's dtype; without it the frozen part cannot be
                cached.
            data_config: what `transform` is made from, in timm's words (see `input_config`); None where the
                inputs come as tensors.

        Raises:
            UserError: `trainable` matches nothing or everything, or the head does not fit the features.
        """
        if example is not None:
            with torch.no_grad():
                example = example.to(device_of(backbone))
                given = backbone.eval()(example)
            gives = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            if gives != (len(example), head.in_features):
                raise UserError(f"the backbone gives {gives}, the head needs (N, {head.in_features})")
        network = nn.Sequential(OrderedDict(backbone=backbone, head=head))
        name = name or type(backbone).__name__
        found = cls(network, backbone, head, trainable, name=name, example=example, data_config=data_config)
        if example is not None:  # what a module computes with may be in no weight, and in no module's name
            found.made_with = {"output": state_digest({"": given})}
        return found

    @property
    def trunk(self) -> nn.Module:
        """From images to h, frozen and without autograd; the identity where the network is in one piece."""
        return self._parts[1]

    @property
    def tail(self) -> nn.Module:
        """From h to features; holds every trainable parameter."""
        return self._parts[2]

    @property
    def head(self) -> nn.Linear:
        """The classifier, D → C: θ_0's, trained along with θ."""
        return self._parts[3]

    @property
    def split(self) -> bool:
        """Whether the frozen part could be cut off, so that its outputs can be cached."""
        return not self.no_split_reason

    def compute_once(self) -> None:
        """The trunk works once an image from now on, see :class:`~immunize.features.extract.Once`."""
        if self.split:
            self._parts = (self._parts[0], Once(self.trunk), *self._parts[2:])

    @property
    def n_features(self) -> int:
        """D."""
        return self.head.in_features

    @property
    def n_classes(self) -> int:
        """C."""
        return self.head.out_features

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters, and so of h and the features."""
        return self.head.weight.dtype

    def train(self, mode: bool = True) -> Self:
        """Nothing changes: everything stays in eval mode."""
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        """Features (N, D) of images (N, 3, height, width), differentiable in the trainable parameters."""
        return self.features(self.trunk(self._in_its_precision(images)))

    def features(self, h: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Features (N, D) of trunk outputs (N, ...), which may be stored in another precision.

        Args:
            h: what `trunk` gave; images where the network is in one piece.
            parameters: other values for trainable parameters, by their names in `trainable_parameters`; gradients
                flow to them.
        """
        h = self._in_its_precision(h)
        if parameters is None:
            features: Tensor = self.tail(h)
            return features
        named = {id(parameter): name for name, parameter in self.trainable_parameters()}
        there = {named[id(p)]: name for name, p in self.tail.named_parameters() if id(p) in named}
        replacements = {there[name]: value for name, value in parameters.items()}
        output: Tensor = functional_call(self.tail, replacements, (h,))
        return output

    def _in_its_precision(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if x.is_floating_point() else x  # tokens stay what they are

    def trainable_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """What `trainable` names, without the head, by the names of the network's (or the backbone's) state dict."""
        own = dict(self._parts[0].named_parameters(remove_duplicate=False))
        return [(name, own[name]) for name in self._trainable]

    def head_parameters(self) -> list[nn.Parameter]:
        """The head's weight and bias; a parameter group of their own (C.2)."""
        return list(self.head.parameters())

    def transform(self, *, train: bool = False) -> Callable[[Any], Tensor]:
        """A PIL image in RGB → (3, height, width) float32, normalized; its `repr` names everything that it does.

        Args:
            train: random resized crop and horizontal flip, as timm has them for training on ImageNet, without changes
                of colour; otherwise resize and centre crop.

        Raises:
            UserError: the extractor was made from a module, which does not say what it wants.
        """
        if not self.data_config:
            raise UserError(f"{self.name} does not say how its images are prepared: bring a loader of tensors")
        create = _timm_data().create_transform
        transform: Callable[[Any], Tensor] = create(**self.data_config, is_training=train, color_jitter=None)
        return transform

    def full_state_dict(self) -> dict[str, Tensor]:
        """The network's weights as they are now, by the names that `timm.create_model` has; copies on the CPU."""
        return {name: value.detach().cpu().clone() for name, value in self.network.state_dict().items()}

    def load_full_state_dict(self, state: Mapping[str, Tensor], source: str = "the state dict") -> None:
        """Take over weights of `full_state_dict`, cast to this network's dtype.

        Raises:
            CheckpointError: they do not fit.
        """
        check_fit(self.network, state, source, self.name)
        self.network.load_state_dict(state)

    def moved_weight(self, state: Mapping[str, Tensor], *, tail: bool = True) -> str | None:
        """The first weight that was never trained and is not this network's, θ_0's; None if there is none.

        Args:
            state: of what was made of θ_0; what does not fit is the loading's business.
            tail: what `trainable` names was trained, and not the head alone.
        """
        trained = self.head_parameters() + [parameter for _, parameter in self.trainable_parameters() if tail]
        moving = set(map(id, trained))
        for name, value in self.network.state_dict(keep_vars=True).items():
            stored = state.get(name)
            if stored is None or stored.shape != value.shape or id(value) in moving:
                continue
            if not torch.equal(stored.to(value.dtype), value.detach().cpu()):
                return name
        return None

    def reference(self) -> DeepExtractor:
        """θ_0: a copy in which nothing is trainable."""
        return copy.deepcopy(self).requires_grad_(False)

    def check_classes(self, n_classes: int, what: str = "D_P") -> None:
        """Check that the head has one output for each class.

        Raises:
            UserError: it has not.
        """
        if n_classes != self.n_classes:
            raise UserError(
                f"the head of {self.name} has {self.n_classes} outputs, {what} has {n_classes} classes; choose the "
                f"data that it was trained on, or put a new head on it with model.fresh_head=true"
            )

    def cache_facts(self, layer: Literal["features", "trunk"] = "features") -> dict[str, Any]:
        """What an array of features ("features") or trunk outputs ("trunk") depends on, for a cache key."""
        moving = {name for name, _ in self.trainable_parameters()} if layer == "trunk" else set()
        kept = {name: value for name, value in self._parts[0].state_dict().items() if name not in moving}
        return {
            "network": self.name,
            "layer": layer,
            "trainable": sorted(self._trainable),
            "structure": hashlib.sha256(repr(self._parts[0]).encode()).hexdigest(),  # pooling, strides: no weights
            "weights": state_digest(kept),
            "made_with": {key: str(value) for key, value in self.made_with.items()},
            "input": {key: str(value) for key, value in self.data_config.items()},
            **({"after": str(self.tail.graph)} if layer == "trunk" and self.split else {}),
        }


def _without(network: nn.Module, place: str) -> nn.Module:
    """The network with the identity in place of a module; everything else is shared with the original."""
    name, _, rest = place.partition(".")
    twin = copy.copy(network)  # shares the dictionaries of parameters and buffers
    twin._modules = network._modules | {name: _without(network.get_submodule(name), rest) if rest else nn.Identity()}
    return twin


EVERYTHING = ["*"]
"""The only `trainable` that may match every parameter: it says so on purpose."""


def matching_parameters(
    body: nn.Module, patterns: str | Sequence[str], name: str, setting: str = "model.trainable"
) -> list[str]:
    """Names of the parameters that the patterns mean: theirs, or those of a module that they name.

    Args:
        body: the network without its classifier.
        patterns: names or patterns (`fnmatch`, in which * matches dots as well); a single one may stand alone.
        name: of the network, for messages.
        setting: that holds the patterns, for messages.

    Raises:
        UserError: a pattern matches nothing, or together they match everything.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) for pattern in patterns):
        raise UserError(f"{setting} has to be names or patterns of modules, it is {patterns!r}")
    own = dict(body.named_parameters(remove_duplicate=False))  # a tied weight by each of its names
    names, chosen = list(own), set[str]()
    if not patterns:
        raise UserError(f"{setting} is empty: name the modules that move, such as [layer4]")
    around = {key: list(accumulate(key.split("."), "{}.{}".format)) for key in names}
    for pattern in patterns:
        found = [key for key in names if any(fnmatchcase(part, pattern) for part in around[key])]
        if not found:
            tops = list(dict.fromkeys(".".join(key.split(".")[:2]) for key in names))
            raise UserError(
                f"{setting}: {pattern!r} matches nothing in {name}; its last parts are {', '.join(tops[-8:])} "
                f"(patterns such as layer* are allowed; the classifier is trained anyway)"
            )
        chosen.update(found)
    if len(chosen) == len(names) and list(patterns) != EVERYTHING:
        raise UserError(
            f"{setting} matches every parameter of {name}: nothing of θ_0 would be kept. Name its last blocks, "
            f'or say {setting}=["*"] if everything is meant'
        )
    first: dict[int, str] = {}
    for key in names:
        if key in chosen:
            first.setdefault(id(own[key]), key)
    return list(first.values())


MOST_COLUMNS = 4096
"""Of a flattened output; a larger one is averaged over its places, pixels or tokens (ours)."""


def check_depths(net: DeepExtractor, depths: Sequence[str]) -> None:
    """Check that every name is a module of the trained part.

    Raises:
        UserError: one is not.
    """
    known = working_modules(net.tail)
    for name in depths:
        if name not in known:
            raise UserError(
                f"method.depths: there is no module {name!r} in the trained part of the network (what comes before it "
                f"stays as it is); there are {', '.join(known)}"
            )


def features_at(
    net: DeepExtractor, h: Tensor, depths: Sequence[str], parameters: Mapping[str, Tensor] | None = None
) -> list[Tensor]:
    """The features, and the outputs of modules on the way to them, from one forward pass; gradients flow through all.

    Args:
        net: the network.
        h: what enters its trained part, (N, ...).
        depths: names of modules, by the network's.
        parameters: other values for the trained ones.

    Returns:
        the features (N, D), then a matrix of N rows for each name.

    Raises:
        UserError: an output that is not one tensor with N rows, or a module that was not called once.
    """
    seen: dict[str, list[Tensor]] = {name: [] for name in depths}
    known = working_modules(net.tail) if depths else {}
    with contextlib.ExitStack() as hooks:
        for name, outputs in seen.items():
            hooks.enter_context(known[name].register_forward_hook(partial(_keep, outputs)))
        features = net.features(h, parameters)
    channels = stages_of(net.network) if depths else {}
    return [features, *(_rows(name, outputs, len(h), channels.get(name)) for name, outputs in seen.items())]


def _keep(outputs: list[Tensor], _: nn.Module, __: object, output: Tensor) -> None:
    outputs.append(output.clone() if isinstance(output, Tensor) else output)  # what follows may write into it


def _rows(name: str, outputs: list[Tensor], count: int, channels: int | None) -> Tensor:
    if len(outputs) != 1 or not isinstance(outputs[0], Tensor) or outputs[0].shape[:1] != (count,):
        raise UserError(f"method.depths: {name!r} does not give one tensor with a row for each image")
    output = outputs[0]
    return torch.flatten(pooled(output, channels) if math.prod(output.shape[1:]) > MOST_COLUMNS else output, 1)
