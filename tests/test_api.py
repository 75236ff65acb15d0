"""`immunize.immunize`: any torch network and two loaders."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import random
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from threadpoolctl import threadpool_info
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import immunize
from immunize import api
from immunize.errors import UserError
from immunize.evaluation.separability import separability
from immunize.features import DeepExtractor
from immunize.features.extract import SHARE, Once
from immunize.features.loaders import Batches, TrainedOn, features_of, set_aside
from immunize.objective.ours import Ours

D, CLASSES = 12, 3


class Backbone(nn.Module):
    """Two layers, of which the second is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, D)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.last(self.act(self.first(x)))
        return features


Network = tuple[Backbone, nn.Linear]


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return Backbone(), nn.Linear(D, CLASSES)


def loader(seed: int, classes: int = CLASSES, n: int = 160, **options: Any) -> DataLoader[Any]:
    draws = torch.Generator().manual_seed(seed)
    scale = torch.logspace(0, -1, 20)
    x = torch.randn(n, 20, generator=draws) * scale[torch.randperm(20, generator=draws)]
    return DataLoader(TensorDataset(x, torch.randint(classes, (n,), generator=draws)), **{"batch_size": 40} | options)


def loaders(**options: Any) -> list[DataLoader[Any]]:
    """Of D_P, and of D_H with its five classes."""
    return [loader(seed, classes, **options) for seed, classes in ((1, CLASSES), (2, 5))]


X, Y = loader(1).dataset.tensors  # type: ignore[attr-defined]


def immunized(network: Network, **options: Any) -> immunize.Immunized:
    settings: dict[str, Any] = {"trainable": ["last"], "steps": 60, "learning_rate": 3e-3} | options
    return immunize.immunize(*network, *loaders(), **settings)


def test_ours_raises_rir_and_leaves_the_network_alone(network: Network) -> None:
    """What comes back can be trained as what was given."""
    backbone, head = network
    backbone.first.bias.requires_grad_(False)
    before = {name: value.clone() for name, value in (*backbone.state_dict().items(), *head.state_dict().items())}
    found = immunized(network, keep="labels")
    assert found.steps == 60
    assert found.ratios["spectrum"].ratio.rir > 1.5
    low, high = found.ratios["spectrum"].intervals["rir"]
    assert low < found.ratios["spectrum"].ratio.rir < high
    for name, value in (*backbone.state_dict().items(), *head.state_dict().items()):
        assert torch.equal(value, before[name])
    assert torch.equal(found.backbone.first.weight, backbone.first.weight)  # type: ignore[union-attr, arg-type]
    assert not torch.equal(found.backbone.last.weight, backbone.last.weight)  # type: ignore[union-attr, arg-type]
    assert "RIR" in str(found)
    assert [parameter.requires_grad for parameter in found.backbone.parameters()] == [True, False, True, True]
    assert all(parameter.grad is None for parameter in (*found.backbone.parameters(), *found.head.parameters()))


def test_d_p_is_judged_by_rows_that_no_step_sees(network: Network) -> None:
    """However the loader shuffles: a fifth of its rows, the same ones in every pass."""
    aside = set_aside(X)
    assert 0.1 < aside.double().mean() < 0.3
    shuffled = TrainedOn(DataLoader(TensorDataset(X, Y), batch_size=40, shuffle=True))
    for _ in range(2):
        seen = torch.cat([rows for rows, _ in shuffled])
        assert {tuple(row) for row in seen.tolist()} == {tuple(row) for row in X[~aside].tolist()}
    found = immunized(network, steps=3)
    with torch.no_grad():
        before, after = (h(b.eval()(X[aside])).argmax(1) for b, h in (network, (found.backbone, found.head)))
    expected = {"before": before == Y[aside], "after": after == Y[aside], "agreement": before == after}
    assert found.accuracy == {name: pytest.approx(100 * float(v.double().mean())) for name, v in expected.items()}


