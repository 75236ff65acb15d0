"""`immunize.export`: timm loads what it writes, with the same logits; and what cannot be exported is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import timm
import torch
from safetensors import safe_open

from immunize import export
from immunize.errors import UserError
from immunize.features.deep import DeepExtractor
from immunize.features.weights import save_weights
from immunize.records import CHECKPOINT, SCHEMA_VERSION, write_record
from tests.commands import Called
from tests.features.test_deep import KINDS

MODELS = {name: KINDS[name] for name in ("resnet18", "vit_tiny_patch16_224")}
DATA = {"crop_pct": 1.0, "interpolation": "bilinear"}


def finished_run(folder: Path, architecture: str = "resnet18", **changes: Any) -> DeepExtractor:
    """The folder of a run, and its network."""
    model = {"architecture": architecture, "image_size": 32, "data": DATA, **MODELS[architecture]}
    extractor = DeepExtractor.from_timm(**model, n_classes=5, seed=3)
    said = {"method": "ours", "model": "small", "pretrain": "digits", "harmful": "cars", "seed": 3}
    record = {"schema_version": SCHEMA_VERSION, "status": "finished", "config_hash": "0123456789abcdef", **said}
    record |= {"config": {"model": model | {"kind": "deep"}}, "data_hash": "0123", "hardware": {}}
    write_record(folder, record | changes)
    save_weights(folder / CHECKPOINT, extractor.full_state_dict())
    return extractor


@pytest.mark.parametrize("architecture", MODELS)
def test_timm_loads_it_with_the_same_logits(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extractor = finished_run(tmp_path / "run", architecture, data={"pretrain": {"target": "0 to 4"}})
    out = export.run(tmp_path / "run")
    assert out == tmp_path / "run" / "export"
    card = (out / export.CARD).read_text()
    assert all(words in card for words in ("0123456789abcdef", "ours", "digits 0 to 4", "cars", "Adam"))
    (command,) = [line.strip() for line in card.splitlines() if "create_model" in line]
    monkeypatch.chdir(out)
    names: dict[str, Any] = {"timm": timm}
    exec(command, names)
    whole = timm.create_model(f"local-dir:{out}", pretrained=True)
    x = torch.rand(4, 3, 32, 32)
    for model in (names["model"], whole):
        assert torch.equal(model.eval()(x), extractor.network(x))
    config = timm.data.resolve_data_config({}, model=whole)
    as_json = {key: tuple(value) if isinstance(value, list) else value for key, value in config.items()}
    assert as_json == extractor.data_config
    with safe_open(out / export.WEIGHTS, "pt") as file:
        assert file.metadata() == {"config_hash": "0123456789abcdef", "format": "pt"}


def test_an_export_that_was_interrupted_can_be_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished_run(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(export, "write_text", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            export.run(tmp_path)
    assert (export.run(tmp_path) / export.WEIGHTS).exists()


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    other = {"architecture": "resnet34", "kwargs": {}, "kind": "deep"}
    for changes, words in (
        ({"config": {"model": {"name": "linear"}}}, "trained a linear model"),
        ({"status": "diverged"}, "is 'diverged'"),
        ({"config": {"model": other}}, "does not fit resnet34: it lacks"),
    ):
        finished_run(tmp_path, **changes)
        with pytest.raises(UserError, match=words):
            export.run(tmp_path)
    extractor = finished_run(tmp_path)
    save_weights(tmp_path / CHECKPOINT, extractor.full_state_dict() | {"fc.map.weight": torch.eye(16)})
    with pytest.raises(UserError, match=r"appended a linear layer \(fc\.map\.weight\)"):
        export.run(tmp_path)
    assert not (tmp_path / "export" / export.WEIGHTS).exists()


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: Called) -> None:
    finished_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert called(export.main, "run=run", "out=released").out.splitlines()[-1] == "released"
    assert (tmp_path / "released" / export.TIMM_CONFIG).is_file()
    again = called(export.main, "run=run", "out=released")
    assert (again.code, "already holds" in again.err) == (1, True)
