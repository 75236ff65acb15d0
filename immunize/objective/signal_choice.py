"""γ, B and q of the label-aware map, by what a probe costs on rows set aside.

Of all (γ, B, q), those count under which on these rows

    D_P     is no worse conditioned, (ii) ≤ `ease_limit` (of the covariances with their ρ), and a probe of its own task
            scores within `slack` of the raw features' probe
    benign  likewise the probe of a third task, where one is given

and the one is taken for which learning the harmful task takes the most steps, the geometric mean of gradient descent's
and Adam's (`attacker_cost`). q is the sharpness of `spectrum.sparing`: on how few directions B is spent. γ = 0 with
q = 1 is in the grid and is `closed_form` with the same ρ, so the choice says by itself whether the labels were of use.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from immunize.objective.attacker_cost import Baseline, Cost, ProbeTask, baseline, cost, descent
from immunize.spectrum import SignalDirections, SignalMap, sharpen, signal_map

__all__ = ["BUDGETS", "GAMMAS", "SHARPNESSES", "SignalChoice", "SignalTrial", "choose"]

GAMMAS = (0.0, 0.125, 0.25, 0.5)
BUDGETS = (1.0, 10.0, 100.0, 1000.0)
SHARPNESSES = (1.0, 4.0, 16.0)
"""What "auto" tries (ours)."""

LIMIT, SCORE_STEPS = 1000, 300
"""Steps after which a probe counts as too dear, and at which the tasks to be spared are scored."""


@dataclass(frozen=True)
class SignalTrial:
    """One (γ, B, q) on the validation rows.

    Attributes:
        gamma: γ.
        budget: B.
        sharpness: q.
        ratio_pretrain: (ii) of the covariances with their ρ.
        ratio_harmful: (i), likewise.
        harmful: what D_H costs.
        times: geometric mean over gradient descent and Adam of the steps that D_H takes, over those it takes raw.
        spared: name of a task to be spared to its score less the raw features' score.
        feasible: every constraint holds.
    """

    gamma: float
    budget: float
    sharpness: float
    ratio_pretrain: float
    ratio_harmful: float
    harmful: Cost
    times: float
    spared: dict[str, float]
    feasible: bool


@dataclass(frozen=True)
class SignalChoice:
    """How γ, B and q were chosen.

    Attributes:
        gamma: γ.
        budget: B.
        sharpness: q.
        feasible: the constraints hold on the validation rows.
        closed_form: the best feasible trial with γ = 0 and q = 1; None where there is none.
        without_labels: the best feasible one with γ = 0; likewise.
        trials: everything that was measured.
        harmful: the raw features' cost of D_H.
        reason: in plain words.
    """

    gamma: float
    budget: float
    sharpness: float
    feasible: bool
    closed_form: SignalTrial | None
    without_labels: SignalTrial | None
    trials: tuple[SignalTrial, ...]
    harmful: Baseline
    reason: str


def choose(
    directions: SignalDirections,
    harmful: ProbeTask,
    spared: Mapping[str, ProbeTask],
    *,
    gammas: Sequence[float] = GAMMAS,
    budgets: Sequence[float] = BUDGETS,
    sharpnesses: Sequence[float] = SHARPNESSES,
    slack: float = 0.02,
    ease_limit: float = 0.9,
    limit: int = LIMIT,
    score_steps: int = SCORE_STEPS,
) -> SignalChoice:
    """The (γ, B, q) that make the harmful task dearest among those that spare the others; see the module's note.

    Args:
        directions: of rows that are not in the tasks' `x_test`.
        harmful: D_H's task: rows to train the attacker's probe on, and validation rows.
        spared: D_P's task and any benign one, by name.
        gammas: γ to try.
        budgets: B to try.
        sharpnesses: q to try; B = 1 spends nothing, so that one of them is enough there.
        slack: what a spared task's score may lose: accuracy, or share of the variance.
        ease_limit: largest (ii); below 1 leaves room for the difference between rows.
        limit: most steps of a probe.
        score_steps: steps of gradient descent at which spared tasks are scored.

    Raises:
        ValueError: nothing to try, or a task that no probe of the raw features learns.
    """
    if not (gammas and budgets and sharpnesses):
        raise ValueError("at least one γ, one budget and one sharpness have to be tried")
    raw = baseline(harmful, limit, score_steps)
    bases = {name: descent(task, None, score_steps).last for name, task in spared.items()}
    trials = []
    for sharpness in sharpnesses:
        sharpened = sharpen(directions, sharpness)
        for gamma, budget in itertools.product(gammas, budgets):
            if budget == 1 and sharpness != sharpnesses[0]:
                continue
            one = signal_map(sharpened, budget, gamma)
            price = cost(harmful, one.theta, raw.threshold, limit, score_steps)
            scores = {name: _score(task, one, score_steps) - bases[name] for name, task in spared.items()}
            fine = one.ratio_pretrain <= ease_limit and all(change >= -slack for change in scores.values())
            trials.append(
                SignalTrial(
                    gamma=float(gamma),
                    budget=float(budget),
                    sharpness=float(sharpness),
                    ratio_pretrain=one.ratio_pretrain,
                    ratio_harmful=one.ratio_harmful,
                    harmful=price,
                    times=price.times(raw.cost),
                    spared=scores,
                    feasible=fine,
                )
            )
    return _chosen(tuple(trials), raw, ease_limit)


def _score(task: ProbeTask, one: SignalMap, steps: int) -> float:
    return descent(task, one.theta, steps).last


def _chosen(trials: tuple[SignalTrial, ...], raw: Baseline, ease_limit: float) -> SignalChoice:
    feasible = [trial for trial in trials if trial.feasible]
    without = _dearest([trial for trial in feasible if trial.gamma == 0])
    plain = _dearest([trial for trial in feasible if trial.gamma == 0 and trial.sharpness == 1])
    best = _dearest(feasible)
    if best is None:
        best = max(trials, key=lambda t: (t.ratio_pretrain <= ease_limit, min(t.spared.values(), default=0.0)))
        reason = (
            f"nothing that was tried spares the other tasks (the nearest: (ii) = {best.ratio_pretrain:.3g}, scores "
            f"change by {_changes(best)}); raise method.slack or method.shrinkage"
        )
    else:
        reason = f"D_H takes {best.times:.3g} times the raw features' steps on validation rows"
        if best.gamma == 0:
            reason += "; the labels buy nothing here"
        elif without is not None:
            reason += f", without labels {without.times:.3g} times"
        if best.gamma == 0 and best.sharpness == 1:
            reason += ", this is the closed form"
        elif plain is not None:
            reason += f"; the closed form within the same constraints {plain.times:.3g} times (B = {plain.budget:g})"
    text = f"γ = {best.gamma:g}, B = {best.budget:g}, q = {best.sharpness:g}: {reason}"
    return SignalChoice(best.gamma, best.budget, best.sharpness, bool(feasible), plain, without, trials, raw, text)


def _dearest(trials: Sequence[SignalTrial]) -> SignalTrial | None:
    """The one with the highest price; at equal price the smallest γ, B and q: what buys nothing is not spent."""
    return max(trials, key=lambda t: (t.times, -t.gamma, -t.budget, -t.sharpness), default=None)


def _changes(trial: SignalTrial) -> str:
    return ", ".join(f"{name} {change:+.3f}" for name, change in trial.spared.items()) or "none"
