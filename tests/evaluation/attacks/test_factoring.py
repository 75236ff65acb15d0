"""The thin decomposition of the attacks: exact, and with a second algorithm where the first gives up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

from immunize.evaluation.attacks.factoring import thin_svd

DECOMPOSE = scipy.linalg.svd


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
@pytest.mark.parametrize("fails", [False, True])
def test_factors_give_the_matrix_back(shape: tuple[int, int], fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = []

    def svd(x: Any, lapack_driver: str = "gesdd", **others: Any) -> Any:
        drivers.append(lapack_driver)
        if fails and lapack_driver == "gesdd":
            raise np.linalg.LinAlgError("SVD did not converge")
        return DECOMPOSE(x, lapack_driver=lapack_driver, **others)

    monkeypatch.setattr(scipy.linalg, "svd", svd)
    x = np.random.default_rng(0).standard_normal(shape)
    u, sigma, vt = thin_svd(x)
    assert drivers == (["gesdd", "gesvd"] if fails else ["gesdd"])
    assert u.shape == (shape[0], 4)
    assert vt.shape == (4, shape[1])
    assert (np.diff(sigma) <= 0).all()
    assert u * sigma @ vt == pytest.approx(x)


def test_bad_input_is_not_tried_twice() -> None:
    with pytest.raises(ValueError, match="infs or NaNs"):
        thin_svd(np.full((3, 2), np.nan))
