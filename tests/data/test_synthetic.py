"""Synthetic pairs: spectra, angles and population are as prescribed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from immunize.data import ROLES
from immunize.data.synthetic import Synthetic, eigenvalues
from immunize.errors import DataError


@settings(max_examples=25)
@given(
    n_features=st.integers(2, 12),
    extra=st.integers(0, 20),
    log_condition=st.floats(0, 6),
    angle=st.sampled_from([0.0, 90.0]) | st.floats(0, 90),
    seed=st.integers(0, 1000),
)
def test_spectra_and_angles_are_exact(
    n_features: int, extra: int, log_condition: float, angle: float, seed: int
) -> None:
    n_samples, condition = n_features + extra, 10**log_condition
    prescribed = n_samples * np.geomspace(1, 1 / condition, n_features)
    options = {"n_samples": n_samples, "n_features": n_features, "condition": condition, "angle": angle, "seed": seed}
    made = []
    for role in ROLES:
        source = Synthetic(role, **options)
        x, basis = source.load().fit.x.numpy(), source.basis()
        # Singular values and not eigenvalues of XᵀX, whose error is relative to the largest one.
        assert np.allclose(np.linalg.svd(x, compute_uv=False) ** 2, prescribed, rtol=1e-9)
        assert np.allclose(basis.T @ basis, np.eye(n_features), atol=1e-12)
        assert np.allclose(x.T @ x, basis * prescribed @ basis.T, atol=1e-9 * n_samples)
        made.append((x, basis))
    (x_p, v_p), (x_h, v_h) = made
    cosines = np.full(n_features, math.cos(math.radians(angle)))
    cosines[2 * (n_features // 2) :] = 1
    assert np.allclose((v_p * v_h).sum(axis=0), cosines, atol=1e-12)
    assert not np.allclose(x_p, x_h)  # other rows, also of the same K


def test_held_out_is_a_fresh_draw_of_the_same_population() -> None:
    source = Synthetic("harmful", n_samples=200_000, n_features=4, condition=20.0, noise=0.5)
    splits = source.load()
    x, y = splits.held_out.x.numpy(), splits.held_out.y.numpy()
    covariance = source.basis() * eigenvalues(4, 20.0) @ source.basis().T
    assert np.allclose(x.T @ x / len(x), covariance, atol=0.02)
    assert np.allclose(x.mean(axis=0), 0, atol=0.02)
    assert y.mean() == pytest.approx(0, abs=0.02)
    assert y.std() == pytest.approx(1, abs=0.02)
    assert not set(map(tuple, x[:100])) & set(map(tuple, splits.fit.x.numpy()[:100]))


@pytest.mark.parametrize(("noise", "atol"), [(0.0, 1e-24), (2.0, 0.02)])
def test_both_parts_share_one_linear_target_with_noise_relative_to_it(noise: float, atol: float) -> None:
    splits = Synthetic("pretrain", n_samples=100_000, n_features=6, noise=noise).load()
    w = torch.linalg.lstsq(splits.fit.x, splits.fit.y[:, None]).solution
    for part in (splits.fit, splits.held_out):
        residual = part.y - (part.x @ w)[:, 0]
        assert float(residual.square().mean()) == pytest.approx(noise**2 / (1 + noise**2), abs=atol)


def test_options_are_checked() -> None:
    for options, message in (
        ({"n_features": 0}, "n_features=0"),
        ({"n_samples": 8, "n_features": 9}, "needs at least 9 samples"),
        ({"n_samples": 1, "n_features": 1}, "needs at least 2 samples"),
        *(({"condition": of}, f"condition={of}") for of in (0.5, math.nan)),
        *(({"angle": of}, "between 0 and 90") for of in (-1, 91)),
        ({"noise": -0.1}, "noise=-0.1"),
    ):
        with pytest.raises(DataError, match=message):
            Synthetic("harmful", **options)  # type: ignore[arg-type]
