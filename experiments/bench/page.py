"""docs/scaling.md from the results of the bench: every number on the page is one of theirs, or computed from them here.

`python -m experiments.bench.page` writes the page anew; so does `python -m experiments.bench deep_scaling`.
"""

from __future__ import annotations

import csv
import json
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.bench.deep_parts import FILE_SIZE
from experiments.bench.machine import HERE, ROOT
from experiments.bench.scaling import fit_exponent

__all__ = ["PAGE", "page"]

PAGE = "docs/scaling.md"

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

_SIZES = ("network", "n", "d", "batch", "processes")

Row = dict[str, Any]


def page(results: Path) -> str:
    """The text of docs/scaling.md.

    Args:
        results: the folder with deep_*.csv and machine.json.

    Raises:
        FileNotFoundError: a part of the bench was not run.
    """
    rows = _read(results / "deep_scaling.csv")
    steps, caches, pooled = (_read(results / f"deep_{name}.csv") for name in ("step", "cache", "pooled"))
    machine = json.loads((results / "machine.json").read_text(encoding="utf-8"))["deep_scaling"]
    sections = [
        _head(machine, rows),
        _limits(steps, caches, pooled),
        _grows("N and D: κ over all rows", "pooled kappa", rows, ("n", "d"), _POOLED),
        _grows("Batch and D: the spectra of a step", "spectra of a step", rows, ("batch", "d"), _SPECTRA),
        _network(rows),
        _processes(rows),
        _reading(rows),
        _imagenet(rows),
        _ACCELERATOR,
    ]
    return "\n".join(sections)


_POOLED = (
    "H = FᵀF is added up in one pass over the rows, in blocks (for the bootstrap), and has one eigenvalue problem of "
    "size D. Memory is what is taken beside the features, at its peak: the blocks, D² each, whatever N is."
)
_SPECTRA = (
    "R_well and R_ill of one batch each, in float64, with their gradients. The small side of F decides: an eigenvalue "
    "problem of size min(B, D), and products of B·D·min(B, D) operations."
)
_ACCELERATOR = """## An accelerator

| hardware | network | images/s | peak memory |
| --- | --- | --- | --- |
| | | | |

No accelerator was available when this page was made, so the row is empty: `resnet18` and `vit` at 224 px for a few
hundred steps with `trainer=gpu` are still to be measured. The record of such a run has both numbers
(`training.fit.images_per_second`, `training.fit.peak_accelerator_memory_mib`).
"""


def _head(machine: Row, rows: Sequence[Row]) -> str:
    hardware = machine["hardware"]
    threads = max(int(row["threads"]) for row in rows if row["threads"])
    load = machine["load_average_before"]
    about = _text(
        "Written by `python -m experiments.bench deep_scaling` (a part of `make bench`) from",
        "`experiments/bench/deep_*.csv`; a test keeps the two equal.",
        f"Measured {machine['date']} on {hardware['cores']} cores ({hardware['processor']}), threads: {threads}, torch",
        f"{machine['versions']['torch']}, load average before: {'unknown' if load is None else load}.",
        "Times are the shortest of several repeats. Networks have random weights; images are generated.",
    )
    return f"""# How the cost of a deep run grows

{about}

A step of an immunization costs

    (trunk forward + tail forward and backward) · 2 · B images      the network, linear in B
  + spectra(B, D)                                                   R_well and R_ill, float64, the same in each process
  + reading and decoding 2 · B images                               in worker processes, beside the rest
  + exchange of 2 · B · D · 8 bytes and of the trained gradient     with several processes

and the evaluation one forward pass of every image, tails of θ_0 and θ, and κ over all rows.
"""


