"""θ_0: timm networks with weights from the hub or from a file, and weights on disk.

A file of weights is a plain state dict with timm's names, as safetensors (written here, and the better choice) or as
`torch.save` wrote it; nothing in it is executed. Half-precision storage is widened to float32 on loading.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from immunize.errors import CheckpointError, UserError, some
from immunize.files import write_tensors

SHOWN = 3
"""How many keys of each kind a message names."""

WRAPPERS = ("state_dict", "model", "model_state_dict")
"""Keys under which training scripts put the state dict among other things."""

PREFIXES = ("module.", "_orig_mod.")
"""What data parallelism and `torch.compile` put before all names."""

MOVED = "; of a run that is there already, data_root=<folder> names the one that it lies in now"
"""What to do where θ_0's file is not there; a run's own checkpoint lies with it."""


def build_network(
    architecture: str,
    *,
    pretrained: bool = False,
    checkpoint: str | Path | None = None,
    n_classes: int | None = None,
    image_size: int | None = None,
    fresh_head: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> nn.Module:
    """A timm network, float32 on the CPU, in eval mode, every parameter trainable.

    Args:
        architecture: timm's name, with or without a tag ("resnet18.a1_in1k").
        pretrained: take timm's weights, from its cache or the hub.
        checkpoint: a file of weights, which go before `pretrained`.
        n_classes: of the classifier; None takes those of the weights, or timm's default for random ones.
        image_size: side of its input in pixels, for networks that are made for one size only; None is timm's.
        fresh_head: put a new random classifier for `n_classes` on the network, whatever the weights have.
        kwargs: further arguments of the architecture.
        seed: of random weights; no other random number of the run is touched.

    Raises:
        UserError: unknown architecture or arguments, weights that cannot be had, or a classifier that does not fit.
        CheckpointError: the file cannot be read, or is of another architecture.
    """
    import timm

    if not timm.is_model(architecture):
        names = [*timm.list_models(), *timm.list_pretrained()]
        near = difflib.get_close_matches(architecture, names, n=SHOWN)
        hint = f"did you mean {' or '.join(near)}?" if near else "timm.list_models() lists those there are"
        raise UserError(f"timm has no model {architecture!r}; {hint}")
    config = timm.get_pretrained_cfg(architecture)
    state = None if checkpoint is None else load_weights(Path(checkpoint), missing=MOVED)
    use_hub = pretrained and state is None
    classes = n_classes
    if state is not None:
        classes = _classes_in(state, getattr(config, "classifier", None))
    elif use_hub:
        classes = getattr(config, "num_classes", None)
    if n_classes is not None and classes not in (None, n_classes) and not fresh_head:
        source = checkpoint if state is not None else f"the pretrained {architecture}"
        raise UserError(
            f"the classifier of {source} has {classes} classes, the data have {n_classes}: choose the D_P that it was "
            f"trained on, or put a new head on it with model.fresh_head=true and train that first "
            f"(python -m immunize.pretrain model.fresh_head=true)"
        )
    arguments = network_arguments(architecture, image_size, kwargs or {})
    # Files of weights that timm itself reads: some versions run what they hold.
    if named := sorted({"checkpoint_path", "pretrained_cfg"} & arguments.keys()):
        raise UserError(f"model.kwargs.{named[0]} is no argument of a network: model.checkpoint names weights")
    overlay = pretrained_overlay(architecture, config) if use_hub else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _create(architecture, use_hub, overlay, arguments | {"num_classes": classes})
        if state is not None:
            if fresh_head and classes is None:  # the file has no classifier, and none of it would stay
                head = f"{classifier_name(network)}."
                state = {name: value for name, value in network.state_dict().items() if name.startswith(head)} | state
            check_fit(network, state, str(checkpoint), architecture)
            network.load_state_dict(state)
        if fresh_head and n_classes is not None:
            network.reset_classifier(n_classes)
    done: nn.Module = network.eval()
    return done


def network_arguments(architecture: str, image_size: int | None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What `timm.create_model` needs beside the name and the number of classes.

    Args:
        architecture: timm's name.
        image_size: side of the input in pixels; only told to networks that are made for one size.
        kwargs: further arguments, which go before.
    """
    import timm

    fixed = getattr(timm.get_pretrained_cfg(architecture), "fixed_input_size", False)
    size = {"img_size": image_size} if fixed and image_size is not None else {}
    return size | dict(kwargs)


