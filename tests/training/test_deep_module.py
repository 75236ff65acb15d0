"""The module of a deep net: what moves and what stays, parameter groups, what a checkpoint holds, the monitor."""

from __future__ import annotations

import copy
import math
import re
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from immunize.data import ROLES
from immunize.data.images.pair import StreamSampler, stream_loader
from immunize.errors import DivergedError
from immunize.features.deep import DeepExtractor
from immunize.objective import task_loss
from immunize.objective.ill_only import IllOnly
from immunize.objective.imma import Imma
from immunize.objective.ours import Ours
from immunize.objective.simulated import SimulatedFineTuning
from immunize.pipeline.assemble import new_trainer
from immunize.spectrum.separability import cross_fitted_correlation, folds_of
from immunize.training import DeepModule
from immunize.training.callbacks import NetworkMonitor, Progress, TheoremGuard
from tests.composing import MemoryLogger

D, CLASSES, BATCH = 6, 3, 8


def network() -> DeepExtractor:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, D), nn.BatchNorm1d(D))
    return DeepExtractor.from_module(backbone, nn.Linear(D, CLASSES), ["3"], example=torch.rand(2, 5))


def module_of(objective: Any = None, **options: Any) -> DeepModule:
    objective = objective or Ours(1e-4, 1e-2, "none")
    objective.bind(D, torch.Generator().manual_seed(1), CLASSES, torch.float32)
    optimizer = partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True)
    return DeepModule(network(), objective, task_loss("ce", 0.1), optimizer, log_every=1, **options)


def fit(module: DeepModule, *callbacks: pl.Callback, steps: int = 3, logger: MemoryLogger | None = None) -> pl.Trainer:
    loaders = {
        role: stream_loader(samples(40, 3 + stream), StreamSampler([range(40)], BATCH, steps, seed=0, stream=stream))
        for stream, role in enumerate(ROLES)
    }
    own = {"accelerator": "cpu", "max_epochs": 1}
    trainer = new_trainer(pl.Trainer, [logger] if logger else [], list(callbacks), **own)
    trainer.fit(module, pl.utilities.CombinedLoader(loaders, "max_size_cycle"))
    return trainer


def state(module: DeepModule) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.net.full_state_dict().items()}


def test_two_groups_with_the_decay_of_c2() -> None:
    module = module_of(Imma(), weight_decay=0.0, head_weight_decay=2e-5)
    groups = module.configure_optimizers().param_groups
    assert [group["weight_decay"] for group in groups] == [0.0, 2e-5]
    assert {id(p) for p in groups[0]["params"]} == {id(p) for p in module.theta_parameters()}
    heads = [*module.net.head.parameters(), module.objective.harmful_head]
    assert {id(p) for p in groups[1]["params"]} == {id(p) for p in heads}


def test_checkpoint_holds_what_is_trained_and_what_a_training_that_goes_on_needs() -> None:
    module, other = (module_of(SimulatedFineTuning()) for _ in range(2))
    module.objective.weights["task"] = 7.0
    module.objective.diverged[2] = 3
    checkpoint: dict[str, Any] = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    names = {f"net.network.{layer}.{of}" for layer in ("backbone.3", "head") for of in ("weight", "bias")}
    assert checkpoint["state_dict"].keys() == names
    other.on_load_checkpoint(checkpoint)
    assert other.objective.weights == module.objective.weights
    assert other.objective.facts() == {"attackers_diverged": {"in step 2": 3}}


def test_a_trained_module_can_be_copied() -> None:
    fit(module := module_of())
    torch.testing.assert_close(copy.deepcopy(module).state_dict(), module.state_dict(), rtol=0, atol=0)


def test_a_term_without_weight_may_be_infinite() -> None:
    """As R_ill of one direction is: 0 · ∞ is no number."""

    class Pole(Ours):
        def terms(self, step: Any) -> dict[str, Tensor]:
            found = super().terms(step)
            return found | {"ill": found["ill"] / self.weights["ill"]}

    losses = []
    for objective in (Pole(1e-4, 0.0, "none"), Ours(1e-4, 0.0, "none")):
        logger = MemoryLogger()
        fit(module_of(objective), logger=logger)
        losses.append(logger.of("loss"))
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3


