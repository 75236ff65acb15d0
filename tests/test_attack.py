"""`immunize.attack`: the grid on a run and on a checkpoint, resumed, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from immunize import attack, threads, train
from immunize.attack_grid.linear import LinearTarget
from immunize.attack_grid.run import RESULTS
from immunize.attack_grid.target import GridPlan
from immunize.checkpoints import load_checkpoint, save_checkpoint
from immunize.config import resolved
from immunize.data.arrays import Arrays
from immunize.data.pair import PairedData
from immunize.errors import CheckpointError, DataError, UserError
from immunize.evaluation.attacks import Budget, GradientDescent
from immunize.instantiate import sources_of
from immunize.records import ATTACK_CELLS, ATTACK_RECORD, CHECKPOINT, RECORD, write_record
from tests.attacking import TINY_GRID, attack_tiny, compose_attack, target_of, timeless
from tests.commands import Called
from tests.composing import D, compose_config, run_tiny


@pytest.fixture
def folder(attacked_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(attacked_run, tmp_path / "copy"))


def test_record_has_every_tier_of_every_task_and_extractor(attacked_run: Path) -> None:
    record = json.loads((attacked_run / ATTACK_RECORD).read_text())
    assert record["tasks"].keys() == {"harmful", "pretrain"}
    assert record["tasks"]["harmful"]["rows"] == {"train": 30, "validation": 10, "test": 40}
    for task, of in record["results"].items():
        assert of.keys() == {"theta_0", "immunized", "random_orthogonal"}
        for extractor, tiers in of.items():
            assert tiers.keys() == {"T0", "T1", "T2", "T3"}
            for tier, found in tiers.items():
                own = {name for name, of in record["attacks"][task][extractor].items() if of["tier"] == tier}
                assert found["flops_by_attack"].keys() == found["longest_by_attack"].keys() == own
                assert all(steps >= 1 for of in found["longest_by_attack"].values() for steps in of)
                assert len(found["score"]["values"]) == len(found["held"]) == 2
                assert found["to_target"].keys() == {"steps", "seconds", "samples", "flops"}
        assert not any(of["theta_0"][tier]["seeds_held"] != "0/2" for tier in of["theta_0"])  # against itself
        for tier in ("T0", "T2"):  # a rotation changes nothing that does not draw
            same = [of[name][tier]["score"]["values"] for name in ("theta_0", "random_orthogonal")]
            assert same[0] == pytest.approx(same[1], abs=1e-6)
    assert record["control"]["passed"] is True
    stored = json.loads((attacked_run / RECORD).read_text())
    assert record["subject"]["run_config_hash"] == stored["config_hash"]
    assert record["config"]["attack"]["reduced"] is True


def test_finished_attacks_are_taken_from_their_cells(folder: Path) -> None:
    before = json.loads((folder / ATTACK_RECORD).read_text())
    cells = sorted((folder / ATTACK_CELLS).iterdir())
    cells[0].unlink()
    cells[1].write_text("{")  # as an interrupted disk may leave it
    older = json.loads(cells[2].read_text())
    commit = older.pop("git_commit")  # as cells once were
    cells[2].write_text(json.dumps(older))
    (folder / ATTACK_RECORD).unlink()
    lines: list[str] = []
    again = attack.run(compose_attack(f"run={folder}", *TINY_GRID), lines.append)
    assert lines[0].endswith("attack=quick: loading")
    assert sum(not line.endswith(", known") for line in lines[1:]) == 2
    numbered = [line.partition(" ")[0] for line in lines[1:]]
    assert numbered == [f"{number}/{len(numbered)}" for number in range(1, len(numbered) + 1)]
    assert sorted((folder / ATTACK_CELLS).iterdir()) == cells
    assert before["cells"] == {"computed": len(cells), "known": {}}
    assert again["cells"] == {"computed": 2, "known": {str(commit): len(cells) - 3, "unknown": 1}}
    for key in RESULTS:
        assert timeless(again[key]) == timeless(before[key])


def test_interruption_keeps_what_is_finished_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, called: Called
) -> None:
    shutil.rmtree(folder / ATTACK_CELLS)
    (folder / ATTACK_RECORD).unlink()
    done, run = [], GradientDescent.run

    def interrupted(*arguments: object) -> object:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(arguments)
        return run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(GradientDescent, "run", interrupted)
    ended = called(attack.main, f"run={folder}", *TINY_GRID)
    assert ended.code == 130
    told = ["finished attacks are kept; the same command goes on from there", "interrupted"]
    assert ended.err.splitlines()[-2:] == told
    assert not (folder / ATTACK_RECORD).exists()
    assert len(list((folder / ATTACK_CELLS).glob("*.json"))) >= 3


def test_other_settings_do_not_replace_a_record(folder: Path) -> None:
    with pytest.raises(UserError, match="overwrite=true"):
        attack_tiny(folder, "tiers=[T0]")
    record = attack_tiny(folder, "tiers=[T0]", "overwrite=true")
    assert record["results"]["harmful"]["immunized"].keys() == {"T0"}
    attack_tiny(folder, "tiers=[T0]", "data_root=elsewhere")  # where things lie is not a setting


def test_record_does_not_hang_on_where_the_run_lies_but_on_the_threads(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = Path(shutil.move(folder, tmp_path / "elsewhere"))
    before = json.loads((moved / ATTACK_RECORD).read_text())["config_hash"]
    monkeypatch.chdir(tmp_path)
    for spelled in (moved, Path("elsewhere"), "elsewhere/", "./elsewhere"):
        cfg = compose_attack(f"run={spelled}", *TINY_GRID)
        assert attack.run(cfg)["config_hash"] == before
    with pytest.raises(UserError, match="overwrite=true"):
        attack_tiny(moved, "threads=2")
    other = compose_attack(f"run={moved}", *TINY_GRID, f"out={tmp_path / 'out'}")
    assert attack.hash_of_grid(resolved(other)) != before  # a folder that may hold the attacks on any run


def test_the_record_has_the_threads_that_a_quota_leaves(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = (f"run={folder}", *TINY_GRID, "tiers=[T0]")
    monkeypatch.setattr(threads, "cores", lambda: 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    reduced, one = (
        attack.run(compose_attack(*asked, f"threads={count}", f"out={tmp_path / str(count)}")) for count in (2, 1)
    )
    assert [record["config"]["threads"] for record in (reduced, one)] == [1, 1]
    assert reduced["hardware"]["threads"] == 1
    assert timeless(reduced["results"]) == timeless(one["results"])


def test_checkpoint_is_attacked_like_the_run_it_is_of(folder: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(folder / CHECKPOINT, tmp_path / "theta.safetensors"))
    data = ("harmful=synthetic", f"harmful.n_features={D}", "harmful.n_samples=40", "harmful.condition=20")
    cfg = compose_attack(f"checkpoint={file}", "model=linear", *data, *TINY_GRID)
    record = attack.run(cfg)
    of_run = json.loads((folder / ATTACK_RECORD).read_text())
    assert (tmp_path / ATTACK_RECORD).is_file()
    assert timeless(record["results"]) == timeless(of_run["results"])
    assert record["subject"]["method"] == "theta"  # its file's name
    assert record["subject"]["checkpoint_sha256"] == of_run["subject"]["checkpoint_sha256"]


def test_data_that_no_attack_can_use_are_refused_before_the_first_one(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / CHECKPOINT, {"fit": torch.eye(D, dtype=torch.float64)}, {}, config_hash="")
    sets = ("harmful=synthetic", f"harmful.n_features={D}", "pretrain.n_features=8")
    with pytest.raises(DataError, match=f"8 features and D_H .* has {D}"):
        attack.run(compose_attack(f"checkpoint={tmp_path / CHECKPOINT}", "model=linear", *sets, *TINY_GRID))


def test_digit_pairs_are_told_apart_and_third_digits_are_benign(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / CHECKPOINT, {"fit": torch.eye(64, dtype=torch.float64)}, {}, config_hash="")
    target = target_of(f"checkpoint={tmp_path / CHECKPOINT}", "harmful=digits", "harmful.pair=[3,0]")
    tasks = target.tasks(0)
    assert list(tasks) == ["harmful", "benign_1", "benign_2"]
    assert tasks["harmful"].about == "digits: tell 0 from 3"
    data = tasks["harmful"].data
    assert data.n_classes == 2
    assert sorted(set(data.test.y.tolist())) == [0, 1]
    again, other = (target.tasks(seed)["harmful"].data for seed in (0, 1))
    assert (again.train.x == data.train.x).all()
    assert (other.train.x != data.train.x).any()
    assert (other.test.x == data.test.x).all()  # the held-out images, whatever the seed
    with_own = target_of(f"checkpoint={tmp_path / CHECKPOINT}", "harmful=digits", "harmful.pair=[3,0]", "own_rows=true")
    for seed in range(4):  # no class has fewer rows to be measured on for having more to be learned from
        own = with_own.tasks(seed)["harmful"].data
        assert all(np.ptp(np.bincount(part.y)) <= 2 for part in (own.train, own.validation, own.test))
    rotations = [target.extractors(seed)["random_orthogonal"] for seed in (0, 1)]
    assert not torch.allclose(*rotations)


def test_rare_classes_are_shared_out_by_chance() -> None:
    """200 rows of two classes, 40 of a class of their own, half of 240 to be measured on."""
    of = {"seeds": (0,), "threads": 1, "jobs": 1, "budget": Budget(1), "tasks": None}
    plan = GridPlan(**of, validation_fraction=0.5, own_rows=True, test_fraction=0.5)  # type: ignore[arg-type]
    classes = np.concatenate([np.repeat([0, 1], 100), 2 + np.arange(40)])
    singles = []
    for seed in range(6):
        train, validation, test = plan.split(0, 240, (seed, 0), classes)
        assert sorted([*train, *validation, *test]) == list(range(240))
        assert np.abs(np.bincount(classes[test])[:2] - 50).max() <= 2
        singles.append(int((classes[test] > 1).sum()))
    assert 10 < np.mean(singles) < 30


def test_a_run_that_was_judged_by_rows_set_aside_is_attacked_with_those(tmp_path: Path) -> None:
    """No held-out row is looked at, and the attacker has none of those that the run was judged by."""
    run_tiny(tmp_path, "selection=validation", "objective.validation_fraction=0.25")
    rows = {"train": 22, "validation": 8, "test": 10}  # of 40; the attacker tunes on a quarter of its own
    target = target_of(f"run={tmp_path}")
    assert (target.facts["selection"], target.facts["benign_rows"]) == ("validation", "fit")
    for task in target.tasks(0).values():
        assert {part: len(getattr(task.data, part)) for part in rows} == rows


def test_nor_is_a_held_out_row_of_a_third_digit_looked_at(tmp_path: Path) -> None:
    digits = ("harmful=digits", "harmful.pair=[0,1]")
    train.run(compose_config(*digits, "selection=validation", "objective.epochs=1"), tmp_path)
    tasks = target_of(f"run={tmp_path}").tasks(0)
    assert list(tasks) == ["harmful", "benign_2", "benign_3"]
    for digit, task in enumerate(tasks.values(), 1):
        pair = sources_of(compose_config("harmful=digits", f"harmful.pair=[0,{digit}]"))
        fit = np.concatenate([source.load().fit.x.numpy() for source in pair])
        seen = np.concatenate([rows.x for rows in task.data.parts.values()])
        assert sorted(map(bytes, seen)) == sorted(map(bytes, fit))


def test_an_attacker_with_rows_of_its_own_has_none_that_the_immunization_saw(tmp_path: Path) -> None:
    run_tiny(tmp_path / "run")
    given = f"run={tmp_path / 'run'}", "test_fraction=0.5"
    saw, own = (target_of(*given, f"own_rows={own_rows}") for own_rows in (False, True))

    def rows_of(target: LinearTarget, task: str, *parts: str) -> set[bytes]:
        return {row.tobytes() for part in parts for row in getattr(target.tasks(0)[task].data, part).x}

    for task in own.tasks(0):
        assert rows_of(own, task, "train", "validation", "test") == rows_of(saw, task, "test")
        assert not rows_of(own, task, "train", "validation") & rows_of(own, task, "test")
        assert not rows_of(own, task, "train") & rows_of(saw, task, "train", "validation")
    record = attack_tiny(tmp_path / "run", "own_rows=true", "test_fraction=0.5", "seeds=[0]")
    held = sum(record["tasks"]["harmful"]["rows"].values())
    assert held == len(rows_of(saw, "harmful", "test"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("tiers=[T4]",), "no attack of tier T4"),
        (("seeds=[]",), "at least one seed"),
        (("seeds=[1,1]",), "different seeds"),
        (("attack.budget.steps=0",), "budget"),
        (("attack.attacks.ridge.penalties=[-1.0]",), "penalties"),
        (
            ("attack.attacks.nearest_neighbours.neighbours=[1,2.5]",),
            "has to be a list, and each item a whole number",
        ),
        (("validation_fraction=0.001",), "0 to tune on"),
        (("own_rows=true", "test_fraction=0.001"), "0 to be measured on"),
        (("+sede=1",), "no setting sede"),
        (("checkpoint=x",), "run=<output folder>, or checkpoint=<file>"),
    ],
)
def test_bad_settings_are_refused(overrides: tuple[str, ...], words: str, folder: Path) -> None:
    (folder / ATTACK_RECORD).unlink()
    with pytest.raises(UserError, match=words):
        attack_tiny(folder, *overrides)


def test_runs_and_data_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / ATTACK_RECORD).unlink()
    with pytest.raises(UserError, match="say what to attack"):
        attack.run(compose_attack(*TINY_GRID))
    with pytest.raises(UserError, match="does not exist"):
        attack.run(compose_attack("run=nowhere", *TINY_GRID))
    with pytest.raises(UserError, match="is a folder: name the file"):
        attack.run(compose_attack(f"checkpoint={folder}", f"out={tmp_path}", *TINY_GRID))
    with pytest.raises(UserError, match="is a file: name a folder"):
        attack_tiny(folder, f"cells={folder / CHECKPOINT}")
    with pytest.raises(CheckpointError, match=r"theta\.fit is"):
        attack.run(compose_attack(f"checkpoint={folder / CHECKPOINT}", f"out={tmp_path}", "harmful=digits", *TINY_GRID))
    stored = json.loads((folder / RECORD).read_text())
    for change, words in (
        ({"status": "diverged"}, "nothing finished to attack"),
        ({"data_hash": "0"}, "not those of the run"),
        ({"config_hash": "0"}, "belongs to another run"),
    ):
        write_record(folder, stored | change)
        with pytest.raises(CheckpointError, match=words):
            attack_tiny(folder)


def test_command(folder: Path, monkeypatch: pytest.MonkeyPatch, called: Called) -> None:
    monkeypatch.chdir(folder.parent)
    done = called(attack.main, "run=copy", *TINY_GRID, "overwrite=true")
    assert done.out.splitlines()[-1] == f"copy/{ATTACK_RECORD}"
    assert "REDUCED attack=quick" in done.out
    assert "harmful task (synthetic, regression): " in done.out
    assert done.err.startswith("copy, attack=quick: loading\n")
    assert "those of the run" in called(attack.main, "run=copy", "harmful=digits").err


def with_rare_categories(folder: Path, seed: int) -> tuple[str, ...]:
    """Overrides that attack θ with κ = 1e6 on a table whose last four columns are 1 in one held-out row each."""
    rng = np.random.default_rng(seed)
    file = folder / "table.npz"
    np.savez(file, x=np.arange(200.0)[:, None], y=np.arange(200.0))
    held_out = Arrays("harmful", file).load().held_out
    x = rng.standard_normal((200, 12))
    x[:, 8:] = 0
    for column in range(8, 12):
        x[int(rng.choice(held_out.x[:, 0].numpy())), column] = 1
    np.savez(file, x=x, y=x @ rng.standard_normal(12) + 0.3 * rng.standard_normal(200))
    left, right = (np.linalg.qr(rng.standard_normal((12, 12)))[0] for _ in range(2))
    theta = torch.from_numpy(left * np.logspace(0, -6, 12) @ right)
    save_checkpoint(folder / CHECKPOINT, {"fit": theta}, {}, config_hash="")
    files = [f"{role}.file={file}" for role in ("pretrain", "harmful")]
    return f"checkpoint={folder / CHECKPOINT}", "model=linear", "harmful=arrays", *files


@pytest.mark.parametrize("seed", [0, 4])
def test_no_tier_holds_by_a_category_that_the_attacker_could_not_know(seed: int, tmp_path: Path) -> None:
    """Measured on these rows T2 loses 0.05 to 1.4 of its R² through θ, and least squares more."""
    overrides = with_rare_categories(tmp_path, seed)
    raw = "harmful.standardize=false"  # which leaves no column out that is constant in what θ is fitted on
    record = attack.run(compose_attack(*overrides, raw, "attack=quick", "tiers=[T2]", "seeds=[0,1]"))
    found = record["results"]["harmful"]["immunized"]["T2"]
    assert found["held"] == [False, False]
    assert found["score"]["values"] == pytest.approx(found["score_reference"]["values"], abs=0.02)
    facts = record["tasks"]["harmful"]
    assert facts["rows_moved"] == {"validation": [0, 0], "test": [4, 4]}
    assert facts["rows"] == {"train": 116, "validation": 38, "test": 46}


def test_rows_that_are_all_outside_the_span_are_refused(tmp_path: Path) -> None:
    overrides = with_rare_categories(tmp_path, 0)
    x = np.random.default_rng(0).standard_normal((16, 12))
    np.savez(tmp_path / "table.npz", x=x, y=x[:, 0])
    with pytest.raises(DataError, match=r"3 of 3 validation rows leave the span .* 12 columns"):
        attack.run(compose_attack(*overrides, "attack=quick", "tiers=[T2]"))


@pytest.mark.data
def test_housing_run_is_attacked_on_rows_of_its_own(data_root: Path, tmp_path: Path) -> None:
    housing = ("harmful=housing", f"data_root={data_root}", "objective.epochs=5", "probe_steps=50")
    train.run(compose_config(*housing), tmp_path)
    record = attack_tiny(tmp_path, "tiers=[T2]", "seeds=[0]")
    assert record["tasks"]["harmful"]["rows"] == {"train": 692, "validation": 230, "test": 229}
    assert record["tasks"]["harmful"]["about"] == "housing: SalePrice"
    assert record["results"]["harmful"]["theta_0"]["T2"]["score"]["mean"] > 0.7
    target = target_of(f"run={tmp_path}", "own_rows=true", "tasks=[harmful]")
    words = ("model=linear", "harmful=housing", f"data_root={data_root}", "own_rows=true")
    with pytest.raises(UserError, match="own_rows=true needs run="):
        target_of(f"checkpoint={tmp_path / CHECKPOINT}", *words)
    halves = PairedData(*target.sources).cross_fit_pair(0)
    halves.setup()
    assert torch.equal(target.theta, load_checkpoint(tmp_path / CHECKPOINT, len(target.theta))["cross_fit"])
    has = {row.tobytes() for part in target.tasks(0)["harmful"].data.parts.values() for row in part.x}
    assert has == {row.tobytes() for row in halves.held_out.harmful.x.numpy()}  # type: ignore[union-attr]
