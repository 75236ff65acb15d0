"""What `experiments.closed_form_mnist` makes of its pairs: lines of the CSV, counts of what was asked, README."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.closed_form_mnist.pair import BUDGETS, LIMIT, RHO
from experiments.reporting import provenance_lines

NAME = "closed_form_mnist"
RATIO_GROWTH, MEAN_RIR = 5.0, 10.0
CHOICES = ("validated", "auto", "auto_ridge", "defining")
CORES, LIMIT_S = 2, 180.0
"""Asked of the closed form: seconds for 90 pairs on so many cores."""


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
    wanted: tuple[tuple[str, Callable[[dict[str, Any]], bool]], ...] = (
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