class Moving(TensorDataset):
    """Images that are others each time."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.rand_like(x), y


def test_a_loader_that_moves_its_images_is_noticed(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    moving = DataLoader(Moving(*loader(1).dataset.tensors), batch_size=40, shuffle=True)  # type: ignore[attr-defined]
    still = loader(1, shuffle=True, drop_last=True)
    for given, noticed in ((still, False), (moving, True)):
        caplog.clear()
        immunize.immunize(*network, given, loader(2), trainable=["last"], steps=2)
        assert ("were trained on in another form" in caplog.text) is noticed


def test_a_loader_that_does_not_end_is_told_of(
    network: Network, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            while len(caplog.messages) < 1:
                yield X[:10], Y[:10]
            raise KeyboardInterrupt

    monkeypatch.setattr("immunize.features.loaders.SLOW", -1.0)  # as if a minute had gone by
    with pytest.raises(KeyboardInterrupt):
        immunize.immunize(*network, Endless(), loader(2), trainable=["last"], steps=2)
    assert "pretrain_loader has given 10 rows and goes on" in caplog.text


def test_too_few_images_to_set_some_aside_or_to_train_on(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    aside = set_aside(X)
    immunize.immunize(*network, [(X[~aside][:9], Y[~aside][:9])], loader(2), trainable=["last"], steps=2)
    assert "none was set aside" in caplog.text
    with pytest.raises(UserError, match="no batch of D_P has two rows to train on"):
        immunize.immunize(*network, [(X[aside], Y[aside])], loader(2), trainable=["last"], steps=2)


def test_bfloat16_is_measured(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    half = (part.bfloat16() for part in network)
    found = immunize.immunize(*half, [(X.bfloat16(), Y)], [(X.flip(1).bfloat16(), Y)], trainable=["last"], steps=2)
    assert math.isfinite(found.ratios["ridge"].ratio.rir)
    assert "torch.bfloat16 have three digits" in caplog.text
    assert found.backbone.last.weight.dtype == torch.bfloat16  # type: ignore[union-attr]
    with pytest.raises(UserError, match="float16 is too narrow to train in"):
        immunize.immunize(
            *(part.half() for part in network), [(X.half(), Y)], [(X.flip(1).half(), Y)], trainable=["last"]
        )


@pytest.mark.parametrize("method", ["ours", "censor"])
def test_lists_of_batches_with_labels_of_any_integer_type_are_loaders(method: str, network: Network) -> None:
    kinds = (torch.int64, torch.int32, torch.uint8)
    typed = [[[(x, y.to(kind)) for x, y in of] for of in loaders()] for kind in kinds]
    first, *others = (
        immunize.immunize(*network, *of, trainable=["last"], steps=6, method=method).backbone.last.weight  # type: ignore
        for of in (loaders(), *typed)
    )
    assert all(torch.equal(first, other) for other in others)


def test_verdicts_are_told_and_a_harder_d_p_is_warned_of(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    ratio = (bad := immunized(network, method="ill_only", steps=60)).ratios["spectrum"].ratio
    assert (bad.verdicts.a, bad.verdicts.b) == (ratio.ratio_harmful >= 2, ratio.ratio_pretrain <= 1) == (True, False)
    assert f"(b): D_P is {ratio.ratio_pretrain:.5g} times as hard" in caplog.text
    assert str(bad).endswith(bad.what_failed)
    caplog.clear()
    good = immunized(network, method="closed_form", options={"budget": 100.0})
    assert (good.verdicts.a, good.verdicts.b, good.verdicts.c) == (True, True, True), good.what_failed
    assert not caplog.text
    assert str(good).endswith("Definition 3.1 holds on these rows")


def learnable(seed: int, classes: int) -> DataLoader[Any]:
    """Classes that a probe tells apart."""
    x = torch.randn(160, 20, generator=torch.Generator().manual_seed(seed))
    y = torch.arange(160) % classes
    return DataLoader(TensorDataset(x + 3 * torch.eye(20)[y + seed], y), batch_size=40)


@pytest.mark.parametrize("method", ["erase", "censor", "simulated", "contract"])
def test_a_method_that_does_not_aim_at_kappa_is_told_by_what_can_be_learned(
    network: Network, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    told_apart = {"pretrain": learnable(1, CLASSES), "harmful": learnable(5, 4)}
    found = immunize.immunize(*network, *told_apart.values(), method=method, trainable=["last"], steps=10)
    with torch.no_grad():
        for role, rows in told_apart.items():
            x, y = rows.dataset.tensors  # type: ignore[attr-defined]
            for which, body in (("before", network[0]), ("after", found.backbone)):
                wanted = max(separability(body.eval()(x), y)["cross_fitted"].values())
                assert found.separability[role][which] == pytest.approx(wanted, abs=1e-4)
    c = found.separability["harmful"]
    assert c["after"] < c["before"]
    assert f"what a ridge probe learns (c): D_H {c['before']:.2f} → {c['after']:.2f}, D_P " in str(found)
    for failing in (found, replace(found, verdicts=replace(found.verdicts, a=False, b=False, c=True))):
        assert failing.what_failed == ""
        assert str(failing).endswith("c is its measure, and not (i), (ii) and RIR")
    fallen = replace(found, verdicts=replace(found.verdicts, a=False, b=False, c=False)).what_failed
    assert fallen.startswith("Definition 3.1 fails (c): ")
    assert "multiplier" not in fallen
    assert not caplog.text


@pytest.mark.parametrize(("classes", "told"), [((1, 4), {"harmful"}), ((CLASSES, 1), None)])
def test_what_can_be_learned_is_told_of_every_method_whose_harmful_loader_has_two_labels(
    network: Network, classes: tuple[int, int], told: set[str] | None
) -> None:
    both = (learnable(seed, count) for seed, count in zip((1, 5), classes, strict=True))
    found = immunize.immunize(*network, *both, trainable=["last"], steps=2)
    assert found.aims_at_kappa
    assert (found.separability and found.separability.keys()) == told
    assert ("(c): D_H 0." in str(found)) is (told is not None)
    assert "D_P 0." not in str(found)


def test_weights_of_ours_are_balanced_again_while_it_trains(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, float]] = []

    class Raising(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            seen.append(dict(module.objective.weights))
            if trainer.global_step == api.BALANCE_EVERY:
                module.objective.weights["ill"] *= 1e6

    made = api.new_trainer
    monkeypatch.setattr(
        api, "new_trainer", lambda kind, loggers, callbacks, **of: made(kind, loggers, [*callbacks, Raising()], **of)
    )
    immunized(network, steps=2 * api.BALANCE_EVERY)
    first, *_, last = (weights["ill"] for weights in seen)
    assert 0 < last < 10 * first


@functools.cache
def trained() -> tuple[nn.Sequential, nn.Linear, list[Tensor]]:
    """A network that somebody has trained on 4,000 rows of ten overlapping classes; means of these, and of 20 more."""
    draws = torch.Generator().manual_seed(0)
    means = [0.45 * torch.randn(classes, 20, generator=draws) for classes in (10, 20)]
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 10)
    x, y = drawn(means[0], 4000, draws).tensors
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(body(x)), y).backward()
        optimizer.step()
    return body, head, means


def drawn(means: Tensor, n: int, draws: torch.Generator, shares: Tensor | None = None) -> TensorDataset:
    y = torch.multinomial(torch.ones(len(means)) if shares is None else shares, n, True, generator=draws)
    return TensorDataset(means[y] + torch.randn(n, 20, generator=draws), y)


def accuracy(body: nn.Module, head: nn.Module, rows: TensorDataset) -> float:
    x, y = rows.tensors
    with torch.no_grad():
        return 100 * float((head(body(x)).argmax(1) == y).double().mean())


def test_a_network_of_others_is_not_fitted_to_an_uneven_sample_of_its_data() -> None:
    """Many rows of the first classes and hardly any of the last, to whose labels a few steps would fit it."""
    (body, head, means), draws = trained(), torch.Generator().manual_seed(1)
    sample = drawn(means[0], 300, draws, 0.6 ** torch.arange(10.0))
    rest, harmful = drawn(means[0], 5000, draws), drawn(means[1], 400, draws)
    both = DataLoader(sample, 50), DataLoader(harmful, 50)
    gained: dict[str, list[float]] = {}
    for keep in ("answers", "labels"):
        found = immunize.immunize(body, head, *both, trainable="2", steps=60, learning_rate=1e-2, keep=keep)
        gained[keep] = [accuracy(found.backbone, found.head, of) - accuracy(body, head, of) for of in (sample, rest)]
        assert found.verdicts.b
        assert found.ratios["spectrum"].intervals["rir"][0] > 2
    assert gained["labels"][0] > 10
    assert gained["labels"][1] < -10
    assert -5 < gained["answers"][0] < 5
    assert -3 < gained["answers"][1] < 3


def test_ratios_are_those_of_the_features_of_both_loaders(network: Network) -> None:
    found = immunized(network, steps=5)
    with torch.no_grad():
        spectra = [
            immunize.spectrum_of(body.eval()(data.dataset.tensors[0]).double())  # type: ignore[attr-defined]
            for body in (found.backbone, network[0])
            for data in loaders()
        ]
    expected = immunize.immunization_ratio(*spectra)
    assert found.ratios["spectrum"].ratio.rir == pytest.approx(expected.rir, rel=1e-6)
    assert found.ratios["spectrum"].ratio.ratio_harmful == pytest.approx(expected.ratio_harmful, rel=1e-6)


@pytest.mark.parametrize("drop_last", [False, True])
def test_both_networks_see_the_same_rows_of_a_loader_that_shuffles(network: Network, drop_last: bool) -> None:
    both = loaders(batch_size=50, shuffle=True, drop_last=drop_last)
    found = immunize.immunize(*network, *both, method="none", trainable=["last"], steps=1, learning_rate=1e-9)
    assert found.ratios["spectrum"].ratio.rir == pytest.approx(1, rel=1e-4)
    assert found.ratios["spectrum"].intervals["rir"] == pytest.approx((1, 1), rel=1e-4)  # row by row the same


@pytest.mark.parametrize("shuffle", [False, True])
def test_frozen_part_is_computed_once_an_image_and_changes_nothing(
    network: Network, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    made: list[Once] = []
    init = Once.__init__
    monkeypatch.setattr(sys.modules[Once.__module__], "available_memory", lambda: 2**30)
    monkeypatch.setattr(Once, "__init__", lambda self, *given: (made.append(self), init(self, *given))[1])

    def found() -> immunize.Immunized:
        both = loaders(shuffle=shuffle, generator=torch.Generator().manual_seed(0))
        return immunize.immunize(*network, *both, trainable=["last"], steps=30, learning_rate=3e-3)

    once = found()
    assert [part.computed for part in made] == [2 * 160, 2 * 160]  # of the trunk, and of θ_0 as a whole
    assert sum(part.limit for part in made) <= SHARE * 2**30
    monkeypatch.setattr(DeepExtractor, "compute_once", lambda self: None)
    always = found()
    assert torch.allclose(once.backbone.last.weight, always.backbone.last.weight, rtol=1e-5, atol=1e-7)  # type: ignore[union-attr, arg-type]
    assert once.ratios["spectrum"].ratio.rir == pytest.approx(always.ratios["spectrum"].ratio.rir, rel=1e-4)
    if not shuffle:  # every batch comes back as it was
        assert torch.equal(once.backbone.last.weight, always.backbone.last.weight)  # type: ignore[union-attr, arg-type]


def test_closed_form_keeps_every_logit(network: Network) -> None:
    found = immunized(network, method="closed_form", options={"budget": 10, "shrinkage": 1e-6})
    x = torch.randn(50, 20, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        new, old = found.head(found.backbone(x)), network[1](network[0](x))
    assert (new - old).abs().max() <= 1e-4 * old.abs().max()
    assert found.steps == 0
    assert found.ratios["spectrum"].ratio.rir == pytest.approx(found.facts["forecast_rir"], rel=0.05)
    assert found.accuracy["before"] == found.accuracy["after"]


def state_of_the_process() -> dict[str, Any]:
    """What a library call has to leave as it was."""
    return {
        "python": random.getstate(),
        "numpy": str(np.random.get_state()),  # noqa: NPY002
        "torch": torch.get_rng_state().tolist(),
        "devices": [state.tolist() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
        "environment": dict(os.environ),
        "dtype": torch.get_default_dtype(),
        "threads": (torch.get_num_threads(), threadpool_info()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark),
        "precision": torch.get_float32_matmul_precision(),
        "warnings": list(warnings.filters),
        "levels": {name: logging.getLogger(name).level for name in ("", "lightning", "lightning.pytorch", "immunize")},
    }


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_the_callers_process_is_left_as_it_was(network: Network, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    monkeypatch.delenv("PL_SEED_WORKERS", raising=False)
    backbone, head = network
    backbone.train()
    both = loaders()
    immunized(network, steps=1)  # imports and Hydra's registrations are over
    logging.getLogger("lightning.pytorch").setLevel(logging.DEBUG)
    for options in ({}, {"method": "closed_form"}, {"trainable": ["nothing"]}):
        with mode():
            before = state_of_the_process()
            with pytest.raises(UserError) if options.get("trainable") else contextlib.nullcontext():
                immunize.immunize(backbone, head, *both, **({"trainable": ["last"], "steps": 2} | options))
            assert state_of_the_process() == before
    assert backbone.training
    assert all(module.training for module in backbone.modules())
    assert [one.worker_init_fn for one in both] == [None, None]


def test_a_seed_gives_the_same_whatever_the_callers_state_and_precision(network: Network) -> None:
    def once(seed: int) -> immunize.Immunized:
        shuffled = loaders(shuffle=True)
        return immunize.immunize(*network, *shuffled, method="imma", trainable=["last"], steps=6, seed=seed)

    one = once(0)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        same, other = once(0), once(1)
    weights = [found.backbone.last.weight for found in (one, same, other)]  # type: ignore[union-attr]
    assert torch.equal(weights[0], weights[1])  # type: ignore[arg-type]
    assert not torch.equal(weights[0], weights[2])  # type: ignore[arg-type]
    assert one.ratios == same.ratios


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "magic"}, "unknown method 'magic'"),
        ({"lambda_well": 1.0}, "both lambda_well and lambda_ill"),
        ({"steps": 0}, "at least 1"),
        ({"trainable": ["nothing"]}, "nothing"),
        ({"options": {"budget": 3}}, "no option budget"),
        ({"method": "closed_form", "options": {"budget": 0.5}}, "at least 1"),
        ({"keep": "both"}, "keep has to be answers or labels, it is 'both'"),
        ({"steps": 2.5}, "steps has to be an int, it is 2.5"),
        ({"learning_rate": "a"}, "learning_rate has to be positive and finite, it is 'a'"),
        ({"method": 5}, "method has to be a name in conf/method or an Objective, it is int"),
        ({"options": 5}, "options has to be a dictionary, it is int"),
        ({"trainable": None}, "trainable= is needed"),
        ({"trainable": [4]}, r"trainable has to be names or patterns of modules, it is \[4\]"),
        ({"seed": "1"}, "seed has to be an int, it is '1'"),
        ({"options": {"lambda_ill": 1e9}}, "lambda_ill: no option of method 'ours', but an argument of its own"),
        ({"method": "imma", "lambda_well": 1.0, "lambda_ill": 1.0}, "takes no lambda_well and no lambda_ill"),
        ({"method": "erase", "multiplier": 5}, "multiplier has no effect here"),
        ({"lambda_well": 1.0, "lambda_ill": 1.0, "multiplier": 5}, "multiplier has no effect here"),
        ({"method": Ours(lambda_well=1.0, lambda_ill=1.0, precondition="none"), "options": {"a": 1}}, "leave them out"),
    ],
)
def test_wrong_settings_are_explained(network: Network, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        immunized(network, **options)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"pretrain": []}, "no batch"),
        ({"harmful": loader(2, batch_size=1)}, "every batch of harmful_loader has one row"),
        ({"harmful": iter(loader(2))}, "harmful_loader is over after one pass"),
        ({"pretrain": loader(1, classes=5)}, "labels up to 4"),
        ({"head": nn.Linear(7, CLASSES)}, r"the head needs \(N, 7\)"),
        ({"head": nn.Identity()}, r"head has to be the nn\.Linear .* it is Identity"),
        ({"pretrain": [(X, Y[1:])]}, f"a batch has {len(X)} inputs and {len(X) - 1} labels"),
        ({"pretrain": [({"pixels": X}, Y)]}, "have to be tensors, they are dict and Tensor"),
        ({"pretrain": [(X, Y, Y)]}, r"pretrain_loader has to give \(inputs, labels\) batches, it gives a tuple of 3$"),
        ({"pretrain": [(X.double(), Y)]}, "pretrain_loader: the backbone does not take its inputs, .* torch.float64: "),
        ({"pretrain": 5}, "pretrain_loader has to give batches, such as a DataLoader, it is int"),
        ({"pretrain": loader(1).dataset}, "put a DataLoader around the data set"),
        ({"pretrain": [(torch.ones_like(X), Y)]}, "columns of D_P's features are constant"),
        ({"harmful": [loader(2), loader(3)]}, r"harmful_loader holds several loaders, and one is .*ConcatDataset"),
        ({"backbone": Backbone().double()}, r"does not take its inputs, .* torch.float32: "),
        ({"backbone": nn.GRU(20, D)}, r"the backbone has to return one tensor \(N, D\), it returns tuple"),
    ],
)
def test_wrong_loaders_are_explained(network: Network, changed: dict[str, Any], says: str) -> None:
    given = {"backbone": network[0], "head": network[1], "pretrain": loader(1), "harmful": loader(2)} | changed
    with pytest.raises(UserError, match=says):
        immunize.immunize(*given.values(), trainable=["last"])


@pytest.mark.parametrize("method", ["ours", "erase"])
def test_a_last_batch_of_one_row_is_measured_and_not_trained_on(network: Network, method: str) -> None:
    given = loaders(n=161)
    assert [len(y) for _, y in Batches(given[1])] == [40] * 4
    assert len(features_of([network[0]], given[1], "harmful")[1]) == 161
    steps: dict[str, Any] = {"steps": 12} if method == "ours" else {}
    found = immunize.immunize(*network, *given, method=method, trainable=["last"], **steps)
    assert found.steps == steps.get("steps", 0)
    assert math.isfinite(found.ratios["spectrum"].ratio.rir)


def test_data_that_cannot_be_told_apart_are_refused(network: Network) -> None:
    shuffled = loader(1, batch_size=50, shuffle=True)
    same = DataLoader(TensorDataset(torch.ones(70, 20), torch.arange(70) % 4), batch_size=40)
    for method in ("ours", "closed_form", "erase", "censor"):
        options: dict[str, Any] = {"method": method, "trainable": ["last"], "steps": 1}
        with pytest.raises(UserError, match="D_P and D_H are the same data"):
            immunize.immunize(*network, shuffled, shuffled, **options)
        with pytest.raises(UserError, match=r"^all 12 columns of D_H's features are constant: the 70 rows .*; check"):
            immunize.immunize(*network, learnable(1, CLASSES), same, **options)


@pytest.mark.parametrize("method", ["erase", "censor"])
def test_labels_of_d_h_are_asked_for_where_they_are_needed(network: Network, method: str) -> None:
    x = torch.rand(40, 20)
    unlabelled, zeros = TensorDataset(x), TensorDataset(x, torch.zeros(40, dtype=torch.int64))

    def of(rows: Any, method: str) -> immunize.Immunized:
        return immunize.immunize(
            *network, loader(1), DataLoader(rows, batch_size=40), method=method, trainable=["last"], steps=1
        )

    for rows, says in ((unlabelled, r"\(inputs, labels\) .*method=ours"), (zeros, "same label.*method=ours")):
        with pytest.raises(UserError, match=says):
            of(rows, method)
    assert of(zeros, "ours").steps == 1  # as the message says


def test_a_method_of_ones_own_is_that_of_its_name(network: Network) -> None:
    own = Ours(lambda_well=0.1, lambda_ill=2.0, precondition="none")
    found = immunized(network, method=own, steps=3)
    assert found.weights == {"task": 1.0, "well": 0.1, "ill": 2.0}  # and not from the gradient norms
    named = immunized(network, method="ours", lambda_well=0.1, lambda_ill=2.0, steps=3)
    for mine, theirs in zip(found.backbone.parameters(), named.backbone.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_preconditioning_is_what_the_option_says_or_is_refused(network: Network) -> None:
    options = ({}, {"precondition": "none"}, {"precondition": "features"})
    default, none, features = (immunized(network, options=given, steps=3).backbone.state_dict() for given in options)
    assert all(torch.equal(default[key], none[key]) for key in default)
    assert not all(torch.equal(default[key], features[key]) for key in default)
    with pytest.raises(UserError, match=r"inverse_free.*there are features, none"):
        immunized(network, steps=3, method=Ours(0.1, 2.0))


def test_the_rows_that_judge_d_p_are_none_that_a_classifier_was_fitted_to() -> None:
    """Behind `erase`, of few rows: 300 of 64 features, whose accuracy is that of rows never seen."""
    (body, head, means), draws = trained(), torch.Generator().manual_seed(0)
    lost = []
    for _ in range(5):
        both = (DataLoader(drawn(of, n, draws), batch_size=100) for n, of in zip((300, 400), means, strict=True))
        found = immunize.immunize(body, head, *both, method="erase", options={"rank": 19, "shrinkage": 0.01})
        fresh = drawn(means[0], 5000, draws)
        of_fresh = accuracy(body, head, fresh) - accuracy(found.backbone, found.head, fresh)
        lost.append((found.accuracy["before"] - found.accuracy["after"], of_fresh))
    told, true = np.mean(lost, axis=0)
    assert true > 8
    assert told > true - 4  # five times 60 rows: a standard error of 3 points


def test_a_map_adds_no_directions_by_rounding(network: Network) -> None:
    """float32 features of 17 dimensions in 64 columns."""
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 64)), nn.Linear(64, CLASSES)
    options = {"budget": 3.0, "shrinkage": 0.1}
    found = immunize.immunize(body, head, loader(1), loader(2, 5), method="closed_form", options=options)
    ratio = found.ratios["spectrum"].ratio
    assert {ratio.kappa_pretrain.rank, ratio.kappa_pretrain_baseline.rank} == {17}
    assert ratio.ratio_pretrain < 1


def test_tokens_and_a_compiled_network(network: Network) -> None:
    draws = torch.Generator().manual_seed(0)
    tokens = [
        [(torch.randint(30, (40, 6), generator=draws), torch.arange(40) % classes) for _ in range(2)]
        for classes in (CLASSES, 5)
    ]
    body = nn.Sequential(nn.Embedding(30, 8), nn.Flatten(), nn.Linear(6 * 8, D))
    found = immunize.immunize(body, network[1], *tokens, trainable=["0"], steps=2)
    assert not torch.equal(found.backbone[0].weight, body[0].weight)  # type: ignore[index, arg-type]
    compiled = torch.compile(network[0], backend="eager")
    same = immunized((compiled, network[1]), steps=2)  # type: ignore[arg-type]
    assert torch.equal(same.backbone.last.weight, immunized(network, steps=2).backbone.last.weight)  # type: ignore


class Attention(nn.Module):
    """Whose code asks modules for their attributes, and may compute a block again in its backward pass."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 2)
        self.last, self.again = nn.Linear(4, D), again

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 5, 4)
        if self.again:
            for layer in self.layers.layers:
                x = checkpoint(layer, x, use_reentrant=False)
        else:
            x = self.layers(x)
        features: Tensor = self.last(x.mean(1).to(self.last.weight.dtype)[:, : self.last.in_features])
        return features


