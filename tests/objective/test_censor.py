"""`method=censor`: what its loss is made of, what it does to a network, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from sklearn.linear_model import RidgeClassifier
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import immunize
from immunize.data import ROLES
from immunize.data.digits import FiveDigits
from immunize.errors import UserError
from immunize.features.deep import DeepExtractor, features_at
from immunize.features.extract import Features
from immunize.objective import DeepSide, DeepStep
from immunize.objective.attacker import thirds
from immunize.objective.censor import Censor
from immunize.pipeline.assemble import method_named
from immunize.spectrum.separability import cross_fitted_correlation
from tests import reference as ref
from tests.composing import compose_config
from tests.objective.tiny import CLASSES, network, step_of


def prepared(step: DeepStep, **options: Any) -> Censor:
    """The method, having seen the rows of the step under θ_0."""
    objective, net = Censor(**options), step.theta_0
    numbers = range(max(1, len(step.harmful_classes)))
    ends = torch.tensor(step.harmful_classes or (CLASSES,)).cumsum(0)
    mine = [torch.bucketize(step.harmful.y, ends, right=True) == number for number in numbers]
    sides = [(step.pretrain.h, step.pretrain.y % 2), *((step.harmful.h[rows], step.harmful.y[rows]) for rows in mine)]
    features = [Features(net.features(h).detach(), y) for h, y in sides]
    objective.prepare(net, [of.y for of in features[1:]], lambda: features)
    return objective


@pytest.mark.parametrize("erased", [False, True])
def test_gradient_of_the_whole_loss_is_that_of_finite_differences(erased: bool) -> None:
    net = network()
    step = step_of(net)
    objective = prepared(step, depths=["2.0"], erased=erased, lambda_well=1e-3, lambda_ill=1e-3)
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]

    def loss() -> Tensor:
        terms = objective.terms(step.again())
        assert terms.keys() == objective.weights.keys() == {"adversary", "answers", "features", "logits", "well", "ill"}
        return torch.stack([objective.weights[name] * term for name, term in terms.items()]).sum()

    assert torch.autograd.gradcheck(lambda *_: loss(), parameters, atol=1e-6, rtol=1e-5, fast_mode=True)


def test_a_step_that_has_not_left_theta_0_repeats_it() -> None:
    net = network()
    step = step_of(net)
    at_theta_0 = DeepStep(step.theta_0, step.pretrain, step.harmful, step.task_loss, theta_0=step.theta_0)  # type: ignore[arg-type]
    there, here = (prepared(step).terms(one) for one in (at_theta_0, step))
    assert float(there["features"]) == float(there["logits"]) == 0
    assert min(value.item() for value in here.values()) > 0


def test_several_harmful_sets_are_each_a_task_of_their_own() -> None:
    net = network()
    step = step_of(net, classes=(2, 3), rows=30)
    total = prepared(step).terms(step)
    alone = []
    for mine in (step.harmful.y < 2, step.harmful.y >= 2):
        harmful = DeepSide(step.harmful.h[mine], step.harmful.y[mine])
        one = DeepStep(net, step.pretrain, harmful, step.task_loss, (5,), theta_0=step.theta_0)
        alone.append(prepared(one).terms(one))
    for name in ("adversary", "answers"):
        torch.testing.assert_close(total[name], alone[0][name] + alone[1][name])


def test_outputs_at_depths_are_those_of_the_modules() -> None:
    net = network()
    h = net.trunk(ref.gaussian(4, 6, seed=1))
    features, inner = features_at(net, h, ["2.0"])
    torch.testing.assert_close(features, net.features(h))
    torch.testing.assert_close(inner, net.network.backbone[2][0](h))
    for unknown in ("0", "2.7", ""):
        with pytest.raises(UserError, match=rf"no module '{unknown}'.*2\.0"):
            Censor(depths=[unknown]).prepare(net, [torch.arange(4) % 2], list)


def test_large_outputs_are_averaged_over_places() -> None:
    body = nn.Sequential(nn.Conv2d(1, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = DeepExtractor.from_module(body, nn.Linear(8, 2), "*")
    x = torch.rand(3, 1, 24, 24)
    torch.testing.assert_close(features_at(net, x, ["0"])[1], net.features(x))
    small = torch.rand(3, 1, 4, 4)
    torch.testing.assert_close(features_at(net, small, ["0"])[1], body[0](small).flatten(1))


def test_the_python_function_trains_as_the_command_does() -> None:
    objective, row = method_named("censor", None, None, {"answers": 0.0}, 0)
    command = compose_config("model=resnet18_64px", "harmful=cars", "pretrain=tiny_imagenet", "method=censor").objective
    assert objective.weights.keys() == {"adversary", "features", "logits"}
    assert all(row[name] == command[name] for name in ("optimizer", "learning_rate", "max_steps", "lr_decay"))


def test_a_probe_no_longer_learns_held_out_digits_and_d_p_stays() -> None:
    pretrain, harmful = (FiveDigits(role).load() for role in ROLES)
    torch.manual_seed(0)
    backbone, head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 5)
    x, y = pretrain.fit.x.float(), pretrain.fit.y
    optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters()], 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(backbone(x)), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    batches = [
        DataLoader(TensorDataset(of.fit.x.float(), of.fit.y), 200, shuffle=True, drop_last=True)
        for of in (pretrain, harmful)
    ]
    found = immunize.immunize(backbone, head, *batches, method="censor", trainable="*", steps=100, learning_rate=1e-2)

    def probed(of: Any) -> float:
        with torch.no_grad():
            fit, held = (of(part.x.float()).double().numpy() for part in (harmful.fit, harmful.held_out))
        probe = RidgeClassifier(1e-2).fit(fit, harmful.fit.y.numpy())
        return float(probe.score(held, harmful.held_out.y.numpy()))

    assert probed(backbone) > 0.9
    assert probed(found.backbone) < 0.45
    assert found.accuracy["after"] > found.accuracy["before"] - 2  # of images that no step has seen


@pytest.mark.parametrize(
    ("labels", "words"),
    [(torch.zeros(9, dtype=torch.int64), "same label.*method=ours"), (torch.arange(9), "fewer than two classes")],
)
def test_labels_that_no_probe_can_be_judged_on_are_refused(labels: Tensor, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Censor().prepare(network(), [labels], list)


def test_a_class_with_one_image_is_a_class_beside_others() -> None:
    step, objective = step_of(network()), Censor(answers=0)
    labels = step.harmful.y.clone()
    labels[labels == 2] = 0
    labels[0] = 2
    objective.prepare(step.net, [labels], list)
    harmful = replace(step.harmful, y=labels)
    terms = objective.terms(replace(step, harmful=harmful))
    assert all(torch.isfinite(term) for term in terms.values())


def test_a_batch_with_too_few_images_a_class_is_refused() -> None:
    step = step_of(network(), classes=(14, 1), rows=24)
    with pytest.raises(UserError, match="24 images of 15 classes"):
        Censor(answers=0).terms(DeepStep(step.net, step.pretrain, step.harmful, step.task_loss, theta_0=step.theta_0))


def test_kappa_is_its_measure_only_with_the_terms_of_eq_11() -> None:
    assert not Censor().aims_at_kappa
    assert Censor(lambda_well=1.0).aims_at_kappa
    assert Censor(lambda_ill=1.0).aims_at_kappa


def test_of_several_data_sets_the_one_that_is_told_best_is_watched() -> None:
    step = step_of(network(), classes=(2, 3), rows=30)
    together, each = Censor(answers=0, kernels=["linear"]), list[float]()
    together.terms(step.again())
    (features,) = step.look("harmful", ())
    for role in ("harmful:0", "harmful:1"):
        (rows,), labels = step.labelled(role, [features.detach()])
        each.append(float(cross_fitted_correlation(rows, labels, thirds(labels), together.rhos).max()))
    ((name, watched),) = together.watched.items()
    assert name == "c/adversary/features/linear"
    assert each[0] != each[1]
    assert float(watched) == pytest.approx(max(each), rel=1e-12)
    assert Censor(answers=0).trains_classifier
