"""`make closed_form_mnist`: the closed form on all 90 MNIST pairs, four budgets each, on `fit` and on held-out data.

    python -m experiments.closed_form_mnist [out=folder] [cache=folder] [data_root=data] [workers=2] [pairs=01,38]

Four budgets a pair, one ρ for all:

validated   the B of `BUDGETS` with the largest RIR (`ridge`) on a fifth of the images of `fit`, set aside
auto        `budget=auto` of `closed_form`, on the same fifth
auto_ridge  the same with ``estimator="ridge", harder_by=1``, which `choose_budget` recommends for such data
defining    the smallest B, to `PRECISION`, with (i) ≥ 2 by `spectrum` on `fit`: where (a) of Definition 3.1 begins

Everything is computed in an orthonormal basis of the span of all images of a pair, training and test (n of D = 784
columns), in which every spectrum is the same (`spectrum.ranges`); ρ counts tr(K)/D as it does in D columns. Pairs that
are done are kept below outputs/closed_form_mnist, so that the same command goes on where it stopped.

Shapes: N images, D = 784 pixels, n columns of the joint range.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.reporting import key_values, provenance_lines, write_csv
from immunize.cli import entry_point, explain_errors
from immunize.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from immunize.evaluation.decomposition import Decomposition, Rows

NAME = "closed_form_mnist"
PIXELS = 784
RHO = 3e-2
"""ρ of the map: the best on MNIST by cross-validation (docs/closed_form.md)."""

BUDGETS = (1.0, 3.0, 10.0, 30.0, 100.0)
VALIDATION_FRACTION, SEED = 0.2, 0
LIMIT = 40_000
"""Steps of gradient descent with exact line search after which the count is given up."""

HARDER_BY, RATIO_GROWTH, MEAN_RIR = 2.0, 5.0, 10.0
PRECISION = 1.3
LARGEST_BUDGET = 1e12
CHOICES = ("validated", "auto", "auto_ridge", "defining")
DIGITS = range(10)
CORES, LIMIT_S = 2, 180.0
"""Asked of the closed form: seconds for 90 pairs on so many cores."""

SETTINGS = [RHO, list(BUDGETS), VALIDATION_FRACTION, SEED, LIMIT, HARDER_BY, PRECISION, LARGEST_BUDGET]
"""What the numbers of a pair depend on; those with others are computed anew."""


@entry_point
def main() -> None:
    """Run what is missing, then write results.csv and README.md."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> Path:
    """Run the pairs and write the report; see the module's note.

    Raises:
        UserError: a bad argument, or MNIST is missing.
    """
    given = key_values(arguments, {"out", "data_root", "workers", "pairs", "cache"})
    root = given.get("data_root") or os.environ.get("IMMUNIZE_DATA", "data")
    pairs = parse_pairs(given.get("pairs", ""))
    cache, out = Path(given.get("cache", f"outputs/{NAME}")), Path(given.get("out", f"experiments/{NAME}"))
    from immunize.data.mnist import Mnist

    Mnist(root, pairs[0], "pretrain").require()
    started = time.perf_counter()
    # Both orders of a pair share their images, so that they belong to one worker.
    todo: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for pair in pairs:
        if _done(cache, pair) is None:
            todo.setdefault(tuple(sorted(pair)), []).append(pair)
    with ProcessPoolExecutor(int(given.get("workers", 2)), get_context("spawn")) as pool:
        for done in pool.map(functools.partial(run_pairs, root=root, cache=cache), todo.values()):
            print(f"done: {', '.join(f'{p}→{h}' for p, h in done)}", file=sys.stderr, flush=True)
    wall = time.perf_counter() - started
    rows = [row for pair in pairs if (row := _done(cache, pair)) is not None]
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "results.csv", [flat(row) for row in rows])
    readme = readme_of(rows, wall if sum(map(len, todo.values())) == len(pairs) else None)
    (out / "README.md").write_text(readme, encoding="utf-8")
    print(readme, end="")
    return out


