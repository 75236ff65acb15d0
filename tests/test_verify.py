"""`immunize.verify`: an honest folder agrees, and a change of any of its files is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from immunize import attack, verify
from immunize.checkpoints import save_checkpoint
from immunize.config import NOT_HASHED
from immunize.errors import CheckpointError, UserError
from immunize.records import (
    ATTACK_CELLS,
    ATTACK_RECORD,
    CARD_JSON,
    CARD_MD,
    CHECKPOINT,
    RECORD,
    differences,
    read_record,
)
from immunize.report.card import write_card
from tests.attacking import TINY_NETWORK_GRID, attack_tiny, compose_attack
from tests.commands import Called
from tests.composing import run_tiny, theta_of
from tests.fuzzing import cases, damaged
from tests.tampering import change_at, edit_json


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "run"
    run_tiny(folder)
    attack_tiny(folder, "tiers=[T0,T1]")
    write_card(folder, folder)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_honest_folder_agrees_and_is_left_as_it_is(folder: Path) -> None:
    """Attacks are repeated, not read from their cells, and seconds may differ; a run without any is its record."""
    for cell in (folder / ATTACK_CELLS).iterdir():
        edit_json(cell, lambda content: content["curves"]["steps"]["test"].clear())
    keys = ("results", "harmful", "immunized", "T0", "to_target_reference", "seconds")
    edit_json(folder / ATTACK_RECORD, lambda content: change_at(content, keys, lambda _: [99.0, 99.0]))
    before = files_of(folder)
    assert verify.run(folder) == []
    assert files_of(folder) == before
    for name in (ATTACK_RECORD, CARD_JSON, CARD_MD):
        (folder / name).unlink()
    assert verify.run(folder) == []


def test_nothing_but_attacks_is_called_for_an_attack_record(folder: Path) -> None:
    call = {"_target_": "immunize.files.read_object", "path": "nowhere"}
    edit_json(folder / ATTACK_RECORD, lambda content: content["config"]["attack"]["attacks"].update(own=call))
    with pytest.raises(CheckpointError, match=r"the record has immunize\.files\.read_object called"):
        verify.run(folder)


CHANGED: tuple[tuple[Any, ...], ...] = (
    ("results", "harmful", "immunized", "T0", "score", "mean"),
    ("results", "pretrain", "theta_0", "T1", "score", "values", 0),
    ("attacks", "harmful", "immunized", "sgd", "spent", "flops", 1),
    ("best_so_far", "harmful", "immunized", "T0", 0, "flops", "test", 0),
    ("tasks", "harmful", "rows", "train"),
    ("attack_versions", "sgd", 0),
)


def test_changed_numbers_counts_and_settings_are_named_though_the_card_was_made_from_them(folder: Path) -> None:
    for keys in CHANGED:
        edit_json(folder / ATTACK_RECORD, lambda content: change_at(content, keys, lambda old: old + 1))  # noqa: B023
    edit_json(folder / ATTACK_RECORD, lambda content: content["config"]["attack"].update(reduced=False))
    edit_json(folder / RECORD, lambda content: content["data"]["harmful"].update(fit_rows=10**6))
    edit_json(folder / RECORD, lambda content: content["config"]["objective"].update(lambda_ill=1.0))
    write_card(folder, folder)
    found = [line.split(": ", 2)[:2] for line in verify.run(folder)]
    attacks = [place for of, place in found if of == "attacks" and place != "config_hash"]
    assert len(attacks) == len(CHANGED)
    assert all(any(all(str(key) in place for key in keys) for place in attacks) for keys in CHANGED)
    hashes = [["record", "config_hash"], ["attacks", "config_hash"]]
    assert all(one in found for one in (["record", "data.harmful.fit_rows"], *hashes))
    assert not any(of == "card" for of, _ in found)


def test_changed_card_is_named(folder: Path) -> None:
    (folder / ATTACK_RECORD).unlink()
    write_card(folder, folder)
    (folder / CARD_MD).write_text((folder / CARD_MD).read_text().replace("Limitations", "Merits"))
    edit_json(folder / CARD_JSON, lambda content: content["ratios"]["fit"]["spectrum"].update(rir=1e9))
    number, text = verify.run(folder)
    assert number.startswith("card: card.ratios.fit.spectrum.rir: 1000000000.0")
    assert text == f"card: {CARD_MD} is not what the records say"
    (folder / CARD_JSON).write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="cannot be read: maximum recursion depth"):
        verify.run(folder)
    (folder / CARD_JSON).unlink()
    assert verify.run(folder)[0] == f"card: {CARD_JSON} is missing, {CARD_MD} is there"


def test_changed_checkpoint_is_noticed_by_record_and_attacks(folder: Path) -> None:
    theta = theta_of(folder).clone()
    theta[1, 2] += 0.5
    save_checkpoint(folder / CHECKPOINT, {"theta": {"fit": theta}}, config_hash=read_record(folder)["config_hash"])
    found = verify.run(folder)
    assert any(line.startswith("record: metrics.fit.spectrum.rir") for line in found)
    assert any("checkpoint_sha256" in line for line in found)
    assert any(line.startswith("attacks: results.harmful.immunized.T0") for line in found)
    assert not any("results.harmful.theta_0" in line for line in found)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("best_so_far"),
        lambda content: content["config"].pop("run"),
        lambda content: content.update(config=[]),
    ],
)
def test_an_attack_record_that_lacks_something_is_refused_in_words(change: Any, folder: Path) -> None:
    edit_json(folder / ATTACK_RECORD, change)
    with pytest.raises(UserError, match=r"attack record in .* (lacks|holds what no run writes)"):
        verify.run(folder)


def test_an_attack_record_of_another_run_is_refused_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_json(folder / ATTACK_RECORD, lambda content: content["subject"].update(run_config_hash="other"))
    monkeypatch.setattr("immunize.evaluate.run", None)
    with pytest.raises(UserError, match="is of another run: its config_hash differs"):
        verify.run(folder)


@pytest.mark.parametrize("differing", [[], ["record: seed: 1 in the record, 0 now"]])
def test_command(differing: list[str], monkeypatch: pytest.MonkeyPatch, called: Called) -> None:
    """It looks for the data where it is told, and its exit code says whether all agree."""
    asked: list[Any] = []
    monkeypatch.setattr(verify, "run", lambda folder, data_root, tell: asked.append((folder, data_root)) or differing)
    done = called(verify.main, "run=somewhere", "data_root=elsewhere")
    assert asked == [(Path("somewhere"), "elsewhere")]
    told = ["these numbers differ:", *(f"  {line}" for line in differing)] if differing else ["every number agrees"]
    assert (done.code, done.out.splitlines()) == (bool(differing), told)


# Networks.


def test_network_is_attacked_again_from_its_images_on(finished_network: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished_network, tmp_path / "copy"))
    attack.run(compose_attack(f"run={folder}", *TINY_NETWORK_GRID, "tiers=[T0,T1]"))
    write_card(folder, folder)
    features = sorted((folder / attack.FEATURES).iterdir())
    for path in features[1:]:
        shutil.copy(features[0], path)
    assert verify.run(folder) == []
    edit_json(folder / ATTACK_RECORD, lambda content: change_at(content, CHANGED[0], lambda old: old - 0.5))
    attacks, *card = verify.run(folder)
    assert "results.harmful.immunized.T0.score.mean" in attacks
    assert card
    assert all(line.startswith("card: ") for line in card)


UNCOMPARED = {
    RECORD: {"training", "started", "command", "git_commit", "versions", "hardware", "peak_memory_mib"},
    ATTACK_RECORD: {"started", "command", "git_commit", "versions", "hardware", "peak_memory_mib", "cells"},
    CARD_JSON: set[str](),
    CHECKPOINT: set[str](),
}
"""What is not measured again, beside seconds and settings that change no number; most of it is told by the card."""

UNCOMPARED_SETTINGS = {*NOT_HASHED, *attack.NOT_HASHED, *attack.PATHS}


@cases(12)
@given(data=st.data(), name=st.sampled_from([RECORD, ATTACK_RECORD, CARD_JSON, CHECKPOINT]))
def test_damaged_file_is_found_or_refused(data: st.DataObject, name: str, original: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(original, tmp_path / "damaged", dirs_exist_ok=True))
    content = (original / name).read_bytes()
    broken = data.draw(damaged(content))
    (folder / name).write_bytes(broken)
    try:
        found = verify.run(folder)
    except UserError:
        return
    if not found and broken != content:
        changed = differences(json.loads(content), json.loads(broken), "")
        for line in changed:
            place = line.partition(":")[0].split(".")[1:]
            setting = place[1] if place[0] == "config" else None
            assert place[0] in UNCOMPARED[name] or setting in UNCOMPARED_SETTINGS or "seconds" in place[-1], line
