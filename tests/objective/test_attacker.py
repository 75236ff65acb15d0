"""The attacker in `simulated`, `contract`, `censor`: its steps are PyTorch's, the terms of its path their formulas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn import functional

from immunize.config import config_dir
from immunize.objective.attacker import Attacker, _probe, attack, gradients_of, thirds
from immunize.objective.base import Head
from immunize.objective.censor import Censor
from immunize.objective.contract import Contract
from immunize.objective.deep import DeepStep
from immunize.objective.imma import Imma
from immunize.objective.simulated import SUPPRESSIONS, SimulatedFineTuning, Suppression, suppression
from tests import reference as ref
from tests.composing import compose_config
from tests.objective.tiny import CLASSES, D, N, network, step_of

K, RATE = 3, 0.05


@pytest.fixture
def step() -> DeepStep:
    return step_of(network())


def made(**options: Any) -> SimulatedFineTuning:
    objective = SimulatedFineTuning(
        **{"attack_steps": K, "attack_learning_rate": RATE, "attack_batch_size": 8} | options
    )
    objective.bind(D, n_outputs=CLASSES)
    return objective


@pytest.mark.parametrize("which", SUPPRESSIONS)
def test_suppressions_are_their_formulas(which: Suppression) -> None:
    logits, labels = 3 * ref.gaussian(6, 4, seed=0), torch.tensor([0, 1, 2, 3, 0, 1])
    log_p, loss = logits.log_softmax(1), functional.cross_entropy(logits, labels, reduction="none")
    expected = {
        "inverse": -(1 - (-loss).exp()).log(),
        "uniform": functional.kl_div(log_p, torch.full_like(log_p, 0.25), reduction="none").sum(1),
        "ascent": -loss,
    }[which]
    torch.testing.assert_close(suppression(which, logits, labels), expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_are_those_of_pytorch(optimizer: Any, step: DeepStep) -> None:
    """Weights and head, each with its rate, over the batches in their order."""
    judged, path = attack(step, Attacker(K, RATE, optimizer, head_multiplier=4.0, batch_size=8), CLASSES)
    assert int(judged.sum()) == len(step.harmful.y) // 3
    theta, (_, start), *_, (parameters, head) = step.parameters(), *path
    own = [nn.Parameter(start.weight.clone()), nn.Parameter(start.bias.clone())]  # type: ignore[union-attr]
    moved = {name: nn.Parameter(value.detach().clone()) for name, value in theta.items()}
    by_torch = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](
        [{"params": list(moved.values()), "lr": RATE}, {"params": own, "lr": 4 * RATE}], lr=RATE
    )
    for k in range(K):
        part = step.of_harmful((~judged).nonzero().squeeze(1).split(8)[k % 2])
        by_torch.zero_grad()
        functional.cross_entropy(part.logits("harmful", Head(*own), moved), part.harmful.y).backward()  # type: ignore[arg-type, no-untyped-call]
        by_torch.step()
    for name, value in moved.items():
        torch.testing.assert_close(parameters[name], value)
    torch.testing.assert_close(head.weight, own[0].detach())


def learned_by(step: DeepStep, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, list[Tensor]]:
    """The rows that judge an attacker with batches of 8, and those of each of its steps."""
    learned, of_harmful = list[Tensor](), DeepStep.of_harmful
    with monkeypatch.context() as patch:
        patch.setattr(DeepStep, "of_harmful", lambda at, rows: learned.append(rows) or of_harmful(at, rows))
        judged, path = attack(step, Attacker(K, RATE, batch_size=8), sum(step.harmful_classes))
        list(path)
    return judged, learned


def test_of_one_data_set_the_last_images_are_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    judged, learned = learned_by(step_of(network(), classes=(CLASSES,), rows=32), monkeypatch)
    seen = (~judged).nonzero().squeeze(1)
    assert torch.equal(torch.stack(learned[:2], 1).flatten(), seen[:16])
    assert len(seen) == 21


def test_of_several_data_sets_it_learns_from_all_but_the_rows_that_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of 11, 11 and 10 images, of which 8, 8 and 6 teach: what is left over is not the last set's."""
    step = step_of(network(), classes=(2, 2, 2), rows=32)
    judged, learned = learned_by(step, monkeypatch)
    sets = step.harmful.y // 2
    for number in range(3):
        labels = step.labelled(f"harmful:{number}", [])[1]
        assert torch.equal(judged[sets == number], thirds(labels))
    rows = torch.cat(learned)
    assert not judged[rows].any()
    assert min(int((sets[rows[:16]] == number).sum()) for number in range(3)) >= 4


