"""The module of a deep net: what moves and what stays, parameter groups, what a checkpoint holds, the monitor."""

from __future__ import annotations

import re
import sys
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from immunize.data.images.sampling import StreamSampler, stream_loader
from immunize.errors import DivergedError
from immunize.features import DeepExtractor
from immunize.objective import task_loss
from immunize.objective.ill_only import IllOnly
from immunize.objective.imma import Imma
from immunize.objective.ours import Ours
from immunize.spectrum import condition_number, spectrum_of
from immunize.training import DeepModule
from immunize.training.callbacks import BatchMonitor, GradientBalance, Throughput
from tests.composing import MemoryLogger

D, CLASSES, BATCH = 6, 3, 8


def network() -> DeepExtractor:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, D), nn.BatchNorm1d(D))
    return DeepExtractor.from_module(backbone, nn.Linear(D, CLASSES), ["3"], example=torch.rand(2, 5))


def module_of(objective: Any = None, **options: Any) -> DeepModule:
    objective = objective or Ours(1e-4, 1e-2, "none")
    objective.bind(D, torch.Generator().manual_seed(1), CLASSES, torch.float32)
    settings: dict[str, Any] = {"log_every": 1} | options

    def optimizer(groups: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)

    return DeepModule(network(), objective, task_loss("ce", 0.1), optimizer, **settings)


def fit(module: DeepModule, *callbacks: pl.Callback, steps: int = 3, logger: MemoryLogger | None = None) -> pl.Trainer:
    g = torch.Generator().manual_seed(3)
    loaders = {}
    for stream, role in enumerate(("pretrain", "harmful")):
        data = TensorDataset(torch.randn(40, 5, generator=g), torch.arange(40) % CLASSES)
        loaders[role] = stream_loader(data, StreamSampler(40, BATCH, steps, seed=0, stream=stream))
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=logger or False, callbacks=list(callbacks), enable_checkpointing=False,
        enable_model_summary=False, enable_progress_bar=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(module, pl.utilities.CombinedLoader(loaders, "max_size_cycle"))
    return trainer


def state(module: DeepModule) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.net.full_state_dict().items()}


def test_only_what_is_named_and_the_head_move() -> None:
    module = module_of()
    before = state(module)
    fit(module)
    moved = {name for name, value in state(module).items() if not torch.equal(value, before[name])}
    assert moved == {"backbone.3.weight", "backbone.3.bias", "head.weight", "head.bias"}
    assert module.net.network["backbone"][0].weight.grad is None  # type: ignore[index, union-attr]


def test_two_groups_with_the_decay_of_c2() -> None:
    module = module_of(Imma(), weight_decay=0.0, head_weight_decay=2e-5)
    groups = module.configure_optimizers().param_groups
    assert [group["weight_decay"] for group in groups] == [0.0, 2e-5]
    assert {id(p) for p in groups[0]["params"]} == {id(p) for p in module.theta_parameters()}
    heads = [*module.net.head.parameters(), module.objective.harmful_head]
    assert {id(p) for p in groups[1]["params"]} == {id(p) for p in heads}


def test_head_decays_where_no_term_needs_it_only_by_its_gradient() -> None:
    module = module_of(IllOnly(1e-3), head_weight_decay=0.5)
    before = module.net.head.weight.detach().clone()
    fit(module)
    assert torch.equal(module.net.head.weight.detach(), before)  # without a gradient SGD leaves a parameter alone