def parse_pairs(text: str) -> list[tuple[int, int]]:
    """ "01,38" to [(0, 1), (3, 8)]; all 90 ordered pairs for an empty text.

    Raises:
        UserError: not pairs of two different digits.
    """
    if not text:
        return [(p, h) for p in DIGITS for h in DIGITS if p != h]
    words = text.split(",")
    for word in words:
        if len(word) != 2 or not word.isdecimal() or word[0] == word[1]:
            raise UserError(f"pairs={text}: write two different digits a pair, as in pairs=01,38")
    return [(int(word[0]), int(word[1])) for word in words]


def run_pairs(pairs: list[tuple[int, int]], *, root: str, cache: Path) -> list[tuple[int, int]]:
    """Both orders of a pair of digits, or one; writes a file each."""
    import torch

    torch.set_num_threads(1)
    sides, pixels = _images(root, tuple(sorted(pairs[0])))
    for pair in pairs:
        clock = time.process_time()
        row = measure_pair(*(sides[digit] for digit in pair))
        spent = {"cpu_seconds": time.process_time() - clock}
        spent |= time_alone(*(pixels[digit] for digit in pair), row["validated"]["budget"])
        row = {"pair": list(pair), "settings": SETTINGS, **row, **spent}
        cache.mkdir(parents=True, exist_ok=True)
        partial = cache / f".{_file(pair)}"
        partial.write_text(json.dumps(row) + "\n", encoding="utf-8")
        os.replace(partial, cache / _file(pair))
    return pairs


def time_alone(pretrain: Tensor, harmful: Tensor, budget: float) -> dict[str, float]:
    """Seconds that `closed_form` takes from pixels to θ, by the clock and of this process.

    Args:
        pretrain: (N_P, D) training images of D_P's digit.
        harmful: (N_H, D), of D_H's.
        budget: B.
    """
    from immunize.spectrum import closed_form

    wall, cpu = time.perf_counter(), time.process_time()
    closed_form(pretrain, harmful, budget=budget, shrinkage=RHO)
    return {"alone_seconds": time.perf_counter() - wall, "alone_cpu_seconds": time.process_time() - cpu}


class Side:
    """Images of one digit in the coordinates of the joint range, reduced, with what the raw pixels make of them.

    Args:
        fit: (N, n) training images.
        held_out: (M, n) test images.
    """

    def __init__(self, fit: Tensor, held_out: Tensor) -> None:
        import torch

        from immunize.evaluation.decomposition import compress, decompose

        order = torch.randperm(len(fit), generator=torch.Generator().manual_seed(SEED))
        self.fit, self.aside = fit, fit[order[: round(VALIDATION_FRACTION * len(fit))]]
        self.gram, self.gram_aside = (x.T @ x for x in (self.fit, self.aside))
        # The targets are constant, +1 or -1: a sign that changes neither spectrum, nor loss, nor norm ratio.
        self.rows = {
            part: compress(x, torch.ones(len(x), dtype=torch.float64))
            for part, x in (("fit", fit), ("held_out", held_out))
        }
        self.raw = {part: decompose(rows) for part, rows in self.rows.items()}
        self.raw_steps = steps_of(self.raw["held_out"])


