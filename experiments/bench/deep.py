"""Deep nets against what was promised: deep_step.csv and deep_pooled.csv.

step     an immunization step against the same two forward passes and backward pass     at most 1.10 times
pooled   κ of 50,000 rows of 512 features by every estimator                            10 s, 200 MiB
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.bench.deep_parts import NETWORKS, Steps, in_turns, random_batch, spectra
from experiments.bench.machine import show, write_csv

STEP_LIMIT = 1.10
POOLED_ROWS, POOLED_FEATURES, POOLED_SECONDS, POOLED_MIB = 50_000, 512, 10.0, 200.0

STEP_NETWORKS = ("resnet18_64px", "vit_small", "vit_tiny_64px")
BATCH = 64
SECONDS_A_STEP = 20.0


def measure_step(name: str, batch_size: int, seconds: float) -> dict[str, Any]:
    """An immunization step against a plain one.

    Args:
        name: in `NETWORKS`.
        batch_size: B.
        seconds: how long to repeat both.

    Returns:
        a row of deep_step.csv: shortest wall times, their quotient, and that of process times.
    """
    spec = NETWORKS[name]
    net = spec.build()
    steps = Steps(net, random_batch(batch_size, spec.image_size))
    ours, plain = in_turns(steps.immunize, steps.plain, seconds=seconds)
    (alone,) = in_turns(spectra(batch_size, net.n_features), seconds=min(seconds, 1.0))
    return {
        "network": name,
        "image": spec.image_size,
        "batch": batch_size,
        "features": net.n_features,
        "threads": torch.get_num_threads(),
        "immunize_ms": round(1e3 * ours[0], 2),
        "plain_ms": round(1e3 * plain[0], 2),
        "ratio": round(ours[0] / plain[0], 4),
        "process_ratio": round(ours[1] / plain[1], 4),
        "spectra_ms": round(1e3 * alone[0], 2),
        "limit": STEP_LIMIT,
    }


def pooled(rows: int, n_features: int, seconds: float) -> dict[str, Any]:
    """κ of all rows by every estimator; meant for a fresh process, whose memory is looked at.

    Args:
        rows: N.
        n_features: D.
        seconds: how long to repeat.
    """
    from immunize.evaluation.pooled import block_grams
    from immunize.records import peak_memory_mib, reset_peak_memory
    from immunize.spectrum import ESTIMATORS, condition_number

    def kappa(x: Tensor) -> None:
        spectrum = block_grams(x, seed=0).spectrum()
        for estimator in ESTIMATORS:
            condition_number(spectrum, estimator)

    draws = torch.Generator().manual_seed(0)
    kappa(torch.randn(64, 8, generator=draws))  # no code is loaded while memory is measured
    x = torch.randn(rows, n_features, generator=draws)
    reset_peak_memory()
    before = peak_memory_mib()
    kappa(x)
    memory = peak_memory_mib() - before
    ((wall, process),) = in_turns(lambda: kappa(x), seconds=seconds, fewest=2)
    return {
        "n": rows,
        "d": n_features,
        "threads": torch.get_num_threads(),
        "seconds": round(wall, 3),
        "process_seconds": round(process, 3),
        "memory_mib": round(memory, 1),
    }


def run(out: Path) -> None:
    """Measure, print and write.

    Args:
        out: the folder of results.
    """
    steps = [measure_step(name, BATCH, SECONDS_A_STEP) for name in STEP_NETWORKS]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        kappa = pool.submit(pooled, POOLED_ROWS, POOLED_FEATURES, 10.0).result()
    for name, title, rows in (
        ("deep_step", "one step, with and without regularizers", steps),
        ("deep_pooled", "pooled κ", [kappa]),
    ):
        write_csv(out / f"{name}.csv", rows)
        show(title, rows)
