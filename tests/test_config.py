"""Every YAML under conf/ composes into a configuration, and every `_target_` in it becomes an object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from immunize.config import (
    AttackConfig,
    CardConfig,
    EvaluateConfig,
    ExportConfig,
    ForecastConfig,
    HtmlConfig,
    ObjectiveConfig,
    PretrainConfig,
    ReportConfig,
    TrainConfig,
    config_dir,
    config_hash,
    folder_name,
    register,
)

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
YAMLS = sorted(CONF.rglob("*.yaml"))
PRIMARY = {
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
    "report": ReportConfig,
    "forecast": ForecastConfig,
    "export": ExportConfig,
    "pretrain_theta": PretrainConfig,
    "attack": AttackConfig,
    "card": CardConfig,
    "html": HtmlConfig,
}
GROUPS = ["model", "harmful", "pretrain", "method", "objective", "init", "trainer", "logger", "experiment"]
LINEAR, DEEP = ("linear",), ("resnet18", "resnet18_64px", "vit", "timm", "resnet_small", "vit_small")
TABLES = ("arrays", "digits", "synthetic", "housing", "mnist")
ROWS = {
    *(("linear", harmful) for harmful in TABLES),
    *(("resnet18", harmful) for harmful in ("cars", "country211", "caltech101", "multi")),
    *(("vit", harmful) for harmful in ("cars", "country211", "multi")),
    *(("resnet18_64px", harmful) for harmful in ("cars", "caltech101", "multi")),
    *(("resnet_small", "digits"), ("vit_small", "digits"), ("timm", "imagefolder"), ("timm", "multi")),
}
"""The models and data sets that have hyper-parameters for each other; another pair is given a row: objective=<row>."""
GIVEN = {
    "timm": ("model.name=convnext_tiny", "model.trainable=[stages.3]", "objective=timm_imagefolder"),
    "imagefolder": ("harmful.root=x", "pretrain.root=y"),
    "arrays": ("harmful.file=x.npz", "pretrain.file=y.npz"),
}
"""What a choice asks the user for."""
N_FEATURES = 6


@pytest.fixture(autouse=True)
def hydra() -> Iterator[None]:
    register()
    with initialize_config_dir(config_dir(), version_base="1.3"):
        yield


def choices(group: str) -> list[str]:
    return [path.stem for path in sorted((CONF / group).glob("*.yaml"))]


def composed(*overrides: str, primary: str = "train") -> DictConfig:
    if primary in ("report", "card", "html"):  # in a folder of its own, see there
        GlobalHydra.instance().clear()
        with initialize_config_dir(f"{config_dir()}/report", version_base="1.3"):
            return compose(primary, overrides=list(overrides))
    return compose(primary, overrides=list(overrides))


def resolved(cfg: DictConfig) -> dict[str, Any]:
    container = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def in_group(group: str, choice: str) -> DictConfig:
    """A composed train configuration with one choice of one group."""
    given = GIVEN.get(choice, ())
    if group == "pretrain" and choice == "same":
        return composed("harmful=synthetic", "pretrain=same", "pretrain.condition=10")
    if group == "pretrain" and choice == "imagenet":  # which is never D_H
        return composed("harmful=cars", "pretrain=imagenet", "objective=resnet18_cars")
    if group in ("pretrain", "harmful"):  # D_P as it comes with its own D_H
        row = () if choice in TABLES else ("objective=resnet18_cars",)
        return composed(f"harmful={choice}", f"pretrain={choice}", *row, *given)
    if group == "model" and choice not in ("timm", *LINEAR):
        given = ("objective=resnet18_cars",)
    return composed(f"{group}={choice}", *given)


def test_conf_is_found_from_the_package() -> None:
    assert Path(config_dir()) == CONF
    assert Path(config_dir()).is_absolute()


def test_every_yaml_belongs_to_something_tested_here() -> None:
    for path in YAMLS:
        first = path.relative_to(CONF).parts[0].removesuffix(".yaml")
        assert first in {*GROUPS, *PRIMARY, "hydra", "objective_defaults", "objective_deep", "benign"}, path


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: str(path.relative_to(CONF)))
def test_yaml_begins_with_a_comment(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    first = lines[1] if lines[0] == "# @package _global_" else lines[0]  # Hydra reads its directive there alone
    assert first.startswith("# ")
    assert len(first) > 20


@pytest.mark.parametrize("primary", PRIMARY)
def test_primary_config_composes_with_a_value_for_every_field(primary: str) -> None:
    cfg = composed(
        *(f"{name}=x" for name in ("run", "runs") if name in {f.name for f in fields(PRIMARY[primary])}),
        primary=primary,
    )
    assert set(resolved(cfg)) == {field.name for field in fields(PRIMARY[primary])}


@pytest.mark.parametrize(
    ("group", "choice"), [(group, choice) for group in GROUPS for choice in choices(group)], ids="=".join
)
def test_choice_composes_and_resolves(group: str, choice: str) -> None:
    resolved(in_group(group, choice))


@pytest.mark.parametrize("name", choices("objective"))
def test_objective_row_names_its_source_and_sets_every_hyper_parameter(name: str) -> None:
    comment = " ".join(
        line.lstrip("# ") for line in (CONF / "objective" / f"{name}.yaml").read_text().splitlines() if line[:1] == "#"
    )
    assert "Source: " in comment
    assert "Table 4" in comment or "ours" in comment
    assert set(resolved(composed(f"objective={name}"))["objective"]) == {
        field.name for field in fields(ObjectiveConfig)
    }


def test_every_row_is_of_a_pair_that_is_tested_here() -> None:
    names = {name for name in choices("objective") if not name.endswith(("_table4", "_full_batch"))}
    assert names == {f"{model}_{harmful}" for model, harmful in ROWS}
    assert {model for model, _ in ROWS} == set(choices("model")) == {*LINEAR, *DEEP}


@pytest.mark.parametrize(("model", "harmful"), sorted(ROWS), ids="=".join)
def test_a_pair_finds_its_row_of_hyper_parameters(model: str, harmful: str) -> None:
    given = () if model == "linear" else (*GIVEN.get(model, ())[:2], *GIVEN.get(harmful, ()))
    cfg = composed(f"model={model}", f"harmful={harmful}", *given)
    assert cfg.objective.epochs >= 1
    assert (cfg.objective.loss == "ce") == (model != "linear")
    if harmful in TABLES:
        assert cfg.pretrain._target_ == cfg.harmful._target_


def test_an_unknown_pair_fails_loudly() -> None:
    from hydra.errors import MissingConfigException

    with pytest.raises(MissingConfigException, match="resnet18_housing"):
        composed("model=resnet18", "harmful=housing")


def test_pretraining_data_follow_the_harmful_data_unless_given() -> None:
    follows = resolved(composed("harmful=synthetic", "harmful.n_features=8"))
    assert follows["pretrain"]["n_features"] == 8
    given = resolved(composed("harmful=synthetic", "harmful.n_features=64", "pretrain=digits"))
    assert given["pretrain"]["_target_"].endswith("Digits")


# Instantiation.


@pytest.mark.parametrize("choice", choices("method"))
def test_method_instantiates(choice: str) -> None:
    from immunize.building import build
    from immunize.objective import Objective

    cfg = composed(f"method={choice}")
    assert cfg.method.name == choice
    node = {key: value for key, value in resolved(cfg)["method"].items() if key != "name"}
    objective = build(OmegaConf.create(node))
    assert isinstance(objective, Objective)
    objective.bind(N_FEATURES)


@pytest.mark.parametrize("choice", LINEAR)
def test_linear_model_instantiates(choice: str) -> None:
    from immunize.running.assembling import build_extractor

    cfg = composed(f"model={choice}")
    assert cfg.model.name == choice
    assert build_extractor(cfg, N_FEATURES).n_features == N_FEATURES


@pytest.mark.parametrize("choice", choices("objective"))
def test_optimizer_of_a_row_instantiates(choice: str) -> None:
    import torch

    from immunize.building import build

    objective = composed(f"objective={choice}").objective
    kept = {key: value for key, value in objective.optimizer.items() if value is not None}
    factory = build(OmegaConf.create(kept), lr=objective.learning_rate, _partial_=True)
    optimizer = factory([torch.nn.Parameter(torch.zeros(2))])
    assert optimizer.param_groups[0]["lr"] == objective.learning_rate


@pytest.mark.parametrize("choice", choices("trainer"))
def test_trainer_instantiates(choice: str) -> None:
    import torch
    from lightning.pytorch import Trainer

    from immunize.building import build

    if choice == "gpu" and not torch.cuda.is_available():
        pytest.skip("there is no accelerator")
    trainer = build(composed(f"trainer={choice}").trainer, logger=False, enable_progress_bar=False)
    assert isinstance(trainer, Trainer)


@pytest.mark.parametrize("choice", choices("logger"))
def test_logger_instantiates(choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.pytorch.loggers import Logger

    from immunize.running.assembling import build_loggers

    monkeypatch.setenv("WANDB_MODE", "offline")
    if choice == "tensorboard":
        pytest.importorskip("tensorboard")
    loggers = build_loggers(composed(f"logger={choice}"), tmp_path)
    assert len(loggers) == (0 if choice == "none" else 1)
    assert all(isinstance(logger, Logger) for logger in loggers)


@pytest.mark.parametrize("choice", ["digits", "synthetic"])
def test_pair_instantiates_and_loads(choice: str) -> None:
    from immunize.running.experiment import build_data

    data = build_data(composed(f"harmful={choice}"))
    assert data.n_features == data.fit.harmful.x.shape[1]


@pytest.mark.data
@pytest.mark.parametrize("choice", ["housing", "mnist"])
def test_pair_on_real_files_instantiates_and_loads(choice: str, data_root: Path) -> None:
    from immunize.running.experiment import build_data

    data = build_data(composed(f"harmful={choice}", f"data_root={data_root}"))
    assert data.n_features == {"housing": 79, "mnist": 784}[choice]


def test_same_is_the_data_set_of_the_other_role() -> None:
    found = resolved(composed("harmful=synthetic", "harmful.noise=0.2", "pretrain=same", "pretrain.condition=10"))
    harmful, pretrain = found["harmful"], found["pretrain"]
    assert pretrain == {**resolved(composed("harmful=synthetic"))["harmful"], "role": "pretrain", "condition": 10.0}
    assert (harmful["role"], harmful["condition"], harmful["noise"]) == ("harmful", 100.0, 0.2)


def test_every_table_is_loaded_by_one_of_the_two_tests_above() -> None:
    """Images are loaded by the tests of `immunize.data.images`."""
    for group in ("harmful", "pretrain"):
        targets = {choice: in_group(group, choice)[group]._target_ for choice in choices(group)}
        tables = {choice for choice, target in targets.items() if not target.startswith("immunize.data.images.")}
        assert tables - {"same"} == set(TABLES)


@pytest.mark.parametrize("grid", ["quick", "standard", "full", "t4"])
def test_every_attack_of_a_grid_instantiates(grid: str) -> None:
    from immunize.building import build
    from immunize.evaluation.attacks import TIERS, Attack

    cfg = composed(f"attack={grid}", primary="attack")
    assert cfg.attack.name == grid
    attacks = {name: build(node, _convert_="all") for name, node in cfg.attack.attacks.items()}
    assert all(isinstance(attack, Attack) for attack in attacks.values())
    tiers = {attack.tier for attack in attacks.values()}
    assert tiers == {"full": set(TIERS), "t4": {"T4"}}.get(grid, set(TIERS) - {"T4", "T5"})
    if grid == "full":
        on_disk = {path.stem for path in (CONF / "attack").glob("t*/*.yaml")}
        assert attacks.keys() == on_disk


@pytest.mark.parametrize("choice", choices("benign"))
def test_benign_task_is_the_data_set_of_that_name(choice: str) -> None:
    given = ("benign.imagefolder.root=x",) if choice == "imagefolder" else ()
    cfg = composed(f"benign=[{choice}]", "data_root=here", *given, primary="attack")
    assert list(cfg.benign) == [choice]
    harmful = {**in_group("harmful", choice).harmful} | {"data_root": "here", "root": None}
    assert {**cfg.benign[choice]} | {"data_root": "here", "root": None} == harmful


def test_several_benign_tasks_stand_side_by_side() -> None:
    assert set(composed("benign=[cars,cifar10]", primary="attack").benign) == {"cars", "cifar10"}
    assert composed(primary="attack").benign == {}


# Folder names of a multirun.


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ("", "7"),
        ("method=ours,seed=0", "7_method=ours,seed=0"),
        ("harmful.pair=[0,1]", "7_harmful.pair=0,1"),
        ("objective.lambda_ill=1e+20", "7_objective.lambda_ill=1e+20"),
        ("data=/a b/../c", "7_data=-a-b-..-c"),
        ("note='κ'", "7_note=-"),
    ],
)
def test_folder_name(overrides: str, name: str) -> None:
    assert folder_name(7, overrides) == name.rstrip("-=")


def test_folder_name_is_never_over_long_nor_ambiguous() -> None:
    long = ",".join(f"key{i}={i}" for i in range(100))
    names = {folder_name(number, long) for number in range(20)}
    assert len(names) == 20
    assert all(len(name) <= 120 for name in names)


def test_decay_changes_the_hash_only_where_there_is_one() -> None:
    config = resolved(composed())
    before = config | {"objective": {key: value for key, value in config["objective"].items() if key != "lr_decay"}}
    assert config["objective"]["lr_decay"] is None
    assert config_hash(before) == config_hash(config)
    assert config_hash(resolved(composed("objective.lr_decay=0.25"))) != config_hash(config)
