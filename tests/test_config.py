"""Every YAML under conf/ composes into a configuration, and every `_target_` in it becomes an object."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from immunize.config import SCHEMAS, config_dir, data_folder, folder_name, settings_of
from immunize.evaluation import evaluate_part
from immunize.evaluation.attacks import TIERS, Attack
from immunize.instantiate import NOT_ARGUMENTS, build
from immunize.objective import Objective
from immunize.pipeline.fit import Telling
from tests.composing import compose_config, model_of

CONF = Path(config_dir())
PRIMARY = {
    **{name: SCHEMAS[name] for name in ("train", "evaluate", "verify", "forecast", "attack", "export")},
    **{f"report/{name}": SCHEMAS[name] for name in ("report", "card", "html")},
    "pretrain_theta": SCHEMAS["pretrain"],
}
GROUPS = ["model", "harmful", "pretrain", "method", "objective", "init", "trainer", "logger", "experiment"]
IMAGES = "immunize.data.images."
TABLES = [
    path.stem
    for path in sorted((CONF / "harmful").glob("*.yaml"))
    if not str(OmegaConf.load(path).get("_target_", IMAGES)).startswith(IMAGES)
]
"""Data sets that are no images; those are loaded by the tests of `immunize.data.images`."""
SHIPPED_ROWS = {
    *(("linear", harmful) for harmful in ("arrays", "digits", "housing", "mnist", "synthetic")),
    *(("resnet18", harmful) for harmful in ("cars", "country211", "caltech101", "multi")),
    *(("vit", harmful) for harmful in ("cars", "country211", "multi")),
    *(("resnet18_64px", harmful) for harmful in ("cars", "caltech101", "multi")),
    *(("resnet_small", "digits"), ("vit_small", "digits"), ("timm", "imagefolder"), ("timm", "multi")),
}
"""Pairs whose hyper-parameters must not go missing; what is added needs no line here."""
GIVEN = {"arrays": ("harmful.file=x.npz", "pretrain.file=y.npz")}
"""What a choice asks the user for, beside what is ??? in its YAML."""


def choices(group: str) -> list[str]:
    return [path.stem for path in sorted((CONF / group).glob("*.yaml"))]


def resolved(cfg: DictConfig) -> dict[str, Any]:
    return dict(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))


def in_group(group: str, choice: str) -> DictConfig:
    """A composed train configuration with one choice of one group, and with something for whatever that asks for."""
    return filled(compose_config(f"{group}={choice}", *beside(group, choice)))


def beside(group: str, choice: str) -> list[str]:
    """What goes with a choice: the other data set, and hyper-parameters where this pair has none of its own."""
    if (group, choice) == ("pretrain", "same"):
        return ["harmful=synthetic", "pretrain.condition=10"]
    if group in ("harmful", "pretrain"):  # D_P as it comes with its own D_H; ImageNet is never D_H
        harmful = choice if choice in choices("harmful") else "cars"
        followed = followed_by(choice) if group == "harmful" else ()
        row = () if ("linear", harmful) in ROWS else ("objective=resnet18_cars",)
        return [f"harmful={harmful}", *row, *followed, *GIVEN.get(choice, ())]
    return []


def followed_by(harmful: str) -> list[str]:
    return [] if harmful in choices("pretrain") else ["pretrain=same"]


def filled(cfg: DictConfig) -> DictConfig:
    for key in cfg:
        if OmegaConf.is_missing(cfg, key):
            cfg[key] = "x"
        elif not OmegaConf.is_interpolation(cfg, key) and isinstance(cfg[key], DictConfig):
            filled(cfg[key])
    return cfg


ROWS = [
    (model, harmful)
    for model in choices("model")
    for harmful in choices("harmful")
    if f"{model}_{harmful}" in choices("objective")
]
"""The models and data sets that have hyper-parameters for each other; another pair is given a row: objective=<row>."""


def test_every_yaml_belongs_to_something_tested_here() -> None:
    for path in CONF.rglob("*.yaml"):
        first = path.relative_to(CONF).parts[0].removesuffix(".yaml")
        assert first in {*GROUPS, *PRIMARY, "report", "hydra", "objective_defaults", "objective_deep", "benign"}, path


@pytest.mark.parametrize("primary", PRIMARY)
def test_primary_config_composes_with_a_value_for_every_field(primary: str) -> None:
    cfg = compose_config(
        *(f"{name}=x" for name in ("run", "runs") if name in {f.name for f in fields(PRIMARY[primary])}),
        primary=primary,
    )
    assert set(resolved(cfg)) == {field.name for field in fields(PRIMARY[primary])}


@pytest.mark.parametrize(
    ("group", "choice"), [(group, choice) for group in ("init", "trainer", "logger") for choice in choices(group)]
)
def test_choice_composes_and_resolves(group: str, choice: str) -> None:
    resolved(in_group(group, choice))


def test_every_row_is_of_a_pair_or_a_variant_of_its_row() -> None:
    assert set(ROWS) >= SHIPPED_ROWS
    found = [f"{model}_{harmful}" for model, harmful in ROWS]
    for name in choices("objective"):
        assert any(name == pair or name.startswith(f"{pair}_") for pair in found), name


def optimizer_instantiates(objective: DictConfig) -> None:
    kept = {key: value for key, value in objective.optimizer.items() if value is not None}
    factory = build(OmegaConf.create(kept), lr=objective.learning_rate, _partial_=True)
    assert factory([torch.nn.Parameter(torch.zeros(2))]).param_groups[0]["lr"] == objective.learning_rate


@pytest.mark.parametrize(("model", "harmful"), ROWS, ids=str)
def test_a_pair_finds_its_row_of_hyper_parameters_and_variants_of_it_make_an_optimizer(
    model: str, harmful: str
) -> None:
    cfg = filled(compose_config(f"model={model}", f"harmful={harmful}", *followed_by(harmful)))
    assert resolved(cfg)["objective"]["epochs"] >= 1
    assert cfg.model.name in (model, "x")
    optimizer_instantiates(cfg.objective)
    assert (cfg.objective.loss == "ce") == (cfg.model.get("kind") == "deep" or harmful == "digits5to9")
    if harmful in TABLES:
        assert cfg.pretrain._target_ == cfg.harmful._target_
    for path in CONF.glob(f"objective/{model}_{harmful}_*.yaml"):
        optimizer_instantiates(compose_config(f"objective={path.stem}").objective)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("mnist", "pair", (3, 5)),
        ("mnist", "download", True),
        ("digits", "pair", (7, 2)),
        ("housing", "rows", 200),
        ("housing", "source", "openml"),
        ("synthetic", "n_features", 8),
        ("synthetic", "seed", 5),
    ],
)
def test_pretraining_data_follow_the_harmful_data(name: str, setting: str, value: Any) -> None:
    given, held = (str(list(value)), "digits") if isinstance(value, tuple) else (value, setting)
    cfg = compose_config(f"harmful={name}", f"harmful.{setting}={given}")
    assert [getattr(build(cfg[role]), held) for role in ("harmful", "pretrain")] == [value, value]


# Instantiation.


@pytest.mark.parametrize(
    ("group", "choice"), [(group, of) for group in ("method", "harmful", "pretrain") for of in choices(group)], ids=str
)
def test_choice_instantiates(group: str, choice: str) -> None:
    node = in_group(group, choice)[group]
    made = build(node, leave_out=NOT_ARGUMENTS)
    if group == "method":
        assert isinstance(made, Objective)
        assert node.name == choice
        made.bind(6)
    else:
        assert made.role == group


@pytest.mark.data
@pytest.mark.slow
def test_table_4s_row_of_house_prices_immunizes_with_the_rows_and_batches_of_the_released_code(data_root: Path) -> None:
    words = ("harmful=housing", "harmful.rows=200", f"data_root={data_root}", "objective.epochs=334")
    cfg = compose_config(*words, "objective=linear_housing_table4")
    model = model_of(cfg)
    data = model.pairs["fit"]
    done = model.fit(data, [], Telling(quiet=True))
    found = evaluate_part(done.theta, data.fit, data.tasks, probe_steps=1)
    assert done.steps == 1002
    assert found["metrics"]["released"]["rir"] > 356  # the paper's
    assert [found["verdicts"][name] for name in "abc"] == [True, True, True]


@pytest.mark.parametrize(
    ("group", "words", "primary"),
    [("harmful/sets", ("harmful=multi", "model=resnet18"), "train"), ("benign", (), "attack")],
)
def test_a_data_set_in_a_list_is_the_one_of_that_name(group: str, words: tuple[str, ...], primary: str) -> None:
    names, there = choices(group), {"data_root": "here", "root": None}
    cfg = compose_config(*words, f"{group}=[{','.join(names)}]", "data_root=here", primary=primary)
    found = OmegaConf.select(filled(cfg), group.replace("/", "."))
    assert list(found) == names
    for name in names:
        assert {**found[name]} | there == {**in_group("harmful", name).harmful} | there


def test_same_is_the_data_set_of_the_other_role() -> None:
    found = resolved(compose_config("harmful=synthetic", "harmful.noise=0.2", "pretrain=same", "pretrain.condition=10"))
    harmful, pretrain = found["harmful"], found["pretrain"]
    plain = resolved(compose_config("harmful=synthetic"))["harmful"]
    assert pretrain == {**plain, "role": "pretrain", "condition": 10.0}
    assert (harmful["role"], harmful["condition"], harmful["noise"]) == ("harmful", 100.0, 0.2)


@pytest.mark.parametrize("grid", choices("attack"))
def test_every_attack_of_a_grid_instantiates(grid: str) -> None:
    cfg = compose_config(f"attack={grid}", primary="attack")
    assert cfg.attack.name == grid
    attacks = {name: build(node, _convert_="all") for name, node in cfg.attack.attacks.items()}
    assert all(isinstance(attack, Attack) for attack in attacks.values())
    tiers = {attack.tier for attack in attacks.values()}
    on_features = set(TIERS) - {"T4", "T5"}
    ours = {"quick": on_features, "standard": on_features, "full": set(TIERS), "t4": {"T4"}}
    assert tiers == ours.get(grid, tiers)
    if grid == "full":
        files = CONF.glob("attack/t*/*.yaml")
        assert {name: of.tier for name, of in attacks.items()} == {at.stem: at.parent.name.upper() for at in files}


# Folder names of a multirun.


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ("", "7"),
        ("method=ours,seed=0", "7_method=ours,seed=0"),
        ("harmful.pair=[0,1]", "7_harmful.pair=0,1"),
        ("objective.lambda_ill=1e+20", "7_objective.lambda_ill=1e+20"),
        ("data=/a b/../c", "7_data=-a-b-..-c"),
        ("note='κ'", "7_note"),
    ],
)
def test_folder_name_needs_no_quoting_and_is_never_over_long(overrides: str, name: str) -> None:
    assert folder_name(7, overrides) == name
    assert len(folder_name(7, overrides + ",key=1" * 100)) <= 120


def test_data_folder_is_the_option_or_the_variable_and_an_empty_one_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMMUNIZE_DATA", "here")
    assert [data_folder(given) for given in ("there", "", None)] == ["there", "here", "here"]
    assert resolved(compose_config())["data_root"] == "here"
    for absent in (lambda: monkeypatch.setenv("IMMUNIZE_DATA", ""), lambda: monkeypatch.delenv("IMMUNIZE_DATA")):
        absent()
        assert data_folder() is data_folder("") is None
        assert resolved(compose_config())["data_root"] == "data"


def test_files_that_moved_with_the_data_folder_are_found_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the data folder, and elsewhere what is not there any more but here."""
    monkeypatch.setenv("HOME", str(tmp_path))
    there, new = tmp_path / "there", tmp_path / "new"
    for folder in (there, new / "bad", new / "there", new / "mine.npz", new / "theta_0.safetensors"):
        folder.mkdir(parents=True)
    config = {
        "data_root": "/old",
        "model": {"checkpoint": "/old/weights/w.safetensors"},
        "pretrain": {"root": str(there), "file": "gone.npz"},
        "harmful": {"sets": {"own": {"root": "/elsewhere/bad", "file": "mine.npz"}}},
        "other": "/older/x",
        "theta_0": {"checkpoint": "outputs/theta_0.safetensors"},
        "home": {"root": "~/there"},
    }
    assert settings_of({"config": config}, None) == config
    assert settings_of({"config": config}, str(new)) == config | {
        "data_root": str(new),
        "model": {"checkpoint": f"{new}/weights/w.safetensors"},
        "harmful": {"sets": {"own": {"root": f"{new}/bad", "file": f"{new}/mine.npz"}}},
        "theta_0": {"checkpoint": f"{new}/theta_0.safetensors"},
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "inverse_free"),
        (("model=resnet18", "harmful=cars"), "none"),
        (("model=resnet_small",), "features"),
        (("experiment=table3_digits", "model=vit_small"), "features"),
    ],
)
def test_one_setting_says_how_ours_is_preconditioned(words: tuple[str, ...], expected: str) -> None:
    config = resolved(compose_config(*words))
    assert {group for group, node in config.items() if isinstance(node, dict) and "precondition" in node} == {"method"}
    assert config["method"]["precondition"] == expected
