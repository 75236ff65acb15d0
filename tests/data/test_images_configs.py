"""The YAMLs of image sets: what is set reaches the source, and D_P of the paper's sets is ImageNet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from immunize.config import config_dir, register
from immunize.data.images import ImageSource

CONF = Path(config_dir())
HARMFUL = ["caltech101", "cars", "cifar10", "country211", "imagefolder", "imagenette", "tiny_imagenet"]
PRETRAIN = ["cifar10", "imagefolder", "imagenet", "imagenette", "tiny_imagenet"]


@pytest.fixture(autouse=True)
def hydra() -> Iterator[None]:
    register()
    with initialize_config_dir(config_dir(), version_base="1.3"):
        yield


def source(role: str, name: str, *overrides: str) -> ImageSource:
    """What one choice of a group instantiates, without the rest of the configuration."""
    made = instantiate(compose(f"{role}/{name}", ["+data_root=somewhere", *overrides])[role])
    assert isinstance(made, ImageSource)
    assert made.role == role
    return made


@pytest.mark.parametrize("name", ["cars", "country211", "caltech101"])
def test_imagenet_goes_with_the_harmful_sets_of_the_paper(name: str) -> None:
    made = source("pretrain", name, "pretrain.root=/images")
    assert (made.name, str(made.root), str(made.data_root)) == ("imagenet", "/images", "somewhere")


@pytest.mark.parametrize(
    ("name", "overrides", "attribute", "value"),
    [
        ("cars", ["harmful.root=x"], "root", "x"),
        ("country211", ["harmful.download=true"], "download", True),
        ("imagenette", ["harmful.labels=imagenet"], "labels", "imagenet"),
        ("imagefolder", ["harmful.root=x", "harmful.test=mine"], "test", "mine"),
        ("imagefolder", ["harmful.root=x", "harmful.held_out_fraction=0.5"], "held_out_fraction", 0.5),
    ],
)
def test_settings_reach_the_source(name: str, overrides: list[str], attribute: str, value: Any) -> None:
    found = getattr(source("harmful", name, *overrides), attribute)
    assert found == value or str(found) == value


@pytest.mark.parametrize("path", sorted((CONF / "harmful" / "sets").glob("*.yaml")), ids=lambda path: path.stem)
def test_each_can_be_one_of_several(path: Path) -> None:
    own = OmegaConf.to_container(compose(f"harmful/{path.stem}", ["+data_root=somewhere"]).harmful)
    among = compose("harmful/multi", ["+data_root=somewhere", f"harmful/sets=[{path.stem}]"]).harmful.sets
    assert OmegaConf.to_container(among) == {path.stem: own}


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("harmful", [*HARMFUL, "multi"]),
        ("harmful/sets", [*HARMFUL, "digits"]),
        ("pretrain", [*PRETRAIN, *HARMFUL, "multi"]),
    ],
)
def test_no_image_yaml_of_ours_is_missing(group: str, names: list[str]) -> None:
    """What is added is built by `tests/test_config.py`, and needs no line here."""
    assert set(names) <= {path.stem for path in (CONF / group).glob("*.yaml")}
