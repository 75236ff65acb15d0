"""Pages of one run and of many: their numbers are those of the records, nothing becomes markup, what lacks is said."""

from __future__ import annotations

import copy
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from immunize.errors import UserError
from immunize.records import METRICS, SWEEP, read_record
from immunize.report.attacks.one_run import verdict_sentence
from immunize.report.card import card_of, card_text
from immunize.report.curves import draw_norm_ratio
from immunize.report.heatmaps import heatmap
from immunize.report.html import write_run_page, write_sweep_page
from immunize.report.html.page import Picture
from immunize.report.html.run import read_log, run_page
from immunize.report.html.sweep import front, settings_of, sweep_page
from immunize.report.naming import PARTS, part_words
from immunize.report.summary import summary_tables
from immunize.report.table import short, summary_text
from immunize.report.tradeoff import on_front
from immunize.spectrum.condition import ESTIMATORS
from tests.report.making import METHODS, Record, diverged, record_of, shown, table2_records, without_held_out, written
from tests.report.pages import Page, check

IN_ORDER = ["ours", "closed_form", "opt_kappa", "imma", "ill_only", "well_only", "none"]
PAIRS = [(0, 1), (1, 0), (0, 7), (7, 1)]


# One run.


@pytest.fixture(scope="module")
def page(attacked_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return check(write_run_page(attacked_run, tmp_path_factory.mktemp("out")).read_text(encoding="utf-8"))


def text_of(record: Record, attack: Record | None = None) -> str:
    return check(run_page(record, attack, None)).text


def test_every_section_is_there(page: Page) -> None:
    keys = [a["id"] for a in page.of("section")]
    assert keys == ["verdicts", "ratios", "training", "spectra", "norm-ratio", "attacks", "provenance"]
    assert [a["href"] for a in page.of("a")][1:] == [f"#{key}" for key in keys]


def test_every_kappa_stands_beside_its_part_estimator_and_rank(page: Page, record: Record) -> None:
    table = page.table("Condition numbers, before")
    rows = {(row[0], row[2]): dict(zip(table.heads, row, strict=True)) for row in table.rows}
    assert len(rows) == len(table.rows) == 6
    for part, estimators in record["metrics"].items():
        for estimator, of in estimators.items():
            row = rows[part_words(part), estimator]
            assert row["RIR ↑"] == short(of["rir"])
            for side, key in (("H_H", "kappa_harmful"), ("H_P", "kappa_pretrain")):
                assert row[f"κ, identity → θ: {side}"] == f"{short(of[f'{key}_baseline'])} → {short(of[key])}"
                facts = of["facts"][key]
                assert row[f"k: {side}"].startswith(f"{facts['rank']} of {facts['n_features']}")
                hit = [n for n, f in (("before", of["facts"][f"{key}_baseline"]), ("after", facts)) if f["floor_hit"]]
                assert row[f"k: {side}"].partition("floor ")[2] == ("both" if len(hit) == 2 else "".join(hit))


def test_training_curves_and_spectra_have_their_numbers_below(page: Page, attacked_run: Path, record: Record) -> None:
    log = read_log(attacked_run)
    shown = dict(zip((table := page.table("RIR, (i) and (ii)")).heads, table.rows[-1], strict=True))
    assert shown["RIR"] == f"{record['metrics']['fit']['spectrum']['rir']:.4g}"
    losses = log.dropna(subset="loss")
    assert [row[:2] for row in page.table("loss").rows] == [
        [f"{step:,.10g}", f"{loss:.4g}"] for step, loss in zip(losses["step"], losses["loss"], strict=True)
    ]
    sigma = record["spectra"]["held_out"]["harmful"]["immunized"]["sigma"]
    assert [row[1] for row in page.table("H_H, held out").rows] == [f"{value:.4g}" for value in sigma]


@pytest.mark.usefixtures("drawn")
def test_a_picture_is_the_same_text_again(record: Record) -> None:
    one, again = (Picture(draw_norm_ratio(record), "").source for _ in range(2))
    assert one == again


def test_attacked_run_begins_with_its_best_scores_and_retention(
    record: Record, attack: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    harmful, pretrain = (of["immunized"]["T0"] for of in attack["results"].values())
    harmful["retention"] = {"values": [0.125], "errors": [0.05]}
    pretrain.pop("retention")  # a record of before
    page = check(run_page(record, attack, None))
    first = next(attributes for tag, attributes in page.elements if tag in ("img", "table"))
    assert first["alt"].startswith("Best score by tier")
    assert ["harmful" in axis.get_title(loc="left") for axis in figures[0].axes] == [True, False]
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["θ$_0$", record["method"]]
    for axis, of in zip(figures[0].axes, attack["results"].values(), strict=True):
        tiers = of["immunized"].values()
        heights = [bar.get_height() for bar in axis.patches]  # type: ignore[attr-defined]
        assert heights == [found[name]["mean"] for name in ("score_reference", "score") for found in tiers]
    rows = [row[:3] for row in page.table("REDUCED Retention by tier").rows]
    assert rows == [["harmful", "near 0", "0.12 (0.03 to 0.22)"], ["pretrain", "near 1", "–"]]
    assert "Retention by tier" not in text_of(record)


def test_failed_control_is_told_first(record: Record, attack: Record) -> None:
    assert "HELD" not in text_of(record, attack)
    attack["control"] = {"held": {"harmful": ["T0"]}, "passed": False}
    text = text_of(record, attack)
    assert text.index("distrust") < text.index("Condition numbers, before")
    assert "distrust this grid" in card_text(card_of(record, attack), attack)


def test_provenance_and_how_to_repeat_it_on_page_and_card(page: Page, record: Record, attack: Record) -> None:
    card = card_text(card_of(record, attack), attack)
    for found in (
        *(record[key] for key in ("config_hash", "data_hash", "command")),
        *(attack["command"], attack["subject"]["checkpoint_sha256"], record["versions"]["torch"]),
        *(record["hardware"]["processor"], "python -m immunize.verify"),
        *(verdict_sentence(attack, task) for task in attack["tasks"]),
    ):
        assert found in page.text
        assert found in card
    assert '"lambda_ill": 100000.0' in page.text
    assert "REDUCED grid" in page.text
    assert "Reduced grid" in card
    assert f"- threads: {record['hardware']['threads']}\n" in card
    assert "of the attack" not in card.partition("## Provenance")[2]


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
    assert shown(lost) == f"ours: synthetic against synthetic, seed 0: {status}, not evaluated\n"
    with pytest.raises(UserError, match=f"'{status}'"):
        card_of(lost, None)


def test_run_whose_cross_fit_diverged_shows_its_fit_and_says_why_no_more(record: Record) -> None:
    left = without_held_out(record)
    page, card = check(run_page(left, None, None)), card_of(left, None)
    assert "There are no held-out numbers: the cross-fit diverged in step 17: ill became inf." in page.text
    assert {row[0] for row in page.table("Condition numbers").rows} == card["ratios"].keys() == {"fit"}
    assert "- No held-out numbers: the cross-fit diverged in step 17: ill became inf\n" in card_text(card, None)


def test_infinite_numbers_unreached_thresholds_and_curves_that_are_not_there(record: Record) -> None:
    of = record["metrics"]["fit"]["spectrum"]
    of.update(rir=None, ratio_harmful=None, kappa_harmful=None)
    record["verdicts"]["ratio_harmful"] = None
    record["metrics"]["held_out"]["ridge"].update(rir=None, ratio_harmful=None, ratio_pretrain=None)
    record["curves"]["norm_ratio"]["fit"]["pretrain"] = {"immunized": None, "identity": None}
    steps = record["steps_to_norm_ratio"]["fit"]["harmful"]
    steps["immunized"]["0.1"], steps["identity"]["0.1"] = None, 12345
    page, text, infinite = check(run_page(record, None, None)), shown(record), ["∞", short(of["ratio_pretrain"]), "∞"]
    assert page.table("Definition 3.1").rows[0][4:7] == infinite
    rows = {(row[0], row[2]): row[3:6] for row in page.table("Condition numbers, before").rows}
    assert rows["fit", "spectrum"] == infinite
    assert rows["held out", "ridge"] == ["∞", "∞", "–"]
    assert re.search(f"spectrum +{' +'.join(infinite)} ", text)
    assert "(i) = ∞" in text
    assert "12,345 → > 200" in text


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
        steers = ("started", "status", "estimator", "part", "first_broken", "kind")
        return value + evil if isinstance(value, str) and key not in steers else value

    whole = check(run_page(record, attack, None))
    page = check(run_page(poisoned(record), poisoned(attack), None))
    assert [tag for tag, _ in page.elements if tag != "code"] == [tag for tag, _ in whole.elements if tag != "code"]
    assert "<script>alert(1)</script>" in page.text


def test_page_of_a_deep_network(finished_network: Path, tmp_path: Path) -> None:
    record = read_record(finished_network)
    page = check(write_run_page(finished_network, tmp_path).read_text())
    assert "probes" in [a["id"] for a in page.of("section")]
    rows = {(row[0], row[1], row[2]): row[6] for row in page.table("Condition numbers, before").rows}
    for part, estimators in record["metrics_groups"].items():
        for estimator, of in estimators.items():
            interval = rows[part_words(part), f"{of['n_groups']} × {of['group_size']}", estimator]
            assert interval.startswith(short(of["interval"]["rir"][0]))


def test_log_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text("loss,term/task,step\n2.0,,0\n1.5,1.0,10\nnan,inf,20\n1.2", encoding="utf-8")
    log = read_log(tmp_path)
    whole = log.dropna(subset="step").set_index("step")
    assert whole["loss"].dropna().to_dict() == {0: 2.0, 10: 1.5}
    assert whole["term/task"].dropna().to_dict() == {10: 1.0}
    for content, words in ((b"a,b\n1,2\n", "has no column 'step'"), (b"\xff\xfe\x00", "cannot be read as the log")):
        (tmp_path / METRICS).write_bytes(content)
        with pytest.raises(UserError, match=words):
            read_log(tmp_path)


# Many runs.


def page_of(records: list[Record], missing: int = 0) -> Page:
    return check(sweep_page(records, "a sweep", missing))


def numbers(records: list[Record], method: str, name: str, part: str = "fit", est: str = "spectrum") -> list[float]:
    return [r["metrics"][part][est][name] for r in records if r["method"] == method and r["status"] == "finished"]


@pytest.fixture
def table2(base: Record) -> list[Record]:
    return table2_records(base, PAIRS, seeds=range(2), methods=("ours", "none"))


def test_means_verdicts_and_front_of_every_setting(table1: list[Record]) -> None:
    page = page_of(table1)
    for part in PARTS:
        for estimator in ESTIMATORS:
            table = page.table(f"Mean ± standard deviation: {part_words(part)}, {estimator}")
            assert [row[0] for row in table.rows] == IN_ORDER
            for row in table.rows:
                found = numbers(table1, row[0], "rir", part, estimator)
                assert row[5] == summary_text([found])
                assert row[6] == short(statistics.geometric_mean(found))
    for row in page.table("In how many finished runs").rows:
        of = [r["verdicts"] for r in table1 if r["method"] == row[0]]
        for cells, verdicts in ((row[2:6], of), (row[6:10], [v["held_out"] for v in of])):
            counts = [sum(v[name] for v in verdicts) for name in "abc"]
            counts.append(sum(all(v[name] for name in "abc") for v in verdicts))
            assert cells == [f"{count}/3" for count in counts]
    names = ("ratio_harmful", "ratio_pretrain")
    means = [[statistics.geometric_mean(numbers(table1, method, name)) for name in names] for method in METHODS]
    rows = zip(METHODS, means, on_front([(i, ii) for i, ii in means]), strict=True)
    expected = {method: [*map(short, of), "yes" if best else ""] for method, of, best in rows}
    table = next(t for t in page.tables if t.caption == "Geometric means")
    assert {row[0]: row[1:] for row in table.rows} == expected


def test_long_names_of_settings_stay_in_the_figure_and_apart() -> None:
    names = [f"ours, lambda_ill=1e+10, harmful.file=mine/{'features_' * 9}{n}.npz" for n in "ab"]
    ratios = {"ratio_harmful": [3.0, 2.5], "ratio_pretrain": [0.5, 0.9]}
    numbers = pd.DataFrame({"model": "linear", "method": "ours", "setting": names, "pair": "0→1", **ratios})
    maps = heatmap({name: {"0→1": 1.0, "1→0": -1.0} for name in names}, "log(RIR)", sides=("D_P", "D_H"))
    for figure in (front("fit, spectrum", numbers)[0], maps):
        figure.draw_without_rendering()
        texts = [axis.title for axis in figure.axes[:2]] if figure is maps else figure.axes[0].texts
        boxes = [text.get_window_extent() for text in texts]
        assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
        assert not boxes[0].overlaps(boxes[1])


def test_networks_have_fronts_of_their_own(base: Record) -> None:
    records = []
    for model in ("small", "large"):
        records.append(copy.deepcopy(base) | {"model": model, "config_hash": model})
        base["config"]["model"]["name"] = model
        base["metrics"]["fit"]["spectrum"]["ratio_harmful"] *= 1e6
    table = next(t for t in page_of(records).tables if t.caption == "Geometric means")
    assert {row[0]: row[3] for row in table.rows} == {"large: ours": "yes", "small: ours": "yes"}


def test_pairs_have_maps_and_rows_also_where_some_diverged(table2: list[Record], table1: list[Record]) -> None:
    lost = [r for r in table2 if r["method"] == "ours"][:3]  # both seeds of one pair, one of another
    records = [diverged(r) if r in lost else r for r in table2]
    page = page_of(records)
    assert len(page.of("img")) == 6 * 2  # fronts and maps
    title = "Mean ± standard deviation of every pair: fit, spectrum"
    rows = {(row[0], row[1]): row[2:] for row in page.table(title).rows}
    counts = [cells[0] for (setting, _), cells in rows.items() if setting == "ours"]
    assert sorted(counts) == sorted(["0 + 2 diverged", "1 + 1 diverged", *["2"] * (len(PAIRS) - 2)])
    assert all(set(cells[1:]) == {"–"} for cells in rows.values() if cells[0].startswith("0 "))
    means = next(row for row in page.table("Mean ± standard deviation: fit, spectrum").rows if row[0] == "ours")
    assert means[1:3] == [f"{len(PAIRS) - 1}", f"{2 * len(PAIRS) - 3} + 3 diverged"]
    assert "No heat map: it needs 3 pairs" in page_of(table1).text


def test_settings_on_different_pairs_are_not_compared_silently(table2: list[Record]) -> None:
    assert "not run on the same pairs" not in page_of(table2).text
    fewer = [r for r in table2 if r["method"] == "ours" or r["data_hash"] == f"hash of {PAIRS[0]}"]
    assert "not run on the same pairs" in page_of(fewer).text


def test_folders_of_images_are_data_sets_of_their_own(table2: list[Record]) -> None:
    folders = dict(zip(PAIRS, "abcd", strict=True))
    for record in table2:  # as a sweep over harmful.root=a,b,c,d
        folder = folders[tuple(record["data"][role].pop("digit") for role in ("pretrain", "harmful"))]
        record |= {"pretrain": "imagefolder", "harmful": "imagefolder"}
        record["data"]["pretrain"]["folder"], record["data"]["harmful"]["folder"] = "mine", folder
    assert [of.title for of in summary_tables(table2)] == [f"imagefolder mine → imagefolder {of}" for of in "abcd"]
    alike = [copy.deepcopy(record) for record in table2 if record["method"] == "ours"]
    for record in alike:  # as harmful.root=one/bad,two/bad
        record["data"]["harmful"]["folder"] = "bad"
        record["data_hash"] = record["data_hash"].removeprefix("hash of ")
    assert len(settings_of(alike)) == len(PAIRS)
    for record in table2:  # as one over harmful.sets.imagefolder.root=a,b,c,d
        record["data"]["harmful"]["sets"] = {
            "cars": {},
            "imagefolder": {"folder": record["data"]["harmful"].pop("folder")},
        }
    assert {row[1] for row in page_of(table2).table("Mean ± standard deviation: fit, spectrum").rows} == {"4"}
    assert [of.title for of in summary_tables(table2)] == [f"imagefolder mine → cars+imagefolder {of}" for of in "abcd"]


def test_settings_are_named_by_what_differs_and_ordered_by_it(base: Record) -> None:
    records = []
    for weight in (1e16, 3.0, 1e5, 1234567.0, 1234568.0):
        for seed in (0, 1):
            record = record_of(base, "ours", seed, name="sweep")
            record["config"]["objective"]["lambda_ill"] = weight
            record["config"]["method"]["lambda_ill"] = weight  # a method repeats what its row has
            records.append(record)
    settings = settings_of(records)
    weights = ("3", "100000", "1234567.0", "1234568.0", "1e+16")
    assert list(settings) == [f"ours, lambda_ill={weight}" for weight in weights]
    assert all(len(runs) == 2 for runs in settings.values())
    for record in records:  # the data that are swept over are a setting too
        weight = record["config"]["objective"].pop("lambda_ill")
        del record["config"]["method"]["lambda_ill"]
        record["data_hash"] = f"hash of {weight}"
        record["config"] |= {role: record["config"][role] | {"angle": weight} for role in ("pretrain", "harmful")}
    assert list(settings_of(records)) == [f"ours, harmful.angle={weight}" for weight in weights]


def test_diverged_interrupted_and_missing_runs_are_counted(table1: list[Record], tmp_path: Path) -> None:
    table1[0] = diverged(table1[0])
    table1[1] = diverged(table1[1]) | {"status": "interrupted"}
    table1[3] = without_held_out(table1[3])
    folder = written(table1, tmp_path / "sweep")
    (folder / "run9999").mkdir()  # killed before it had a record
    own = [r["config_hash"] for r in table1[:-1]] + ["not there yet"]
    (folder / SWEEP).write_text(json.dumps({"runs": own}))
    page = check(write_sweep_page(folder, tmp_path / "out").read_text())
    assert "21 runs: 18 finished, 1 diverged, 1 interrupted, 1 without a record yet" in page.text
    rows = {row[0]: row[1] for row in page.table("In how many").rows}
    assert rows[table1[0]["method"]] == "1 + 1 diverged + 1 interrupted"
    assert rows[table1[3]["method"]] == "3 (2 held out)"


def test_choosing_on_validation_has_no_held_out_part(base: Record) -> None:
    for kind in ("metrics", "verdicts", "spectra"):
        base[kind]["validation"] = base[kind].pop("held_out")
    text = page_of([base]).text
    assert "held out, spectrum" not in text
    assert "validation, spectrum" in text
