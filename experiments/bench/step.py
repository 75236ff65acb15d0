"""One step of Algorithm 1, the fast path against the printed one: step_time.csv.

    fast       small side, closed form, no inverse: what `method=ours` runs
    printed    Algorithm 1 as written: H = θᵀKθ, `eigh` of the D×D matrices, 2KθG, and a solve with K + εI

Both compute λ_P·(well) + λ_H·(ill) gradients of one step for the same θ and batches, in float64, and are timed in
turns so that a busy moment hits both. "full" is full-batch mode, in which K is compressed once before training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from experiments.bench.machine import show, write_csv
from immunize.features import LinearExtractor
from immunize.pipeline.linear import ONE_THREAD_UP_TO
from immunize.spectrum import compress_rows, default_tolerance, r_ill_of_features, r_well_of_features

__all__ = ["CASES", "fast_step", "measure", "printed_step", "run"]

CASES = [  # (D, rows a batch or N, full batch)
    (79, 64, False),
    (79, 309, True),
    (784, 64, False),
    (784, 5923, True),
]
LAMBDA_WELL, LAMBDA_ILL, EPSILON = 1.0, 1e7, 1e-6
SECONDS_A_CASE = 8.0


def fast_step(extractor: LinearExtractor, pretrain: Tensor, harmful: Tensor, cut: float) -> Tensor:
    """The preconditioned regularizer gradient of θ, as training computes it.

    Args:
        extractor: with θ (D, D).
        pretrain: (N_P, D) float64 rows of D_P.
        harmful: (N_H, D) float64 rows of D_H.
        cut: relative rank cut.

    Returns:
        (D, D), λ_P·2θG_well + λ_H·2θG_ill.
    """
    extractor.zero_grad(set_to_none=True)
    well = extractor.spectral_view(pretrain, "inverse_free")
    ill = extractor.spectral_view(harmful, "inverse_free")
    loss = LAMBDA_WELL * r_well_of_features(*well, tolerance=cut) + LAMBDA_ILL * r_ill_of_features(*ill, tolerance=cut)
    loss.backward()  # type: ignore[no-untyped-call]
    assert extractor.theta.grad is not None
    return extractor.theta.grad


def printed_step(theta: Tensor, k_pretrain: Tensor, k_harmful: Tensor, cut: float) -> Tensor:
    """The same with the matrices of Algorithm 1 formed.

    Args:
        theta: (D, D).
        k_pretrain: (D, D), K_P.
        k_harmful: (D, D), K_H.
        cut: relative rank cut.

    Returns:
        (D, D).
    """
    d = theta.shape[0]
    identity = torch.eye(d, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(h := theta.T @ k_pretrain @ theta)
    g = values[-1] * torch.outer(vectors[:, -1], vectors[:, -1]) - h / d
    well = torch.linalg.solve(k_pretrain + EPSILON * identity, 2 * k_pretrain @ theta @ g)
    values, vectors = torch.linalg.eigh(h := theta.T @ k_harmful @ theta)
    k = int((values > cut * values[-1]).sum())
    f = values[-k:].square().sum() / (2 * k) - values[-k] ** 2 / 2
    g = (values[-k] * torch.outer(vectors[:, -k], vectors[:, -k]) - h / k) / f**2
    ill = torch.linalg.solve(k_harmful + EPSILON * identity, 2 * k_harmful @ theta @ g)
    step: Tensor = LAMBDA_WELL * well + LAMBDA_ILL * ill
    return step


def measure(d: int, rows: int, full: bool, seconds: float = SECONDS_A_CASE) -> dict[str, object]:
    """Median times of both paths.

    Args:
        d: D.
        rows: of a batch, or N where `full`.
        full: full-batch mode.
        seconds: how long to repeat.

    Returns:
        one row of step_time.csv; times in milliseconds.
    """
    generator = torch.Generator().manual_seed(0)
    pretrain, harmful = (torch.randn(rows, d, dtype=torch.float64, generator=generator) for _ in range(2))
    scale = torch.logspace(0, -1.5, d, dtype=torch.float64)
    pretrain, harmful = pretrain * scale, harmful * scale.flip(0)
    extractor = LinearExtractor(d, generator=generator)
    cut = default_tolerance(rows, d)
    k_pretrain, k_harmful = pretrain.T @ pretrain, harmful.T @ harmful
    fast_rows = (compress_rows(pretrain), compress_rows(harmful)) if full else (pretrain, harmful)
    theta = extractor.theta.detach()

    def printed() -> Tensor:  # with a mini-batch, K is new at every step
        if full:
            return printed_step(theta, k_pretrain, k_harmful, cut)
        return printed_step(theta, pretrain.T @ pretrain, harmful.T @ harmful, cut)

    every = torch.get_num_threads()
    torch.set_num_threads(1 if d <= ONE_THREAD_UP_TO else every)  # as training does
    used = torch.get_num_threads()
    fast, slow = _time_in_turns(lambda: fast_step(extractor, *fast_rows, cut), printed, seconds=seconds)
    torch.set_num_threads(every)
    return {
        "D": d,
        "rows": rows,
        "mode": "full" if full else "mini-batch",
        "threads": used,
        "fast_ms": round(1e3 * fast, 3),
        "printed_ms": round(1e3 * slow, 3),
        "speedup": round(slow / fast, 2),
    }


def run(out: Path) -> None:
    """Measure every case, print a table and write `step_time.csv`; nothing is promised.

    Args:
        out: the folder of results.
    """
    results = [measure(*case) for case in CASES]
    show("one Algorithm 1 step, float64", results)
    write_csv(out / "step_time.csv", results)


def _time_in_turns(*steps: Callable[[], object], seconds: float) -> list[float]:
    """Median seconds of each, after one warm-up call."""
    for step in steps:
        step()
    times: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for kept, step in zip(times, steps, strict=True):
            start = time.perf_counter()
            step()
            kept.append(time.perf_counter() - start)
    return [statistics.median(kept) for kept in times]
