"""How the cost of a deep run grows with N, D, batch size, network and number of processes: deep_scaling.csv.

One row a measurement, "what" over "variable"; `seconds` are the shortest of several. scaling.md is made of it
(:mod:`experiments.bench.page`). Promises nothing.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from experiments.bench.deep import measure_pooled
from experiments.bench.deep_parts import (
    NETWORKS,
    Flops,
    Steps,
    flops_of,
    generated_images,
    in_turns,
    random_batch,
    spectra,
)
from experiments.bench.deep_processes import measure_processes
from experiments.bench.machine import show, write_csv
from immunize.data.images.folders import ImageFolder
from immunize.features.deep import image_transform

__all__ = ["COLUMNS", "measure", "run"]

COLUMNS = (
    *("what", "variable", "size", "network", "n", "d", "batch", "processes", "threads"),
    *("seconds", "process_seconds", "exchange_seconds", "memory_mib", "gflop_trunk", "gflop_tail"),
)

POOLED_N, POOLED_D = (12_500, 25_000, 50_000, 100_000), (128, 256, 512, 1024, 2048)
FIXED_N, FIXED_D, FIXED_BATCH = 12_500, 512, 64
SPECTRA_BATCH, SPECTRA_D = (32, 64, 128, 256, 512), (192, 512, 768, 1024, 2048)
LARGE_D, LARGE_BATCHES = 1024, (512, 4096)
"""Of ViT-L, and 64 images a GPU of 8 and of 64."""
STEP_BATCHES, NETWORK_BATCH = (8, 16, 32, 64), 16
IMAGE_SIZES, FILES = (64, 128, 224), 32
WORLDS, PROCESS_NETWORK, PROCESS_BATCH = (1, 2, 4), "vit_small", 64
TRANSFORM = {
    "interpolation": "bicubic",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
    "crop_pct": 0.9,
    "crop_mode": "center",
}
"""As most networks of timm want it."""
SECONDS = 6.0


def measure(seconds: float = SECONDS) -> Iterator[dict[str, Any]]:
    """Every row, one after the other.

    Args:
        seconds: how long to repeat each.
    """
    sizes = [(n, FIXED_D) for n in POOLED_N] + [(FIXED_N, d) for d in POOLED_D if d != FIXED_D]
    for number, of in enumerate(measure_pooled(sizes, seconds)):
        variable = "n" if number < len(POOLED_N) else "d"
        yield _row("pooled kappa", variable, of[variable], **of)
    at = [("batch", b, FIXED_D) for b in SPECTRA_BATCH] + [("d", FIXED_BATCH, d) for d in SPECTRA_D if d != FIXED_D]
    at += [("processes", b, LARGE_D) for b in LARGE_BATCHES]
    for variable, batch, d in at:
        ((wall, process),) = in_turns(spectra(batch, d), seconds=min(seconds, 3.0))
        size = {"batch": batch, "d": d, "processes": batch // FIXED_BATCH}[variable]
        yield _row("spectra of a step", variable, size, d=d, batch=batch, seconds=wall, process_seconds=process)
    yield from _steps(seconds)
    yield from _reading(seconds)
    for world in WORLDS:
        of = measure_processes(PROCESS_NETWORK, PROCESS_BATCH, world, repeats=5)
        yield _row(
            "step of several processes",
            "processes",
            world,
            network=PROCESS_NETWORK,
            batch=PROCESS_BATCH,
            processes=world,
            threads=1,
            seconds=of["step_s"],
            process_seconds=of["process_s"],
            exchange_seconds=of["exchange_s"],
        )


def _steps(seconds: float) -> Iterator[dict[str, Any]]:
    """Immunization steps: ResNet18 in several batch sizes, then every network in one."""
    first, *others = NETWORKS
    cases = [("batch", first, b) for b in STEP_BATCHES]
    cases += [("network", name, NETWORK_BATCH) for name in (first, *others)]
    for variable, name, batch in cases:
        spec = NETWORKS[name]
        net = spec.build()
        steps = Steps(net, random_batch(batch, spec.image_size))
        ((wall, process),) = in_turns(steps.immunize, seconds=seconds)
        flops = flops_of(net, spec.image_size)
        size = batch if variable == "batch" else ""
        yield _row(
            "step",
            variable,
            size,
            network=name,
            d=net.n_features,
            batch=batch,
            seconds=wall,
            process_seconds=process,
            **_gflop(flops),
        )


def _reading(seconds: float) -> Iterator[dict[str, Any]]:
    """Reading, decoding and transforming an image, in one process."""
    with tempfile.TemporaryDirectory() as folder:
        generated_images(Path(folder), FILES)
        source = ImageFolder("harmful", root=folder)
        for size in IMAGE_SIZES:
            transform = image_transform(TRANSFORM | {"input_size": (3, size, size)}, train=False)
            images = source.splits(transform, transform).fit

            def read(images: Any = images) -> None:
                for index in range(FILES):
                    images[index]

            ((wall, process),) = in_turns(read, seconds=min(seconds, 3.0))
            each = {"seconds": wall / FILES, "process_seconds": process / FILES}
            yield _row("reading an image", "pixels", size, threads=1, **each)


def run(out: Path) -> None:
    """Measure, print, and write deep_scaling.csv; nothing is promised.

    Args:
        out: the folder of results.
    """
    rows = []
    for row in measure():
        rows.append(row)
        print(f"{row['what']}, {row['variable']} {row['size'] or row['network']}: {row['seconds']} s", file=sys.stderr)
    write_csv(out / "deep_scaling.csv", rows)
    show("cost of a deep run", rows)


def _gflop(flops: Flops) -> dict[str, float]:
    return {"gflop_trunk": round(flops.trunk, 4), "gflop_tail": round(flops.tail, 4)}


def _row(what: str, variable: str, size: Any, **values: Any) -> dict[str, Any]:
    known = {"threads": torch.get_num_threads()} | values | {"what": what, "variable": variable, "size": size}
    rounded = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in known.items()}
    return {column: rounded.get(column) for column in COLUMNS}