def measure_pair(pretrain: Side, harmful: Side) -> dict[str, Any]:
    """Every number of one ordered pair."""
    from immunize.spectrum import choose_budget, frontier, generalized_spectrum

    n = len(pretrain.gram)
    shrinkage = RHO * n / PIXELS  # of tr(K)/n: the same α as ρ of tr(K)/D
    counts = len(pretrain.fit), len(harmful.fit)
    spectrum = generalized_spectrum(pretrain.gram, harmful.gram, n_samples=counts, shrinkage=shrinkage)
    rest = generalized_spectrum(
        pretrain.gram - pretrain.gram_aside,
        harmful.gram - harmful.gram_aside,
        n_samples=(counts[0] - len(pretrain.aside), counts[1] - len(harmful.aside)),
        shrinkage=shrinkage,
    )
    auto = choose_budget(rest, pretrain.aside, [harmful.aside])
    by_ridge = choose_budget(rest, pretrain.aside, [harmful.aside], estimator="ridge", harder_by=1.0)
    validated = max(BUDGETS, key=lambda budget: _log_rir_aside(frontier(rest, budget).theta, pretrain, harmful))
    budgets = {
        "validated": validated,
        "auto": auto.budget,
        "auto_ridge": by_ridge.budget,
        "defining": defining_budget(lambda budget: _ratio(frontier(spectrum, budget).theta, harmful)),
    }
    found: dict[str, Any] = {
        "columns": n,
        "kappa_gen": spectrum.kappa_gen,
        "rir_star": spectrum.rir_star,
        "rir_star_held_out": _ridge(frontier(spectrum, 1.0).theta, pretrain, harmful)["rir"],
        "auto_feasible": auto.feasible,
        "auto_ridge_feasible": by_ridge.feasible,
        "steps_raw": {"pretrain": pretrain.raw_steps, "harmful": harmful.raw_steps},
    }
    for name, budget in budgets.items():
        found[name] = {"budget": budget, **_evaluated(frontier(spectrum, budget).theta, pretrain, harmful)}
    return found


def _evaluated(theta: Tensor, pretrain: Side, harmful: Side) -> dict[str, Any]:
    """The verdicts on `fit` and, on held-out images, RIR by `ridge` and the steps of both probes."""
    from immunize.evaluation.decomposition import decompose
    from immunize.evaluation.immunity import EASE_SLACK, LOSS_SLACK

    raw = pretrain.raw["fit"]
    after = decompose(pretrain.rows["fit"], theta)
    ratio_pretrain, ratio_harmful = _kappa(after) / _kappa(raw), _ratio(theta, harmful)
    held_out = {"pretrain": pretrain, "harmful": harmful}
    return {
        "ratio_harmful_fit": ratio_harmful,
        "ratio_pretrain_fit": ratio_pretrain,
        "a": ratio_harmful >= HARDER_BY,
        "b": ratio_pretrain <= 1 + EASE_SLACK,
        "c": after.loss - raw.loss <= LOSS_SLACK * raw.energy,
        "ridge_held_out": _ridge(theta, pretrain, harmful),
        "steps": {role: steps_of(decompose(of.rows["held_out"], theta)) for role, of in held_out.items()},
    }


def defining_budget(ratio: Any) -> float:
    """The smallest B, to a factor of `PRECISION`, at which (i) is `HARDER_BY`; else `LARGEST_BUDGET`.

    Args:
        ratio: (i) as a function of B, growing.
    """
    low, high = 1.0, 100.0
    if ratio(low) >= HARDER_BY:
        return low
    while ratio(high) < HARDER_BY:
        low, high = high, high * 100.0
        if high > LARGEST_BUDGET:
            return LARGEST_BUDGET
    while high > low * PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if ratio(middle) >= HARDER_BY else (middle, high)
    return high


