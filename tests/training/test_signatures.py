"""Each failure signature on spectra, θ and data planted to have it, and on neighbours that must not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor

from immunize.data import ROLES, Part, Role
from immunize.errors import DivergedError
from immunize.spectrum.condition import default_tolerance, immunization_ratio, spectrum_of
from immunize.training.callbacks import ImmunityMonitor
from immunize.training.callbacks.signatures import OTHER_AIM, FailureSignatures, Look
from tests import reference as ref
from tests.composing import D, data_of, fit_module, module_of, tiny
from tests.training.moving import I, Recorder, scaled

N = 40
SPREAD = (9.0, 6.0, 4.0, 2.5, 1.5, 1.0)
OURS = ("task", "well", "ill")


def rows(sigma: Sequence[float] = SPREAD, seed: int = 1) -> Tensor:
    """X (N, D) with the eigenvalues of K given."""
    return ref.features_with_eigenvalues(list(sigma), N, D, seed)


D_P, D_H = rows(seed=1), rows(seed=2)


class Watched:
    """A pair of data sets and the signatures found on it."""

    def __init__(self, pretrain: Tensor = D_P, harmful: Tensor = D_H, *, quiet: bool = False) -> None:
        self.x: dict[Role, Tensor] = {"pretrain": pretrain, "harmful": harmful}
        self.signatures = FailureSignatures(self.x, {"pretrain": N, "harmful": N}, "fit", quiet=quiet)
        self.step = 0

    def see(self, theta: Tensor = I, terms: Sequence[str] = OURS, *, last: bool = False, aims: bool = True) -> Watched:
        before = {role: spectrum_of(x) for role, x in self.x.items()}
        after: Any = {role: spectrum_of(x @ theta, rank_of_data=before[role].rank) for role, x in self.x.items()}
        ratio = immunization_ratio(after["pretrain"], after["harmful"], before["pretrain"], before["harmful"])
        self.signatures.see(Look(self.step, ratio, after, terms, aims), last=last)
        self.step += 100
        return self

    def found(self) -> dict[str, dict[str, Any]]:
        """The signatures by name; of one that both data sets show that of D_H."""
        return {fact["name"]: fact for fact in self.signatures.facts()}

    def only(self) -> dict[str, Any]:
        (fact,) = self.signatures.facts()
        return fact


def test_healthy_spectra_show_nothing() -> None:
    for terms in (OURS, ("ill",), ("well",), ("kappa_pretrain", "kappa_harmful"), ("task",), ("solved",)):
        assert not Watched().see(I, terms, last=True).found()  # although θ = I has RIR 1: the pair allows more
    assert not Watched(pretrain=rows(SPREAD[:4]), harmful=rows(SPREAD[:3])).see().found()  # directions that no row has


# The pole of R_ill.


@pytest.mark.parametrize(
    ("sigma", "fires"),
    [
        ((5,), True),
        ((3, 3, 3, 3, 3, 3), True),
        ((1.02, 1, 1, 1, 1, 1), True),  # f is 0.0067 of its first part
        ((1.05, 1, 1, 1, 1, 1), False),  # 0.0168
    ],
)
def test_r_ill_near_its_pole(sigma: Sequence[float], fires: bool) -> None:
    fact = Watched(harmful=rows(sigma)).see(I, ("task", "ill")).found().get("ill_denominator")
    assert (fact is not None) == fires
    if fact is not None:
        squares = torch.tensor(sigma, dtype=torch.float64).square()
        assert fact["values"]["f_relative"] == pytest.approx(1 - float(squares[-1] / squares.mean()), abs=1e-12)
        assert fact["role"] == "harmful"


def test_theta_may_bring_r_ill_to_its_pole_and_away() -> None:
    watched = Watched()
    whitening = scaled(watched.x["harmful"], *(1 / s for s in SPREAD))
    fact = watched.see(I).see(whitening).see(I).found()["ill_denominator"]
    assert (fact["step"], fact["at_end"]) == (100, False)


# Ties.


TOP, BOTTOM, TIED = (5, 5, 4, 3, 2, 1), (5, 4, 3, 2, 1, 1), (5, 5, 4, 3, 1, 1)


@pytest.mark.parametrize(
    ("terms", "role", "sigma", "name"),
    [
        (("task", "well"), "pretrain", TOP, "sigma_max_tied"),
        (("ill",), "harmful", BOTTOM, "sigma_min_tied"),
        *(((f"kappa_{role}",), role, TOP, "sigma_max_tied") for role in ROLES),
        *(((f"kappa_{role}",), role, BOTTOM, "sigma_min_tied") for role in ROLES),
        (("task", "well"), "pretrain", BOTTOM, None),
        (("ill",), "harmful", TOP, None),
        *((terms, role, TIED, None) for terms, role in ((("task", "well"), "harmful"), (("ill",), "pretrain"))),
        (("task",), "pretrain", TIED, None),
    ],
)
def test_ties_that_matter(terms: Sequence[str], role: Role, sigma: Sequence[float], name: str | None) -> None:
    facts = Watched(**{role: rows(sigma)}).see(I, terms).signatures.facts()  # type: ignore[arg-type]
    assert [(fact["name"], fact["role"]) for fact in facts] == ([] if name is None else [(name, role)])
    assert all(fact["values"]["gap"] == pytest.approx(1, abs=1e-12) for fact in facts)
    apart = [s * (1 + 1e-5 * (len(sigma) - index)) for index, s in enumerate(sigma)]
    assert not Watched(**{role: rows(apart)}).see(I, terms).found()  # type: ignore[arg-type]


# The rank cut.


@pytest.mark.parametrize(("times", "fires"), [(9.0, True), (11.0, False)])
@pytest.mark.parametrize("terms", [OURS, ("task",), ("solved",)])
@pytest.mark.parametrize("role", ["pretrain", "harmful"])
def test_sigma_min_at_the_rank_cut(role: Role, terms: Sequence[str], times: float, fires: bool) -> None:
    sigma = (*SPREAD[:-1], times * default_tolerance(N, D) * SPREAD[0])
    facts = Watched(**{role: rows(sigma)}).see(I, terms).signatures.facts()  # type: ignore[arg-type]
    assert [(fact["name"], fact["role"]) for fact in facts] == [("sigma_min_floor", role)] * fires
    for values in (fact["values"] for fact in facts):
        assert values["sigma_min"] / values["cut"] == pytest.approx(times, rel=0.01)


@pytest.mark.parametrize(("terms", "advice"), [(OURS, "train less"), (("solved",), "lower method.budget")])
def test_a_direction_pushed_below_the_rank_cut(terms: Sequence[str], advice: str) -> None:
    """θ of rank 5 takes a direction from both data sets, whose own flaws are told from those of θ."""
    low = rows((*SPREAD[:-1], 1e-13))
    assert "the raw data have the same flaw" in Watched(harmful=low).see(terms=terms).only()["text"]
    watched = Watched()
    watched.see(scaled(watched.x["harmful"], 1, 1, 1, 1, 1, 1e-16), terms)
    facts = [fact for fact in watched.signatures.facts() if fact["name"] == "sigma_min_floor"]
    assert [fact["role"] for fact in facts] == ["pretrain", "harmful"]
    for fact, hessian in zip(facts, ("H_P", "H_H"), strict=True):
        assert fact["text"].startswith(f"1 of 6 singular values of {hessian} have fallen below the rank cut")
        assert (fact["values"]["rank"], fact["values"]["numerical_rank"]) == (6, 5)
        assert advice in fact["text"]


# Condition (b).


def rising(watched: Watched, *ratios: float, terms: Sequence[str] = OURS, end: bool = False) -> Watched:
    """Looks at which κ(H_P) is so many times its baseline."""
    for index, ratio in enumerate(ratios):
        theta = scaled(watched.x["pretrain"], ratio, 1, 1, 1, 1, 1)
        watched.see(theta, terms, last=end and index == len(ratios) - 1)
    return watched


@pytest.mark.parametrize(
    ("ratios", "end", "step", "at_end"),
    [
        ((1, 1.1, 1.2, 1.3), False, 300, True),
        ((1.1, 1.1, 1.1), False, 200, True),
        ((1, 1.1, 1.2), False, None, None),  # two looks in a row are not yet a trend
        ((1.3, 1.2, 1.1), False, None, None),  # above, but falling
        ((1.1, 1.2, 1.0, 1.1, 1.2), False, None, None),
        ((1, 1.001), True, 100, True),
        ((1, 1 + 1e-12), True, None, None),
        ((1.1, 1.2, 1.3, 1.2, 0.9), True, 200, False),  # made good
        ((1.1, 1.2, 1.3, 1.2), True, 200, True),
    ],
)
def test_kappa_of_d_p_that_rises(ratios: Sequence[float], end: bool, step: int | None, at_end: bool | None) -> None:
    """For several looks, or above its baseline at the end."""
    facts = rising(Watched(), *ratios, end=end).signatures.facts()
    found = [(fact["name"], fact["role"], fact["step"], fact["at_end"]) for fact in facts]
    assert found == ([] if step is None else [("kappa_pretrain_rising", "pretrain", step, at_end)])
    assert all(fact["values"]["ratio_pretrain"] == pytest.approx(ratios[step // 100]) for fact in facts)  # type: ignore[operator]
    assert not rising(Watched(), *ratios, terms=("task",), end=end).found()  # which does not claim to immunize
    going_on = Watched()
    for index, ratio in enumerate(ratios, 1):  # interrupted after every look
        rising(going_on, ratio, end=end and index == len(ratios))
        state, step_then, going_on = going_on.signatures.state_dict(), going_on.step, Watched()
        going_on.signatures.load_state_dict(state)
        going_on.step = step_then
    assert going_on.signatures.facts() == facts


@pytest.mark.parametrize("terms", [("adversary", "features"), ("solved",)])
def test_a_method_that_does_not_aim_at_kappa_is_told_what_says_whether_it_holds(terms: Sequence[str]) -> None:
    x = rows((*SPREAD[:-1], 5 * default_tolerance(N, D) * SPREAD[0]))  # aligned, and the data are at the rank cut
    watched = Watched(pretrain=x, harmful=ref.orthogonal(N, 5) @ x * 3)
    watched.see(scaled(x, 1.5, 1, 1, 1, 1, 1), terms, last=True, aims=False)
    assert watched.found().keys() == {"kappa_pretrain_rising", "sigma_min_floor"}
    for fact in watched.signatures.facts():
        assert fact["text"].endswith(OTHER_AIM[1:])
        assert not any(word in fact["text"] for word in ("budget", "Believe", "train less", "drop"))


# Aligned covariances.


@pytest.mark.parametrize(
    ("pretrain", "kappa_gen", "words"),
    [
        # H_P and H_H of RIR 1 for every θ
        (rows(), 1, "immunize.forecast"),
        # κ_gen is 9, and yet RIR* = κ_gen·κ(K_P)/κ(K_H) is 1: K_P is isotropic, K_H is not
        (rows([2] * D), 9, "hardest directions"),
    ],
)
def test_aligned_covariances_cannot_be_immunized(pretrain: Tensor, kappa_gen: float, words: str) -> None:
    harmful = ref.orthogonal(N, 5) @ rows() * 3
    watched = Watched(pretrain=pretrain, harmful=harmful).see(I, ("ill",))
    assert not watched.found()  # known only at the end
    fact = watched.see(scaled(rows(), 0.5, 1, 1, 1, 1, 1) if kappa_gen == 1 else I, ("ill",), last=True).only()
    assert (fact["name"], fact["role"]) == ("no_immunization_aligned", None)
    assert fact["values"]["rir"] == pytest.approx(1)
    assert fact["values"]["rir_star"] == pytest.approx(1)
    assert fact["values"]["kappa_gen"] == pytest.approx(kappa_gen, rel=0.02)  # ρ takes a little
    assert words in fact["text"]


def test_a_pair_that_was_immunized_is_not_called_aligned() -> None:
    """κ_gen with ρ may be small where `spectrum` sees a large RIR: what was reached counts."""
    x, y = rows((1, 1, 1, 1, 1, 1e-9)), rows((1, 1, 1, 1, 1, 2e-9))
    assert "no_immunization_aligned" in Watched(x, y).see(I, last=True).found()
    v = torch.linalg.svd(x).Vh.T
    immunizing = v @ torch.diag(torch.tensor([1, 1, 1, 1, 1, 3e4], dtype=torch.float64))
    assert not Watched(x, y).see(immunizing, ("outer",), last=True).found()


@pytest.mark.parametrize("terms", [("task",), ("outer", "heads"), ("solved",)])
def test_only_what_claims_to_immunize_can_fail_at_it(terms: Sequence[str]) -> None:
    watched = Watched(pretrain=rows(), harmful=rows()).see(I, terms, last=True)
    assert bool(watched.found()) == (terms != ("task",))


# Saying it.


@pytest.mark.parametrize("quiet", [False, True])
def test_each_is_said_once_and_with_its_name_and_kept(quiet: bool, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(harmful=rows([3] * D), quiet=quiet)
    for _ in range(3):
        watched.see(I, ("ill",))
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    facts = watched.signatures.facts()
    assert [fact["name"] for fact in facts] == ["ill_denominator", "sigma_min_tied"]
    assert said == ([] if quiet else [f"fit, step 0: {fact['name']}: {fact['text']}" for fact in facts])


# Where the monitor looks.


@pytest.mark.parametrize("size", [1, 1e90, 1e130, 1e200])
def test_a_divergence_gets_its_name_between_two_looks_unless_it_is_beyond_numbers(size: float) -> None:
    cfg = tiny("objective.epochs=9")
    data = data_of(cfg)
    x = data.fit["harmful"].x
    whitening = scaled(x, *(1 / float(s) for s in ref.eigenvalues(ref.hessian(x))))
    monitor = ImmunityMonitor(data.fit, every=100)
    with pytest.raises(DivergedError):
        fit_module(module_of(cfg, data, Recorder(I, I, whitening if size == 1 else I * size, fail_at=2)), data, monitor)
    found = {fact["name"]: fact["step"] for fact in monitor.signatures.facts()}
    assert found.get("ill_denominator") == (2 if size == 1 else None)
    assert size == 1 or not found


@pytest.mark.parametrize("every", [1, 2, 4])
def test_the_start_is_judged_and_at_last_the_theta_that_is_kept(every: int, caplog: pytest.LogCaptureFixture) -> None:
    cfg = tiny("objective.epochs=4")
    data = data_of(cfg)
    pretrain, harmful = data.fit["pretrain"], data.fit["harmful"]
    parts = {"pretrain": pretrain, "harmful": Part(torch.linalg.qr(harmful.x).Q, harmful.y)}
    monitor = ImmunityMonitor(parts, every=every, quiet=True)
    worse = scaled(pretrain.x, 2, 1, 1, 1, 1, 1)
    # as early stopping does: another θ at the very end
    put_back = LambdaCallback(on_train_end=lambda _, module: module.extractor.theta.data.copy_(worse))
    fit_module(module_of(cfg, data, Recorder(I)), data, put_back, monitor)
    assert monitor.latest["ratio_pretrain"] == pytest.approx(2)
    found = {fact["name"]: (fact["step"], fact["at_end"]) for fact in monitor.signatures.facts()}
    assert found["kappa_pretrain_rising"] == (4, True)
    assert found["ill_denominator"][0] == 0
    assert not any(name in caplog.text for name in found)  # of a quiet run


def test_a_theta_that_was_computed_and_not_trained_is_judged_once() -> None:
    """κ of both Hessians is as before, as no θ can change it where the covariances are proportional."""
    data = data_of(tiny())
    p, h = (Part(x, data.fit["pretrain"].y) for x in (rows(), 3 * ref.orthogonal(N, 5) @ rows()))
    monitor, module = ImmunityMonitor({"pretrain": p, "harmful": h}, every=10), module_of(tiny(), data)
    for _ in range(2):
        (warning,) = monitor.facts(module)["warnings"]
        assert (warning["name"], warning["at_end"]) == ("no_immunization_aligned", True)
