"""`make bench`: one step of Algorithm 1, the fast path against the printed one; writes step_time.csv beside this file.

    fast       small side, closed form, no inverse: what `method=ours` runs
    printed    Algorithm 1 as written: H = θᵀKθ, `eigh` of the D×D matrices, 2KθG, and a solve with K + εI

Both compute λ_P·(well) + λ_H·(ill) gradients of one step for the same θ and batches, in float64, and are timed in
turns so that a busy moment hits both. "full" is full-batch mode, in which K is compressed once before training.
"""

from __future__ import annotations

import csv
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from immunize.experiment import ONE_THREAD_UP_TO
from immunize.features import LinearExtractor
from immunize.records import provenance
from immunize.spectrum import compress_rows, default_tolerance, r_ill_of_features, r_well_of_features

HERE = Path(__file__).parent
CASES = [  # (D, rows a batch or N, full batch)
    (79, 64, False),
    (79, 309, True),
    (784, 64, False),
    (784, 5923, True),
]
LAMBDA_WELL, LAMBDA_ILL, EPSILON = 1.0, 1e7, 1e-6
SECONDS_A_CASE = 8.0


def fast_step(extractor: LinearExtractor, pretrain: Tensor, harmful: Tensor, cut: float) -> Tensor:
    """The preconditioned regularizer gradient of θ, as training computes it."""
    extractor.theta.grad = None
    well = extractor.spectral_view(pretrain, "inverse_free")
    ill = extractor.spectral_view(harmful, "inverse_free")
    loss = LAMBDA_WELL * r_well_of_features(*well, tolerance=cut) + LAMBDA_ILL * r_ill_of_features(*ill, tolerance=cut)
    loss.backward()
    assert extractor.theta.grad is not None
    return extractor.theta.grad


def printed_step(theta: Tensor, k_pretrain: Tensor, k_harmful: Tensor, cut: float) -> Tensor:
    """The same with the matrices of Algorithm 1 formed."""
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
    return LAMBDA_WELL * well + LAMBDA_ILL * ill


def time_in_turns(*steps: Callable[[], object]) -> list[float]:
    """Median seconds of each, after one warm-up call."""
    for step in steps:
        step()
    times: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + SECONDS_A_CASE
    while time.perf_counter() < end or len(times[0]) < 3:
        for kept, step in zip(times, steps, strict=True):
            start = time.perf_counter()
            step()
            kept.append(time.perf_counter() - start)
    return [statistics.median(kept) for kept in times]


def measure(d: int, rows: int, full: bool) -> dict[str, object]:
    """One case: both paths, and how far their results agree on the range of K."""
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
    fast_seconds, printed_seconds = time_in_turns(lambda: fast_step(extractor, *fast_rows, cut), printed)
    torch.set_num_threads(every)
    return {
        "D": d,
        "rows": rows,
        "mode": "full" if full else "mini-batch",
        "threads": used,
        "fast_ms": round(1e3 * fast_seconds, 3),
        "printed_ms": round(1e3 * printed_seconds, 3),
        "speedup": round(printed_seconds / fast_seconds, 2),
    }


def main() -> None:
    """Measure, print, and write the CSV with the machine's name beside it."""
    results = [measure(*case) for case in CASES]
    table = Table(title="one Algorithm 1 step, float64")
    for column in results[0]:
        table.add_column(column, justify="right")
    for row in results:
        table.add_row(*(str(value) for value in row.values()))
    Console(width=100).print(table)
    with (HERE / "step_time.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(results[0]))
        writer.writeheader()
        writer.writerows(results)
    facts = {"date": time.strftime("%Y-%m-%d", time.gmtime()), **provenance()}
    (HERE / "machine.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
