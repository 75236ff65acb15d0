"""Deep nets against what was promised: deep_step.csv, deep_cache.csv and deep_pooled.csv.

    step     an immunization step against the same two forward passes and backward pass     at most 1.10 times
    cache    an epoch with the frozen trunk's outputs cached against one that recomputes
             them, from files and from images in memory, and the gradients of both          at least 3 times, from files
    pooled   κ of 50,000 rows of 512 features by every estimator                            10 s, 200 MiB

How much a cached trunk can save is in the network: a step without the trunk still goes forward and backward through the
trained part. `bound` is that quotient in floating-point operations, and the speed-up from images in memory cannot be
above it; reading and decoding files is saved on top. Where the bound is below 3, as for ResNet18 with its last stage
trained, nothing is promised.
"""

from __future__ import annotations

import math
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.bench.deep_parts import NETWORKS, Steps, flops_of, generated_images, in_turns, random_batch, spectra
from experiments.bench.machine import show, write_csv
from immunize.data.images.folders import ImageFolder
from immunize.data.images.pair import StreamSampler, stream_loader
from immunize.features import cached_trunk

STEP_LIMIT, CACHE_LIMIT = 1.10, 3.0
POOLED_ROWS, POOLED_FEATURES, POOLED_SECONDS, POOLED_MIB = 50_000, 512, 10.0, 200.0

STEP_NETWORKS = ("resnet18_64px", "vit_small", "vit_tiny_64px")
CACHE_NETWORKS = ("resnet18_64px", "vit_tiny_64px", "vit_base_64px")
BATCH = 64
IMAGES, CACHE_BATCH = 128, 64
"""Of an epoch, of each data set: two batches."""
SAME_GRADIENT = 1e-4
"""Largest relative difference: other batch sizes round differently in float32."""
SECONDS_A_STEP, SECONDS_A_CACHE = 20.0, 30.0


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


def measure_cache(name: str, count: int, batch_size: int, seconds: float) -> dict[str, Any]:
    """Epochs over generated files, over the same images in memory, and over cached trunk outputs.

    Args:
        name: in `NETWORKS`.
        count: images of each data set.
        batch_size: B.
        seconds: how long to repeat the three.

    Returns:
        a row of deep_cache.csv.
    """
    spec = NETWORKS[name]
    net = spec.build()
    flops = flops_of(net, spec.image_size)
    steps = Steps(net, {})
    with tempfile.TemporaryDirectory() as folder:
        generated_images(Path(folder), count)
        images = ImageFolder("harmful", root=folder).splits(net.transform(), net.transform()).fit
        read = torch.stack([images[i][0] for i in range(len(images))])
        decoded = torch.utils.data.TensorDataset(read, images.labels)
        cached = cached_trunk(net, images, batch_size=batch_size)
        gap = _gradient_gap(_gradient(steps, decoded, batch_size, False), _gradient(steps, cached, batch_size, True))
        works = [
            _epoch(steps, of, batch_size, known) for of, known in ((images, False), (decoded, False), (cached, True))
        ]
        (from_files, _), (from_memory, _), (from_cache, _) = in_turns(*works, seconds=seconds)
    return {
        "network": name,
        "image": spec.image_size,
        "batch": batch_size,
        "images": count,
        "threads": torch.get_num_threads(),
        "gflop_trunk": round(flops.trunk, 4),
        "gflop_tail": round(flops.tail, 4),
        "bound": round(flops.cached_bound, 2),
        "files_s": round(from_files, 3),
        "memory_s": round(from_memory, 3),
        "cached_s": round(from_cache, 3),
        "speedup_files": round(from_files / from_cache, 2),
        "speedup_memory": round(from_memory / from_cache, 2),
        "gradient_gap": float(f"{gap:.2g}"),
        "limit": CACHE_LIMIT,
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
    caches = [measure_cache(name, IMAGES, CACHE_BATCH, SECONDS_A_CACHE) for name in CACHE_NETWORKS]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        kappa = pool.submit(pooled, POOLED_ROWS, POOLED_FEATURES, 10.0).result()
    for name, title, rows in (
        ("deep_step", "one step, with and without regularizers", steps),
        ("deep_cache", "an epoch, with and without a cached trunk", caches),
        ("deep_pooled", "pooled κ", [kappa]),
    ):
        write_csv(out / f"{name}.csv", rows)
        show(title, rows)


def _epoch(steps: Steps, images: Any, batch_size: int, cached: bool) -> Callable[[], None]:
    """A pass over the images as D_P, and in another order as D_H."""

    def work() -> None:
        steps.module.cached = cached
        count = len(images) // batch_size
        rows = [range(len(images))]
        samplers = [StreamSampler(rows, batch_size, count, seed=0, stream=stream) for stream in (0, 1)]
        for pretrain, harmful in zip(*(stream_loader(images, sampler) for sampler in samplers), strict=True):
            steps.batch = {"pretrain": pretrain, "harmful": harmful}
            steps.immunize()

    return work


def _gradient(steps: Steps, images: Any, batch_size: int, cached: bool) -> list[Tensor]:
    steps.module.cached = cached
    x, y = images[torch.arange(batch_size)]
    loss = steps.module.training_step({"pretrain": (x, y), "harmful": (x, y)}, 0)
    return list(torch.autograd.grad(loss, steps.module.theta_parameters()))


def _gradient_gap(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Relative distance of two gradients."""
    squares = [(float((a - b).square().sum()), float(a.square().sum())) for a, b in zip(one, other, strict=True)]
    return math.sqrt(math.fsum(square for square, _ in squares) / math.fsum(square for _, square in squares))
