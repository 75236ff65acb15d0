"""Each method's terms and weights, which parameters each term moves, and what is preconditioned.

Whole steps are compared with Algorithm 1 by the tests of `immunize.training`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf
from torch import Tensor
from torch.nn import functional

from immunize.config import config_dir
from immunize.data import ROLES
from immunize.errors import UserError
from immunize.features.linear import LinearExtractor
from immunize.objective import LinearStep, Objective, Side, Step, new_head, task_loss
from immunize.objective.base import Head, check_weight, ill_term, kappa_term
from immunize.objective.censor import Censor
from immunize.objective.closed_form import ClosedForm
from immunize.objective.contract import Contract
from immunize.objective.ill_only import IllOnly
from immunize.objective.imma import Imma
from immunize.objective.none import Plain
from immunize.objective.opt_kappa import OptKappa
from immunize.objective.ours import Ours
from immunize.objective.simulated import SimulatedFineTuning
from immunize.objective.well_only import WellOnly
from immunize.spectrum.ranges import compress_rows
from immunize.spectrum.shrinkage import closed_form
from tests import reference as ref
from tests.composing import run_tiny
from tests.objective.tiny import reached
from tests.reference import error, gradient, rows

D = 5


def side(n: int, seed: int, compressed: bool = False) -> Side:
    x = ref.features_with_eigenvalues(torch.logspace(1, -1, min(n, D)), n, D, seed)
    return Side(x, ref.gaussian(n, seed=seed + 1000), compress_rows(x) if compressed else x)


def make_step(n_pretrain: int = 20, n_harmful: int = 15, compressed: bool = False) -> LinearStep:
    extractor = LinearExtractor(D, init="identity")
    with torch.no_grad():
        extractor.theta.copy_(ref.extractor(D, seed=1))
    head = ref.gaussian(D, 1, seed=2).requires_grad_()
    return LinearStep(
        extractor, head, side(n_pretrain, 3, compressed), side(n_harmful, 4, compressed), task_loss("mse")
    )


def h(part: Side, step: LinearStep) -> Tensor:
    return ref.hessian(part.x, step.extractor.theta.detach())


BOTH, THETA = (True, True), (True, False)


@pytest.mark.parametrize(
    ("build", "weights", "moves"),
    [
        (lambda: Ours(3.0, 1e7), {"task": 1, "well": 3, "ill": 1e7}, {"task": BOTH, "well": THETA, "ill": THETA}),
        (lambda: WellOnly(3.0), {"well": 3}, {"well": THETA}),
        (lambda: IllOnly(1e7), {"ill": 1e7}, {"ill": THETA}),
        (OptKappa, {"kappa_pretrain": 1, "kappa_harmful": -1}, {f"kappa_{role}": THETA for role in ROLES}),
        *((of, {"task": 1}, {"task": BOTH}) for of in (Plain, ClosedForm)),
        (lambda: Imma(2), {"outer": 1, "heads": 1}, {"outer": (True, False, False), "heads": (False, True, True)}),
    ],
    ids=["ours", "well_only", "ill_only", "opt_kappa", "none", "closed_form", "imma"],
)
def test_terms_weights_and_what_is_moved(build: Callable[[], Objective], weights: dict[str, float], moves: Any) -> None:
    objective = build()
    objective.bind(D, ref.generator(5))
    assert objective.weights == weights
    step = make_step()
    assert reached(objective.terms(step), [step.extractor.theta, step.head, *objective.parameters()]) == moves


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(("n_pretrain", "n_harmful"), [(20, 15), (4, 3)])
def test_values_of_the_terms(n_pretrain: int, n_harmful: int, compressed: bool) -> None:
    step = make_step(n_pretrain, n_harmful, compressed)
    theta, part = step.extractor.theta.detach(), step.pretrain
    h_p, h_h = h(step.pretrain, step), h(step.harmful, step)
    task = float((part.x @ theta @ step.head.detach().squeeze(1) - part.y).square().sum()) / n_pretrain
    expected = {
        "task": task,
        "well": ref.r_well(h_p),
        "ill": ref.r_ill(h_h, 1e-11),
        "kappa_pretrain": ref.kappa(h_p, 1e-11),
        "kappa_harmful": ref.kappa(h_h, 1e-11),
    }
    for objective in (Ours(1, 1), WellOnly(1), IllOnly(1), OptKappa(log=False), OptKappa(), Plain(), ClosedForm()):
        for name, term in objective.terms(step).items():
            assert term.ndim == 0
            wanted = math.log(expected[name]) if getattr(objective, "log", False) else expected[name]
            assert float(term.detach()) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("precondition", ["inverse_free", "dummy"])
@pytest.mark.parametrize("build", [partial(Ours, 1, 1), partial(WellOnly, 1), partial(IllOnly, 1), OptKappa])
def test_the_regularizers_alone_are_preconditioned(build: Callable[[str], Objective], precondition: str) -> None:
    step = make_step()
    step.extractor.ridge = 0.0
    given, plain = (build(of).terms(step) for of in (precondition, "none"))
    for name, term in given.items():
        x = step.harmful.x if name in ("ill", "kappa_harmful") else step.pretrain.x
        found, slope = (torch.autograd.grad(of, step.extractor.theta)[0] for of in (term, plain[name]))
        assert error(found if name == "task" else x.T @ x @ found, slope) < 1e-10


def test_the_rank_cut_follows_the_samples_and_not_the_compressed_rows() -> None:
    step = make_step(300, 300, compressed=True)
    assert len(step.harmful.rows) == D
    assert step.tolerance("harmful") == 300 * 2**-52


def test_a_head_keeps_its_bias_and_loses_its_gradient() -> None:
    weight, bias, x = ref.gaussian(D, 2, seed=1).requires_grad_(), torch.ones(2, dtype=torch.float64), rows(1, width=D)
    torch.testing.assert_close(Head(weight, bias)(x), x @ weight + 1)
    torch.testing.assert_close(Head(weight)(x), x @ weight)
    assert not Head(weight, bias).detach()(x).requires_grad
    assert torch.equal(Head(weight, bias).detach()(x), Head(weight, bias)(x))
    assert Head(weight).detach().bias is None


def test_a_new_head_has_the_size_and_precision_asked_for() -> None:
    head = new_head(4, ref.generator(1), 3, torch.float32)
    draw = torch.rand(4, 3, dtype=torch.float64, generator=ref.generator(1))
    torch.testing.assert_close(head.detach(), (draw - 0.5).float())  # U(-1/2, 1/2)
    objective = Imma()
    objective.bind(4, ref.generator(1), 3, torch.float32)
    assert torch.equal(objective.harmful_head, head)
    by_default = new_head(400, ref.generator(7))
    assert (by_default.shape, by_default.dtype, by_default.requires_grad) == ((400, 1), torch.float64, True)
    assert torch.equal(by_default, new_head(400, ref.generator(7)))


def test_a_weight_is_a_float_and_may_be_zero() -> None:
    assert isinstance(check_weight("a", 2), float)
    assert Ours(0, 0).weights == {"task": 1, "well": 0, "ill": 0}


def test_ours_is_preconditioned_without_an_inverse() -> None:
    """Unless its file says otherwise, which is of networks too."""
    assert Ours(1, 1).precondition == "inverse_free"


@pytest.mark.parametrize("path", sorted((Path(config_dir()) / "method").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_methods_defaults_are_those_of_its_configuration(path: Path) -> None:
    """But for the three methods whose class is for a paper's setting, and the seed, which is the run's."""
    settings = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    made = inspect.signature(get_class(settings["_target_"])).parameters.values()
    own = {"seed", *{"closed_form": ("budget", "shrinkage"), "ours": ("precondition",)}.get(path.stem, ())}
    for of in made:
        if of.default is not inspect.Parameter.empty and of.name not in own:
            assert settings[of.name] == (list(of.default) if isinstance(of.default, tuple) else of.default), of.name


def test_a_term_has_the_rank_cut_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    step = make_step()
    for tolerance in (1e-11, 0.3):
        monkeypatch.setattr(LinearStep, "tolerance", lambda _, role, cut=tolerance: cut)
        found = [term.item() for term in (kappa_term(step, "harmful", "none"), ill_term(step, "none"))]
        assert found == pytest.approx([of(h(step.harmful, step), tolerance) for of in (ref.kappa, ref.r_ill)], rel=1e-9)


def of(*rows: torch.Tensor) -> list[Any]:
    """Data sets of which only the rows matter."""
    return [SimpleNamespace(x=x) for x in rows]


def test_ours_can_start_from_it(tmp_path: Path) -> None:
    ours = ["method=ours", "init=closed_form", "init.shrinkage=0", "objective.learning_rate=1e-12"]
    started = run_tiny(tmp_path / "started", *ours)
    best = run_tiny(tmp_path / "best", "method=closed_form", "method.budget=1", "method.shrinkage=0")
    rir = [record["metrics"]["fit"]["spectrum"]["rir"] for record in (started, best)]
    assert (started["training"]["fit"]["steps"], best["training"]["fit"]["steps"]) == (30, 0)
    assert rir[1] == pytest.approx(best["training"]["fit"]["closed_form"]["forecast_rir"], rel=1e-6)
    assert rir[0] == pytest.approx(rir[1], rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"budget": "auto", "shrinkage": "auto", "seed": 3}])
def test_closed_form_leaves_the_facts_of_its_map(options: dict[str, Any]) -> None:
    x_p, x_h = rows(1), rows(2)
    theta, facts = ClosedForm(**options).solve(*of(x_p, x_h))
    best = closed_form(x_p, x_h, **options)
    assert torch.equal(theta, best.theta)
    choice = best.budget_choice
    assert facts == {
        "budget": best.budget,
        "shrinkage": list(best.shrinkage),
        "shrinkage_chosen_by": "auto" if options else "given",
        "budget_feasible": choice and choice.feasible,
        "budget_reason": choice and choice.reason,
        "forecast_rir": best.rir,
        "forecast_kappa_pretrain": best.kappa_pretrain,
        "kappa_gen": best.kappa_gen,
        "notes": list(best.notes),
    }


@pytest.mark.parametrize("theta", [torch.ones(6), torch.ones(6, 1), torch.full((6, 6), nan)])
def test_what_a_method_computes_has_to_be_a_map(theta: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClosedForm, "solve", lambda *_: (theta, {}))
    with pytest.raises(UserError, match=r"ClosedForm.solve has to give a finite θ of 6×6"):
        run_tiny(tmp_path, "method=closed_form")


def test_the_edges_of_the_closed_forms_options() -> None:
    assert ClosedForm().seed == 0
    assert ClosedForm(budget=1, shrinkage=0).shrinkage == 0
    assert ClosedForm(shrinkage="ledoit_wolf").solve(*of(rows(1), rows(2)))[1]["shrinkage_chosen_by"] == "ledoit_wolf"


# IMMA: the bilevel objective against its unrolled inner steps by hand, its gradient against differences.


def make(loss: str, inner_steps: int = 1) -> tuple[Imma, LinearStep]:
    objective, step = Imma(inner_steps, inner_learning_rate=0.3), make_step(9, 7)
    objective.bind(D, ref.generator(1))
    if loss == "mse":
        return objective, step
    sides = {role: replace(getattr(step, role), y=(getattr(step, role).y > 0).double()) for role in ROLES}
    return objective, replace(step, task_loss=task_loss(loss), **sides)


def test_nothing_is_to_be_learned_of_a_classification_with_one_class() -> None:
    objective, step = make("mse")
    labels = {"pretrain": torch.arange(9) % 3, "harmful": torch.zeros(7, dtype=torch.int64)}
    sides = {role: replace(getattr(step, role), y=y) for role, y in labels.items()}
    terms = objective.terms(replace(step, head=ref.gaussian(D, 3, seed=2), task_loss=task_loss("ce"), **sides))
    scores = step.pretrain.x @ step.extractor.theta @ ref.gaussian(D, 3, seed=2)
    torch.testing.assert_close(terms["outer"], functional.cross_entropy(scores, labels["pretrain"]))


def loss_by_hand(loss: str, side: Side, theta: Tensor, head: Tensor) -> Tensor:
    z = side.x @ theta @ head.squeeze(1)
    return functional.mse_loss(z, side.y) if loss == "mse" else functional.binary_cross_entropy(z.sigmoid(), side.y)


def outer_by_hand(loss: str, objective: Imma, step: LinearStep, theta: Tensor) -> Tensor:
    """L(D_P, ω, θ*) - L(D_H, w, θ*), θ* after the inner steps."""
    w, omega = objective.harmful_head.detach(), step.head.detach()
    inner = partial(loss_by_hand, loss, step.harmful, head=w)
    for _ in range(objective.attacker.steps):
        theta = theta - objective.attacker.learning_rate * gradient(inner, theta)
    return loss_by_hand(loss, step.pretrain, theta, omega) - loss_by_hand(loss, step.harmful, theta, w)


@pytest.mark.parametrize(("loss", "inner_steps"), [("mse", 1), ("mse", 3), ("bce", 1), ("bce", 3)])
def test_outer_is_the_difference_of_losses_at_theta_star_and_so_is_its_gradient(loss: str, inner_steps: int) -> None:
    objective, step = make(loss, inner_steps)
    theta, outer = step.extractor.theta, objective.terms(step)["outer"]
    by_hand = partial(outer_by_hand, loss, objective, step)
    assert float(outer.detach()) == pytest.approx(float(by_hand(theta.detach())), rel=1e-12)
    (slope,) = torch.autograd.grad(outer, theta)
    expected = ref.finite_difference_gradient(by_hand, theta.detach(), 1e-3)
    assert float((slope - expected).norm()) < 1e-8 * float(expected.norm())


@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_heads_are_trained_on_the_current_features(loss: str) -> None:
    objective, step = make(loss)
    theta, w = step.extractor.theta.detach(), objective.harmful_head
    heads = objective.terms(step)["heads"]
    expected = loss_by_hand(loss, step.harmful, theta, w) + loss_by_hand(loss, step.pretrain, theta, step.head)
    assert float(heads.detach()) == pytest.approx(float(expected.detach()), rel=1e-13)
    for at in (w, step.head):
        ours, by_hand = (torch.autograd.grad(f, at, retain_graph=True)[0] for f in (heads, expected))
        torch.testing.assert_close(ours, by_hand, rtol=1e-12, atol=1e-14)


REFUSED: tuple[tuple[Callable[..., Objective], dict[str, tuple[Any, ...]]], ...] = (
    (partial(Ours, lambda_well=1, lambda_ill=1), {"lambda_well": (-1e-300, nan, inf), "lambda_ill": (-1.0,)}),
    (WellOnly, {"lambda_well": (-1,)}),
    (IllOnly, {"lambda_ill": (-1,)}),
    (ClosedForm, {"budget": (0.5, 1 - 1e-9, nan, inf, "most"), "shrinkage": (-1e-3, inf, "ledoit wolf")}),
    (Imma, {"inner_steps": (0, -1, 1.5, "2"), "inner_learning_rate": (0.0, -1e-3, nan, inf)}),
    (SimulatedFineTuning, {"suppress": ("loudly",), "weight": (-1.0,), "gradient_clip": (0.0,)}),
    (SimulatedFineTuning, {"attack_batch_size": (0,)}),
    (Contract, dict.fromkeys(("gain", "contraction", "adversary", "first_gain"), (-1.0,))),
    (Contract, {"factor": (1.0,), "descent_rate": (0.0,)}),
    (Censor, {"adversary": (-1.0,), "lambda_ill": (-1.0,), "gradient_clip": (0.0,)}),
    (Censor, {"kernels": ([], ["poly"]), "rhos": ([0.0],)}),
)


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        *((of, {name: bad}, rf"\b{name}\b") for of, bads in REFUSED for name, each in bads.items() for bad in each),
        (SimulatedFineTuning, {"attack_steps": -1}, "whole number of steps"),
        *((SimulatedFineTuning, {"attack_learning_rate": bad}, "positive and finite") for bad in (0.0, inf)),
        (SimulatedFineTuning, {"attack_optimizer": "lion"}, "sgd, adam"),
        (SimulatedFineTuning, {"second_order": True}, "second-order steps need sgd"),
    ],
)
def test_settings_out_of_range_are_refused(method: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        method(**settings)


def test_terms_of_a_methods_own_have_to_be_told() -> None:
    class Misnamed(Objective):
        def term(self, step: Step) -> dict[str, Tensor]:
            return {"mine": step.pretrain_loss()}

    with pytest.raises(TypeError, match="Misnamed has a weight for 'mine', but no method `terms`"):
        Misnamed({"task": 1.0, "mine": 0.5})
