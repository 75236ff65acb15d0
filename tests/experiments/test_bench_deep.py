"""The deep parts of `make bench`: what they measure is what they say, and scaling.md is what the results say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.bench import deep
from experiments.bench.deep_parts import NETWORKS, Steps, flops_of, in_turns, random_batch, spectra
from experiments.bench.deep_processes import measure_processes
from experiments.bench.machine import HERE, ROOT
from experiments.bench.page import PAGE, page
from tests.composing import compose_config


@pytest.mark.parametrize("name", ["resnet18_64px", "vit_small"])
def test_networks_are_those_of_the_configurations(name: str) -> None:
    model = compose_config(f"model={name}", "harmful=digits", "objective=resnet_small_digits").model
    spec = NETWORKS[name]
    assert (spec.architecture, [spec.trainable]) == (model.architecture, list(model.trainable))
    assert (spec.image_size, dict(spec.kwargs)) == (model.image_size, dict(model.kwargs))


def test_both_steps_do_the_same_but_for_the_regularizers() -> None:
    """The one with weights of the regularizers near zero moves the classifier as the plain one does."""
    moved = []
    for name in ("immunize", "plain"):
        torch.manual_seed(0)
        steps = Steps(NETWORKS["vit_small"].build(), random_batch(4, 32))
        before = steps.net.head.weight.detach().clone()
        frozen = steps.net.network.get_submodule("blocks.0.attn.qkv").weight.detach().clone()  # type: ignore[operator]
        for group in steps.optimizer.param_groups:
            group["lr"] = 0.1
        getattr(steps, name)()
        moved.append(steps.net.head.weight.detach() - before)
        assert torch.equal(steps.net.network.get_submodule("blocks.0.attn.qkv").weight, frozen)  # type: ignore[arg-type]
        assert all(parameter.grad is not None for parameter in steps.module.theta_parameters())
    assert float(moved[0].norm()) > 0
    torch.testing.assert_close(moved[0], moved[1])


def test_operations_are_counted_by_hand() -> None:
    """A linear layer: 2·D_in·D_out forward, three times that with the backward pass of the trained part."""
    spec = NETWORKS["vit_small"]
    flops = flops_of(spec.build(), spec.image_size)
    width, tokens = 64, 65
    block = 2 * 12 * width**2 * tokens + 2 * 2 * tokens**2 * width
    patches = 2 * 3 * 4 * 4 * width * 64
    assert flops.trunk == pytest.approx((3 * block + patches) / 1e9, rel=0.05)
    assert flops.tail == pytest.approx(3 * block / 1e9, rel=0.15)
    assert flops.cached_bound == pytest.approx(1 + flops.trunk / flops.tail)


def test_the_shortest_time_of_each_counts() -> None:
    calls: list[str] = []
    times = in_turns(lambda: calls.append("a"), lambda: calls.append("b"), seconds=0.0, fewest=2)
    assert calls == ["a", "b"] * 3  # one to warm up
    assert all(0 <= wall < 1 and 0 <= process < 1 for wall, process in times)
    spectra(8, 5)()


def test_a_step_is_measured() -> None:
    row = deep.measure_step("vit_small", 4, 0.0)
    assert row["ratio"] == pytest.approx(row["immunize_ms"] / row["plain_ms"], rel=0.05)
    assert row["features"] == 64


def test_a_cached_epoch_is_measured_and_has_the_same_gradients() -> None:
    row = deep.measure_cache("vit_small", 8, 4, 0.0)
    assert row["gradient_gap"] <= deep.SAME_GRADIENT
    assert row["speedup_files"] == pytest.approx(row["files_s"] / row["cached_s"], rel=0.2)
    assert row["bound"] > 1


def test_pooled_is_measured() -> None:
    row = deep.pooled(20_000, 64, 0.0)  # milliseconds, to which it is rounded
    assert (row["n"], row["d"]) == (20_000, 64)
    assert row["seconds"] > 0
    assert 0 <= row["memory_mib"] < deep.POOLED_MIB


@pytest.mark.slow
def test_processes_are_measured() -> None:
    row = measure_processes("vit_small", 4, 2, repeats=1)
    assert all(row[name] > 0 for name in ("step_s", "process_s", "exchange_s"))


def test_the_page_has_the_numbers_of_the_results(tmp_path: Path) -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(HERE)
    for path in HERE.glob("deep_*.csv"):
        text = path.read_text(encoding="utf-8")
        (tmp_path / path.name).write_text(
            text.replace("pooled kappa,n,50000,,50000,512", "pooled kappa,n,50001,,50001,512")
        )
    (tmp_path / "machine.json").write_text((HERE / "machine.json").read_text(encoding="utf-8"))
    assert "50,001" in page(tmp_path)