def along(
    step: DeepStep, attacker: Attacker, loss_of: Any = functional.cross_entropy
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """After each step: θ in one piece, ℓ and ∇ℓ on the images that it does not see, ∇ℓ on all that it sees."""
    judged, path = attack(step, attacker, CLASSES)
    for theta, head in path:
        there = {name: value.detach().requires_grad_() for name, value in theta.items()}

        def on(rows: Tensor, there: Any = there, head: Any = head) -> tuple[Tensor, Tensor]:
            mine = step.of_harmful(rows.nonzero().squeeze(1))
            loss = loss_of(mine.logits("harmful", head.detach(), there), mine.harmful.y)
            return loss.detach(), flat(torch.autograd.grad(loss, list(there.values())))

        yield flat(there.values()).detach(), *on(judged), on(~judged)[1]


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([one.flatten() for one in tensors])


def suppressed(logits: Tensor, labels: Tensor) -> Tensor:
    return suppression("inverse", logits, labels).mean()


def test_first_order_gradient_is_that_at_the_attackers_weights(step: DeepStep) -> None:
    """Of a loss of the images that the attacker does not see: `simulated` takes its mean, `contract` what is gained."""
    cases: tuple[tuple[Any, str, Any], ...] = (
        (made(), "suppressed", suppressed),
        (contract(first_gain=0.0, contraction=0.0), "gain", functional.cross_entropy),
    )
    for objective, name, loss_of in cases:
        _, values, slopes, _ = zip(*along(step, objective.attacker, loss_of), strict=True)
        gains = [here - there for k, (here, there) in enumerate(pairwise(slopes)) if values[k] > values[k + 1]]
        expected = torch.stack(slopes).mean(0) if name == "suppressed" else torch.stack(gains).sum(0)
        mine = torch.autograd.grad(objective.terms(step.again())[name], list(step.parameters().values()))
        torch.testing.assert_close(flat(mine), expected)


@pytest.mark.parametrize(
    ("method", "rate", "taken"),
    [
        *((method, *at) for method in ("simulated", "contract", "censor") for at in ((1e300, 0), (1e80, 0), (40, 1))),
        ("imma", 6e307, 1),  # who takes a step at least; the last layer is linear, and its slopes are bounded
    ],
)
def test_an_attacker_that_diverges_is_named_with_its_step_and_left_out(method: str, rate: float, taken: int) -> None:
    """What is left are the terms of an attacker who stops before: nothing is averaged with what is not finite, nor with
    a loss a hundred times the first.
    """

    def terms(steps: int) -> dict[str, Tensor]:
        step = _shifted(step_of(network()))
        if method == "imma":
            objective: Any = Imma(steps, rate)
        elif method == "censor":
            objective = Censor(answers=0.0)
            objective.attacker = Attacker(steps, rate, head_multiplier=1.0)
            assert int(step.harmful.y.sum()) % (steps + 1) == steps  # so many steps are taken for this batch
        else:
            of_attacker = {"attack_steps": steps, "attack_learning_rate": rate, "attack_optimizer": "sgd"}
            objective = (made if method == "simulated" else contract)(**of_attacker)
        objective.bind(D, torch.Generator().manual_seed(0), CLASSES)
        return objective.terms(step)

    with pytest.warns(RuntimeWarning, match=f"diverged in its step {taken + 1}"):
        found = terms(2)
    assert all(torch.isfinite(term) for term in found.values())
    before = terms(taken)
    for name, term in found.items():
        torch.testing.assert_close(term, before.get(name, torch.zeros_like(term)))


def test_a_probe_has_the_networks_precision() -> None:
    rows, labels = ref.gaussian(N, D, seed=5), torch.arange(N) % CLASSES
    probe = _probe(rows, labels, torch.arange(N) < 8, CLASSES, torch.float32)
    assert probe.weight.dtype == probe.bias.dtype == torch.float32


def test_without_steps_the_probe_of_theta_is_suppressed(step: DeepStep) -> None:
    objective = made(attack_steps=0)
    ((_, wanted, *_),) = along(step, objective.attacker, suppressed)
    torch.testing.assert_close(objective.terms(step)["suppressed"].detach(), wanted)


def test_censor_looks_at_the_attackers_weights(step: DeepStep) -> None:
    attacked = Censor(answers=0, attack_steps=1, attack_learning_rate=RATE, attack_batch_size=8)
    attacked.bind(D, n_outputs=CLASSES)
    moved = [labels for labels in (step, _shifted(step)) if int(labels.harmful.y.sum()) % 2]
    assert len(moved) == 1  # k is 1 for one of them, and for a batch in every other step
    numbered = [attacked._attacked(replace(moved[0], number=number)) for number in range(4)]
    assert [parameters is None for parameters in numbered] == [False, True, False, True]
    with_steps, without = (objective.terms(moved[0].again()) for objective in (attacked, Censor(answers=0)))
    assert with_steps["adversary"].item() != without["adversary"].item()
    assert with_steps["features"].item() == without["features"].item()
    assert torch.autograd.grad(with_steps["adversary"], list(step.parameters().values()))[0].any()


def _shifted(step: DeepStep) -> DeepStep:
    """Without its first image of D_H that has an odd label."""
    rows = torch.arange(len(step.harmful.y))
    return step.of_harmful(rows[rows != int((step.harmful.y % 2 == 1).nonzero()[0])])


def test_how_often_an_attacker_diverged_is_told_and_what_is_watched() -> None:
    objective = made(attack_steps=2, attack_learning_rate=40, attack_optimizer="sgd")
    for _ in range(3):
        with pytest.warns(RuntimeWarning, match="diverged in its step 2"):
            objective.terms(_shifted(step_of(network())))
    attacked = objective.watched["attacked"].item()
    assert objective.facts() == {"watched": {"attacked": attacked}, "attackers_diverged": {"in step 2": 3}}
    assert not made().facts()  # before the first step


def test_a_batch_of_one_image_is_a_batch() -> None:
    assert all(bool(torch.isfinite(term)) for term in made(attack_batch_size=1).terms(step_of(network())).values())


# method=contract: its terms are their formulas, and without steps it is censor.


ETA, FACTOR = 0.3, 0.25
OF_STEPS = {"attack_learning_rate", "attack_optimizer", "attack_batch_size", "head_multiplier", "second_order"}
OF_TERMS = {"factor", "first_gain", "descent_rate"}
OF_CENSOR = {"answers": 0.0, "kernels": ["linear"]}


def contract(**options: Any) -> Contract:
    small = {"attack_steps": K, "attack_learning_rate": RATE, "attack_batch_size": 8, "descent_rate": ETA}
    objective = Contract(**OF_CENSOR | small | {"factor": FACTOR, "first_gain": 1e-4} | options)
    objective.bind(D, n_outputs=CLASSES)
    return objective


@pytest.mark.parametrize("options", [{}, {"attack_optimizer": "sgd", "second_order": True}])
def test_terms_are_their_formulas(step: DeepStep, options: dict[str, Any]) -> None:
    objective = contract(**options)
    terms = objective.terms(step.again())
    places, losses, _, slopes = zip(*along(step, objective.attacker), strict=True)
    gain = sum(max(0.0, float(losses[k] - losses[k + 1]) - 1e-4 * FACTOR**k) for k in range(K))
    assert gain > 0
    assert terms["gain"].item() == pytest.approx(gain, rel=1e-9)
    ends = [place - ETA * slope for place, slope in zip(places, slopes, strict=True)]
    factors = [(ends[k + 1] - ends[k]).norm() / (places[k + 1] - places[k]).norm() for k in range(K)]
    wanted = sum(max(0.0, float(one) - FACTOR) ** 2 for one in factors) / K
    assert wanted > 0
    assert terms["contraction"].item() == pytest.approx(wanted, rel=1e-6)
    assert objective.watched["factor"].item() == pytest.approx(float(max(factors)), rel=1e-6)
    assert objective.watched["gained"].item() == pytest.approx(float(losses[0] - losses[-1]), rel=1e-9)


def test_second_order_gradients_are_those_of_finite_differences(
    step: DeepStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the harmful loss after the steps, and of the contraction; the attacker's first probe is a constant."""
    weight, fixed = step.parameters()["2.0.weight"], next(attack(step, Attacker(0, RATE), CLASSES)[1])[1]
    monkeypatch.setattr("immunize.objective.attacker._probe", lambda *_: fixed)

    def attacked(second_order: bool) -> Tensor:
        attacker = Attacker(K, RATE, "sgd", 1.0, second_order)
        *_, (theta, after) = attacker.path(step, fixed, lambda _, theta, w: step.loss("harmful", w, theta))
        return step.loss("harmful", after, theta)

    def contraction(second_order: bool) -> Tensor:
        return contract(attack_optimizer="sgd", second_order=second_order).terms(step.again())["contraction"]

    for of, rtol in ((attacked, 1e-6), (contraction, 1e-5)):
        assert torch.autograd.gradcheck(lambda _, of=of: of(True), weight, atol=0, rtol=rtol, fast_mode=True)
        slope, first = (torch.autograd.grad(of(second_order), weight)[0] for second_order in (True, False))
        assert float((slope - first).norm()) > 1e-2 * float(slope.norm())


def test_descent_on_the_contraction_lowers_it(step: DeepStep) -> None:
    """By itself, and in first order as well: what the steps add counts as a constant, their slopes do not."""
    objective = contract(gain=0.0)
    parameters = list(step.parameters().values())
    before = objective.terms(step.again())["contraction"]
    slopes = torch.autograd.grad(before, parameters)
    length = 1e-3 / torch.stack([slope.square().sum() for slope in slopes]).sum().sqrt()
    with torch.no_grad():
        for parameter, slope in zip(parameters, slopes, strict=True):
            parameter.sub_(length * slope)
    assert objective.terms(step.again())["contraction"] < before


@pytest.mark.parametrize("options", [{"attack_steps": 0}, {"gain": 0.0, "contraction": 0.0}])
def test_without_steps_or_weights_it_is_censor(step: DeepStep, options: dict[str, Any]) -> None:
    objective, censor = contract(**options), Censor(**OF_CENSOR)  # type: ignore[arg-type]
    mine, wanted = objective.terms(step.again()), censor.terms(step.again())
    assert mine.keys() == wanted.keys()
    assert all(torch.equal(mine[name], wanted[name]) for name in mine)
    assert objective.weights == censor.weights


def test_its_probes_may_look_after_the_steps_as_those_of_censor(step: DeepStep) -> None:
    censor = Censor(**OF_CENSOR, attack_steps=K, attack_learning_rate=RATE, attack_batch_size=8)  # type: ignore[arg-type]
    censor.bind(D, n_outputs=CLASSES)
    mine = contract(attack_optimizer="adam", probes_after=True)
    here = next(one for one in (step, _shifted(step)) if int(one.harmful.y.sum()) % (K + 1))
    after, wanted, at_theta = (one.terms(here.again())["adversary"] for one in (mine, censor, contract()))
    assert torch.equal(after, wanted)
    assert after.item() != at_theta.item()


def test_an_attacker_that_stands_still_has_no_factor(step: DeepStep) -> None:
    terms = contract(attack_learning_rate=1e-300).terms(step)
    assert (terms["gain"].item(), terms["contraction"].item()) == (0, 0)


def test_its_files_have_the_settings_of_censor() -> None:
    """Written out, since `immunize.immunize` reads them without Hydra."""
    folder, names = Path(config_dir()) / "method", ("contract", "censor")
    mine, censor = (dict(OmegaConf.load(folder / f"{name}.yaml")) for name in names)
    assert all(mine[key] == censor[key] for key in censor.keys() - {"name", "_target_", "attack_steps"})
    rows = [OmegaConf.load(folder / "own" / f"{name}.yaml") for name in names]
    assert rows[0] == rows[1]
    for model in ("resnet_small", "vit_small"):
        on_digits = [compose_config("pretrain=digits", f"model={model}", f"method={name}") for name in names]
        weights = [[of.method[key] for key in ("adversary", "answers", "features", "logits")] for of in on_digits]
        assert (weights[0], on_digits[0].objective) == (weights[1], on_digits[1].objective)


@pytest.mark.parametrize(
    ("build", "options", "unused"),
    [
        *((build, {}, set()) for build in (made, contract)),
        (made, {"attack_steps": 0}, OF_STEPS),
        (Censor, {"attack_steps": 0}, {"attack_learning_rate", "attack_batch_size"}),
        (Censor, {"attack_steps": 1}, set()),
        (contract, {"gain": 0.0}, {"first_gain"}),
        (contract, {"contraction": 0.0}, {"descent_rate"}),
        (contract, {"gain": 0.0, "contraction": 0.0}, {"attack_steps"} | OF_STEPS | OF_TERMS),
        (contract, {"gain": 0.0, "contraction": 0.0, "probes_after": True}, OF_TERMS),
        (contract, {"attack_steps": 0}, {"gain", "contraction", "probes_after"} | OF_STEPS | OF_TERMS),
    ],
)
def test_what_has_no_term_is_said_to_have_no_effect(build: Any, options: dict[str, Any], unused: set[str]) -> None:
    assert set(build(**options).unused) == unused


def test_what_the_loss_does_not_use_has_no_slope() -> None:
    used, unused = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    slopes = gradients_of(used.square().sum(), [used, unused], graph=False)
    assert [slope.tolist() for slope in slopes] == [[2.0, 2.0], [0.0, 0.0, 0.0]]
