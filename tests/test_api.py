"""`immunize.immunize`: any torch network and two loaders."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import immunize
from immunize import api
from immunize.errors import UserError
from immunize.features.extract import SHARE, Once
from immunize.features.loaders import Batches, TrainedOn, features_of, set_aside
from immunize.objective.ours import Ours
from immunize.spectrum.separability import separability
from immunize.training.callbacks import GradientBalance
from tests.features.test_deep import Net

D, CLASSES = 12, 3


def one_by_one(net: Any, x: Tensor) -> Tensor:
    features: Tensor = net.last(net.first(x).tanh())
    return features


def layers(run: Callable[[Any, Tensor], Tensor] = one_by_one, **more: nn.Module) -> Net:
    """Two, of which `last` is trained."""
    return Net(run, first=nn.Linear(20, 16), last=nn.Linear(16, D), **more)


Network = tuple[nn.Module, nn.Linear]


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return layers(), nn.Linear(D, CLASSES)


def loader(seed: int, classes: int = CLASSES, n: int = 160, **options: Any) -> DataLoader[Any]:
    draws = torch.Generator().manual_seed(seed)
    scale = torch.logspace(0, -1, 20)
    x = torch.randn(n, 20, generator=draws) * scale[torch.randperm(20, generator=draws)]
    return DataLoader(TensorDataset(x, torch.randint(classes, (n,), generator=draws)), **{"batch_size": 40} | options)


def loaders(**options: Any) -> list[DataLoader[Any]]:
    """Of D_P, and of D_H with its five classes."""
    return [loader(seed, classes, **options) for seed, classes in ((1, CLASSES), (2, 5))]


X, Y = loader(1).dataset.tensors  # type: ignore[attr-defined]


def immunized(network: Network, *given: Any, **options: Any) -> immunize.Immunized:
    """With these loaders, or the usual ones, and in a few steps."""
    settings: dict[str, Any] = {"trainable": ["last"], "steps": 2, "learning_rate": 3e-3} | options
    return immunize.immunize(*network, *(given or loaders()), **settings)


def last(found: immunize.Immunized) -> Tensor:
    """The weight that was trained."""
    return found.backbone.get_parameter("last.weight")


def test_ours_raises_rir_and_leaves_the_network_alone(network: Network) -> None:
    """What comes back can be trained as what was given."""
    network[0].get_parameter("first.bias").requires_grad_(False)
    before = copy.deepcopy(network)
    found = immunized(network, keep="labels", steps=60)
    assert found.steps == 60
    told = found.ratios["spectrum"]
    assert told.ratio.rir > 1.5
    assert f"RIR {told.ratio.rir:.4g}" in str(found)
    assert told.intervals["rir"][0] < told.ratio.rir < told.intervals["rir"][1]
    for now, then in zip(network, before, strict=True):
        torch.testing.assert_close(now.state_dict(), then.state_dict(), rtol=0, atol=0)
    assert torch.equal(found.backbone.get_parameter("first.weight"), network[0].get_parameter("first.weight"))
    assert not torch.equal(last(found), network[0].get_parameter("last.weight"))
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
    moving = DataLoader(Moving(X, Y), batch_size=40, shuffle=True)
    still = loader(1, shuffle=True, drop_last=True)
    for given, noticed in ((still, False), (moving, True)):
        caplog.clear()
        immunized(network, given, loader(2))
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
        immunized(network, Endless(), loader(2))
    assert "pretrain_loader has given 10 rows and goes on" in caplog.text


def test_too_few_images_to_set_some_aside_are_told_of(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    aside = set_aside(X)
    immunized(network, [(X[~aside][:9], Y[~aside][:9])], loader(2))
    assert "none was set aside" in caplog.text


def test_bfloat16_is_measured(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    half = network[0].bfloat16(), network[1].bfloat16()
    found = immunized(half, [(X.bfloat16(), Y)], [(X.flip(1).bfloat16(), Y)])
    assert math.isfinite(found.ratios["ridge"].ratio.rir)
    assert "torch.bfloat16 have three digits" in caplog.text
    assert last(found).dtype == torch.bfloat16


@pytest.mark.parametrize("method", ["censor", "imma"])
def test_lists_of_batches_are_loaders(network: Network, method: str) -> None:
    """With labels of any integer type, and also with a batch without rows, and with batches made in inference mode."""
    kinds = (torch.int64, torch.int32, torch.uint8)
    typed = [[[(x, y.to(kind)) for x, y in of] for of in loaders()] for kind in kinds]
    longer = [[(X[:0], Y[:0]), *of] for of in loaders()]
    with torch.inference_mode():
        made = [list(of) for of in loaders()]
    both = (loaders(), *typed, longer, made)
    first, *others = (last(immunized(network, *of, steps=6, method=method)) for of in both)
    assert all(torch.equal(first, other) for other in others)


def test_verdicts_are_told_and_a_harder_d_p_is_warned_of(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    ratio = (bad := immunized(network, method="ill_only", steps=60)).ratios["spectrum"].ratio
    assert (bad.verdicts.a, bad.verdicts.b) == (ratio.ratio_harmful >= 2, ratio.ratio_pretrain <= 1) == (True, False)
    assert f"(b): D_P is {ratio.ratio_pretrain:.5g} times as hard" in caplog.text
    assert str(bad).endswith(bad.what_failed)
    caplog.clear()
    good = immunized(network, method="closed_form", options={"budget": 100.0, "shrinkage": 1e-6})
    assert (good.verdicts.a, good.verdicts.b, good.verdicts.c) == (True, True, True), good.what_failed
    assert not caplog.text
    assert str(good).endswith("Definition 3.1 holds on these rows")
    assert good.steps == 0
    assert good.ratios["spectrum"].ratio.rir == pytest.approx(good.facts["forecast_rir"], rel=0.05)
    assert good.accuracy["before"] == good.accuracy["after"]


def learnable(seed: int, classes: int) -> DataLoader[Any]:
    """Classes that a probe tells apart."""
    x = torch.randn(160, 20, generator=torch.Generator().manual_seed(seed))
    y = torch.arange(160) % classes
    return DataLoader(TensorDataset(x + 3 * torch.eye(20)[y + seed], y), batch_size=40)


@pytest.mark.parametrize("method", ["erase", "censor", "simulated", "contract"])
def test_methods_that_do_not_aim_at_kappa(network: Network, method: str, caplog: pytest.LogCaptureFixture) -> None:
    told_apart = {"pretrain": learnable(1, CLASSES), "harmful": learnable(5, 4)}
    found = immunized(network, *told_apart.values(), method=method, steps=10, learning_rate=None)
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
    assert ("fewer steps" in fallen) is (found.steps > 0)
    assert not caplog.text


@pytest.mark.parametrize(("classes", "told"), [((1, 4), {"harmful"}), ((CLASSES, 1), None)])
def test_what_can_be_learned_is_told(network: Network, classes: tuple[int, int], told: set[str] | None) -> None:
    both = (learnable(seed, count) for seed, count in zip((1, 5), classes, strict=True))
    found = immunized(network, *both)
    assert found.aims_at_kappa
    assert (found.separability and found.separability.keys()) == told
    assert ("(c): D_H 0." in str(found)) is (told is not None)
    assert "D_P 0." not in str(found)


def test_weights_of_ours_are_balanced_again_while_it_trains(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    first, balance, later = immunized(network).weights["ill"], GradientBalance.balance, list[bool]()

    def raised(self: GradientBalance, module: Any, batch: Any, *, within: bool) -> None:
        later.append(within)
        module.objective.weights["ill"] *= 1e6
        balance(self, module, batch, within=within)

    monkeypatch.setattr(GradientBalance, "balance", raised)
    assert 0 < immunized(network, steps=api.BALANCE_EVERY + 1).weights["ill"] < 10 * first
    assert later == [False, True]


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


def test_both_networks_see_the_same_rows_of_a_loader_that_shuffles(network: Network) -> None:
    both = loaders(batch_size=50, shuffle=True, drop_last=True)
    found = immunized(network, *both, method="none", steps=1, learning_rate=1e-9)
    assert found.ratios["spectrum"].intervals["rir"] == pytest.approx((1, 1), rel=1e-4)  # row by row the same


def test_frozen_part_is_computed_once(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Once] = []
    init = Once.__init__
    monkeypatch.setattr(sys.modules[Once.__module__], "available_memory", lambda: 2**30)
    monkeypatch.setattr(Once, "__init__", lambda self, *given: (made.append(self), init(self, *given))[1])
    immunized(network, *loaders(shuffle=True), steps=30)
    assert [part.computed for part in made] == [2 * 160, 2 * 160]  # of the trunk, and of θ_0 as a whole
    assert sum(part.limit for part in made) <= SHARE * 2**30


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
    network[0].train()
    both = loaders()
    immunized(network)  # imports and Hydra's registrations are over
    logging.getLogger("lightning.pytorch").setLevel(logging.DEBUG)
    for options in ({}, {"method": "closed_form"}, {"trainable": ["nothing"]}):
        with mode():
            before = state_of_the_process()
            with pytest.raises(UserError) if options.get("trainable") else contextlib.nullcontext():
                immunized(network, *both, **options)
            assert state_of_the_process() == before
    assert all(module.training for module in network[0].modules())
    assert [one.worker_init_fn for one in both] == [None, None]


def test_nothing_is_warned_of_that_lightning_has_to_mend(network: Network) -> None:
    immunized(network)  # imports are over
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        immunized(network)


def test_a_seed_gives_the_same_whatever_the_callers_state_and_precision(network: Network) -> None:
    def once(seed: int) -> immunize.Immunized:
        return immunized(network, *loaders(shuffle=True), method="imma", steps=6, seed=seed)

    one = once(0)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        same, other = once(0), once(1)
    assert torch.equal(last(one), last(same))
    assert not torch.equal(last(one), last(other))
    assert one.ratios == same.ratios


def in_half_precision() -> dict[str, Any]:
    both = {"pretrain_loader": [(X.half(), Y)], "harmful_loader": [(X.flip(1).half(), Y)]}
    return both | {"backbone": layers().half(), "head": nn.Linear(D, CLASSES).half()}


def called_once() -> nn.Module:
    normed = nn.Sequential(nn.utils.spectral_norm(nn.Linear(20, D)), nn.Tanh(), nn.Linear(D, D))
    normed(X)
    return normed


SHUFFLED = loader(1, batch_size=50, shuffle=True)
WIDE = {"backbone": nn.Linear(20, 64), "head": nn.Linear(64, CLASSES)}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"method": "magic"}, "unknown method 'magic'"),
        ({"lambda_well": 1.0}, "both lambda_well and lambda_ill"),
        ({"options": {"budget": 3}}, "no option budget"),
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
        ({"method": Ours(0.1, 2.0)}, r"inverse_free.*there are features, none"),
        ({"pretrain_loader": []}, "no batch"),
        ({"pretrain_loader": [(X[:0], Y[:0])]}, "no batch"),
        ({"pretrain_loader": [(X * math.nan, Y)]}, "pretrain: the features contain NaN"),
        ({"harmful_loader": loader(2, batch_size=1)}, "every batch of harmful_loader has one row"),
        ({"harmful_loader": iter(loader(2))}, "harmful_loader is over after one pass"),
        ({"pretrain_loader": loader(1, classes=5)}, "labels up to 4"),
        ({"head": nn.Linear(7, CLASSES)}, r"the head needs \(N, 7\)"),
        ({"head": nn.Identity()}, r"head has to be the nn\.Linear .* it is Identity"),
        ({"pretrain_loader": [(X, Y[1:])]}, f"a batch has {len(X)} inputs and {len(X) - 1} labels"),
        ({"pretrain_loader": [({"pixels": X}, Y)]}, "have to be tensors, they are dict and Tensor"),
        ({"pretrain_loader": [(X, Y, Y)]}, r"pretrain_loader has to give \(inputs, labels\) .* it gives a tuple of 3$"),
        ({"pretrain_loader": 5}, "pretrain_loader has to give batches, such as a DataLoader, it is int"),
        ({"pretrain_loader": loader(1).dataset}, "put a DataLoader around the data set"),
        ({"pretrain_loader": [(X[0], 1), (X[1], 0)]}, "put a DataLoader around the data set"),  # as torchvision's
        ({"pretrain_loader": [(torch.ones_like(X), Y)]}, "columns of D_P's features are constant"),
        ({"pretrain_loader": [(X[set_aside(X)], Y[set_aside(X)])]}, "no batch of D_P has two rows to train on"),
        ({"harmful_loader": [loader(2), loader(3)]}, r"harmful_loader holds several .*ConcatDataset"),
        ({"harmful_loader": DataLoader(TensorDataset(X), batch_size=40)}, r"\(inputs, labels\) .*method=ours"),
        ({"harmful_loader": [(torch.ones_like(X), Y)]}, "columns of D_H's features are constant"),
        ({"pretrain_loader": SHUFFLED, "harmful_loader": SHUFFLED}, "D_P and D_H are the same data"),
        ({"backbone": layers().double()}, r"pretrain_loader: the backbone does not take .* torch.float32: "),
        ({"backbone": nn.GRU(20, D)}, r"the backbone has to return one tensor \(N, D\), it returns tuple"),
        ({"backbone": called_once()}, r"cannot be copied, call it once under torch.no_grad\(\)"),
        (WIDE | {"pretrain_loader": loader(1, n=60), "method": "erase"}, "give rank and shrinkage"),
        (in_half_precision(), "float16 is too narrow to train in"),
    ],
)
def test_mistakes_are_explained(network: Network, changed: dict[str, Any], says: str) -> None:
    given = {"backbone": network[0], "head": network[1], "pretrain_loader": loader(1), "harmful_loader": loader(2)}
    with pytest.raises(UserError, match=says):
        immunize.immunize(**given | {"trainable": ["last"]} | changed)


@pytest.mark.parametrize(("method", "steps"), [("ours", 12), ("erase", 0)])
def test_a_last_batch_of_one_row_is_measured_and_not_trained_on(network: Network, method: str, steps: int) -> None:
    given = loaders(n=161)
    assert [len(y) for _, y in Batches(given[1])] == [40] * 4
    assert len(features_of([network[0]], given[1], "harmful")[1]) == 161
    found = immunized(network, *given, method=method, steps=steps or None)
    assert found.steps == steps
    assert math.isfinite(found.ratios["spectrum"].ratio.rir)


def test_a_method_of_ones_own_is_that_of_its_name_and_preconditioning_what_the_option_says(network: Network) -> None:
    found = immunized(network, method=Ours(lambda_well=0.1, lambda_ill=2.0, precondition="none"))
    assert found.weights == {"task": 1.0, "well": 0.1, "ill": 2.0}  # and not from the gradient norms
    for options, same in (({}, True), ({"precondition": "none"}, True), ({"precondition": "features"}, False)):
        named = immunized(network, lambda_well=0.1, lambda_ill=2.0, options=options)
        assert torch.equal(last(found), last(named)) is same


def test_the_rows_that_judge_d_p_are_none_that_a_classifier_was_fitted_to() -> None:
    """Behind `erase`, of few rows: 300 of 64 features, whose accuracy is that of rows never seen."""
    (body, head, means), draws = trained(), torch.Generator().manual_seed(0)
    lost = []
    for _ in range(5):
        both = (DataLoader(drawn(of, n, draws), batch_size=100) for n, of in zip((300, 400), means, strict=True))
        found = immunized((body, head), *both, method="erase", options={"rank": 19, "shrinkage": 0.01})
        fresh = drawn(means[0], 5000, draws)
        of_fresh = accuracy(body, head, fresh) - accuracy(found.backbone, found.head, fresh)
        lost.append((found.accuracy["before"] - found.accuracy["after"], of_fresh))
    told, true = np.mean(lost, axis=0)
    assert true > 8
    assert told > true - 4  # five times 60 rows: a standard error of 3 points


def test_a_map_adds_no_directions_by_rounding(network: Network) -> None:
    """float32 features of 13 dimensions in 64 columns."""
    wide = nn.Sequential(network[0], nn.Linear(D, 64)), nn.Linear(64, CLASSES)
    found = immunized(wide, method="closed_form", options={"budget": 3.0, "shrinkage": 0.1})
    ratio = found.ratios["spectrum"].ratio
    assert {ratio.kappa_pretrain.rank, ratio.kappa_pretrain_baseline.rank} == {D + 1}
    assert ratio.ratio_pretrain < 1


def attention(*, again: bool = False) -> Net:
    """Whose code asks modules for their attributes, and may compute a block again in its backward pass."""

    def run(net: Any, x: Tensor) -> Tensor:
        x = x.view(-1, 5, 4)
        for layer in net.layers.layers if again else ():
            x = checkpoint(layer, x, use_reentrant=False)
        x = x if again else net.layers(x)
        features: Tensor = net.last(x.mean(1).to(net.last.weight.dtype)[:, : net.last.in_features])
        return features

    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    return Net(run, layers=nn.TransformerEncoder(layer, 2), last=nn.Linear(4, D))


@pytest.mark.parametrize("trainable", ["last", "layers", "layers.layers.1", "layers.layers.1.linear2"])
def test_modules_of_torch_that_ask_each_other_are_cut(network: Network, trainable: str) -> None:
    torch.manual_seed(0)
    plain, again = attention(), attention(again=True)
    again.load_state_dict(plain.state_dict())
    found = [immunized((body, network[1]), trainable=[trainable], steps=3) for body in (plain, again)]
    weights, others = (of.backbone.state_dict() for of in found)
    moved = [name for name, weight in weights.items() if not torch.equal(weight, plain.state_dict()[name])]
    assert moved
    assert all(name.startswith(trainable) for name in moved)
    torch.testing.assert_close(weights, others, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("method", ["ours", "erase"])
def test_a_weight_that_backbone_and_head_share_becomes_two(method: str, caplog: pytest.LogCaptureFixture) -> None:
    body, head = nn.Sequential(nn.Linear(20, D), nn.Tanh(), nn.Linear(D, D, bias=False)), nn.Linear(D, D)
    head.weight = body[2].weight  # type: ignore[assignment]
    found = immunized((body, head), method=method, trainable="2")
    assert "share a weight: what comes back has one each" in caplog.text
    assert all(weight is not found.head.weight for weight in found.backbone.parameters())
    assert not any(module.training for one in (found.backbone, found.head) for module in one.modules())


def test_few_rows_of_d_p_can_be_erased_from_where_nothing_is_to_be_chosen() -> None:
    of, options = (loader(1, n=60), loader(2, 4)), {"rank": 2, "shrinkage": 0.1}
    facts = immunized(tuple(WIDE.values()), *of, method="erase", options=options).facts  # type: ignore[arg-type]
    assert (facts["rank"], facts["feasible"]) == (2, None)


def test_numbers_of_numpy_are_numbers_and_a_weight_among_the_options_stays(network: Network) -> None:
    options = {"lambda_ill": np.float64(1e-3), "attack_steps": np.int64(0)}
    found = immunized(network, method="censor", steps=np.int64(2), seed=np.int64(1), options=options)
    assert (found.steps, found.weights["ill"]) == (2, 1e-3)


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        (lambda loss: {"harm": loss}, r"weights \['ill', 'task', 'well'\], and its terms are \['harm'\]"),
        (lambda loss: {"task": loss.expand(3)}, r"'task' has to be a scalar tensor, it is one of shape \(3,\)"),
        (lambda loss: {"task": loss.item()}, r"'task' has to be a scalar tensor, it is float"),
    ],
)
def test_a_term_without_a_weight_or_that_is_no_scalar_is_named(
    network: Network, terms: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ours, "terms", lambda self, step: terms(step.pretrain_loss()))
    with pytest.raises(UserError, match=says):
        immunized(network, method=Ours(1.0, 1.0, "none"))
