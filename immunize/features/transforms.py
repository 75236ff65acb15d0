"""What happens to an image before a network sees it, from the network's own pretrained configuration in timm.

Sizes in pixels, mean and std in units of pixel values / 255, one number a channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from immunize.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["ADJUSTABLE", "image_transform", "input_config"]

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


def image_transform(data_config: Mapping[str, Any], *, train: bool) -> Callable[[Any], Tensor]:
    """A PIL image in RGB to (3, height, width) float32, normalized.

    Args:
        data_config: of :func:`input_config`.
        train: random resized crop and horizontal flip, as timm has them for training on ImageNet, without changes of
            colour; otherwise resize and centre crop.

    Returns:
        a transform whose `repr` names everything that it does, which a cache key may hold.
    """
    create = _timm_data().create_transform
    transform: Callable[[Any], Tensor] = create(**data_config, is_training=train, color_jitter=None)
    return transform


def _timm_data() -> Any:
    """The module; imported late, since it takes a second, and untyped, as it is in most versions."""
    import timm.data

    return timm.data
