"""What ImageNet with ViT-L would take on 8 and on 64 GPUs, by scaling.md's model and what was measured here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.bench.rows import Row, operations, paragraph, series_over, table

__all__ = ["projection"]

PEAK_TFLOPS, SHARE = 312, 0.4
"""bfloat16 of an NVIDIA A100 (its data sheet), and the share of it that a ViT is assumed to reach."""
WITHIN, BETWEEN = 300e9, 25e9
"""Bytes a second that a GPU is assumed to exchange within a machine of 8 (NVLink) and between machines."""
IMAGENET, IMAGENET_VAL, COUNTRY211, COUNTRY211_TEST = 1_281_167, 50_000, 31_650, 21_100
"""Images; Country211's `fit` and `held_out`."""
EPOCHS, CASES = 2, ((8, 64), (64, 64), (64, 8))
"""Table 4's epochs of D_H for the ViT; GPUs, and images of each data set that a GPU takes a step."""
TRAINED = 12_596_224 + 1_025_000
"""Parameters of ViT-L's last block (12·1024² + 13·1024) and of a head of 1,000 classes."""


def projection(rows: Sequence[Row]) -> str:
    (large,) = [r for r in rows if r["what"] == "operations an image"]
    spectra = {r["batch"]: r["seconds"] for r in series_over(rows, "spectra of a step", "processes")}
    read = 1 / series_over(rows, "reading an image", "pixels")[-1]["process_seconds"]
    kappa = _pooled_seconds(rows, IMAGENET + IMAGENET_VAL + COUNTRY211 + COUNTRY211_TEST, large["d"])
    speed = PEAK_TFLOPS * SHARE * 1e12
    body = []
    for gpus, share in CASES:
        batch, link = share * gpus, WITHIN if gpus <= 8 else BETWEEN
        network = 2 * share * operations(large) * 1e9 / speed
        exchange = (2 * 8 * batch * large["d"] * 2 + 2 * 4 * TRAINED) / link
        step = network + spectra[batch] + exchange
        steps = {"D_H": math.ceil(EPOCHS * COUNTRY211 / batch), "D_P": math.ceil(IMAGENET / batch)}
        images = IMAGENET + IMAGENET_VAL + COUNTRY211 + COUNTRY211_TEST
        measuring = images * (large["gflop_trunk"] + 2 * large["gflop_tail"] / 3) * 1e9 / speed / gpus + 2 * kappa
        wanted = 2 * batch / step / read
        body.append(
            [
                *(gpus, f"{batch:,}", f"{1e3 * network:.0f}", f"{1e3 * spectra[batch]:.0f}", f"{1e3 * exchange:.1f}"),
                *(f"{steps['D_H']:,}: {_span(steps['D_H'] * step)}", f"{steps['D_P']:,}: {_span(steps['D_P'] * step)}"),
                *(_span(measuring), f"{wanted:.0f}"),
            ]
        )
    lines = ["## By this model: ImageNet with ViT-L", ""]
    lines += table(
        [
            *("GPUs", "B", "network, ms", "spectra, ms", "exchange, ms", f"{EPOCHS} passes of Country211, steps: time"),
            *("one pass of ImageNet, steps: time", "features and pooled κ", "cores to read images"),
        ],
        body,
    )
    lines += [
        "",
        paragraph(
            f"ViT-L/16 at 224 px, last block trained: {large['gflop_trunk']:.0f} + {large['gflop_tail']:.0f} GFLOP an",
            f"image (counted). **Assumed, not measured**: {100 * SHARE:.0f} % of {PEAK_TFLOPS} TFLOP/s a GPU (NVIDIA's",
            "data sheet of the A100, bfloat16, also for the trained block),",
            f"{WITHIN / 1e9:.0f} and {BETWEEN / 1e9:.0f} GB/s within and between machines.",
            "Measured here: the spectra at these batches, on this machine's cores, the rate of reading, and the law of",
            "pooled κ.",
        ),
        "",
        paragraph(
            "The spectra do not get less with more GPUs, since every process takes those of the whole batch: give each",
            "GPU fewer images (the last row) instead of letting B grow with them. Reading has to keep up: with fewer",
            "cores than the last column has it decides the time, and `cache_frozen` is the way out. Bootstraps and",
            "probes are not in the estimate.",
        ),
        "",
    ]
    return "\n".join(lines)


def _pooled_seconds(rows: Sequence[Row], n: int, d: int) -> float:
    """The law of pooled κ: proportional to N at the largest N measured, and to D as measured between sizes."""
    largest = series_over(rows, "pooled kappa", "n")[-1]
    over_d = {row["d"]: row["seconds"] for row in series_over(rows, "pooled kappa", "d")}
    return float(largest["seconds"] / largest["n"] * n * over_d[d] / over_d[largest["d"]])


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
