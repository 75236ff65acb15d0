"""Tasks for the tests of attacks: Gaussian classes or a linear target, under a map with a prescribed spectrum."""

from __future__ import annotations

import numpy as np

from immunize.evaluation.attacks import AttackData, Rows
from immunize.evaluation.attacks.scoring import shares

D, C = 8, 4
SIZES = (600, 2000, 2000)
"""Enough validation rows that tuning by them costs less than the point that the controls allow."""


class Memory(dict):
    """Keeps the cells of finished attacks."""

    def put(self, key: str, cell: dict) -> None:
        self[key] = cell


def rotation(seed: int, size: int = D) -> np.ndarray:
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))
    return q * np.sign(np.diag(r))


def ill_conditioned(condition: float, seed: int = 5) -> np.ndarray:
    """(D, D) whose singular values go from 1 to 1/condition."""
    return (rotation(seed) * np.geomspace(1, 1 / condition, D)) @ rotation(seed + 1)


def score(data: AttackData, rows: Rows, outputs: np.ndarray) -> float:
    """Accuracy or R²."""
    return float(shares(data, rows, outputs).mean())


def classes(theta: np.ndarray | None = None, *, seed: int = 0, n_classes: int = C, sizes=SIZES) -> AttackData:
    """Gaussian classes of equal covariance: the best classifier is linear, and errs about one time in ten."""
    rng = np.random.default_rng(seed)
    means = 2.5 * rotation(seed + 90)[:n_classes]
    return _data([_drawn(rng, means, n) for n in sizes], n_classes, theta)


def regression(theta: np.ndarray | None = None, *, seed: int = 0, sizes=SIZES) -> AttackData:
    """A linear target with equal weight in every direction, and noise of a tenth of its spread."""
    rng = np.random.default_rng(seed)
    w = np.ones(D) / np.sqrt(D)
    drawn = []
    for n in sizes:
        x = rng.standard_normal((n, D))
        drawn.append((x, x @ w + 0.1 * rng.standard_normal(n)))
    return _data(drawn, 0, theta)


def _drawn(rng: np.random.Generator, means: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(n) % len(means)
    return means[y] - means.mean(axis=0) + rng.standard_normal((n, D)), y


def _data(drawn: list[tuple[np.ndarray, np.ndarray]], n_classes: int, theta: np.ndarray | None) -> AttackData:
    raw = AttackData(*(Rows(x, y) for x, y in drawn), n_classes)  # type: ignore[misc, arg-type]
    own = AttackData(raw.train, raw.validation, raw.test, n_classes, reference=raw)
    return own if theta is None else own.mapped(lambda x: x @ theta)
