"""scaling.md from the results of the bench: every number on the page is one of theirs, or computed from them here.

Every bench writes it anew at its end, and so does `python -m experiments.bench table`, which measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from experiments.bench.deep_parts import FILE_SIZE
from experiments.bench.rows import Row, operations, paragraph, read, series_over, table
from experiments.bench.scaling import fit_exponent

__all__ = ["PAGE", "page"]

PAGE = "experiments/bench/scaling.md"


def page(results: Path) -> str:
    """The text of scaling.md.

    Args:
        results: the folder with deep_*.csv and machine.json.

    Raises:
        FileNotFoundError: a part of the bench was not run.
    """
    rows = read(results / "deep_scaling.csv")
    steps, caches, pooled = (read(results / f"deep_{name}.csv") for name in ("step", "cache", "pooled"))
    machine = json.loads((results / "machine.json").read_text(encoding="utf-8"))["deep_scaling"]
    sections = [
        _head(machine, rows),
        _limits(steps, caches, pooled),
        _grows("N and D: κ over all rows", "pooled kappa", rows, ("n", "d"), _POOLED),
        _grows("Batch and D: the spectra of a step", "spectra of a step", rows, ("batch", "d"), _SPECTRA),
        _network(rows),
        _processes(rows),
        _reading(rows),
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
    about = paragraph(
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
    lines += table(
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
        paragraph(
            f"A step may cost {steps[0]['limit']:.2f} times what the same two forward passes and the backward pass",
            "cost. It has the checks and the copy of the last finite weights in it.",
        ),
        "",
    ]
    lines += table(
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
        paragraph(
            "`objective.cache_frozen=true` against recomputing. What remains is the trained part, forward and",
            "backward: `bound` is (frozen + trained)/trained in floating-point operations, and no cache can save more",
            f"of the computation. A speed-up of {caches[0]['limit']:.0f} is asked where the bound is above that;",
            "ResNet18's last stage is too large a part of it. What is saved on top is reading and decoding",
            f"({width} × {height} JPEG files here). The first pass, which fills the cache, is not in it.",
        ),
        "",
        paragraph(
            f"κ over {one['n']:,} × {one['d']} features: {one['seconds']} s and {one['memory_mib']} MiB beside the",
            "features; the limits are 10 s and 200 MiB.",
        ),
        "",
    ]
    return "\n".join(lines)


def _grows(title: str, what: str, rows: Sequence[Row], variables: Sequence[str], text: str) -> str:
    lines = [f"## {title}", "", paragraph(text), ""]
    symbols = {"n": "N", "d": "D", "batch": "B"}
    for variable in variables:
        series = series_over(rows, what, variable)
        exponent, r2 = fit_exponent([r["size"] for r in series], [r["seconds"] for r in series])
        last, _ = fit_exponent([r["size"] for r in series[-2:]], [r["seconds"] for r in series[-2:]])
        fixed = [f"{symbols[k]} = {series[0][k]:,}" for k in symbols if k != variable and series[0][k] is not None]
        memory = any(r["memory_mib"] is not None for r in series)
        header = [symbols[variable], "seconds", *(["MiB"] if memory else [])]
        body = [[f"{r['size']:,}", r["seconds"], *([r["memory_mib"]] if memory else [])] for r in series]
        lines += table(header, body)
        lines += [
            "",
            paragraph(
                f"Time grows as {symbols[variable]}^{exponent:.2f} ({', '.join(fixed)}; R² {r2:.3f}), between the last",
                f"two as {symbols[variable]}^{last:.2f}.",
            ),
            "",
        ]
    return "\n".join(lines)


def _network(rows: Sequence[Row]) -> str:
    series = series_over(rows, "step", "batch")
    exponent, r2 = fit_exponent([r["size"] for r in series], [r["seconds"] for r in series])
    lines = ["## Batch and network: a step", ""]
    lines += table(["B", "seconds", "images/s"], [[r["size"], r["seconds"], _rate(r)] for r in series])
    lines += [
        "",
        paragraph(
            f"`{series[0]['network']}`: time grows as B^{exponent:.2f} (R² {r2:.3f}); what does not depend on B is the",
            "update of the weights.",
        ),
        "",
    ]
    networks = [r for r in rows if (r["what"], r["variable"]) == ("step", "network")]
    lines += table(
        ["network", "D", "GFLOP an image", "seconds", "images/s", "GFLOP/s"],
        [
            [f"`{r['network']}`", r["d"], f"{operations(r):.3f}", r["seconds"], _rate(r), f"{_speed(r):.1f}"]
            for r in networks
        ],
    )
    lines += [
        "",
        paragraph(
            f"B = {networks[0]['batch']}. GFLOP: frozen part forward, trained part forward and backward. Time follows",
            f"the operations, {min(map(_speed, networks)):.0f} to {max(map(_speed, networks)):.0f} GFLOP/s here.",
        ),
        "",
    ]
    return "\n".join(lines)


def _processes(rows: Sequence[Row]) -> str:
    series = series_over(rows, "step of several processes", "processes")
    lines = ["## Processes", ""]
    lines += table(
        ["processes", "step, s", "processor time of all, s", "exchange, s"],
        [[r["size"], r["seconds"], r["process_seconds"], r["exchange_seconds"]] for r in series],
    )
    first = series[0]
    lines += [
        "",
        paragraph(
            f"`{first['network']}`, B = {first['batch']} over all processes, gloo, one thread each; more processes",
            "than cores share them, so that their processor time says more than the step's length. Every process takes",
            "the spectra of the whole batch: that part does not shrink. The exchange is that of both data sets'",
            "features, there and back, and of the gradient.",
        ),
        "",
    ]
    return "\n".join(lines)


def _reading(rows: Sequence[Row]) -> str:
    series = series_over(rows, "reading an image", "pixels")
    width, height = FILE_SIZE
    lines = ["## Reading images", ""]
    lines += table(
        ["pixels", "ms an image", "images/s a core"],
        [[r["size"], f"{1e3 * r['process_seconds']:.2f}", f"{1 / r['process_seconds']:.0f}"] for r in series],
    )
    lines += ["", f"{width} × {height} JPEG files, decoded, resized and cropped to so many pixels; processor time.", ""]
    return "\n".join(lines)


def _rate(row: Row) -> str:
    return f"{2 * row['batch'] / row['seconds']:.0f}"


def _speed(row: Row) -> float:
    return float(2 * row["batch"] * operations(row) / row["seconds"])
