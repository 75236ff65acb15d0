"""Every report of any folder a user may name by mistake: one sentence that says what is wrong, and no file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from immunize.errors import UserError
from immunize.records import ATTACK_CELLS, ATTACK_RECORD, CHECKPOINT, METRICS, RECORD, SCHEMA_VERSION, SWEEP
from immunize.report.__main__ import main
from immunize.report.card import write_card
from immunize.report.experiments import Request, report_experiment
from immunize.report.html import write_run_page, write_sweep_page
from immunize.report.loading import lacking_is_told, load_finished, load_records, write_results
from immunize.report.summary import write_summary
from tests.commands import Called
from tests.report.making import Record, diverged, table1_records, table2_records, written
from tests.report.pages import check

Write = Callable[[Path, Path], object]
OTHER = SCHEMA_VERSION + 1


def _summary(folder: Path, out: Path) -> None:
    write_summary(load_records(folder), out)


def _experiment(name: str) -> Write:
    return lambda folder, out: report_experiment(Request(name, folder, out, Path("nowhere/published.csv")))


RUN: dict[str, Write] = {"html run": write_run_page, "card": write_card}
MANY: dict[str, Write] = {
    **{"html sweep": write_sweep_page, "summary": _summary},
    **{name: _experiment(name) for name in ("table1", "fig1", "table2", "fig2", "sweep_lambda", "table3", "fig3")},
}


def refusal(write: Write, folder: Path, out: Path) -> str:
    """The message; what the command would turn into one counts too, as in `immunize.report.__main__`."""
    with pytest.raises((UserError, ValueError, FileNotFoundError)) as caught, lacking_is_told(f"a record in {folder}"):
        write(folder, out)
    assert not isinstance(caught.value, UnicodeError | json.JSONDecodeError)
    assert not out.exists()
    return str(caught.value)


@pytest.mark.parametrize("name", [*RUN, *MANY])
def test_every_report_says_that_there_is_no_run_or_what_a_record_lacks(
    name: str, table1: list[Record], tmp_path: Path
) -> None:
    """Without a file left behind; what else is wrong with records is told where all reports read them, below."""
    write = (RUN | MANY)[name]
    assert re.search("holds no |is no folder", refusal(write, tmp_path / "nowhere", tmp_path / "out"))
    lacking = [{key: of for key, of in record.items() if key != "config"} for record in table1]
    told = "of immunize.train: it has no 'config'" if name in RUN else "lacks 'config': it is of another version"
    for config, message in (({}, told), ({"config": None}, "holds what no run")):
        folder = written([record | config for record in lacking], tmp_path / "runs")
        assert message in refusal(write, folder / "run0000" if name in RUN else folder, tmp_path / "out")


def test_folders_without_a_run_that_has_ended(tmp_path: Path) -> None:
    (part := tmp_path / ".record.json.part").write_text("{")
    for write, place in ((_summary, tmp_path), (write_card, tmp_path), (_summary, part)):
        assert "holds no " in refusal(write, place, tmp_path / "out")
    (tmp_path / METRICS).write_text("loss,step\n1,2\n")
    assert "it is written when the run ends" in refusal(write_card, tmp_path, tmp_path / "out")


def test_folder_of_many_runs(table1: list[Record], tmp_path: Path) -> None:
    written(table1[:2], tmp_path / "multirun/today")  # two folders down, as Hydra's own
    told = refusal(write_card, tmp_path, tmp_path / "out")
    assert f"holds runs: name one of them, such as {tmp_path / 'multirun/today'}" in told
    assert f"python -m immunize.report html sweep={tmp_path}" in told
    write_results(table1[:2], tmp_path / "results")
    assert "holds runs" in refusal(write_card, tmp_path / "results", tmp_path / "out")


def test_one_damaged_record_is_named(table1: list[Record], tmp_path: Path) -> None:
    folder = written(table1[:3], tmp_path / "runs")
    run = folder / "run0001"
    for content, message in (
        ('{"status": "finished", "config": {"a', "cannot be read as a record.*cut off or damaged"),
        ("[" * 100_000, "cannot be read as a record: maximum recursion depth.*cut off or damaged"),
        ('{"status": {}}', "is not a record: it has no status"),
        ('{"status": "finished", "model": "vit"}', "is not a record of immunize.train: it has no"),
    ):
        (run / RECORD).write_text(content)
        for write, place in ((write_card, run), (_summary, folder)):
            assert re.match(f"{re.escape(str(run / RECORD))} {message}", refusal(write, place, tmp_path / "out"))


def test_records_of_other_versions_and_statuses(table1: list[Record], tmp_path: Path) -> None:
    first, other, interrupted = table1[0], {"schema_version": OTHER}, {"status": "interrupted"}
    mixed = f"mixes records of schema versions 1 (1) and {OTHER} (1): do the runs of the older one again"
    for records, message in (
        ([first | other], f"has schema version {OTHER}, this version of immunize reads {SCHEMA_VERSION}"),
        ([first, table1[1] | other], mixed),
        ([first, table1[1] | other | interrupted], mixed),
        ([diverged(first) | interrupted] * 2, "holds no finished record (2 interrupted): the command of the runs, giv"),
    ):
        folder = written(records, tmp_path / "runs")
        assert message in refusal(_summary, folder, tmp_path / "out")
    written([first | other], folder)
    assert f"has schema version {OTHER}" in refusal(write_card, folder / "run0000", tmp_path / "out")


def test_runs_that_a_summary_leaves_out_are_counted(table1: list[Record], tmp_path: Path, called: Called) -> None:
    assert load_finished(written(table1, tmp_path / "all"))[1] == ""
    first, second, *rest = table1
    folder = written([diverged(first), second | {"status": "interrupted"}, *rest], tmp_path / "some")
    own = [*(record["config_hash"] for record in table1), "never begun"]
    (folder / SWEEP).write_text(json.dumps({"runs": own}), encoding="utf-8")
    done = called(main, f"runs={folder}", f"out={tmp_path / 'out'}")
    note = "left out: 1 diverged, 1 interrupted, 1 without a record"
    assert done.out.splitlines()[-1] == note
    assert (tmp_path / "out" / "table.md").read_text(encoding="utf-8").endswith(f"\n- {note}\n")
    alone = refusal(_summary, written([diverged(record) for record in table1], tmp_path / "none"), tmp_path / "no")
    assert alone.endswith(f"({len(table1)} diverged)")


def test_runs_beside_results_of_attacks_are_the_runs(table1: list[Record], tmp_path: Path) -> None:
    write_results([table1[0] | {"subject": {}, "kind": "attack"}], tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no finished record"):
        load_finished(tmp_path)
    written(table1[:3], tmp_path)
    assert [record["seed"] for record in load_finished(tmp_path)[0]] == [0, 1, 2]


@pytest.mark.parametrize("name", MANY)
def test_runs_that_all_diverged_are_a_report_or_a_sentence(name: str, base: Record, tmp_path: Path) -> None:
    methods = ["ours"] if name == "sweep_lambda" else ["ours", "none"]
    pairs = [(0, 1), (1, 0)] if name.endswith("2") else None
    records = table2_records(base, pairs, [0], methods) if pairs else table1_records(base, [0], methods)
    for record in records:
        record["config"]["experiment"]["name"] = {"fig1": "table1", "fig2": "table2", "fig3": "table3"}.get(name, name)
    folder = written([diverged(record) for record in records], tmp_path / "runs")
    if name in ("summary", "fig1", "fig2", "fig3"):
        assert "diverged" in refusal(MANY[name], folder, tmp_path / "out")
    else:
        MANY[name](folder, tmp_path / "out")
        (text,) = (path.read_text() for path in (tmp_path / "out").glob("R*.md" if name != "html sweep" else "*.html"))
        assert ("diverged" if name != "html sweep" else "Nothing was evaluated, and there is no verdict") in text


# Of a run's attackers.


def test_attack_record_that_cannot_be_shown(base: Record, tmp_path: Path) -> None:
    """The page of the run is there without it and says why; a card, which vouches for it, is not made."""
    folder = written([base], tmp_path) / "run0000"
    (folder / CHECKPOINT).write_bytes(b"trained again")
    subject = {"run_config_hash": base["config_hash"], "data_hash": base["data_hash"]}
    attack = {"status": "finished", "schema_version": SCHEMA_VERSION, "subject": subject}
    for record, message in (
        (None, f"{ATTACK_RECORD} is not an attack record: it has no status"),
        (attack | {"subject": None}, f"{ATTACK_RECORD} holds what no run writes"),
        ({"status": "finished"}, f"{ATTACK_RECORD} is not an attack record: it has no 'subject'"),
        (attack | {"schema_version": OTHER}, f"{ATTACK_RECORD} has schema version {OTHER}"),
        (attack | {"subject": {}}, "lacks 'run_config_hash'"),
        (attack | {"subject": subject | {"run_config_hash": "0"}}, "its config_hash differs; attack this run again"),
        (attack | {"subject": subject | {"data_hash": "0"}}, "is of another run: its data_hash differs"),
        (
            attack | {"subject": subject | {"checkpoint_sha256": "0"}},
            f"is of another {CHECKPOINT} than lies there: attack this run again",
        ),
    ):
        (folder / ATTACK_RECORD).write_text(json.dumps(record))
        page = check(write_run_page(folder, tmp_path).read_text())
        for told in (message, "No attacker was tried", "No training curves: the folder holds no metrics.csv"):
            assert told in page.text
        assert str(tmp_path) not in page.text.split("Provenance")[0]
        assert message.removeprefix(f"{ATTACK_RECORD} holds") in refusal(write_card, folder, tmp_path / "out")


def test_attack_that_has_not_ended(base: Record, tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text(json.dumps(base))
    (tmp_path / ATTACK_CELLS).mkdir()
    page = check(write_run_page(tmp_path, tmp_path / "page").read_text())
    assert "begun and has not ended" in page.text


def test_old_record_without_spectra_beside_new_ones(table1: list[Record], tmp_path: Path) -> None:
    table1[0].pop("spectra")
    folder = written(table1, tmp_path / "runs")
    write_sweep_page(folder, tmp_path)
    write_card(folder / "run0000", tmp_path)
    for name, lacks in (("run0000", True), ("run0001", False)):
        assert ("The record holds no spectra" in write_run_page(folder / name, tmp_path).read_text()) == lacks


def test_card_that_cannot_be_written(base: Record, tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text(json.dumps(base))
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UserError, match="choose another folder with out="):
        write_card(tmp_path, tmp_path / "out")
