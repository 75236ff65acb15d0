"""`immunize.attack`: the grid on a run and on a checkpoint, resumed, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

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
from immunize.data.synthetic import Synthetic
from immunize.errors import CheckpointError, DataError, UserError
from immunize.evaluation.attacks import Budget, GradientDescent
from immunize.files import held
from immunize.instantiate import sources_of
from immunize.records import ATTACK_CELLS, ATTACK_RECORD, CHECKPOINT, RECORD, read_record
from tests.attacking import TINY_GRID, attack_tiny, compose_attack, target_of, timeless
from tests.commands import Called
from tests.composing import D, compose_config, run_tiny
from tests.tampering import edit_json


@pytest.fixture
def folder(attacked_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(attacked_run, tmp_path / "copy"))


def test_record_has_every_tier_of_every_task_and_extractor(attacked_run: Path) -> None:
    record = json.loads((attacked_run / ATTACK_RECORD).read_text())
    assert record["tasks"].keys() == record["results"].keys() == {"harmful", "pretrain"}
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
        assert all(found["seeds_held"] == "0/2" for found in of["theta_0"].values())  # against itself
        for tier in ("T0", "T2"):  # a rotation changes nothing that does not draw
            same = [of[name][tier]["score"]["values"] for name in ("theta_0", "random_orthogonal")]
            assert same[0] == pytest.approx(same[1], abs=1e-6)
    assert record["control"]["passed"] is True
    assert record["subject"]["run_config_hash"] == read_record(attacked_run)["config_hash"]
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
    assert sum(line.endswith(", known") for line in lines) == len(cells) - 2
    assert [line.partition(" ")[0] for line in lines[1:]] == [f"{n}/{len(lines) - 1}" for n in range(1, len(lines))]
    assert sorted((folder / ATTACK_CELLS).iterdir()) == cells
    assert before["cells"] == {"computed": len(cells), "known": {}}
    assert again["cells"] == {"computed": 2, "known": {str(commit): len(cells) - 3, "unknown": 1}}
    for key in RESULTS:
        assert timeless(again[key]) == timeless(before[key])


def test_interruption_keeps_what_is_finished(folder: Path, monkeypatch: pytest.MonkeyPatch, called: Called) -> None:
    shutil.rmtree(folder / ATTACK_CELLS)
    (folder / ATTACK_RECORD).unlink()
    run, left = GradientDescent.run, iter(range(3))

    def interrupted(*arguments: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return run(*arguments)

    monkeypatch.setattr(GradientDescent, "run", interrupted)
    ended = called(attack.main, f"run={folder}", *TINY_GRID)
    assert ended.code == 130
    assert "finished attacks are kept; the same command goes on from there" in ended.err
    assert not (folder / ATTACK_RECORD).exists()
    assert len(list((folder / ATTACK_CELLS).glob("*.json"))) >= 3


def test_other_settings_do_not_replace_a_record(folder: Path) -> None:
    with held(folder, AssertionError()), pytest.raises(UserError, match="another command is at work"):
        attack_tiny(folder)  # whose record it may be about to write
    with pytest.raises(UserError, match="overwrite=true"):
        attack_tiny(folder, "tiers=[T0]")
    record = attack_tiny(folder, "tiers=[T0]", "overwrite=true")
    assert record["results"]["harmful"]["immunized"].keys() == {"T0"}
    attack_tiny(folder, "tiers=[T0]", "data_root=elsewhere")  # where things lie is not a setting


def test_the_place_of_a_run_is_no_setting(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Path(shutil.move(folder, tmp_path / "elsewhere"))
    before = json.loads((moved / ATTACK_RECORD).read_text())["config_hash"]
    monkeypatch.chdir(tmp_path)
    for spelled in (moved, "elsewhere", "elsewhere/", "./elsewhere"):
        assert attack.hash_of_grid(resolved(compose_attack(f"run={spelled}", *TINY_GRID))) == before
    assert attack.hash_of_grid(resolved(compose_attack(f"run={moved}", *TINY_GRID, "threads=2"))) != before
    other = compose_attack(f"run={moved}", *TINY_GRID, f"out={tmp_path / 'out'}")
    assert attack.hash_of_grid(resolved(other)) != before  # a folder that may hold the attacks on any run


def test_the_record_has_the_threads_that_a_quota_leaves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    record = attack_tiny(folder, "threads=2")  # which is then the record that is there, of one thread
    assert (record["config"]["threads"], record["hardware"]["threads"]) == (1, 1)
    assert record["cells"]["computed"] == 0


def test_checkpoint_is_attacked_like_the_run_it_is_of(folder: Path, tmp_path: Path) -> None:
    file = shutil.copy(folder / CHECKPOINT, tmp_path / "theta.safetensors")
    data = ("harmful=synthetic", f"harmful.n_features={D}", "harmful.n_samples=40", "harmful.condition=20")
    record = attack.run(compose_attack(f"checkpoint={file}", "model=linear", *data, *TINY_GRID))
    of_run = json.loads((folder / ATTACK_RECORD).read_text())
    assert (tmp_path / ATTACK_RECORD).is_file()
    assert timeless(record["results"]) == timeless(of_run["results"])
    assert record["subject"]["method"] == "theta"  # its file's name
    assert record["subject"]["checkpoint_sha256"] == of_run["subject"]["checkpoint_sha256"]


class Ten(Synthetic):
    """Data of one's own with words that a pair of digits has, too."""

    digits = "all ten"

    def __init__(self, pair: float, **settings: Any) -> None:
        super().__init__(**settings)


