"""Weights of θ_0: files that fit and files that do not, the hub's cache, and the hub when nobody answers."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from immunize.errors import CheckpointError, UserError
from immunize.features import weights as hub
from immunize.features.deep import DeepExtractor
from immunize.features.weights import build_network, load_weights, save_weights, state_digest

SMALL = {"channels": [8, 8, 16, 16]}


def network(seed: int = 0, classes: int = 5, **changes: Any) -> nn.Module:
    return build_network("resnet18", n_classes=classes, kwargs=SMALL, seed=seed, **changes)


def same(one: nn.Module, state: dict[str, Tensor]) -> bool:
    own = one.state_dict()
    return own.keys() == state.keys() and all(torch.equal(own[key], state[key]) for key in own)


@pytest.fixture
def state() -> dict[str, Tensor]:
    return network(seed=7).state_dict()


# --- files ----------------------------------------------------------------------------------------------------------


def test_files_of_every_kind_are_read(state: dict[str, Tensor], tmp_path: Path) -> None:
    save_weights(tmp_path / "a.safetensors", state)
    torch.save(state, tmp_path / "b.pth")
    torch.save({"epoch": 3, "state_dict": {f"module.{key}": value for key, value in state.items()}}, tmp_path / "c.pt")
    torch.save({f"_orig_mod.module._orig_mod.{key}": value for key, value in state.items()}, tmp_path / "d.pt")
    for name in ("a.safetensors", "b.pth", "c.pt", "d.pt"):
        assert same(network(checkpoint=tmp_path / name), state), name


def test_half_precision_is_widened(state: dict[str, Tensor], tmp_path: Path) -> None:
    save_weights(tmp_path / "half.safetensors", state | {"conv1.weight": state["conv1.weight"].half()})
    loaded = load_weights(tmp_path / "half.safetensors")
    assert loaded["bn1.num_batches_tracked"].dtype == torch.int64
    torch.testing.assert_close(loaded["conv1.weight"], state["conv1.weight"].half().float(), rtol=0, atol=0)


def test_classifier_has_the_file_s_classes_unless_they_are_given(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "five.safetensors"
    save_weights(path, state)
    assert build_network("resnet18", kwargs=SMALL, checkpoint=path).num_classes == 5
    with pytest.raises(UserError, match=r"five\.safetensors has 5 classes, the data have 7.*fresh_head=true"):
        network(classes=7, checkpoint=path)
    body = {key: value for key, value in state.items() if not key.startswith("fc.")}
    for stored in (state, body):
        save_weights(path, stored)
        fresh = network(classes=7, checkpoint=path, fresh_head=True).state_dict()
        assert fresh["fc.weight"].shape == (7, 16)
        assert all(torch.equal(fresh[key], body[key]) for key in body)
    with pytest.raises(CheckpointError, match=r"it lacks fc\.weight, fc\.bias"):
        network(checkpoint=path)


def test_checkpoint_of_another_architecture_names_the_first_keys(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    save_weights(path, state)
    with pytest.raises(CheckpointError, match=r"does not fit resnet34: it lacks layer1\.2\.conv1\.weight, .* more"):
        build_network("resnet34", kwargs=SMALL, checkpoint=path)
    with pytest.raises(CheckpointError, match=r"layer1\.0\.conv1\.weight is 8×64×3×3 in it and 16×64×3×3 in"):
        build_network("resnet18", kwargs={"channels": [16, 16, 16, 16]}, checkpoint=path)
    save_weights(path, state | {"extra.weight": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"it has extra\.weight, which the network has not"):
        network(checkpoint=path)


class Executed:
    """What a file must not get to run."""

    ran = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Executed, "ran", True)


def test_bad_files(state: dict[str, Tensor], tmp_path: Path) -> None:
    for name in ("broken.safetensors", "broken.pth"):
        (tmp_path / name).write_bytes(b"not weights")
    for name, content in (("code", {"weights": Executed()}), ("list", [1, 2]), ("empty", {}), ("other", {"epoch": 3})):
        torch.save(content, tmp_path / f"{name}.pth")
    save_weights(tmp_path / "nan.safetensors", state | {"bn1.bias": torch.full((64,), float("nan"))})
    for name, words in (
        ("absent.pt", r"there is no file .*absent\.pt to take weights from$"),  # as of a run that lost its own
        *((f"broken.{ending}", "cannot be read as") for ending in ("safetensors", "pth")),
        ("code.pth", r"cannot be read as a state dict: .* save model\.state_dict\(\)$"),
        *((f"{name}.pth", "no plain state dict") for name in ("list", "empty", "other")),
        ("nan.safetensors", r"bn1\.bias contains NaN"),
    ):
        with pytest.raises(CheckpointError, match=words):
            load_weights(tmp_path / name)
    assert not Executed.ran
    with pytest.raises(CheckpointError, match=r"absent\.pt to take .* data_root=<folder> names"):
        network(checkpoint=tmp_path / "absent.pt")


def test_tied_weights_are_saved_and_nothing_else_is_left(tmp_path: Path) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    save_weights(tmp_path / "tied.safetensors", {"a": shared, "b": shared.T}, {"config_hash": "x"})
    loaded = load_file(tmp_path / "tied.safetensors")
    assert torch.equal(loaded["a"], shared)
    assert torch.equal(loaded["b"], shared.T)
    assert [path.name for path in tmp_path.iterdir()] == ["tied.safetensors"]


def test_random_weights_come_from_the_seed_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one, again, other = network(1), network(1), network(2)
    assert torch.equal(torch.rand(1), expected)  # and no number of the run's was used
    assert same(one, again.state_dict())
    assert not torch.equal(one.fc.weight, other.fc.weight)


def test_digest_is_of_names_types_and_values(state: dict[str, Tensor]) -> None:
    digest = state_digest(state)
    assert state_digest(dict(reversed(state.items()))) == digest
    weight = state["fc.weight"].clone()
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    values = state["fc.weight"]
    for changed in ({"fc.weight": weight}, {"fc.weight": values.double()}, {"fc.weight": values.reshape(16, 5)}):
        assert state_digest(state | changed) != digest
    assert state_digest({f"x{key}": value for key, value in state.items()}) != digest


@pytest.mark.parametrize(
    ("architecture", "options", "words"),
    [
        ("resnet19", {}, "no model 'resnet19'; did you mean resnet18"),
        ("zzz", {}, r"timm\.list_models"),
        ("resnet18", {"kwargs": {"width": 3}}, r"model\.kwargs do not suit timm's resnet18.*width"),
        ("resnet18", {"kwargs": {"checkpoint_path": "a.pth"}}, r"kwargs\.checkpoint_path is no argument of a network"),
        ("resnet18", {"kwargs": {"pretrained_cfg": {"file": "a.pth"}}}, r"model\.checkpoint names weights"),
        ("vit_base_patch16_18x2_224", {"pretrained": True}, "no pretrained weights for vit_base_patch16_18x2_224"),
    ],
)
def test_architecture_that_timm_does_not_have(architecture: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build_network(architecture, **options)


def test_classifier_that_is_not_linear() -> None:
    """A distilled ViT has two."""
    with pytest.raises(UserError, match="VisionTransformerDistilled is a tuple, not one linear layer"):
        DeepExtractor.from_timm("deit_tiny_distilled_patch16_224", trainable=["blocks.11"])


# --- the hub --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's client."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return tmp_path / "hub"


@pytest.mark.parametrize("told", [False, True])
def test_no_answer_is_an_error_after_as_long_as_it_says_that_names_both_ways(
    told: bool, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub.WAIT < 10
    if told:
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.5")  # the client reads it when it is imported
    monkeypatch.setattr(*((constants, "HF_HUB_ETAG_TIMEOUT") if told else (hub, "WAIT")), 0.5)
    words = r"within 0\.5 s \(HF_HUB_ETAG_TIMEOUT=.*checkpoint=.*model\.pretrained=false"
    with socket.create_server(("127.0.0.1", 0)) as server:  # that takes connections and never says a word
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(UserError, match=words):
            build_network("resnet18", pretrained=True)
    assert 0.4 < time.monotonic() - started < 4


def test_nobody_there_is_an_error_at_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    started = time.monotonic()
    with pytest.raises(UserError, match=r"model\.checkpoint=.*model\.pretrained=false"):
        build_network("resnet18", pretrained=True)
    assert time.monotonic() - started < hub.WAIT


def test_a_download_that_failed_is_no_wrong_argument_whatever_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    class NotFoundError(FileNotFoundError, ValueError):  # as some versions of the client have it
        pass

    monkeypatch.setattr(hub, "_answers", Mock(return_value=True))
    monkeypatch.setattr(timm, "create_model", Mock(side_effect=NotFoundError("no such file there")))
    with pytest.raises(UserError, match=r"weights of resnet18 could not be had: no such file there"):
        build_network("resnet18", pretrained=True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts who asks the network, from whatever thread, and answers nobody."""
    mock = Mock(side_effect=OSError)
    monkeypatch.setattr(hub.urllib.request, "urlopen", mock)
    return mock


