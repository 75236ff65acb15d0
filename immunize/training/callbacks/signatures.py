"""The ways in which an immunization fails, recognized and named while it runs.

Each signature is a sentence with the numbers and what to do about it: logged once a run and data set when it first
shows, and kept for the record. They are looked for where the monitor looks (:mod:`.monitor`), in spectra it has
computed anyway, on the whole part θ is fitted on.

=========================  ==========================================================================================
ill_denominator            f = ‖H_H‖_F²/(2k) - σ_k²/2 is near zero: R_ill = 1/f (Eq. 12) is near its pole
sigma_min_tied             σ_{k-1} = σ_k, where Theorems 4.1 and 4.3 ask for a unique σ_k: R_ill and κ have no gradient
sigma_max_tied             σ_1 = σ_2, likewise for R_well and κ
sigma_min_floor            σ_k lies at the rank cut, or has fallen below it: rounding decides κ
kappa_pretrain_rising      κ(H_P(θ)) > κ(H_P(I)): condition (b) of Definition 3.1 does not hold
no_immunization_aligned    RIR stays small, and no linear map would reach more: K_P and K_H are aligned (§3.1)
=========================  ==========================================================================================

Which of them make sense depends on the method: its terms that have a gradient to lose, whether it claims to immunize,
and whether κ is its measure. `docs/sanity_check.md` shows each, with a command that provokes it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from immunize.data import ROLES, Role
from immunize.spectrum.condition import EASE_SLACK, HARDER_BY, ConditionNumber, ImmunizationRatio, Spectrum
from immunize.spectrum.pencil import generalized_spectrum

log = logging.getLogger(__name__)

SIGNATURES = (
    *("ill_denominator", "sigma_min_tied", "sigma_max_tied", "sigma_min_floor"),
    *("kappa_pretrain_rising", "no_immunization_aligned"),
)

OTHER_AIM = "the method does not aim at κ; c (separability) and python -m immunize.attack say whether its defence holds"

NEAR_POLE = 1e-2
"""Share of ‖H‖_F²/(2k) that is left of f: R_ill is then 100 times, its gradient (1/f²) 10⁴ times what spread singular
values of the same size give, and no λ_H suits both."""

TIED = 1e-6
"""Relative distance up to which neighbouring singular values count as equal. It is far above rounding, and far below
what one step changes, so it tells true ties from values that a regularizer is just pushing towards each other."""

AT_CUT = 10.0
"""σ_k below so many times the rank cut: a change of θ by rounding's tenfold decides whether σ_k counts at all."""

RISING_LOOKS = 3
"""Looks in a row, each above the baseline and none below the one before, that are a trend and no oscillation."""

NO_GAIN = HARDER_BY
"""RIR below which nothing was immunized, and RIR* below which nothing can be: (i) ≥ 2 and (ii) ≤ 1, the verdicts (a)
and (b), need RIR ≥ 2."""

SHRINKAGE = 1e-3
"""ρ behind RIR*, so that it is finite where D_H has directions that no row of D_P has."""

_ENDS: dict[str, tuple[tuple[Role, str], ...]] = {
    "well": (("pretrain", "max"),),
    "ill": (("harmful", "min"),),
    "kappa_pretrain": (("pretrain", "max"), ("pretrain", "min")),
    "kappa_harmful": (("harmful", "max"), ("harmful", "min")),
}
"""Which singular values each term's gradient needs to be unique."""

_HESSIAN: dict[Role, str] = {"pretrain": "H_P", "harmful": "H_H"}


@dataclass(frozen=True)
class Look:
    """What the monitor saw.

    Attributes:
        step: optimizer steps taken so far.
        ratio: both condition numbers, their baselines and RIR, by the `spectrum` estimator.
        spectra: eigenvalues of H_P(θ) and H_H(θ), (r,) each.
        terms: names of the terms that the method minimizes; "solved" for a θ that was computed and not trained.
        aims_at_kappa: whether κ is the method's measure.
    """

    step: int
    ratio: ImmunizationRatio
    spectra: dict[Role, Spectrum]
    terms: Collection[str]
    aims_at_kappa: bool = True

    def kappas(self, role: Role) -> tuple[ConditionNumber, ConditionNumber]:
        """κ(H(θ)) and κ(H(I)) of one data set."""
        return getattr(self.ratio, f"kappa_{role}"), getattr(self.ratio, f"kappa_{role}_baseline")

    def numbers(self) -> dict[str, float]:
        """What loggers get of every look."""
        return {
            "RIR": self.ratio.rir,
            "ratio_harmful": self.ratio.ratio_harmful,
            "ratio_pretrain": self.ratio.ratio_pretrain,
            "kappa_pretrain": self.ratio.kappa_pretrain.value,
            "kappa_harmful": self.ratio.kappa_harmful.value,
        }

    @property
    def immunizes(self) -> bool:
        """Whether the method does anything beside the task."""
        return bool(set(self.terms) - {"task"})


