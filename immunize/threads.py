"""CPU threads of a part of a run: torch's, and those of the BLAS below numpy, scipy and scikit-learn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["cpu_threads"]


@contextlib.contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Use `count` threads within; what was before is put back.

    Args:
        count: 1 or more; None changes nothing.
    """
    if count is None:
        yield
        return
    import scipy.linalg  # noqa: F401  its BLAS is another than numpy's, and a limit reaches only what is loaded
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(count):
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)