def samples(count: int, seed: int) -> TensorDataset:
    """Images whose classes the network can tell apart by a probe."""
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 5, generator=g), torch.arange(count) % CLASSES)


def watch_of(module: DeepModule, every: int, **options: Any) -> NetworkMonitor:
    images = {role: samples(40, seed) for seed, role in enumerate(ROLES)}
    return NetworkMonitor(module.net.reference(), images, every=every, **options)


def test_a_watch_sees_kappa_accuracy_and_what_can_be_learned() -> None:
    """On the same images throughout."""
    module, logger = module_of(), MemoryLogger()
    watch, reference = watch_of(module, 2), module.net.reference()
    seen: dict[int | None, dict[str, float]] = {}

    def look(trainer: pl.Trainer, *_: Any) -> None:
        with torch.no_grad():
            x, y = zip(*(watch.images[role].tensors for role in ROLES), strict=True)  # type: ignore[attr-defined]
            p, p_0, h, h_0 = (net(of).double() for of in x for net in (module.net, reference))
            right = module.net.head(p.float()).argmax(1) == y[0]
        i, ii = (float(torch.linalg.cond(of) / torch.linalg.cond(of_0)) ** 2 for of, of_0 in ((h, h_0), (p, p_0)))
        seen[trainer.global_step] = {
            **{"ratio_pretrain": ii, "ratio_harmful": i, "RIR": i / ii},
            **{
                "kappa_harmful": float(torch.linalg.cond(h)) ** 2,
                "accuracy_pretrain": 100 * float(right.double().mean()),
            },
            "separability_harmful": float(cross_fitted_correlation(h, y[1], folds_of(y[1], 2) == 0, (1e-2,))),
        }

    fit(module, watch, LambdaCallback(on_train_batch_end=look), steps=5, logger=logger)
    for name in seen[5]:
        expected = {step: pytest.approx(seen[step][name], rel=1e-9) for step in (2, 4, 5)}  # the last step always
        assert logger.of(name) == expected, name


def test_a_watch_judges_the_start_and_not_where_a_training_goes_on() -> None:
    module, judged = module_of(), list[int]()
    watch = watch_of(module, 2)
    watch.signatures.see = lambda look: judged.append(look.step)  # type: ignore[method-assign, assignment, misc]
    for step in (0, 3):
        watch.on_train_start(SimpleNamespace(global_step=step, should_stop=False), module)  # type: ignore[arg-type]
    assert judged == [0]


def in_turn(module: DeepModule, looks: list[tuple[float, float]], patience: int = 2) -> NetworkMonitor:
    """A watch for early stopping that sees, look after look, the RIR and the accuracy that it is told."""
    watch = watch_of(module, 1, patience=patience)
    watch._accuracy = lambda net, features: 90.0  # type: ignore[method-assign]
    told, measured = iter(looks), watch._measured

    def planted(of: Any, step: int) -> Any:
        found, numbers = measured(of, step)
        rir, accuracy = next(told)
        return found, numbers | {"RIR": rir, "accuracy_pretrain": accuracy}

    watch._measured = planted  # type: ignore[method-assign]
    return watch


@pytest.mark.parametrize(
    ("looks", "best", "steps"),
    [
        ([(1, 90), (3, 90), (5, 90), (4, 90), (4, 90), (9, 90)], 2, 4),  # two looks without improvement
        ([(1, 90), (3, 90), (50, 88), (50, 88), (9, 90)], 1, 3),  # a larger RIR that costs D_P more than a point
        ([(1, 90), (8, 87), (9, 87), (9, 90)], 0, 2),  # nothing worth keeping: θ_0
        ([(1, 90), (2, 90), (3, 90), (3, 90), (4, 89.1), (4, 90)], 4, 5),  # to the end of the training
    ],
)
def test_early_stopping_keeps_the_largest_rir_that_spares_d_p(looks: list[Any], best: int, steps: int) -> None:
    module = module_of()
    kept: dict[int, dict[str, Tensor]] = {0: state(module)}
    keep = LambdaCallback(on_train_batch_end=lambda trainer, *_: kept.update({trainer.global_step: state(module)}))
    watch = in_turn(module, [*looks, (1.0, 90.0)])
    trainer = fit(module, watch, keep, steps=5)
    assert trainer.global_step == steps
    facts = watch.facts(module)["early_stopping"]
    assert facts["best_step"] == best
    assert facts["best_val_log_rir"] == pytest.approx(math.log(looks[best][0]))
    torch.testing.assert_close(state(module), kept[best], rtol=0, atol=0)
    again = watch_of(module, 1, patience=2)
    again.load_state_dict(watch.state_dict())  # of a training that goes on later
    assert again.facts(module)["early_stopping"] == facts