def test_cached_trunk_outputs_give_the_same_step() -> None:
    plain, cached = module_of(), module_of(cached=True)
    x = {role: torch.randn(BATCH, 5, generator=torch.Generator().manual_seed(i)) for i, role in enumerate("ph")}
    y = torch.arange(BATCH) % CLASSES
    images = {"pretrain": (x["p"], y), "harmful": (x["h"], y)}
    outputs = {role: (cached.net.trunk(of), y) for role, (of, y) in images.items()}
    gradients = []
    for module, batch in ((plain, images), (cached, outputs)):
        total = torch.stack(list(module.weighted_terms(module.step_of(batch)).values())).sum()
        gradients.append(torch.autograd.grad(total, module.theta_parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_checkpoint_holds_what_is_trained_and_the_weights_in_force() -> None:
    module = module_of()
    trainer = fit(module, GradientBalance(3))
    checkpoint = trainer._checkpoint_connector.dump_checkpoint()
    names = {"net.network.backbone.3.weight", "net.network.backbone.3.bias"}
    assert checkpoint["state_dict"].keys() == names | {"net.network.head.weight", "net.network.head.bias"}
    other = module_of()
    assert other.objective.weights != module.objective.weights
    other.on_load_checkpoint(checkpoint)
    assert other.objective.weights == module.objective.weights


def test_balance_makes_the_gradient_norms_multiples_of_the_task_loss() -> None:
    module, norms = module_of(), {}

    class Look(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, _: int) -> None:
            if trainer.global_step == 0:
                for name, term in module.weighted_terms(module.step_of(batch)).items():
                    slopes = torch.autograd.grad(term, module.theta_parameters(), retain_graph=True)
                    norms[name] = float(torch.cat([s.flatten() for s in slopes]).norm())

    fit(module, GradientBalance(3), Look(), steps=1)
    assert norms["well"] == pytest.approx(3 * norms["task"], rel=1e-5)
    assert norms["ill"] == pytest.approx(3 * norms["task"], rel=1e-5)


def test_monitor_logs_the_ratio_to_theta_0_on_the_batch() -> None:
    module, logger = module_of(), MemoryLogger()
    reference = module.net.reference()
    seen: dict[int, float] = {}

    class Look(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, _: int) -> None:
            x = batch["harmful"][0]
            with torch.no_grad():
                kappas = [condition_number(spectrum_of(n(x).double())).value for n in (module.net, reference)]
            seen[trainer.global_step] = kappas[0] / kappas[1]

    fit(module, BatchMonitor(reference, 2), Look(), steps=5, logger=logger)
    logged = logger.of("batch/ratio_harmful")
    assert list(logged) == [0, 2, 4]
    assert logged[0] == 1.0
    for step, value in logged.items():
        assert value == pytest.approx(seen[int(step or 0)], rel=1e-9)
    with pytest.raises(ValueError, match="monitor_every"):
        BatchMonitor(reference, 0)


def test_features_that_overflow_are_named_with_the_last_finite_parameters_kept() -> None:
    module = module_of()

    class Spoil(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, _: int) -> None:
            if trainer.global_step == 2:
                with torch.no_grad():
                    module.theta_parameters()[0].fill_(float("nan"))

    with pytest.raises((ValueError, DivergedError)):
        fit(module, Spoil(), steps=4)
    assert module.unusable() is not None
    module.restore(module.last_finite)
    assert all(bool(p.isfinite().all()) for p in module.parameters())


def test_throughput_counts_images_of_both_sets(capsys: pytest.CaptureFixture[str]) -> None:
    watch = Throughput("a network", lines=2)
    fit(module_of(), watch, steps=5)
    assert watch._images == 4 * 2 * BATCH  # the first step starts the clock
    facts = watch.facts()
    assert facts["images_per_second"] == pytest.approx(watch._images / watch._seconds)
    assert "images/s" in capsys.readouterr().err


def test_line_on_a_terminal_is_rewritten_between_those_that_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("immunize.training.callbacks.throughput.REDRAWN", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fit(module_of(), Throughput("a network", lines=2), steps=6)
    drawn = re.findall(r"step (\d)/6 [^\r\n]*([\r\n])", capsys.readouterr().err)
    assert drawn == [("2", "\r"), ("3", "\n"), ("4", "\r"), ("5", "\r"), ("6", "\n")]