def _limits(steps: Sequence[Row], caches: Sequence[Row], pooled: Sequence[Row]) -> str:
    one = pooled[0]
    lines = ["## Against the limits", ""]
    lines += _table(
        ["network", "B", "step, ms", "without regularizers, ms", "quotient", "by processor time", "spectra, ms"],
        [
            [
                *(f"`{r['network']}`", r["batch"], r["immunize_ms"], r["plain_ms"], r["ratio"]),
                *(r["process_ratio"], r["spectra_ms"]),
            ]
            for r in steps
        ],
    )
    lines += [
        "",
        _text(
            f"A step may cost {steps[0]['limit']:.2f} times what the same two forward passes and the backward pass",
            "cost. It has the checks and the copy of the last finite weights in it.",
        ),
        "",
    ]
    lines += _table(
        [
            *(
                "network",
                "frozen, GFLOP/image",
                "trained",
                "bound",
                "epoch from files, s",
                "from memory, s",
                "cached, s",
            ),
            *("speed-up from files", "from memory", "gradients differ by"),
        ],
        [
            [
                *(f"`{r['network']}`", r["gflop_trunk"], r["gflop_tail"], r["bound"], r["files_s"], r["memory_s"]),
                *(r["cached_s"], r["speedup_files"], r["speedup_memory"], r["gradient_gap"]),
            ]
            for r in caches
        ],
    )
    width, height = FILE_SIZE
    lines += [
        "",
        _text(
            "`objective.cache_frozen=true` against recomputing. What remains is the trained part, forward and",
            "backward: `bound` is (frozen + trained)/trained in floating-point operations, and no cache can save more",
            f"of the computation. A speed-up of {caches[0]['limit']:.0f} is asked where the bound is above that;",
            "ResNet18's last stage is too large a part of it. What is saved on top is reading and decoding",
            f"({width} × {height} JPEG files here). The first pass, which fills the cache, is not in it.",
        ),
        "",
        _text(
            f"κ over {one['n']:,} × {one['d']} features: {one['seconds']} s and {one['memory_mib']} MiB beside the",
            "features; the limits are 10 s and 200 MiB.",
        ),
        "",
    ]
    return "\n".join(lines)


def _grows(title: str, what: str, rows: Sequence[Row], variables: Sequence[str], text: str) -> str:
    lines = [f"## {title}", "", _text(text), ""]
    symbols = {"n": "N", "d": "D", "batch": "B"}
    for variable in variables:
        series = _series(rows, what, variable)
        exponent, r2 = fit_exponent([r["size"] for r in series], [r["seconds"] for r in series])
        last, _ = fit_exponent([r["size"] for r in series[-2:]], [r["seconds"] for r in series[-2:]])
        fixed = [f"{symbols[k]} = {series[0][k]:,}" for k in symbols if k != variable and series[0][k] is not None]
        memory = any(r["memory_mib"] is not None for r in series)
        header = [symbols[variable], "seconds", *(["MiB"] if memory else [])]
        body = [[f"{r['size']:,}", r["seconds"], *([r["memory_mib"]] if memory else [])] for r in series]
        lines += _table(header, body)
        lines += [
            "",
            _text(
                f"Time grows as {symbols[variable]}^{exponent:.2f} ({', '.join(fixed)}; R² {r2:.3f}), between the last",
                f"two as {symbols[variable]}^{last:.2f}.",
            ),
            "",
        ]
    return "\n".join(lines)


def _network(rows: Sequence[Row]) -> str:
    series = _series(rows, "step", "batch")
    exponent, r2 = fit_exponent([r["size"] for r in series], [r["seconds"] for r in series])
    lines = ["## Batch and network: a step", ""]
    lines += _table(["B", "seconds", "images/s"], [[r["size"], r["seconds"], _rate(r)] for r in series])
    lines += [
        "",
        _text(
            f"`{series[0]['network']}`: time grows as B^{exponent:.2f} (R² {r2:.3f}); what does not depend on B is the",
            "update of the weights.",
        ),
        "",
    ]
    networks = [r for r in rows if (r["what"], r["variable"]) == ("step", "network")]
    lines += _table(
        ["network", "D", "GFLOP an image", "seconds", "images/s", "GFLOP/s"],
        [
            [f"`{r['network']}`", r["d"], f"{_operations(r):.3f}", r["seconds"], _rate(r), f"{_speed(r):.1f}"]
            for r in networks
        ],
    )
    lines += [
        "",
        _text(
            f"B = {networks[0]['batch']}. GFLOP: frozen part forward, trained part forward and backward. Time follows",
            f"the operations, {min(map(_speed, networks)):.0f} to {max(map(_speed, networks)):.0f} GFLOP/s here.",
        ),
        "",
    ]
    return "\n".join(lines)


def _processes(rows: Sequence[Row]) -> str:
    series = _series(rows, "step of several processes", "processes")
    lines = ["## Processes", ""]
    lines += _table(
        ["processes", "step, s", "processor time of all, s", "exchange, s"],
        [[r["size"], r["seconds"], r["process_seconds"], r["exchange_seconds"]] for r in series],
    )
    first = series[0]
    lines += [
        "",
        _text(
            f"`{first['network']}`, B = {first['batch']} over all processes, gloo, one thread each; more processes",
            "than cores share them, so that their processor time says more than the step's length. Every process takes",
            "the spectra of the whole batch: that part does not shrink. The exchange is that of both data sets'",
            "features, there and back, and of the gradient.",
        ),
        "",
    ]
    return "\n".join(lines)