def test_a_watch_warns_of_a_falling_accuracy_once(caplog: pytest.LogCaptureFixture) -> None:
    module = module_of(IllOnly(1e-2, "none"))
    watch = in_turn(module, [(1, 90), (2, 90), (2, 40), (2, 30), (2, 20)], patience=9)
    with caplog.at_level("WARNING"):
        fit(module, watch, steps=3)
    (warning,) = [one for one in watch.facts(module)["warnings"] if one["name"] == "pretrain_accuracy_falling"]
    assert (warning["step"], warning["role"], warning["at_end"]) == (2, "pretrain", True)
    assert warning["values"] == {"accuracy": 40, "accuracy_theta_0": 90}
    (line,) = [record.message for record in caplog.records if "pretrain_accuracy_falling" in record.message]
    assert "40.0 %" in line
    assert "lower λ_H" in line


def test_parameters_that_become_nan_are_told_and_the_last_finite_ones_kept() -> None:
    module = module_of()

    def spoil(trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == 1:
            module.theta_parameters()[0].data.fill_(math.nan)

    with pytest.raises((ValueError, DivergedError)):
        fit(module, LambdaCallback(on_train_batch_start=spoil))
    assert module.unusable() == ("features of pretrain", pytest.approx(math.nan, nan_ok=True))
    module.restore(module.last_finite)
    assert all(bool(p.isfinite().all()) for p in module.parameters())


def test_line_on_a_terminal_is_rewritten(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Between those that stay; it tells images of both sets a second."""
    monkeypatch.setattr("immunize.training.callbacks.stopping.REDRAWN", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    module, watch = module_of(), Progress("a network", lines=2)
    fit(module, watch, steps=6)
    drawn = re.findall(r"step (\d)/6 [^\r\n]* images/s [^\r\n]*([\r\n])", capsys.readouterr().err)
    assert drawn == [("2", "\r"), ("3", "\n"), ("4", "\r"), ("5", "\r"), ("6", "\n")]
    assert watch._images == 5 * 2 * BATCH  # the first step starts the clock
    assert watch.facts(module)["images_per_second"] == pytest.approx(watch._images / watch._seconds)


def test_the_guard_counts_what_is_left_of_the_promise_in_a_network() -> None:
    guard, kappas = TheoremGuard(), list[list[float]]()
    guarded, alone = module_of(Ours(1e-3, 1.0, "none")), module_of(Ours(1e-3, 1.0, "none"))

    def look(*of: Any) -> None:
        """κ of both Hessians of the features of a step's batch, before and after the step."""
        with torch.no_grad():
            kappas.append([float(torch.linalg.cond(guarded.net(of[-2][role][0]).double())) for role in ROLES])

    fit(guarded, guard, LambdaCallback(on_train_batch_start=look, on_train_batch_end=look), steps=20)
    fit(alone, steps=20)
    steps = zip(kappas[::2], kappas[1::2], strict=True)
    moved = [(after[0] <= before[0], after[1] >= before[1]) for before, after in steps]
    facts = guard.facts(guarded)["guard"]
    assert facts["steps"] == len(moved) == 20
    assert 0 < facts["promises_kept"] == sum(map(all, moved)) < 20
    assert [facts["well_kept"], facts["ill_kept"]] == [sum(one[side] for one in moved) for side in (0, 1)]
    assert facts["theorem_step"] is False
    torch.testing.assert_close(state(guarded), state(alone), rtol=0, atol=0)