@pytest.mark.parametrize("trainable", ["last", "layers", "layers.layers.1", "layers.layers.1.linear2"])
def test_modules_of_torch_that_ask_each_other_are_cut(network: Network, trainable: str) -> None:
    torch.manual_seed(0)
    plain, again = Attention(), Attention(again=True)
    again.load_state_dict(plain.state_dict())
    found = [immunized((body, network[1]), trainable=[trainable], steps=3) for body in (plain, again)]  # type: ignore
    weights, others = (of.backbone.state_dict() for of in found)
    moved = [name for name, weight in weights.items() if not torch.equal(weight, plain.state_dict()[name])]
    assert moved
    assert all(name.startswith(trainable) for name in moved)
    assert all(torch.allclose(weight, others[name], atol=1e-4) for name, weight in weights.items())


@pytest.mark.parametrize("method", ["ours", "erase"])
def test_a_weight_that_backbone_and_head_share_becomes_two(method: str, caplog: pytest.LogCaptureFixture) -> None:
    body, head = nn.Sequential(nn.Linear(20, D), nn.Tanh(), nn.Linear(D, D, bias=False)), nn.Linear(D, D)
    head.weight = body[2].weight  # type: ignore[assignment]
    options: dict[str, Any] = {"trainable": ["2"], "steps": 2} if method == "ours" else {}
    found = immunize.immunize(body, head, *loaders(), method=method, **options)
    assert "share a weight: what comes back has one each" in caplog.text
    assert all(weight is not found.head.weight for weight in found.backbone.parameters())
    assert not any(module.training for one in (found.backbone, found.head) for module in one.modules())