def _reading(rows: Sequence[Row]) -> str:
    series = _series(rows, "reading an image", "pixels")
    width, height = FILE_SIZE
    lines = ["## Reading images", ""]
    lines += _table(
        ["pixels", "ms an image", "images/s a core"],
        [[r["size"], f"{1e3 * r['process_seconds']:.2f}", f"{1 / r['process_seconds']:.0f}"] for r in series],
    )
    lines += ["", f"{width} × {height} JPEG files, decoded, resized and cropped to so many pixels; processor time.", ""]
    return "\n".join(lines)


def _imagenet(rows: Sequence[Row]) -> str:
    (large,) = [r for r in rows if r["what"] == "operations an image"]
    spectra = {r["batch"]: r["seconds"] for r in _series(rows, "spectra of a step", "processes")}
    read = 1 / _series(rows, "reading an image", "pixels")[-1]["process_seconds"]
    kappa = _pooled_seconds(rows, IMAGENET + IMAGENET_VAL + COUNTRY211 + COUNTRY211_TEST, large["d"])
    speed = PEAK_TFLOPS * SHARE * 1e12
    body = []
    for gpus, share in CASES:
        batch, link = share * gpus, WITHIN if gpus <= 8 else BETWEEN
        network = 2 * share * _operations(large) * 1e9 / speed
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
    lines += _table(
        [
            *("GPUs", "B", "network, ms", "spectra, ms", "exchange, ms", f"{EPOCHS} passes of Country211, steps: time"),
            *("one pass of ImageNet, steps: time", "features and pooled κ", "cores to read images"),
        ],
        body,
    )
    lines += [
        "",
        _text(
            f"ViT-L/16 at 224 px, last block trained: {large['gflop_trunk']:.0f} + {large['gflop_tail']:.0f} GFLOP an",
            f"image (counted). **Assumed, not measured**: {100 * SHARE:.0f} % of {PEAK_TFLOPS} TFLOP/s a GPU (NVIDIA's",
            "data sheet of the A100, bfloat16, also for the trained block),",
            f"{WITHIN / 1e9:.0f} and {BETWEEN / 1e9:.0f} GB/s within and between machines.",
            "Measured here: the spectra at these batches, on this machine's cores, the rate of reading, and the law of",
            "pooled κ.",
        ),
        "",
        _text(
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
    largest = _series(rows, "pooled kappa", "n")[-1]
    over_d = {row["d"]: row["seconds"] for row in _series(rows, "pooled kappa", "d")}
    return float(largest["seconds"] / largest["n"] * n * over_d[d] / over_d[largest["d"]])


def _operations(row: Row) -> float:
    return float(row["gflop_trunk"] + row["gflop_tail"])


def _rate(row: Row) -> str:
    return f"{2 * row['batch'] / row['seconds']:.0f}"


def _speed(row: Row) -> float:
    return float(2 * row["batch"] * _operations(row) / row["seconds"])


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _series(rows: Sequence[Row], what: str, variable: str) -> list[Row]:
    """Rows over one variable, ascending; with those of other series in which everything else is the same.

    Where two series have measured the same size, its own row counts.
    """
    own = [row for row in rows if (row["what"], row["variable"]) == (what, variable)]
    fixed = {key: own[0][key] for key in _SIZES if key != variable}
    if variable in _SIZES and own[0][variable] is not None:
        others = [row for row in rows if row["what"] == what and all(row[key] == fixed[key] for key in fixed)]
        own = list({row[variable]: row | {"size": row[variable]} for row in (*others, *own)}.values())
    return sorted(own, key=lambda row: float(row["size"]))


def _text(*parts: str) -> str:
    """A paragraph of lines that are not too long."""
    return textwrap.fill(" ".join(parts), 120, break_long_words=False, break_on_hyphens=False)


def _table(header: Sequence[str], body: Sequence[Sequence[Any]]) -> list[str]:
    return [
        f"| {' | '.join(header)} |",
        f"|{' --- |' * len(header)}",
        *(f"| {' | '.join(map(str, row))} |" for row in body),
    ]


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if __name__ == "__main__":
    (ROOT / PAGE).write_text(page(HERE), encoding="utf-8")