def test_told_to_stay_offline_nobody_is_asked(cache: Path, monkeypatch: pytest.MonkeyPatch, asked: Mock) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="does not answer"):
        build_network("resnet18", pretrained=True)
    asked.assert_not_called()


def test_weights_in_the_cache_need_no_network(cache: Path, asked: Mock) -> None:
    config = timm.get_pretrained_cfg("test_resnet")
    source = timm.create_model("test_resnet")  # 0.5 million parameters
    folder = cache / f"models--{config.hf_hub_id.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    save_file(source.state_dict(), folder / "snapshots" / "abc" / "model.safetensors")
    assert same(build_network("test_resnet", pretrained=True), source.state_dict())
    assert build_network("test_resnet", pretrained=True, n_classes=1000).num_classes == 1000
    with pytest.raises(UserError, match="the pretrained test_resnet has 1000 classes, the data have 3"):
        build_network("test_resnet", pretrained=True, n_classes=3)
    fresh = build_network("test_resnet", pretrained=True, n_classes=3, fresh_head=True)
    assert torch.equal(fresh.conv1[0].weight, source.conv1[0].weight)
    asked.assert_not_called()


def test_checkpoint_goes_before_pretrained(state: dict[str, Tensor], tmp_path: Path, cache: Path) -> None:
    save_weights(tmp_path / "own.safetensors", state)
    assert same(network(checkpoint=tmp_path / "own.safetensors", pretrained=True), state)
