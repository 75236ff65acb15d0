"""The page of one run: its numbers are those of the records, nothing in them becomes markup, and what lacks is said."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from immunize.data import ROLES
from immunize.errors import UserError
from immunize.evaluation.deep import WHICH, EvaluationSettings, evaluate_deep
from immunize.records import RECORD, plain, read_record
from immunize.report.__main__ import main
from immunize.report.attacks.one_run import verdict_sentence
from immunize.report.cells import short
from immunize.report.html import write_run_page
from immunize.report.html.run_figures import read_log
from immunize.report.html.run_page import REPORT, run_page
from immunize.report.sources import METRICS
from tests import reference as ref
from tests.attacking import attack_tiny
from tests.composing import run_tiny
from tests.report.making import diverged, without_held_out
from tests.report.pages import Page, check

Record = dict[str, Any]
ATTACK_RECORD = "attack_record.json"
PARTS = {"fit": "fit", "held_out": "held out"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything: log, record, attack record."""
    folder = tmp_path_factory.mktemp("html") / "run"
    run_tiny(folder, "logger=csv", "monitor_every=10", "probe_steps=2000")
    attack_tiny(folder)
    return folder


@pytest.fixture(scope="module")
def page(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = write_run_page(run, tmp_path_factory.mktemp("out"))
    assert path.name == REPORT
    return check(path.read_text(encoding="utf-8"))


@pytest.fixture
def record(run: Path) -> Record:
    return copy.deepcopy(read_record(run))


@pytest.fixture
def attack(run: Path) -> Record:
    return dict(json.loads((run / ATTACK_RECORD).read_text()))


def text_of(record: Record, attack: Record | None = None) -> str:
    return check(run_page(record, attack, None)).text


def test_verdicts_come_first_and_every_section_is_there(page: Page) -> None:
    keys = [a["id"] for a in page.of("section")]
    assert keys == ["verdicts", "ratios", "training", "spectra", "norm-ratio", "attacks", "provenance"]
    assert [a["href"] for a in page.of("a")][1:] == [f"#{key}" for key in keys]


def test_every_kappa_stands_beside_its_part_estimator_and_rank(page: Page, record: Record) -> None:
    table = page.table("Condition numbers, before")
    rows = {(row[0], row[2]): dict(zip(table.heads, row, strict=True)) for row in table.rows}
    assert len(rows) == len(table.rows) == 6
    for part, estimators in record["metrics"].items():
        for estimator, of in estimators.items():
            row = rows[PARTS[part], estimator]
            assert row["RIR ↑"] == short(of["rir"])
            assert row["(i) harmful ↑"] == short(of["ratio_harmful"])
            for side, key in (("H_H", "kappa_harmful"), ("H_P", "kappa_pretrain")):
                assert row[f"κ, identity → θ: {side}"] == f"{short(of[f'{key}_baseline'])} → {short(of[key])}"
                facts = of["facts"][key]
                assert row[f"k: {side}"].startswith(f"{facts['rank']} of {facts['n_features']}")
                hit = [n for n, f in (("before", of["facts"][f"{key}_baseline"]), ("after", facts)) if f["floor_hit"]]
                assert row[f"k: {side}"].partition("floor ")[2] == ("both" if len(hit) == 2 else "".join(hit))


@pytest.mark.parametrize("verdict", "abc")
@pytest.mark.parametrize("passed", [True, False])
def test_each_verdict_is_its_own_word(verdict: str, passed: bool, record: Record) -> None:
    for of in (record["verdicts"], record["verdicts"]["held_out"]):
        of.update(a=not passed, b=not passed, c=not passed)
        of[verdict] = passed
    text = text_of(record)
    for name in "abc":
        said = "holds" if passed == (name == verdict) else "fails"
        assert text.count(f"{said}({name})") == 2


def test_figures_hold_the_numbers_of_the_record(page: Page, record: Record) -> None:
    for part, name in PARTS.items():
        for role, data in (("pretrain", "D_P"), ("harmful", "D_H")):
            curves = record["curves"]["norm_ratio"][part][role]
            table = page.table(f"{data}, {name}")
            assert table.heads == ["gradient steps", "immunized", "identity"]
            steps, values = curves["immunized"]["steps"], curves["immunized"]["ratio"]
            shown = {row[0]: row[1] for row in table.rows}
            for step, value in zip(steps, values, strict=True):
                assert shown[f"{step:,}"] == f"{value:.4g}"
            spectra = record["spectra"][part][role]
            table = page.table(f"{data.replace('D', 'H')}, {name}")
            assert [row[1:] for row in table.rows] == [
                [f"{spectra[which]['sigma'][i]:.4g}" for which in ("immunized", "identity")]
                for i in range(len(spectra["identity"]["sigma"]))
            ]


def test_rows_know_their_places_in_the_chart(page: Page) -> None:
    places = [float(v) for values in page.table("D_H, fit").values if (v := values[0]) is not None]
    assert places == sorted(places)
    (first, *_), (*_, last) = places, places
    assert (first, round(last, 6)) == (62, 410)


def test_training_curves_come_from_the_log(page: Page, run: Path, record: Record) -> None:
    log = read_log(run)
    assert log is not None
    table = page.table("Ratios and RIR")
    assert table.heads == ["optimizer steps", "RIR", "(i) harmful", "(ii) pretrain"]
    assert table.rows[-1][1] == f"{record['metrics']['fit']['spectrum']['rir']:.4g}"
    steps, losses = log["loss"]
    assert [row[:2] for row in page.table("Loss").rows] == [
        [f"{step:,.10g}", f"{loss:.4g}"] for step, loss in zip(steps, losses, strict=True)
    ]


def test_attack_grid_and_its_cost(page: Page, attack: Record) -> None:
    tables = [table for table in page.tables if table.caption.startswith("Scores")]
    assert len(tables) == len(attack["tasks"])
    for table, (task, of) in zip(tables, attack["results"].items(), strict=True):
        assert [row[0] for row in table.rows] == list(of["immunized"])
        for row, found in zip(table.rows, of["immunized"].values(), strict=True):
            assert row[3].startswith(f"{found['score']['mean']:.3f}")
            assert row[1].endswith(found["seeds_held"])
        assert page.text.count(verdict_sentence(attack, task)) == 2
    assert "REDUCED grid" in page.text
    every = page.table("All candidates' cost")
    assert len(every.rows) == sum(len(a) for of in attack["attacks"].values() for a in of.values())


def test_attacks_that_were_skipped_are_named_with_the_reason(record: Record, attack: Record) -> None:
    """As T4 is for every linear run with attack=full."""
    reason = "it needs the network's weights, which are not given"
    for extractors in attack["attacks"].values():
        for attacks in extractors.values():
            attacks["last_block"] = {"tier": "T4", "status": "skipped", "reason": reason}
    rows = check(run_page(record, attack, None)).table("All candidates' cost").rows
    skipped = [row for row in rows if row[0] == "last_block"]
    assert len(skipped) == sum(len(extractors) for extractors in attack["attacks"].values())
    assert all(row[1] == "T4" and row[4] == f"not tried: {reason}" for row in skipped)


def test_failed_control_is_told_first(record: Record, attack: Record) -> None:
    assert "HELD" not in text_of(record, attack)
    attack["control"] = {"held": {"harmful": ["T0"]}, "passed": False}
    text = text_of(record, attack)
    assert text.index("distrust") < text.index("Condition numbers, before")
    assert "HELD: distrust this grid" in text


def test_run_that_was_not_attacked_says_so(record: Record) -> None:
    text = text_of(record)
    assert "This run was not attacked." in text
    assert text.index("No attacker was tried") < text.index("Condition numbers, before")


def test_attack_of_another_run_is_not_shown(run: Path, tmp_path: Path, attack: Record) -> None:
    (tmp_path / RECORD).write_bytes((run / RECORD).read_bytes())
    attack["subject"]["run_config_hash"] = "another"
    (tmp_path / ATTACK_RECORD).write_text(json.dumps(attack))
    page = check(write_run_page(tmp_path, tmp_path).read_text())
    assert "is of another run" in page.text
    assert not [table for table in page.tables if table.caption.startswith("Scores")]
    assert "No training curves: the folder holds no metrics.csv" in page.text


def test_provenance_and_how_to_repeat_it(page: Page, record: Record, attack: Record) -> None:
    for found in (
        *(record[key] for key in ("config_hash", "data_hash", "command")),
        *(attack["command"], attack["subject"]["checkpoint_sha256"], record["versions"]["torch"]),
        *(record["hardware"]["processor"], "python -m immunize.verify", '"lambda_ill": 100000.0'),
    ):
        assert str(found) in page.text


@pytest.mark.parametrize("status", ["diverged", "interrupted"])
def test_run_without_numbers_says_so(status: str, record: Record) -> None:
    lost = diverged(record) | {"status": status}
    lost.pop("spectra")
    if status == "diverged":
        lost["training"]["fit"]["diverged"] = {"step": 17, "term": "ill", "value": "inf"}
    text = text_of(lost)
    assert f"This run is '{status}': nothing was evaluated" in text
    assert ("diverged in step 17: ill became inf" in text) == (status == "diverged")
    assert "Condition numbers, before" not in text


def test_run_whose_cross_fit_diverged_shows_its_fit_and_says_why_no_more(record: Record) -> None:
    page = check(run_page(without_held_out(record), None, None))
    assert "There are no held-out numbers: the cross-fit diverged in step 17: ill became inf." in page.text
    assert "This run is" not in page.text
    assert {row[0] for row in page.table("Condition numbers").rows} == {"fit"}


def test_record_without_spectra_shows_their_ends(record: Record) -> None:
    del record["spectra"]
    page = check(run_page(record, None, None))
    assert "The record holds no spectra" in page.text
    facts = record["metrics"]["fit"]["spectrum"]["facts"]["kappa_harmful"]
    row = next(r for r in page.table("Ends of the spectra").rows if r[:3] == ["fit", "H_H", "immunized"])
    assert row[4:6] == [short(facts["sigma_max"]), short(facts["sigma_min"])]


def test_infinite_numbers_and_curves_that_are_not_there(record: Record) -> None:
    of = record["metrics"]["fit"]["spectrum"]
    of.update(rir=None, ratio_harmful=None, kappa_harmful=None)
    record["verdicts"]["ratio_harmful"] = None
    record["metrics"]["held_out"]["ridge"].update(rir=None, ratio_harmful=None, ratio_pretrain=None)
    record["curves"]["norm_ratio"]["fit"]["pretrain"] = {"immunized": None, "identity": None}
    record["steps_to_norm_ratio"]["fit"]["pretrain"] = {"immunized": {}, "identity": {}}
    record["steps_to_norm_ratio"]["fit"]["harmful"]["immunized"]["0.1"] = None
    page = check(run_page(record, None, None))
    assert "(i) = ∞" in page.text
    assert "RIR ∞ by spectrum" in page.text
    shown = {(row[0], row[2]): row[3:6] for row in page.table("Condition numbers, before").rows}
    assert shown["fit", "spectrum"] == ["∞", short(of["ratio_pretrain"]), "∞"]
    assert shown["held out", "ridge"] == ["∞", "∞", "–"]
    row = next(row for row in page.table("Steps until").rows if row[4] == "> 2,000")
    assert row[:3] == ["fit", "D_H", "0.1"]
    assert not [table for table in page.tables if table.caption == "D_P, fit"]


def test_warnings_of_the_training_are_among_the_verdicts(record: Record) -> None:
    one = {"name": "sigma_min_floor", "step": 7, "at_end": False, "text": "σ_min hit `its` floor"}
    record["training"]["cross_fit"] = record["training"]["fit"] | {"warnings": [one]}
    text = text_of(record)
    assert "sigma_min_floor (cross-fit, step 7, no longer at the end): σ_min hit its floor" in text
    assert text.index("sigma_min_floor") < text.index("Condition numbers, before")


def test_nothing_in_a_record_becomes_markup(record: Record, attack: Record) -> None:
    """Hostile text in every string that does not steer anything."""
    evil = "\"'><script>alert(1)</script><img src=http://example.org onerror=alert(1)>&amp;`"

    def poisoned(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: poisoned(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [poisoned(item) for item in value]
        steers = ("started", "status", "estimator", "part", "first_broken")
        return value + evil if isinstance(value, str) and key not in steers else value

    whole = check(run_page(record, attack, None))
    page = check(run_page(poisoned(record), poisoned(attack), None))
    assert [tag for tag, _ in page.elements if tag != "code"] == [tag for tag, _ in whole.elements if tag != "code"]
    assert "<script>alert(1)</script>" in page.text


def test_reduced_run_is_marked(record: Record) -> None:
    assert "REDUCED" not in text_of(record)
    record["config"]["experiment"] = {"name": "table1_fast", "reduced": True}
    text = text_of(record)
    assert text.index("REDUCED") < text.index("Verdicts")


@pytest.fixture
def deep(record: Record) -> Record:
    """The same run, had it been one of a network: a real evaluation of random features."""
    features = {
        which: {
            part: {role: (ref.gaussian(n, 6, seed=seed), torch.arange(n) % 3) for role in ROLES}
            for part, n in (("fit", 60), ("held_out", 40))
        }
        for seed, which in enumerate(WHICH)
    }
    small = EvaluationSettings(n_groups=2, group_size=8, replicates=4, probe_steps={"gd": 40, "adam": 20})
    numbers = plain(evaluate_deep(features, {"before": 60.0, "after": 59.5}, seed=0, settings=small))
    linear = ("steps_to_norm_ratio", *numbers)
    return {k: v for k, v in record.items() if k not in linear} | numbers | {"network": {"architecture": "resnet18"}}


def test_page_of_a_deep_network(deep: Record) -> None:
    deep["metrics"]["held_out"]["spectrum"]["interval"]["rir"] = [0.0, None]  # one unit: nothing is known
    page = check(
        run_page(deep, None, {"RIR": ([2.0, 4.0], [1.5, 2.5]), "accuracy_pretrain": ([2.0, 4.0], [90.0, 89.0])})
    )
    keys = [a["id"] for a in page.of("section")]
    assert keys == ["verdicts", "ratios", "training", "spectra", "probes", "attacks", "provenance"]
    assert page.text.count("Definition 3.1 on") == 4
    assert page.text.count("accuracy on D_P 60.00 % before, 59.50 % after") == 4
    rows = page.table("Condition numbers, before").rows
    assert len(rows) == 12
    assert sum(row[1] == "2 × 8" for row in rows) == 6
    low, high = deep["metrics"]["fit"]["spectrum"]["interval"]["rir"]
    assert {f"{short(low)} to {short(high)}", "0 to ∞"} <= {row[6] for row in rows}
    assert page.table("Ratios and RIR").rows == [["2", "1.5"], ["4", "2.5"]]
    for which, name in (("immunized", "immunized"), ("theta_0", "θ_0")):
        table = page.table("D_H, gd")
        curve = deep["curves"]["probe"]["gd"]["harmful"][which]
        assert [row[table.heads.index(name)] for row in table.rows] == [f"{v:.4g}" for v in curve["accuracy"]]
        table = page.table("H_H, fit")
        sigma = deep["spectra"]["fit"]["harmful"][which]["sigma"]
        assert [row[table.heads.index(name)] for row in table.rows] == [f"{v:.4g}" for v in sigma]
    table = page.table("Accuracy of a linear probe")
    end = deep["probe_accuracy"]["gd"]["harmful"]["immunized"]["end"]
    assert next(r for r in table.rows if r[:3] == ["gd", "D_H", "immunized"])[-1] == f"{end:.1f}"


def test_log_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    assert read_log(tmp_path) is None
    path = tmp_path / METRICS
    path.write_text("loss,step\n3.0,0\n,5\nnan,7\nhalf,8\n2.0,10\n1.")
    assert read_log(tmp_path) == {"loss": ([0.0, 10.0], [3.0, 2.0])}
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="no column 'step'"):
        read_log(tmp_path)
    path.write_bytes(b"loss,step\n\xff\xfe,1\n")
    with pytest.raises(UserError, match="cannot be read"):
        read_log(tmp_path)


def test_bad_folders_are_refused(run: Path, record: Record, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no record\.json"):
        write_run_page(tmp_path, tmp_path)
    with pytest.raises(UserError, match=r"holds no record\.json"):
        write_run_page(tmp_path / "nowhere", tmp_path)
    (tmp_path / METRICS).write_text("loss,step\n")
    with pytest.raises(UserError, match="written when the run ends"):
        write_run_page(tmp_path, tmp_path)
    (tmp_path / METRICS).unlink()
    with pytest.raises(UserError, match="holds many runs: name one of them, such as"):
        write_run_page(run.parent, tmp_path)
    (tmp_path / RECORD).write_text('{"status": ')
    with pytest.raises(UserError, match="cannot be read as a record"):
        write_run_page(tmp_path, tmp_path)
    del record["metrics"]["fit"]["ridge"]["facts"]
    (tmp_path / RECORD).write_text(json.dumps(record))
    with pytest.raises(UserError, match="lacks 'facts'"):
        write_run_page(tmp_path, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another folder with out="):
        write_run_page(run, tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", RECORD]


def command(monkeypatch: pytest.MonkeyPatch, *overrides: str) -> None:
    monkeypatch.setattr(sys, "argv", ["immunize-report", "html", *overrides])
    main()


def test_command(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command(monkeypatch, f"run={run}", f"out={tmp_path}")
    assert capsys.readouterr().out == f"{tmp_path / REPORT}\n"
    assert [path.name for path in tmp_path.iterdir()] == [REPORT]


@pytest.mark.parametrize("overrides", [(), ("run=a", "sweep=b")])
def test_command_asks_for_one_folder(
    overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command(monkeypatch, *overrides)
    assert stopped.value.code == 1
    assert "give one of run=<folder> and sweep=<folder>" in capsys.readouterr().err