def test_a_network_that_cannot_be_copied_is_told(network: Network) -> None:
    normed = nn.Sequential(nn.utils.spectral_norm(nn.Linear(20, D)), nn.Tanh(), nn.Linear(D, D))
    normed(X)
    with pytest.raises(UserError, match=r"cannot be copied, call it once under torch.no_grad\(\)"):
        immunized((normed, network[1]), trainable=["2"])  # type: ignore[arg-type]


def test_few_rows_of_d_p_can_be_erased_from_where_nothing_is_to_be_chosen() -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(20, 64), nn.Linear(64, CLASSES)
    of = (body, head, loader(1, n=60), loader(2, 4))
    found = immunize.immunize(*of, method="erase", options={"rank": 2, "shrinkage": 0.1})
    assert (found.facts["rank"], found.facts["feasible"]) == (2, None)
    with pytest.raises(UserError, match="give rank and shrinkage"):
        immunize.immunize(*of, method="erase")


def test_numbers_of_numpy_are_numbers_and_a_weight_among_the_options_stays(network: Network) -> None:
    options = {"lambda_ill": np.float64(1e-3), "attack_steps": np.int64(0)}
    found = immunized(network, method="censor", steps=np.int64(2), seed=np.int64(1), options=options)
    assert (found.steps, found.weights["ill"]) == (2, 1e-3)


def test_a_term_without_a_weight_is_named(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ours, "terms", lambda self, step: {"harm": step.pretrain_loss()})
    with pytest.raises(UserError, match=r"weights \['ill', 'task', 'well'\], and its terms are \['harm'\]"):
        immunized(network, method=Ours(1.0, 1.0, "none"), steps=1)