@dataclass(frozen=True)
class Warned:
    """One signature at one look.

    Attributes:
        name: one of `SIGNATURES`.
        step: of the look.
        role: the data set whose Hessian it is about; None for both.
        values: the numbers in the text, by name.
        text: one sentence, with what to do about it.
    """

    name: str
    step: int
    role: Role | None
    values: dict[str, float]
    text: str


class FailureSignatures:
    """Looks for the signatures, says each once, and keeps them for the record.

    Args:
        rows: (≤N, D) rows with the same K as D_P's and D_H's, for RIR*; empty for a network, which has none.
        samples: N of each.
        label: what the training is called in messages.
        quiet: keep them without saying them.
    """

    def __init__(self, rows: dict[Role, Tensor], samples: dict[Role, int], label: str, *, quiet: bool = False) -> None:
        self._rows, self._samples, self._label = rows, samples, label
        self._level = logging.DEBUG if quiet else logging.WARNING
        self._warned: dict[tuple[str, Role | None], Warned] = {}
        self._present: set[tuple[str, Role | None]] = set()
        self._rising = 0
        self._before = 0.0
        self._best = 0.0

    def see(self, look: Look, *, last: bool = False, more: Iterable[Warned] = ()) -> None:
        """Judge one look, and log what is new.

        Args:
            look: what the monitor saw.
            last: nothing follows; some signatures are only known then.
            more: what the monitor recognized itself.
        """
        self._best = max(self._best, look.ratio.rir)
        found = [*_spectral(look, bool(self._rows)), *self._pretrain_rising(look, last=last), *more]
        if last and self._rows:
            found += self._aligned(look)
        self._present = {(one.name, one.role) for one in found}
        for one in found:
            if (one.name, one.role) not in self._warned:
                self._warned[one.name, one.role] = one
                log.log(self._level, "%s, step %d: %s: %s", self._label, one.step, one.name, one.text)

    def state_dict(self) -> dict[str, Any]:
        """For a training that goes on later: what was recognized, and what trends are judged by."""
        warned, present = [vars(one) for one in self._warned.values()], list(self._present)
        trends = {"rising": self._rising, "before": self._before, "best": self._best}
        return {"warned": warned, "present": present, **trends}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it over."""
        self._warned = {(one.name, one.role): one for one in (Warned(**of) for of in state_dict["warned"])}
        self._present = set(state_dict["present"])
        self._rising, self._before, self._best = (state_dict[name] for name in ("rising", "before", "best"))

    def facts(self) -> list[dict[str, Any]]:
        """For the record: every signature at the look at which it first showed.

        "part" is the part that was looked at, "at_end" whether the last look still showed it.
        """
        return [
            {**vars(one), "part": "fit", "at_end": key in self._present}
            for key, one in sorted(self._warned.items(), key=lambda item: (item[1].step, _place(item[1])))
        ]

    def _pretrain_rising(self, look: Look, *, last: bool) -> Iterator[Warned]:
        kappa, baseline = (one.value for one in look.kappas("pretrain"))
        above = kappa > baseline * (1 + EASE_SLACK)
        self._rising = self._rising + 1 if above and kappa >= self._before else int(above)
        self._before = kappa
        known = ("kappa_pretrain_rising", "pretrain") in self._warned
        if not (above and look.immunizes and (known or last or self._rising >= RISING_LOOKS)):
            return
        if not look.aims_at_kappa:
            advice = OTHER_AIM
        elif {"well", "ill"} <= set(look.terms):
            advice = "lower λ_H (objective.lambda_ill, or with objective.balance its multiplier) or the learning rate"
        elif {"well", "kappa_pretrain"} & set(look.terms):
            advice = "lower objective.learning_rate"
        elif "solved" in look.terms:
            advice = "lower method.budget, which is the κ(H_P) that is allowed"
        else:
            advice = "no term of this method keeps κ(H_P) down as R_well does; take method=ours"
        values = {"kappa_pretrain": kappa, "kappa_pretrain_baseline": baseline, "ratio_pretrain": kappa / baseline}
        where = "" if self._rows else ", on the images that are watched"
        yield Warned(
            "kappa_pretrain_rising",
            look.step,
            "pretrain",
            values,
            f"κ(H_P) = {kappa:.6g} is above its baseline {baseline:.6g}, so (ii) = {kappa / baseline:.6g} > 1 and "
            f"condition (b) of Definition 3.1 does not hold{where}: {advice}",
        )

    def _aligned(self, look: Look) -> Iterator[Warned]:
        if not (look.immunizes and look.aims_at_kappa and self._best < NO_GAIN):
            return
        grams = [self._rows[role].T @ self._rows[role] for role in ROLES]
        samples = (self._samples["pretrain"], self._samples["harmful"])
        theory = generalized_spectrum(grams[0], grams[1], n_samples=samples, shrinkage=SHRINKAGE)
        if theory.rir_star >= NO_GAIN:
            return
        gen = f"κ_gen = {theory.kappa_gen:.4g}, ρ = {SHRINKAGE:g}"
        why = f"K_P and K_H are aligned (§3.1; {gen}), every linear map moves both condition numbers together"
        if theory.kappa_gen >= NO_GAIN:
            why = (
                f"the hardest directions of D_P and D_H are aligned (§3.1; {gen}, κ(K_P) = "
                f"{theory.kappa_pretrain:.4g}, κ(K_H) = {theory.kappa_harmful:.4g}), beside D_P D_H is already as hard "
                f"as a linear map makes it"
            )
        values = {"rir": look.ratio.rir, "rir_star": theory.rir_star, "kappa_gen": theory.kappa_gen, "rho": SHRINKAGE}
        yield Warned(
            "no_immunization_aligned",
            look.step,
            None,
            values,
            f"RIR is {look.ratio.rir:.4g}, and with ρ no linear map has more than RIR* = {theory.rir_star:.4g}: {why}. "
            f"Choose another D_P or D_H; `python -m immunize.forecast` with the same data settings tells beforehand",
        )


def _place(one: Warned) -> int:
    return SIGNATURES.index(one.name) if one.name in SIGNATURES else len(SIGNATURES)


def _spectral(look: Look, of_rows: bool) -> Iterator[Warned]:
    """The signatures of a single spectrum, that of rows or of a network's features."""
    if "ill" in look.terms:
        yield from _near_pole(look)
    ends = {end for term in look.terms for end in _ENDS.get(term, ())}
    for role in ROLES:
        for which in ("min", "max"):
            if (role, which) in ends:
                yield from _tied(look, role, which)
        yield from _at_floor(look, role, of_rows)