def steps_of(found: Decomposition) -> int | None:
    """Steps to a norm ratio of 0.1; None beyond `LIMIT`."""
    from immunize.evaluation.probe import norm_ratio_curve

    k = found.spectrum.rank
    for limit in (LIMIT // 100, LIMIT // 10, LIMIT):  # most curves are short
        steps = norm_ratio_curve(found.spectrum.values[:k], found.optimum, steps=limit).steps_to[0.1]
        if steps is not None:
            return steps
    return None


def growth(row: dict[str, Any], name: str) -> tuple[float, bool] | None:
    """Steps D_H : D_P over the same ratio of raw pixels, and whether it is only a lower bound.

    None where the raw ratio is not known, or D_P takes more than the limit.
    """
    steps, raw = row[name]["steps"], row["steps_raw"]
    if None in (steps["pretrain"], raw["pretrain"], raw["harmful"]):
        return None
    harmful = LIMIT if steps["harmful"] is None else steps["harmful"]
    return harmful / steps["pretrain"] / (raw["harmful"] / raw["pretrain"]), steps["harmful"] is None


def never_fewer(row: dict[str, Any], name: str) -> bool | None:
    """Whether D_H takes at least the steps of raw pixels; None if both are beyond the limit."""
    steps, raw = row[name]["steps"]["harmful"], row["steps_raw"]["harmful"]
    if steps is None:
        return None if raw is None else True
    return raw is not None and steps >= raw


# --- linear algebra of one pair -----------------------------------------------------------------------------------


def _images(root: str, digits: tuple[int, ...]) -> tuple[dict[int, Side], dict[int, Tensor]]:
    """Both digits' images, balanced against each other as every run has them, in the joint range of all of them.

    And the (N, D) pixels of the training images.
    """
    from immunize.data.mnist import Mnist
    from immunize.spectrum import compress_rows, joint_basis

    parts = {
        digit: Mnist(root, (digit, other), "pretrain").load() for digit, other in zip(digits, digits[::-1], strict=True)
    }
    rows = {digit: (of.fit.x, of.held_out.x) for digit, of in parts.items() if of.held_out is not None}
    basis = joint_basis(*(compress_rows(x) for pair in rows.values() for x in pair))
    sides = {digit: Side(fit @ basis, held_out @ basis) for digit, (fit, held_out) in rows.items()}
    return sides, {digit: fit for digit, (fit, _) in rows.items()}


def _kappa(found: Decomposition) -> float:
    values = found.spectrum.values
    return float(values[0] / values[found.spectrum.rank - 1])


def _ratio(theta: Tensor, side: Side) -> float:
    """κ(H(θ))/κ(H(I)) by `spectrum` on `fit`."""
    from immunize.spectrum import condition_number, spectrum_of

    rows = side.rows["fit"]
    after = spectrum_of(rows.x @ theta, n_samples=rows.spectrum.n_samples, rank_of_data=len(rows.x))
    return condition_number(after).value / _kappa(side.raw["fit"])


def _ridge(theta: Tensor, pretrain: Side, harmful: Side) -> dict[str, float]:
    """(i), (ii) and RIR by `ridge` on held-out images, α of D = 784 columns."""
    from immunize.spectrum import immunization_ratio

    sides = [side.rows["held_out"] for side in (pretrain, harmful)]
    after, before = [_spectrum(rows, theta) for rows in sides], [_spectrum(rows, None) for rows in sides]
    ratio = immunization_ratio(after[0], after[1], before[0], before[1], "ridge")
    return {"ratio_harmful": ratio.ratio_harmful, "ratio_pretrain": ratio.ratio_pretrain, "rir": ratio.rir}


def _spectrum(rows: Rows, theta: Tensor | None) -> Any:
    from immunize.spectrum import spectrum_of

    n = rows.spectrum.n_samples
    found = rows.spectrum if theta is None else spectrum_of(rows.x @ theta, n_samples=n, rank_of_data=len(rows.x))
    return replace(found, n_features=PIXELS)


def _log_rir_aside(theta: Tensor, pretrain: Side, harmful: Side) -> float:
    """log RIR by `ridge` on the images set aside; (i)/(ii) up to the raw pixels' constant factor."""
    from immunize.spectrum.budget import kappa_of_gram

    kappas = [
        kappa_of_gram(theta.T @ side.gram_aside @ theta, len(side.aside), "ridge", 1e-2, PIXELS)
        for side in (pretrain, harmful)
    ]
    return math.log(kappas[1] / kappas[0])


# --- the report ---------------------------------------------------------------------------------------------------


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """One line of results.csv."""
    line: dict[str, Any] = {
        "pretrain_digit": row["pair"][0],
        "harmful_digit": row["pair"][1],
        **{
            key: row[key]
            for key in ("columns", "kappa_gen", "rir_star", "rir_star_held_out", "auto_feasible", "auto_ridge_feasible")
        },
        "steps_raw_pretrain": row["steps_raw"]["pretrain"],
        "steps_raw_harmful": row["steps_raw"]["harmful"],
    }
    for name in CHOICES:
        of = row[name]
        line |= {
            f"{name}_{key}": of[key] for key in ("budget", "ratio_harmful_fit", "ratio_pretrain_fit", "a", "b", "c")
        }
        line |= {f"{name}_ridge_held_out_{key}": value for key, value in of["ridge_held_out"].items()}
        line |= {f"{name}_steps_{role}_held_out": value for role, value in of["steps"].items()}
    return line | {key: round(row[key], 2) for key in ("cpu_seconds", "alone_seconds", "alone_cpu_seconds")}


def readme_of(rows: list[dict[str, Any]], wall: float | None) -> str:
    """What was asked, what came out, and which pairs miss."""
    lines = [
        "# The closed form on all pairs of MNIST",
        "",
        *provenance_lines(
            f"make {NAME}",
            [
                ("pairs", f"{len(rows)} of 90 ordered pairs"),
                ("ρ", f"{RHO:g} for every pair"),
                ("everything below", f"{_mean(rows, 'cpu_seconds'):.1f} s of CPU time a pair, on one thread"),
                ("wall time", "not measured: some pairs were done before" if wall is None else f"{wall:.0f} s"),
            ],
        ),
        "",
        time_of(rows),
        "",
        "Four budgets a pair: `validated`, the B of "
        + ", ".join(f"{b:g}" for b in BUDGETS)
        + " with the largest RIR (`ridge`) on a fifth of `fit` set aside; `auto`, `budget=auto` on the same fifth; "
        "`auto_ridge`, the same by `ridge` and (i) ≥ 1; "
        "`defining`, the smallest B with (i) ≥ 2 by `spectrum` on `fit`. Steps are those of gradient descent with "
        f"exact line search to a norm ratio of 0.1, at most {LIMIT:,}, on held-out images.",
        "",
        "| number | asked | " + " | ".join(f"`{name}`" for name in CHOICES) + " |",
        "| --- | --- | " + " | ".join("---" for _ in CHOICES) + " |",
        *(
            f"| {title} | {asked} | {' | '.join(cell(rows, name) for name in CHOICES)} |"
            for title, asked, cell in TABLE
        ),
        "",
        *_missing(rows),
        "`results.csv` has every number of every pair.",
        "",
    ]
    return "\n".join(lines)


def time_of(rows: list[dict[str, Any]]) -> str:
    """A sentence about the closed form's own time."""
    cpu, wall = (sum(row[key] for row in rows) for key in ("alone_cpu_seconds", "alone_seconds"))
    least = cpu / CORES
    return (
        f"The closed form alone, `closed_form(x_P, x_H, budget=B, shrinkage={RHO:g})` from pixels to θ, takes "
        f"{cpu / len(rows):.2f} s of CPU time a pair on one thread ({wall / len(rows):.2f} s by the clock), "
        f"{cpu:.0f} s for the {len(rows)} pairs, which is {least:.0f} s on {CORES} cores. Asked for 90 pairs: at most "
        f"{LIMIT_S:g} s, which {'holds' if least / len(rows) * 90 <= LIMIT_S else 'is **missed**'}."
    )


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    return float(sum(row[key] for row in rows) / len(rows))


def _budget(rows: list[dict[str, Any]], name: str) -> str:
    values = sorted(row[name]["budget"] for row in rows)
    return f"{values[len(values) // 2]:.3g} ({values[0]:.3g} to {values[-1]:.3g})"


def _verdict(key: str) -> Any:
    return lambda rows, name: f"{sum(row[name][key] for row in rows)} of {len(rows)}"


def _all_verdicts(rows: list[dict[str, Any]], name: str) -> str:
    return f"{sum(all(row[name][key] for key in 'abc') for row in rows)} of {len(rows)}"


def _mean_rir(rows: list[dict[str, Any]], name: str) -> str:
    values = sorted(row[name]["ridge_held_out"]["rir"] for row in rows)
    return f"{sum(values) / len(values):.3g} ({values[0]:.3g} to {values[-1]:.3g})"


def _ratio_harmful(rows: list[dict[str, Any]], name: str) -> str:
    values = sorted(row[name]["ridge_held_out"]["ratio_harmful"] for row in rows)
    return f"{values[len(values) // 2]:.3g} ({values[0]:.3g} to {values[-1]:.3g})"


def _grown(rows: list[dict[str, Any]], name: str) -> str:
    found = [growth(row, name) for row in rows]
    reached = sum(one is not None and one[0] >= RATIO_GROWTH for one in found)
    known = [one for one in found if one is not None]
    least = min(known, default=None)
    unknown = len(rows) - len(known)
    text = f"{reached} of {len(rows)}"
    if least is not None:
        text += f", the least {'at least ' if least[1] else ''}{least[0]:.3g}"
    return text + (f", {unknown} not determined" if unknown else "")


def _not_fewer(rows: list[dict[str, Any]], name: str) -> str:
    found = [never_fewer(row, name) for row in rows]
    unknown = found.count(None)
    return f"{found.count(True)} of {len(rows)}" + (f", {unknown} not determined" if unknown else "")


TABLE = (
    ("B, median and range", "", _budget),
    ("(a) on `fit`, `spectrum`: (i) ≥ 2", "every pair", _verdict("a")),
    ("(b) on `fit`, `spectrum`: (ii) ≤ 1", "every pair", _verdict("b")),
    ("(c) on `fit`: the best loss of D_P", "every pair", _verdict("c")),
    ("(a), (b) and (c) on `fit`", "every pair", _all_verdicts),
    ("held-out RIR, `ridge` ρ = 0.01, mean and range", f"mean ≥ {MEAN_RIR:g}", _mean_rir),
    ("held-out (i), `ridge`, median and range", "", _ratio_harmful),
    ("held-out steps D_H : D_P grow over raw pixels' by ≥ 5", "every pair", _grown),
    ("held-out D_H takes no fewer steps than on raw pixels", "every pair, with `auto`", _not_fewer),
)


def _missing(rows: list[dict[str, Any]]) -> list[str]:
    """Pairs that miss what was asked, with their forecast; for each of the numbers the budget that it is asked of."""
    wanted = (
        ("(a), (b) and (c) with `defining`", lambda row: all(row["defining"][key] for key in "abc")),
        (
            "steps D_H : D_P ≥ 5 times raw pixels' with `validated`",
            lambda row: (found := growth(row, "validated")) is not None and found[0] >= RATIO_GROWTH,
        ),
        ("D_H no fewer steps with `auto`", lambda row: never_fewer(row, "auto") is not False),
        ("D_H no fewer steps with `auto_ridge`", lambda row: never_fewer(row, "auto_ridge") is not False),
    )
    lines = []
    for title, holds in wanted:
        missed = [row for row in rows if not holds(row)]
        if missed:
            lines.append(f"Missed, {title}, {len(missed)} pairs with their forecast RIR* / held-out RIR*: ")
            lines[-1] += ", ".join(
                f"{row['pair'][0]}→{row['pair'][1]} ({row['rir_star']:.3g} / {row['rir_star_held_out']:.3g})"
                for row in missed
            )
            lines[-1] += "."
        else:
            lines.append(f"No pair misses: {title}.")
        lines.append("")
    return lines


def _file(pair: tuple[int, int]) -> str:
    return f"{pair[0]}_{pair[1]}.json"


def _done(cache: Path, pair: tuple[int, int]) -> dict[str, Any] | None:
    """The numbers of a pair, if they are there."""
    path = cache / _file(pair)
    row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return row if row.get("settings") == SETTINGS else None


if __name__ == "__main__":
    main()
