"""`method=erase` as θ, behind a network, and the classifier that is fitted again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier, RidgeCV
from torch import Tensor

from immunize import evaluate, train
from immunize.data.digits import FiveDigits
from immunize.data.housing import Housing
from immunize.features.weights import load_weights
from immunize.objective import Head
from immunize.objective.erase import Erase, distilled
from immunize.records import CHECKPOINT
from immunize.spectrum.erasing_choice import erase
from tests import reference as ref
from tests.composing import Run, compose_config, run_tiny_deep, theta_of

DIGITS = ("harmful=digits5to9", "method=erase", "logger=none", "figure=false", "probe_steps=200")


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on the digits with their labels."""
    folder = tmp_path_factory.mktemp("digits")
    return folder, train.run(compose_config(*DIGITS), folder)


def test_linear_classifiers_are_at_chance_on_held_out_digits_and_d_p_is_kept(digits_run: Run) -> None:
    folder, record = digits_run
    theta = theta_of(folder, 64)
    assert record["training"]["fit"]["steps"] == 0
    facts = record["training"]["fit"]["closed_form"]
    assert (facts["rank"], facts["available"], facts["feasible"]) == (4, 4, True)

    def score(role: str, classifier: Any, map_: Tensor) -> float:
        splits = FiveDigits(role).load()
        classifier.fit((splits.fit.x @ map_).numpy(), splits.fit.y.numpy())
        return float(classifier.score((splits.held_out.x @ map_).numpy(), splits.held_out.y.numpy()))

    for classifier in (LogisticRegression(max_iter=3000), RidgeClassifier(), LogisticRegression(C=1e4, max_iter=3000)):
        assert score("harmful", classifier, torch.eye(64, dtype=torch.float64)) > 0.94
        assert score("harmful", classifier, theta) <= 0.22
        assert score("pretrain", classifier, theta) >= score("pretrain", classifier, torch.eye(64).double()) - 0.01


def test_the_record_says_what_is_gone_and_counts_the_directions_that_are_left(digits_run: Run) -> None:
    folder, record = digits_run
    assert record["aims_at_kappa"] is False
    for part in ("fit", "held_out"):
        harmful = record["separability"][part]["harmful"]
        assert max(harmful["identity"]["cross_fitted"].values()) > 0.8
        assert max(harmful["immunized"]["cross_fitted"].values()) < 0.15
    assert harmful["identity"]["in_sample"]["0.001"] > 0.8
    assert max(record["separability"]["fit"]["harmful"]["immunized"]["in_sample"].values()) < 1e-9
    kappas = record["metrics"]["fit"]["spectrum"]["facts"]
    assert kappas["kappa_harmful"]["rank"] == kappas["kappa_harmful_baseline"]["rank"] - 4
    assert record["metrics"]["fit"]["spectrum"]["kappa_harmful"] < 1e9  # and not the rounding of what is gone
    assert evaluate.run(folder)[1] == []


def test_imma_trains_on_several_classes_too(tmp_path: Path) -> None:
    assert train.run(compose_config(*DIGITS, "method=imma", "objective.epochs=3"), tmp_path)["status"] == "finished"


@pytest.mark.data
def test_the_target_of_house_prices_cannot_be_learned_and_that_of_d_p_can(data_root: str) -> None:
    losses = []
    for seed in range(5):
        p, h = (Housing(data_root, role).cross_fit(seed) for role in ("pretrain", "harmful"))
        r = erase(p.fit.x, h.fit.x, h.fit.y, y_pretrain=p.fit.y)

        def explained(splits: Any, map_: Any) -> float:
            probe = RidgeCV(np.logspace(-1, 5, 40)).fit(map_(splits.fit.x).numpy(), splits.fit.y.numpy())
            return float(probe.score(map_(splits.held_out.x).numpy(), splits.held_out.y.numpy()))

        assert explained(h, lambda x: x) > 0.6
        assert explained(h, r) <= 0.05
        losses.append(explained(p, lambda x: x) - explained(p, r))
    assert float(np.median(losses)) <= 0.02


def test_a_network_gets_a_map_in_the_weights_and_its_classifier_is_fitted_again(tmp_path: Path) -> None:
    record = run_tiny_deep(tmp_path, "method=erase", "method.slack=1")
    assert record["training"]["fit"]["closed_form"]["rank"] == 4
    assert "fc.map.weight" in load_weights(tmp_path / CHECKPOINT)
    harmful = record["separability"]["fit"]["harmful"]
    assert max(harmful["theta_0"]["in_sample"].values()) > 0.01
    assert max(harmful["immunized"]["in_sample"].values()) < 1e-6  # of float32
    assert evaluate.run(tmp_path)[1] == []


def test_the_refitted_classifier_repeats_the_old_answers_better_than_the_old_one() -> None:
    f = ref.gaussian(300, 7, seed=1)
    old = Head(2 * ref.gaussian(7, 4, seed=2), ref.gaussian(4, seed=3))
    y = torch.arange(300) % 3
    r = erase(f, f + 2 * torch.eye(7, dtype=torch.float64)[y], y)
    g = f @ r.matrix

    def divergence(head: Head) -> Tensor:
        p = old(f).softmax(1)
        return (p * (p.log() - head(g).log_softmax(1))).sum(1).mean()

    assert divergence(distilled(f, r.matrix, old)) < 0.9 * divergence(old)
    best = distilled(f, r.matrix, old, steps=200)
    weight, bias = (of.detach().requires_grad_() for of in (best.weight, best.bias))  # type: ignore[union-attr]
    slopes = torch.autograd.grad(divergence(Head(weight, bias)), [weight, bias])
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-3  # the least divergence there is
    assert distilled(f, r.matrix, Head(old.weight)).bias is None


def test_rank_seed_and_slack_are_those_of_the_map() -> None:
    sides = {role: FiveDigits(role).load().fit for role in ("pretrain", "harmful")}
    given = {rank: Erase(rank=rank, shrinkage=0.01).solve(**sides) for rank in (1, 3)}
    for rank, (theta, facts) in given.items():
        assert (facts["rank"], facts["rank_chosen_by"]) == (rank, "given")
        assert int(torch.linalg.matrix_rank(torch.eye(64) - theta, rtol=1e-9)) == rank
    protected, free = (Erase(rank=3, shrinkage=0.01, protect=on).solve(**sides)[0] for on in (True, False))
    assert not torch.allclose(protected, free)
    trials = [Erase(seed=seed).solve(**sides)[1]["trials"] for seed in (0, 0, 1)]
    assert trials[0] == trials[1] != trials[2]
    by_slack = [Erase(slack=slack, shrinkage=0.01).solve(**sides)[1]["rank"] for slack in (0.0, 0.005, 0.02)]
    assert by_slack == sorted(set(by_slack))  # the more may be lost, the more is taken
    assert Erase(shrinkage=0.0).shrinkage == 0
