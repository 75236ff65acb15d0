"""How time and memory of one Algorithm 1 step grow with D, N and batch size B, in both modes, one process a point.

Writes scaling.csv (the points), exponents.csv (least squares of log cost on log size) and scaling.png, scaling.pdf.
Promised: no step of the mini-batch mode grows faster than D².
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.bench.machine import show, write_csv

if TYPE_CHECKING:
    from experiments.bench.point import Point

D_VALUES, N_VALUES, BATCH_SIZES = (79, 256, 784, 2048), (1024, 4096, 16384), (16, 64, 256)
D_BEYOND = 4096
"""For mini-batches only: between 784 and 2048 θ outgrows the caches, so the largest step is taken where it has."""
D_FIXED, N_FIXED, BATCH_FIXED = 784, 4096, 64
LIMIT = 2.0
"""Largest exponent of D that a mini-batch step may have."""
SECONDS_A_POINT = 3.0
SMALLEST_MIB = 1.0
"""Less growth of the resident set than this is not told apart from the allocator's own doings."""
QUANTITIES = ("step_ms", "memory_mib")
VARIABLES = ("d", "n", "batch")


def points() -> list[Point]:
    """All points, with one thread and with one a core."""
    from experiments.bench.point import Point

    chosen = []
    for threads in sorted({1, os.cpu_count() or 1}):
        base = Point("mini-batch", D_FIXED, N_FIXED, BATCH_FIXED, threads)
        chosen += [replace(base, d=d, batch=batch) for d in (*D_VALUES, D_BEYOND) for batch in BATCH_SIZES]
        chosen += [replace(base, n=n) for n in N_VALUES]
        base = replace(base, mode="full", batch=None)
        chosen += [replace(base, d=d) for d in D_VALUES] + [replace(base, n=n) for n in N_VALUES]
    return list(dict.fromkeys(chosen))


def measure_points(chosen: Iterable[Point], seconds: float) -> Iterator[dict[str, Any]]:
    """Measure one after the other, each in a fresh process that comes with torch imported and nothing else done.

    Args:
        chosen: where.
        seconds: how long to repeat the step at each.

    Yields:
        a row of scaling.csv each, see :func:`experiments.bench.point.measure`.
    """
    from experiments.bench.point import measure

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.bench.point"])
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for point in chosen:
            yield pool.submit(measure, point, seconds).result()


def fit_exponent(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Least squares of log cost = a + p·log size.

    Args:
        sizes: at least two different, positive.
        costs: positive.

    Returns:
        p, and R² (1 where the costs are all equal).
    """
    x, y = np.log(sizes), np.log(costs)
    power, offset = np.polyfit(x, y, 1)
    spread = float(np.square(y - y.mean()).sum())
    residual = float(np.square(y - offset - power * x).sum())
    return float(power), 1 - residual / spread if spread > 0 else 1.0


def exponents(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fitted exponent of every series of at least three points that differ in one variable only.

    Args:
        rows: of scaling.csv.

    Returns:
        rows of exponents.csv: quantity, variable, what is fixed, the sizes, exponent and R², and the exponent
        between the two largest sizes alone. Memory is fitted to the points where it grew by 1 MiB or more.
    """
    fitted = []
    for quantity in QUANTITIES:
        for variable in VARIABLES:
            for fixed, series in _series(rows, variable).items():
                used = [row for row in series if quantity != "memory_mib" or row[quantity] >= SMALLEST_MIB]
                if len(used) < 3:
                    continue
                sizes, costs = [row[variable] for row in used], [row[quantity] for row in used]
                exponent, r2 = fit_exponent(sizes, costs)
                mode, rest = fixed
                fitted.append(
                    {
                        "quantity": quantity,
                        "mode": mode,
                        "variable": _symbol(variable),
                        **{_symbol(name): value for name, value in rest},
                        _symbol(variable): " ".join(map(str, sizes)),
                        "exponent": round(exponent, 3),
                        "r2": round(r2, 4),
                        "last_exponent": round(fit_exponent(sizes[-2:], costs[-2:])[0], 3),
                    }
                )
    keys = ("quantity", "mode", "variable", "threads", "D", "N", "B", "exponent", "r2", "last_exponent")
    return [{key: row[key] for key in keys} for row in fitted]


def run(out: Path) -> None:
    """Measure, fit, draw and write.

    Args:
        out: the folder of results.
    """
    from experiments.bench.figure import scaling_figure

    chosen = points()
    rows = []
    for row in measure_points(chosen, SECONDS_A_POINT):
        rows.append(row)
        batch = f" B={row['batch']}" if row["batch"] else ""
        print(
            f"{len(rows)}/{len(chosen)} {row['mode']} D={row['d']} N={row['n']}{batch} threads={row['threads']}: "
            f"{row['step_ms']:.3g} ms, {row['memory_mib']:.3g} MiB",
            file=sys.stderr,
        )
    fitted = exponents(rows)
    write_csv(out / "scaling.csv", rows)
    write_csv(out / "exponents.csv", fitted)
    scaling_figure(rows, fitted, out / "scaling")
    show("cost of a step ~ size^exponent", fitted)


def _series(rows: Sequence[dict[str, Any]], variable: str) -> dict[tuple[str, Any], list[dict[str, Any]]]:
    """Rows that differ in `variable` alone, ascending in it, by their mode and everything else."""
    rest = [name for name in (*VARIABLES, "threads") if name != variable]
    found: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    for row in rows:
        if row[variable] is not None:
            found.setdefault((row["mode"], tuple((name, row[name]) for name in rest)), []).append(row)
    return {fixed: sorted(series, key=lambda row: int(row[variable])) for fixed, series in found.items()}


def _symbol(name: str) -> str:
    return {"d": "D", "n": "N", "batch": "B"}.get(name, name)
