"""One run, from its records alone: what is printed and drawn, and its immunization card."""

from __future__ import annotations

import copy
import io
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import CardData, ModelCard
from matplotlib.image import imread
from rich.console import Console

from immunize.config import config_dir
from immunize.records import CARD_JSON, CARD_MD, REPORT, read_record
from immunize.report import show_record
from immunize.report.__main__ import main
from immunize.report.attacks.one_run import attack_rows, show_attack, verdict_sentence
from immunize.report.card import card_of, card_text, threat_model
from immunize.report.curves import draw_norm_ratio, norm_ratio_figure
from immunize.report.html.run import run_page
from immunize.report.naming import PARTS, RATIOS, part_words
from immunize.report.one_run import separability_lines
from immunize.report.table import WIDTH, short
from immunize.spectrum.condition import ESTIMATORS
from tests.commands import Called
from tests.report.making import Record, shown
from tests.report.pages import check


def test_table_shows_numbers_verdicts_and_steps(base: Record) -> None:
    text = shown(base)
    assert "ours: synthetic against synthetic, seed 0" in text
    for part in PARTS:
        for estimator in ESTIMATORS:
            numbers = base["metrics"][part][estimator]
            for name in ("rir", "ratio_harmful", "ratio_pretrain"):
                assert short(numbers[name]) in text
            kappas = f"{short(numbers['kappa_harmful_baseline'])} → {short(numbers['kappa_harmful'])}"
            assert kappas in text
        steps = base["steps_to_norm_ratio"][part]["harmful"]
        assert f"{steps['identity']['0.1']:,} → {steps['immunized']['0.1']:,}" in text
    assert text.count("Definition 3.1 on ") == 2
    assert max(len(line) for line in text.splitlines()) <= 110


