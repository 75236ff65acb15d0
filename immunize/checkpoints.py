"""Checkpoints of linear extractors, and whose a checkpoint is: safetensors, which hold numbers and execute nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from immunize.errors import CheckpointError
from immunize.files import write_tensors

if TYPE_CHECKING:
    from torch import Tensor


def save_checkpoint(path: Path, tensors: Mapping[str, Mapping[str, Tensor]], *, config_hash: str) -> None:
    """Write `theta.<fit>` (D, D), acting on rows, and `head.<fit>` (D, 1), whole or not at all.

    Where the rows were standardized, features of rows as they were read are ``(x - mean) * scale @ theta.fit``, with
    `columns.mean` and `columns.scale`.

    Args:
        path: the file.
        tensors: "theta" of "fit", and of "cross_fit" where the data set is cross-fitted; "head", ω of each; "columns",
            "mean" (D,) and "scale" (D,) by which the rows were standardized, if they were.
        config_hash: stored beside them.
    """
    named = {f"{kind}.{name}": value.contiguous() for kind, of in tensors.items() for name, value in of.items()}
    write_tensors(path, named, {"format": "immunize.linear.1", "config_hash": config_hash})


def load_checkpoint(path: Path, n_features: int, *, config_hash: str | None = None) -> dict[str, Tensor]:
    """θ of each fit, by name, float64.

    Args:
        path: the file.
        n_features: D of the data it is to be used on.
        config_hash: of the record that it has to belong to; None takes any, and files that others have written: the
            one tensor in them is "fit", acting on rows, or `torch.nn.Linear`'s weight if its name ends so.

    Raises:
        CheckpointError: the file is missing, damaged, not ours, of another run, of another shape or dtype, or not
            finite.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist: the run did not get as far as a checkpoint") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from None
    thetas = {name.removeprefix("theta."): value for name, value in tensors.items() if name.startswith("theta.")}
    if not thetas and config_hash is None:
        thetas = _of_others(tensors)
    if "fit" not in thetas:
        raise CheckpointError(f"{path} holds no 'theta.fit'; it has {', '.join(sorted(tensors)) or 'nothing'}")
    for name, theta in thetas.items():
        if str(theta.dtype) != "torch.float64":
            raise CheckpointError(f"{path}: theta.{name} is {theta.dtype}, spectra need torch.float64")
        if not bool(theta.isfinite().all()):
            raise CheckpointError(f"{path}: theta.{name} contains NaN or infinite values")
        if tuple(theta.shape) != (n_features, n_features):
            raise CheckpointError(
                f"{path}: theta.{name} is {tuple(theta.shape)}, the data need ({n_features}, {n_features})"
            )
    if config_hash is not None:
        check_owner(path, config_hash)
    return thetas


def _of_others(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The map of a file that is not ours, if it holds a single one."""
    import torch

    if len(tensors) != 1:
        return {}
    ((name, theta),) = tensors.items()
    if name.rpartition(".")[2] == "weight" and theta.ndim == 2:
        theta = theta.T.contiguous()  # nn.Linear multiplies rows with the transpose
    return {"fit": theta.to(torch.float64) if theta.is_floating_point() else theta}


def check_owner(path: Path, config_hash: str) -> None:
    """Check that a file of weights, which can be read, was written by the run of a record.

    Args:
        path: the file.
        config_hash: of the record.

    Raises:
        CheckpointError: it was not.
    """
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        stored = (file.metadata() or {}).get("config_hash")
    if stored != config_hash:
        raise CheckpointError(
            f"{path} belongs to another run than the record beside it: it was written by the configuration "
            f"{stored or 'of no hash'}, the record by {config_hash}; put the run's own files back, or run it again"
        )
