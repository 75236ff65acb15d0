"""D_P follows from D_H; that every YAML instantiates is shown by `tests/test_config.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

CONF = Path(__file__).parents[2] / "conf"


def load(group: str, name: str) -> Any:
    return OmegaConf.load(CONF / group / f"{name}.yaml")


def compose(name: str, **changes: Any) -> DictConfig:
    harmful = OmegaConf.merge(load("harmful", name), changes)
    return OmegaConf.create({"data_root": "somewhere", "harmful": harmful, "pretrain": load("pretrain", name)})


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