def test_names_are_neither_markup_nor_mathematics(
    base: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base["method"] = "[/a] [b] :bug: $x_$"
    show_record(base)
    assert f"{base['method']}: synthetic against synthetic" in capsys.readouterr().out
    norm_ratio_figure(base, tmp_path / "figure.png")


@pytest.mark.parametrize("verdict", "abc")
def test_each_verdict_is_its_own_word(verdict: str, base: Record) -> None:
    for of in (base["verdicts"], base["verdicts"]["held_out"]):
        of.update({"a": False, "b": False, "c": False, verdict: True})
    lines = [line for line in shown(base).splitlines() if line.strip().startswith(("(a)", "(b)", "(c)"))]
    assert [line.strip()[1] for line in lines if " yes " in line] == [verdict] * 2
    assert len(lines) == 6
    table = check(run_page(base, None, None)).table("Definition 3.1")
    assert [row[1:4] for row in table.rows] == [["holds" if one == verdict else "fails" for one in "abc"]] * 2


def test_where_kappa_is_not_the_measure_it_is_said_what_is(base: Record) -> None:
    base["verdicts"]["a"] = False
    assert "NOT IMMUNIZED" in (text := shown(base))
    assert "not the measure" not in text
    assert "not the measure" not in run_page(base, None, None) + card_text(card_of(base, None), None)
    base |= {"aims_at_kappa": False, "method": "mine"}
    for text in (shown(base), check(run_page(base, None, None)).text, card_text(card_of(base, None), None)):
        told = " ".join(text.split())
        assert "(i), (ii) and RIR are not the measure of method=mine; these two are: c, what a ridge probe can" in told
    assert "NOT IMMUNIZED" not in shown(base)
    del base["aims_at_kappa"]  # a record of an earlier version
    assert "NOT IMMUNIZED" in shown(base)


def test_the_norm_ratio_is_drawn_as_recorded_and_its_legend_lies_on_no_curve(base: Record) -> None:
    figure = draw_norm_ratio(base)
    for axis, role in zip(figure.axes, ("pretrain", "harmful"), strict=True):
        assert {str(line.get_label()): list(line.get_ydata()) for line in axis.lines} == {
            f"{which}, {part_words(part)}": of["ratio"]
            for part in PARTS
            for which, of in base["curves"]["norm_ratio"][part][role].items()
        }
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert not any(axis.get_window_extent().overlaps(legend.get_window_extent()) for axis in figure.axes)


@pytest.mark.usefixtures("drawn")
def test_where_nothing_is_to_be_learned_it_is_said_and_the_figure_has_no_curve(base: Record, tmp_path: Path) -> None:
    for name, role in (("one.png", "pretrain"), ("none.png", "harmful")):
        for part in PARTS:
            base["curves"]["norm_ratio"][part][role] = {"immunized": None, "identity": None}
            base["steps_to_norm_ratio"][part][role] = {"immunized": {}, "identity": {}}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            norm_ratio_figure(base, tmp_path / name)
        assert imread(tmp_path / name).shape[:2] == (540, 1350)
    assert shown(base).count("nothing to learn → nothing to learn") == 4


OF_CONDITION_NUMBERS = {"closed_form", "ill_only", "imma", "none", "opt_kappa", "ours", "well_only"}
"""Methods of the paper, and whose card says what a condition number promises."""


def test_every_other_method_says_what_it_promises_itself() -> None:
    methods = {path.stem: yaml.safe_load(path.read_text()) for path in (Path(config_dir()) / "method").glob("*.yaml")}
    promises = {name: threat_model("deep", method["_target_"])[1] for name, method in methods.items()}
    shared = promises["ours"]
    assert "badly conditioned" in shared
    assert {name for name, promise in promises.items() if promise == shared} == OF_CONDITION_NUMBERS
    assert len(set(promises.values())) == 1 + len(methods.keys() - OF_CONDITION_NUMBERS)


def test_a_card_goes_by_the_class_of_the_method_and_not_by_its_name(record: Record) -> None:
    renamed = copy.deepcopy(record)
    renamed["method"] = renamed["config"]["method"]["name"] = "erase_ours"
    assert card_of(renamed, None)["threat_model"] == card_of(record, None)["threat_model"]
    renamed["config"]["method"]["_target_"] = "immunize.objective.erase.Erase"
    assert card_of(renamed, None)["threat_model"] == threat_model("linear", "immunize.objective.erase.Erase")


def test_card_has_the_numbers_of_both_records(record: Record, attack: Record) -> None:
    attack["results"]["harmful"]["immunized"]["T0"]["retention"] = {"values": [0.125], "errors": [0.05]}
    card = card_of(record, attack)
    for part, estimators in record["metrics"].items():
        assert card["ratios"][part] == {e: {name: of[name] for name in RATIOS} for e, of in estimators.items()}
    for task, of in card["attack"]["tasks"].items():
        verdict = attack["verdicts"][task]["immunized"]
        assert (of["highest_tier"], of["first_broken"]) == (verdict["highest_tier"], verdict["first_broken"])
        assert of["rows_moved"] == attack["tasks"][task]["rows_moved"]
        for tier, numbers in of["tiers"].items():
            assert numbers["score"] == attack["results"][task]["immunized"][tier]["score"]
    assert "seconds" not in json.dumps(card, allow_nan=False)
    text = card_text(card, attack)
    for task, *cells in attack_rows(attack):
        assert f"| `{task}` | {' | '.join(cells)} |" in text
    assert "| 0.12 (0.03 to 0.22) |" in text


def test_card_begins_as_hubs_of_models_read_it(record: Record, attack: Record) -> None:
    card = card_of(record, attack)

    def head() -> CardData:
        return ModelCard(card_text(card, attack)).data

    assert {one.task_name for one in head().eval_results} == {"its own task, D_P"}, "no numbers of a reduced grid"
    card["attack"]["reduced"] = False
    card["data"]["harmful"]["task"] = "binary"
    card["ratios"]["held_out"]["spectrum"]["rir"] = None  # infinite, in a record
    data = head()
    assert {*data.to_dict()} == {"library_name", "tags", "datasets", "metrics", "model-index"}, "a licence is not ours"
    assert record["method"] in data.tags
    types = list(dict.fromkeys(one.task_type for one in data.eval_results))
    assert types == ["tabular-regression", "tabular-classification"], "hubs have no binary task"
    values = {one.metric_name: one.metric_value for one in data.eval_results}
    assert values["RIR by spectrum, held_out"] == "inf", "as text: no number"
    for estimator in ("released", "ridge"):
        rir = record["metrics"]["held_out"][estimator]["rir"]
        assert values[f"RIR by {estimator}, held_out"] == pytest.approx(rir, rel=1e-3)
    for tier, found in attack["results"]["harmful"]["immunized"].items():
        best = values[f"best attacker of {tier}, the lower the better"]
        assert best == pytest.approx(found["score"]["mean"], rel=1e-3)


def test_card_names_what_an_attack_elsewhere_was_made_with(record: Record, attack: Record) -> None:
    record["network"] = {"theta_0_sha256": "f00d"}
    attack["hardware"] |= {"processor": "another", "threads": 77}
    text = card_text(card_of(record, attack), attack).partition("## Provenance")[2]
    assert "- theta 0 sha256: `f00d`" in text
    assert "- machine of the attack: another, " in text
    assert "- threads of the attack: 77\n" in text
    assert "git commit of the attack" not in text


def test_card_and_page_have_the_numbers_of_long_fine_tuning(record: Record, attack: Record) -> None:
    for words in ("T4 took", "Fine-tuning over many steps"):
        assert words not in card_text(card_of(record, attack), attack) + run_page(record, attack, None)
    tiers = attack["results"]["harmful"]["immunized"]
    tiers["T4"] = copy.deepcopy(tiers["T3"]) | {"longest_by_attack": {"last_block": [43, 40], "lora": [2, 2]}}
    attack["verdicts"]["harmful"]["immunized"]["held"]["T4"] = False
    for extractor, of in attack["attacks"]["harmful"].items():
        numbers = {"area": 0.9 if extractor == "theta_0" else 0.25, "end": 0.5, "deviation": 0.375, "last": 1000}
        seeds = [numbers | {"steps": steps, "curve": []} for steps in ([4, 20], [8, None], [16, None])]
        of["lora"] = {"tier": "T4", "status": ["finished"], "horizon": [*seeds, None]}
    card, page = card_of(record, attack), run_page(record, attack, None)
    kept = card["attack"]["tasks"]["harmful"]["horizons"]["lora"]
    assert kept[0] == {"area": 0.25, "end": 0.5, "deviation": 0.375, "last": 1000, "steps": [4, 20]}
    assert kept[3] is None
    text = card_text(card, attack)
    assert "- T4 took at most 43 steps of last_block, 2 steps of lora." in text
    assert "| `harmful` | `lora` | 1,000 | θ_0 | 0.9 | 0.5 | 0.375 | 8 | never |" in text
    assert "| `harmful` | `lora` | 1,000 | immunized | 0.25 | 0.5 | 0.375 | 8 | never |" in text
    assert "Fine-tuning over many steps" in page
    assert "<td>0.375</td>" in re.sub(r"<td[^>]*>", "<td>", page)


def test_run_that_was_not_attacked_says_so(record: Record) -> None:
    text = card_text(card_of(record, None), None)
    assert "This run was not attacked" in text
    assert "| T0 |" not in text
    assert "None" not in text


def changed(attack: Record, **verdict: Any) -> Record:
    other = copy.deepcopy(attack)
    other["verdicts"]["harmful"]["immunized"] |= verdict
    return other


def test_sentence_follows_from_the_verdict(attack: Record) -> None:
    held = {"T0": True, "T1": True, "T2": False, "T3": False}
    other = changed(attack, held=held, highest_tier="T1", unbroken_up_to="T1", first_broken="T2")
    found = other["results"]["harmful"]["immunized"]["T2"]
    found["to_target"]["steps"], found["to_target_reference"]["steps"] = [7, None, None], [3, 1, 5]
    sentence = verdict_sentence(other, "harmful")
    assert sentence.startswith("held off up to T1; T2 gets through: score ")
    assert sentence.endswith("steps never instead of 3")
    found["difference"] = {"values": [0.1, 0.2, None], "errors": [0.0, 0.0, None]}
    assert "a difference of 0.15 (−0.49 to 0.79), steps never" in verdict_sentence(other, "harmful")
    del found["difference"]  # a record of before
    assert "a difference" not in verdict_sentence(other, "harmful")
    nowhere = changed(
        attack, held=dict.fromkeys(held, False), highest_tier=None, unbroken_up_to=None, first_broken="T0"
    )
    assert verdict_sentence(nowhere, "harmful").startswith("not slowed down; T0 gets through: ")
    gap = changed(attack, held=held | {"T0": None}, highest_tier="T1", unbroken_up_to=None, first_broken="T2")
    gap["results"]["harmful"]["immunized"]["T0"]["undecided"] = ["diverged with every candidate: sgd"]
    assert "the highest tier that held is T1" in verdict_sentence(gap, "harmful")
    assert verdict_sentence(gap, "harmful").endswith("not decided in T0 (diverged with every candidate: sgd)")


def test_printed_tables_fit_a_hundred_columns(attack: Record) -> None:
    for task in attack["results"].values():
        for found in task["immunized"].values():
            found["score"] = {"mean": 0.95345, "std": 0.0123}
            found["best"] = ["nearest_neighbours: k 20, euclidean, standardized"]
    text = io.StringIO()
    show_attack(attack, Console(file=text, highlight=False))
    table, _, told = text.getvalue().partition("\nharmful task (")
    assert max(map(len, table.splitlines())) <= WIDTH == 100
    assert table.count(" nearest_neighbours ") == sum(len(task["immunized"]) for task in attack["results"].values())
    assert told.partition("): ")[2].startswith(verdict_sentence(attack, "harmful")[:15])


def test_commands(attacked_run: Path, tmp_path: Path, called: Called) -> None:
    out = f"out={tmp_path}"
    for word, name in (("html", REPORT), ("card", CARD_MD)):
        assert called(main, word, f"run={attacked_run}", out).out == f"{tmp_path / name}\n"
    assert {path.name for path in tmp_path.iterdir()} == {REPORT, CARD_MD, CARD_JSON}
    for words in (("run=a", "sweep=b"), ("sweep=",)):  # the latter of `make page` alone
        assert "give one of run=<folder> and sweep=<folder>" in called(main, "html", *words).err


def test_the_card_says_what_a_probe_learns_and_of_a_record_of_before_nothing(finished_run: Path) -> None:
    record = read_record(finished_run)
    of = record["separability"]["fit"]["harmful"]
    before, after = (max(of[which]["cross_fitted"].values()) for which in ("identity", "immunized"))
    assert f"harmful {before:.3f} → {after:.3f}" in card_text(card_of(record, None), None)
    del record["separability"]
    assert "ridge probe" not in card_text(card_of(record, None), None)


def test_a_task_with_nothing_to_tell_apart_has_no_line() -> None:
    nothing, something = {"before": 0.0, "after": 0.0}, {"before": 0.5, "after": -0.25}
    assert separability_lines({"fit": {"pretrain": nothing, "harmful": nothing}}) == []
    *_, line = separability_lines({"held_out": {"pretrain": nothing, "harmful": something}})
    assert line == "held out: harmful 0.500 → -0.250"