def classifier_name(network: nn.Module) -> str:
    """Dotted name of the `nn.Linear` that is a timm network's classifier.

    Raises:
        UserError: its classifier is something else, or there are several.
    """
    get_classifier: Any = getattr(network, "get_classifier", lambda: None)
    head = get_classifier()
    names: list[str] = [name for name, module in network.named_modules() if module is head]
    if not isinstance(head, nn.Linear) or len(names) != 1:
        kind = type(head).__name__
        raise UserError(f"the classifier of {type(network).__name__} is a {kind}, not one linear layer to probe with")
    return names[0]


def save_weights(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a state dict as safetensors, whole or not at all.

    Args:
        path: the file; its folder exists.
        state: tensors by name, of any device.
        metadata: stored beside them.
    """
    # Clones, since safetensors refuses tensors that share memory, as tied weights do.
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in state.items()}
    write_tensors(path, tensors, dict(metadata or {}) | {"format": "pt"})  # which is what other loaders look for


def load_weights(path: Path, *, missing: str = "") -> dict[str, Tensor]:
    """A state dict from safetensors, or from what `torch.save` wrote; on the CPU, half precision widened to float32.

    Args:
        path: a file. One that is not called .safetensors may hold the state dict within a dictionary of a training
            script, and names that start with some of `PREFIXES`.
        missing: what else to say where it is not there.

    Raises:
        CheckpointError: it is missing or damaged, holds something else than tensors, or values that are not finite.
    """
    path = path.expanduser()
    if not path.is_file():
        raise CheckpointError(f"there is no file {path} to take weights from{missing}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the bytes of a file may cause
        what = f"safetensors: {_first_line(error)}"
        if path.suffix != ".safetensors":  # of which PyTorch says how to run what it holds
            what = "a state dict: it is damaged, or holds more than tensors; save model.state_dict()"
        raise CheckpointError(f"{path} cannot be read as {what}") from None
    for wrapper in WRAPPERS:
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(f"{path} holds no plain state dict (tensors by name); save model.state_dict()")
    while prefix := next((known for known in PREFIXES if all(name.startswith(known) for name in state)), ""):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    if bad := [name for name, value in state.items() if not bool(value.isfinite().all())]:
        raise CheckpointError(f"{path}: {some(bad)} contains NaN or infinite values")
    half = (torch.float16, torch.bfloat16)
    return {name: value.float() if value.dtype in half else value for name, value in state.items()}


def check_fit(network: nn.Module, state: Mapping[str, Tensor], source: str, architecture: str) -> None:
    """Check that names and shapes are the network's.

    Raises:
        CheckpointError: they are not; the message names the first that differ.
    """
    own = network.state_dict()
    missing = [name for name in own if name not in state]
    unknown = [name for name in state if name not in own]
    shapes = [name for name in own if name in state and own[name].shape != state[name].shape]
    parts = [f"it lacks {some(missing)}"] if missing else []
    parts += [f"it has {some(unknown)}, which the network has not"] if unknown else []
    parts += [f"{name} is {_size(state[name])} in it and {_size(own[name])} in the network" for name in shapes[:SHOWN]]
    if parts:
        raise CheckpointError(
            f"{source} does not fit {architecture}: {'; '.join(parts)}. Is it of another architecture? Then choose "
            f"that with model=..., or model=timm model.name=..."
        )


def state_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _create(architecture: str, pretrained: bool, overlay: dict[str, Any] | None, arguments: dict[str, Any]) -> Any:
    import timm

    try:
        return timm.create_model(architecture, pretrained=pretrained, pretrained_cfg_overlay=overlay, **arguments)
    except Exception as error:
        # the hub's client: errors of several libraries, in some versions a ValueError that is an OSError too
        if isinstance(error, TypeError | ValueError | AssertionError) and not isinstance(error, OSError):
            raise UserError(f"model.kwargs do not suit timm's {architecture}: {_first_line(error)}") from error
        if not pretrained:
            raise
        raise UserError(
            f"the pretrained weights of {architecture} could not be had: {_first_line(error)}. Give weights that you "
            f"have with model.checkpoint=<file>, or start from random ones with model.pretrained=false"
        ) from error


def _classes_in(state: Mapping[str, Tensor], classifier: Any) -> int | None:
    """How many classes a state dict's classifier has; None where it has no such classifier, which is told later."""
    weight = state.get(f"{classifier}.weight") if isinstance(classifier, str) else None
    return None if weight is None else len(weight)


def _size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


WAIT = 4.0
"""Seconds to wait for an answer of the hub, unless HF_HUB_ETAG_TIMEOUT says for how long its client waits for one."""

HUB_FILES = ("model.safetensors", "pytorch_model.bin")
"""What timm looks for in a repository of the hub, in this order."""


def pretrained_overlay(architecture: str, config: Any) -> dict[str, Any]:
    """What to change in timm's pretrained configuration so that loading asks no network where it need not.

    Args:
        architecture: timm's name, for messages.
        config: timm's pretrained configuration of it.

    Returns:
        {"file": path} where the weights are in the cache; nothing where the hub answers.

    Raises:
        UserError: timm has no weights, or they are not here and the hub does not answer.
    """
    hub, url = getattr(config, "hf_hub_id", None), getattr(config, "url", None)
    if not hub and not url:
        raise UserError(
            f"timm has no pretrained weights for {architecture}; give your own with model.checkpoint=<file>, choose a "
            f"model that has some, or start from random ones with model.pretrained=false"
        )
    if cached := _cached(hub, getattr(config, "hf_hub_filename", None), url):
        return {"file": str(cached)}
    from huggingface_hub import constants

    address = str(constants.ENDPOINT if hub else url)
    wait = float(constants.HF_HUB_ETAG_TIMEOUT) if "HF_HUB_ETAG_TIMEOUT" in os.environ else WAIT
    if constants.HF_HUB_OFFLINE or not _answers(address, wait):
        raise UserError(
            f"the pretrained weights of {architecture} are not in the cache and {address} does not answer within "
            f"{wait:g} s (HF_HUB_ETAG_TIMEOUT=<seconds> waits longer). Give weights that you have with "
            f"model.checkpoint=<safetensors file or state dict>, or start "
            f"from random ones with model.pretrained=false (python -m immunize.pretrain trains them)"
        )
    return {}


def _cached(hub: str | None, filename: str | None, url: str | None) -> Path | None:
    if hub:
        from huggingface_hub import try_to_load_from_cache

        repository, _, revision = hub.partition("@")
        for name in (filename,) if filename else HUB_FILES:
            found = try_to_load_from_cache(repository, name, revision=revision or None)
            if isinstance(found, str):
                return Path(found)
        return None
    from torch.hub import get_dir

    path = Path(get_dir()) / "checkpoints" / Path(str(url)).name
    return path if path.is_file() else None


def _answers(address: str, wait: float) -> bool:
    """Whether anybody answers there, whatever the answer; through the user's proxy if there is one.

    In a thread, since nothing limits how long a name may take to be looked up.
    """
    answered = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=wait):
                answered.set()
        except urllib.error.HTTPError:
            answered.set()
        except (OSError, ValueError):
            pass

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(wait)
    return answered.is_set()


def stages_of(network: nn.Module) -> dict[str, int | None]:
    """Names of modules, and how many channels each says that it has."""
    listed = getattr(network, "feature_info", None)
    if isinstance(listed, list):
        return {str(of["module"]): of.get("num_chs") for of in listed}
    return {name: None for name, _ in network.named_children()}


def pooled(output: Tensor, channels: int | None) -> Tensor:
    """What a module gives, averaged over places or tokens.

    Args:
        output: (N, D), tokens (N, T, D), or a map with its channels first, or last where only these are as many as
            the module says that it has.
        channels: so many.

    Returns:
        (N, D).
    """
    last = output.ndim == 3 or (output.ndim > 3 and channels == output.shape[-1] != output.shape[1])
    return (output.movedim(-1, 1) if last else output).flatten(2).mean(2) if output.ndim > 2 else output