def test_digits_and_pairs_of_other_data_are_their_own(folder: Path) -> None:
    data = ("harmful=synthetic", f"harmful.n_features={D}", f"harmful._target_={__name__}.Ten", "+harmful.pair=3")
    record = attack.run(compose_attack(f"checkpoint={folder / CHECKPOINT}", *data, *TINY_GRID, f"out={folder / 'out'}"))
    assert [*record["tasks"]] == ["harmful", "pretrain"]


def test_digit_pairs_are_told_apart_and_third_digits_are_benign(tmp_path: Path) -> None:
    theta = torch.eye(64, dtype=torch.float64)
    save_checkpoint(tmp_path / CHECKPOINT, {"theta": {"fit": theta}}, config_hash="")
    given = (f"checkpoint={tmp_path / CHECKPOINT}", "harmful=digits", "harmful.pair=[3,0]")
    target, with_own = target_of(*given), target_of(*given, "own_rows=true")
    tasks = target.tasks(0)
    assert list(tasks) == ["harmful", "benign_1", "benign_2"]
    assert tasks["harmful"].about == "digits: tell 0 from 3"
    data, again, other = tasks["harmful"].data, *(target.tasks(seed)["harmful"].data for seed in (0, 1))
    assert data.n_classes == 2
    assert (again.train.x == data.train.x).all()
    assert (other.train.x != data.train.x).any()
    assert (other.test.x == data.test.x).all()  # the held-out images, whatever the seed
    own = with_own.tasks(0)["harmful"].data  # of every class as many
    assert all(np.ptp(np.bincount(part.y)) <= 2 for part in (own.train, own.validation, own.test))
    assert not torch.allclose(*(target.extractors(seed)["random_orthogonal"] for seed in (0, 1)))


def test_rare_classes_are_shared_out_by_chance() -> None:
    """200 rows of two classes, 40 of a class of their own, half of 240 to be measured on."""
    plan = GridPlan((0,), 1, 1, Budget(1), None, validation_fraction=0.5, own_rows=True, test_fraction=0.5)
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


def test_an_attacker_with_rows_of_its_own_has_none_that_the_immunization_saw(attacked_run: Path) -> None:
    given = f"run={attacked_run}", "test_fraction=0.5"
    saw, own = (target_of(*given, f"own_rows={own_rows}") for own_rows in (False, True))

    def rows_of(target: LinearTarget, task: str, *parts: str) -> set[bytes]:
        return {row.tobytes() for part in parts for row in getattr(target.tasks(0)[task].data, part).x}

    for task in own.tasks(0):
        assert rows_of(own, task, "train", "validation", "test") == rows_of(saw, task, "test")
        assert not rows_of(own, task, "train", "validation") & rows_of(own, task, "test")
        assert not rows_of(own, task, "train") & rows_of(saw, task, "train", "validation")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("run={run} tiers=[T4]", "no attack of tier T4"),
        ("run={run} attack=t4", "a linear model is none"),
        ("run={run} benign=[cifar10]", "benign_digits"),
        ("run={run} +benign._target_=mine.Third", "benign has to be data sets under their names"),
        ("run={run} tasks=[other]", "no task 'other' here; there are harmful, pretrain"),
        ("run={run} tasks=[pretrain]", "has to name it"),
        ("run={run} seeds=[]", "at least one seed"),
        ("run={run} seeds=[1,1]", "different seeds"),
        ("run={run} attack.budget.steps=0", "budget"),
        ("run={run} attack.attacks.nearest_neighbours.neighbours=[1,2.5]", "has to be a list, and each item a whole"),
        ("run={run} validation_fraction=0.001", "0 to tune on"),
        ("run={run} own_rows=true test_fraction=0.001", "0 to be measured on"),
        ("run={run} +sede=1", "no setting sede"),
        ("run={run} checkpoint=x", "run=<output folder>, or checkpoint=<file>"),
        ("", "say what to attack"),
        ("run=nowhere", "does not exist"),
        ("run={run} cells={run}/checkpoint.safetensors", "is a file: name a folder"),
        ("checkpoint={run}", "is a folder: name the file"),
    ],
)
def test_what_cannot_be_attacked_is_refused(overrides: str, words: str, folder: Path) -> None:
    (folder / ATTACK_RECORD).unlink()
    with pytest.raises(UserError, match=words):
        attack.run(compose_attack(*overrides.format(run=folder).split()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": "diverged"}, "nothing finished to attack"),
        ({"data_hash": "0"}, "not those of the run"),
        ({"config_hash": "0"}, "belongs to another run"),
    ],
)
def test_a_run_that_is_not_what_its_record_says_is_refused(change: dict[str, str], words: str, folder: Path) -> None:
    (folder / ATTACK_RECORD).unlink()
    edit_json(folder / RECORD, lambda record: record.update(change))
    with pytest.raises(CheckpointError, match=words):
        attack_tiny(folder)


def test_command(folder: Path, monkeypatch: pytest.MonkeyPatch, called: Called) -> None:
    monkeypatch.chdir(folder.parent)
    done = called(attack.main, "run=copy", *TINY_GRID, "overwrite=true")
    assert done.out.splitlines()[-1] == f"copy/{ATTACK_RECORD}"
    assert "REDUCED attack=quick" in done.out
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
    save_checkpoint(folder / CHECKPOINT, {"theta": {"fit": theta}}, config_hash="")
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
    assert has == {row.tobytes() for row in halves.held_out["harmful"].x.numpy()}  # type: ignore[union-attr]
