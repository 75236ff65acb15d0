"""Results of slow pure functions of large tensors, kept while a sweep needs them again.

In a sweep one process runs many methods and seeds on the same rows; what depends on the rows alone (their compression,
the condition numbers of the identity) is computed once. Keys are the arguments' contents, so there is nothing to
invalidate: the same rows give the same result, whatever run they come from.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

P = ParamSpec("P")
R = TypeVar("R")


def give_back_memory() -> None:
    """What is free to the system, where the C library can: glibc's heap keeps the place of matrices below 32 MiB.

    A process that was told to keep it (MALLOC_TRIM_THRESHOLD_) does.
    """
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        with contextlib.suppress(AttributeError):
            ctypes.pythonapi.malloc_trim(0)


def memoize(size: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a pure function of tensors, arrays and hashable values: its `size` most recent results are kept.

    The results are shared between callers, who must not write into them; memory beside them that a computation leaves
    free goes back to the system. `__wrapped__` is the function itself.

    Args:
        size: how many; each keeps its memory until it is the oldest.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        kept: OrderedDict[Hashable, R] = OrderedDict()

        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            key = (*map(_key, args), *((name, _key(value)) for name, value in sorted(kwargs.items())))
            if key not in kept:
                kept[key] = function(*args, **kwargs)
                if len(kept) > size:
                    kept.popitem(last=False)
                give_back_memory()
            kept.move_to_end(key)
            return kept[key]

        return wrapped

    return decorate


def _key(value: Any) -> Hashable:
    if hasattr(value, "data_ptr"):
        import torch  # which made it

        here = value.detach().cpu().contiguous()
        return value.shape, str(value.dtype), _content(here.flatten().view(torch.uint8).numpy(), str(value.device))
    return _content(value, "") if hasattr(value, "__array_interface__") else value


def _content(array: Array, device: str) -> Hashable:
    """Shape, dtype, device and a 256-bit digest of the bytes: about 30 ms for a class of MNIST."""
    digest = hashlib.sha256(array.data if array.flags.c_contiguous else array.tobytes()).hexdigest()
    return array.shape, str(array.dtype), device, digest