def _near_pole(look: Look) -> Iterator[Warned]:
    spectrum = look.spectra["harmful"]
    k = spectrum.rank
    squares = spectrum.values[:k].square()  # beyond 10^154 infinite, and then f is no number below anything
    mean = float(squares.sum()) / (2 * k)
    f = mean - 0.5 * float(squares[-1])
    if f < NEAR_POLE * mean:
        yield Warned(
            "ill_denominator",
            look.step,
            "harmful",
            {"f": f, "f_relative": f / mean, "rank": k, "kappa_harmful": look.ratio.kappa_harmful.value},
            f"R_ill's denominator f = ‖H_H‖_F²/(2k) - σ_k²/2 = {f:.3g} is {f / mean:.2g} of its first part: the "
            f"{k} non-zero singular values of H_H are nearly equal (κ(H_H) = {look.ratio.kappa_harmful.value:.4g}), "
            f"where R_ill = 1/f and its gradient explode. Start from a θ that spreads them, such as "
            f"model.init=uniform",
        )


def _tied(look: Look, role: Role, which: str) -> Iterator[Warned]:
    kappa, _ = look.kappas(role)
    gap, pair = (kappa.gap_top, "σ_1 and σ_2") if which == "max" else (kappa.gap_bottom, "σ_{k-1} and σ_k")
    if gap < 1 + TIED:
        size = kappa.sigma_max if which == "max" else kappa.sigma_min
        yield Warned(
            f"sigma_{which}_tied",
            look.step,
            role,
            {"gap": gap, f"sigma_{which}": size, "rank": kappa.rank},
            f"{pair} of {_HESSIAN[role]} are equal ({size:.4g}, their ratio less 1 is {gap - 1:.1g}): the gradient is "
            f"that of one of several singular pairs, and the theorems, which ask for a unique one, promise nothing. A "
            f"step usually parts them; if not, start elsewhere (seed, model.init=uniform)",
        )


def _at_floor(look: Look, role: Role, of_rows: bool) -> Iterator[Warned]:
    kappa, baseline = look.kappas(role)
    cut = kappa.tolerance * kappa.sigma_max
    lost = kappa.rank - kappa.numerical_rank
    if kappa.sigma_min >= AT_CUT * cut and lost == 0:
        return
    name = _HESSIAN[role]
    what = f"σ_k = {kappa.sigma_min:.3g} of {name} is {kappa.sigma_min / cut:.3g} times the rank cut"
    if lost > 0:
        what = f"{lost} of {baseline.rank} singular values of {name} have fallen below the rank cut ({cut:.3g})"
    values = {"sigma_min": kappa.sigma_min, "cut": cut, "rank": kappa.rank, "numerical_rank": kappa.numerical_rank}
    believe = "Believe the `ridge` rows of the table instead, "
    if not look.aims_at_kappa:
        believe, advice = "", f"{OTHER_AIM[0].upper()}{OTHER_AIM[1:]}"
    elif baseline.sigma_min < AT_CUT * baseline.tolerance * baseline.sigma_max:
        advice = "or watch more images (deep.group_size): θ_0's features have the same flaw"
        if of_rows:
            advice = "or drop the columns that hardly vary: the raw data have the same flaw"
    elif "solved" in look.terms:
        advice = "or lower method.budget"
    else:
        advice = "or train less (objective.epochs, objective.learning_rate)"
    yield Warned(
        "sigma_min_floor",
        look.step,
        role,
        {**values, "kappa": kappa.value},
        f"{what}: κ({name}) = {kappa.value:.4g} by `spectrum` hangs on a direction that hardly any sample has. "
        f"{believe}{advice}",
    )
