"""Whatever stands on a command line: a result, or one message and an exit code, never a traceback.

Random settings of every command. The other tests of bad input say which message belongs to which mistake; these look
for the mistakes nobody thought of.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from immunize import attack, evaluate, export, forecast, pretrain, train
from immunize.report import __main__ as report
from tests.attacking import TINY_GRID, TINY_NETWORK_GRID, compose_attack
from tests.composing import compose_config
from tests.fuzzing import VALUES, cases, choices, ends_well, leaves, overrides

LINEAR = [
    *("harmful=synthetic", "harmful.n_features=4", "harmful.n_samples=24", "objective.epochs=2", "probe_steps=10"),
    *("logger=none", "figure=false"),
]
NET = ["model=resnet_small", "model.kwargs.channels=[2,2,2,4]"]
DEEP = [
    *(*NET, "harmful=digits", "objective.epochs=1"),
    *("objective.max_steps=1", "logger=none", "deep.groups=2", "deep.group_size=8", "deep.replicates=2"),
    *("deep.probe_steps={gd:1,least_squares:null,sgd:null,adam:null}", "deep.pretrain_probe_steps=1"),
]
FORECAST = ["harmful=synthetic", "harmful.n_features=4", "harmful.n_samples=24"]
PRETRAIN = [*NET, "pretrain=digits", "epochs=1", "batch_size=256"]
GRID = [word for word in TINY_GRID if not word.startswith("seeds=")]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("IMMUNIZE_DATA", "HYDRA_FULL_ERROR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def linear(attacked_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of its own: what is tried here may write into it."""
    return Path(shutil.copytree(attacked_run, tmp_path_factory.mktemp("fuzzed") / "linear"))


@pytest.fixture(scope="module")
def network(finished_network: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(finished_network, tmp_path_factory.mktemp("fuzzed") / "network"))


# `hydra` is not ours; a trainer may find as many devices as it is told to; threads are this test's own.
NOT_OURS = ("hydra", "trainer.devices", "trainer.num_nodes", "threads")


@cases(6)
@given(chosen=overrides(leaves(compose_config(*LINEAR), without=NOT_OURS)))
def test_random_settings_of_a_linear_run(chosen: list[str], tmp_path: Path) -> None:
    ends_well(train.main, [*LINEAR, *chosen], tmp_path)


@cases(6)
@given(
    chosen=overrides(leaves(compose_config(*LINEAR, "method=closed_form"), without=(*NOT_OURS, "objective", "deep")))
)
def test_random_settings_of_a_run_without_training(chosen: list[str], tmp_path: Path) -> None:
    ends_well(train.main, [*LINEAR, "method=closed_form", *chosen], tmp_path)


@cases(3)
@given(chosen=overrides(leaves(compose_config(*DEEP), without=NOT_OURS)))
def test_random_settings_of_a_deep_run(chosen: list[str], tmp_path: Path) -> None:
    ends_well(train.main, [*DEEP, *chosen], tmp_path)


@cases(6)
@given(
    chosen=overrides(
        ["seed", "top_k", "budget", "rho", "shrinkage", "harmful", "harmful.angle", "harmful.role", "pretrain"]
    )
)
def test_random_settings_of_a_forecast(chosen: list[str], tmp_path: Path) -> None:
    ends_well(forecast.main, [*FORECAST, *chosen], tmp_path)


@cases(3)
@given(chosen=overrides(leaves(compose_config(*PRETRAIN, primary="pretrain_theta"), without=NOT_OURS)))
def test_random_settings_of_a_pretraining(chosen: list[str], tmp_path: Path) -> None:
    ends_well(pretrain.main, [*PRETRAIN, *chosen], tmp_path)


@cases(6)
@given(
    chosen=choices("method", "model", "harmful", "pretrain", "init", "objective"), more=overrides(["seed", "figure"])
)
def test_random_choices_of_groups(chosen: list[str], more: list[str], tmp_path: Path) -> None:
    short = ["objective.epochs=1", "objective.max_steps=1", "probe_steps=2", "logger=none"]
    ends_well(train.main, [*short, *chosen, *more], tmp_path)


ATTACKED = leaves(compose_attack(*GRID), without=(*NOT_OURS, "model", "harmful", "pretrain"))


@cases(6)
@given(chosen=overrides(ATTACKED))
def test_random_settings_of_an_attack(chosen: list[str], linear: Path, tmp_path: Path) -> None:
    ends_well(attack.main, [f"run={linear}", f"out={tmp_path}", "seeds=[0]", *GRID, *chosen], tmp_path)


@cases(3)
@given(chosen=overrides(ATTACKED))
def test_random_settings_of_an_attack_on_a_network(chosen: list[str], network: Path, tmp_path: Path) -> None:
    places = [f"out={tmp_path}", f"cells={network / 'cells'}", f"features={network / 'features'}"]
    ends_well(attack.main, [f"run={network}", *places, "images=100", *TINY_NETWORK_GRID, *chosen], tmp_path)


# Commands with a handful of settings, each of which may be anything. A folder of theirs is there, and others are not.
REPORT = leaves(compose_config(primary="report/report"), without=NOT_OURS)
EXPERIMENTS = ["table1", "table2", "table3", "fig1", "fig2", "fig3", "sweep_lambda", "table_attacks"]
FEW: dict[str, tuple[Callable[[], None], list[str], st.SearchStrategy[list[str]]]] = {
    "evaluate": (evaluate.main, ["run={run}"], overrides(["run", "data_root"])),
    "export": (export.main, ["run={run}", "overwrite=true"], overrides(["run", "format", "out", "overwrite"])),
    "card": (report.main, ["card", "run={run}"], overrides(["run", "out"])),
    "html": (report.main, ["html", "run={run}"], overrides(["run", "sweep", "out"])),
    "html of many": (report.main, ["html", "sweep={run}/.."], overrides(["run", "sweep", "out"])),
    "report": (report.main, ["runs={run}/.."], overrides(REPORT)),
    "report of an experiment": (
        *(report.main, ["runs={run}/.."]),
        st.builds(lambda name, more: [f"experiment={name}", *more], st.sampled_from(EXPERIMENTS), overrides(REPORT)),
    ),
}


@pytest.mark.parametrize("which", ["linear", "network"])
@pytest.mark.parametrize("command", FEW)
def test_random_settings_of_a_command_with_few(
    command: str, which: str, linear: Path, network: Path, tmp_path: Path
) -> None:
    main, words, strategy = FEW[command]
    run = {"linear": linear, "network": network}[which]

    @cases(2)
    @given(chosen=strategy)
    def tried(chosen: list[str]) -> None:
        ends_well(main, [*(word.format(run=run) for word in words), *chosen], tmp_path)

    tried()


def test_values_are_not_told_twice() -> None:
    assert len(set(VALUES)) == len(VALUES)
