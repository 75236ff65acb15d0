"""Every YAML of the groups harmful and pretrain instantiates, and D_P follows from D_H."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

CONF = Path(__file__).parents[2] / "conf"
NAMES = ["digits", "housing", "mnist", "synthetic"]


def load(group: str, name: str) -> Any:
    return OmegaConf.load(CONF / group / f"{name}.yaml")


def compose(name: str, **changes: Any) -> DictConfig:
    harmful = OmegaConf.merge(load("harmful", name), changes)
    return OmegaConf.create({"data_root": "somewhere", "harmful": harmful, "pretrain": load("pretrain", name)})


def test_every_data_set_has_both_files() -> None:
    for group in ("harmful", "pretrain"):
        assert set(NAMES) <= {path.stem for path in (CONF / group).glob("*.yaml")}


@pytest.mark.parametrize("name", NAMES)
def test_yaml_instantiates_its_source_in_its_role(name: str) -> None:
    cfg = compose(name)
    for role in ("pretrain", "harmful"):
        source = instantiate(cfg[role])
        assert source.name == name
        assert source.role == role
        assert source.task == ("regression" if name in ("housing", "synthetic") else "binary")
        assert source.held_out_protocol == ("cross_fit" if name == "housing" else "split")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("group", ["harmful", "pretrain"])
def test_yaml_begins_with_what_it_is_and_how_to_call_it(group: str, name: str) -> None:
    first = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# D_")
    assert f"harmful={name}" in first


@pytest.mark.parametrize(
    ("name", "changes", "attribute", "value"),
    [
        ("mnist", {"pair": [3, 5]}, "pair", (3, 5)),
        ("mnist", {"download": True}, "download", True),
        ("digits", {"pair": [7, 2]}, "pair", (7, 2)),
        ("housing", {"rows": 200}, "rows", 200),
        ("housing", {"source": "openml"}, "source", "openml"),
        ("synthetic", {"n_features": 8}, "n_features", 8),
        ("synthetic", {"seed": 5}, "seed", 5),
    ],
)
def test_pretraining_side_follows_the_harmful_side(
    name: str, changes: dict[str, Any], attribute: str, value: object
) -> None:
    cfg = compose(name, **changes)
    assert getattr(instantiate(cfg.harmful), attribute) == value
    assert getattr(instantiate(cfg.pretrain), attribute) == value
