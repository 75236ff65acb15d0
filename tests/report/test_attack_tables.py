"""Tables of attacks: every cell from attack records, θ_0 and the control counted once, and what may not be mixed."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student_t

from immunize.evaluation.attacks.curves import RESOURCES
from immunize.records import ATTACK_RECORD
from immunize.report.__main__ import main
from immunize.report.attacks.one_run import interval_text, verdict_sentence
from immunize.report.attacks.page import attack_tables, best_figure, horizon_figure, plane_figure, report_attacks
from immunize.report.attacks.records import CONTROL, THETA_0, Attacks, Group, collected, load_attacks
from immunize.report.loading import write_results
from immunize.report.tidy import frame, frame_of
from tests.commands import Called
from tests.report.making import Record, row, tables_of, with_change


def changed(attack: Record, method: str, seed: int, **tiers: tuple[float, int | None, bool | None]) -> Record:
    """The record as that of another method and seed; of the harmful task score, steps and outcome by tier."""
    record = copy.deepcopy(attack)
    record["subject"] |= {"method": method, "run_seed": seed}
    record["config"]["seeds"] = [seed]
    for found in all_of(record):
        for side in ("", "_reference"):
            found[f"score{side}"] = {"mean": 0.9, "std": None, "values": [0.9]}
            found[f"to_target{side}"] = {"steps": [5], "seconds": [0.1], "samples": [50], "flops": [100.0]}
        found |= {"held": [False], "seeds_held": "0/1", "undecided": []}
        found["flops_by_attack"] = {name: [100.0] for name in found["flops_by_attack"]}
    verdict = record["verdicts"]["harmful"]["immunized"]
    verdict["unbroken_up_to"] = None
    for tier, (score, steps, held) in tiers.items():
        found = record["results"]["harmful"]["immunized"][tier]
        found["score"] = {"mean": score, "std": None, "values": [score]}
        found["to_target"] = {"steps": [steps], "seconds": [0.1], "samples": [1], "flops": [steps and 20.0 * steps]}
        found |= {"held": [held], "undecided": ["it diverged"] if held is None else []}
        verdict["held"][tier] = held
        if held:
            verdict["unbroken_up_to"] = tier
    return record


def all_of(record: Record) -> Iterator[Record]:
    """Its numbers by task, extractor and tier."""
    for extractors in record["results"].values():
        for tiers in extractors.values():
            yield from tiers.values()


def attacks_of(*records: Record) -> Attacks:
    return Attacks.of([collected(record) for record in records])


def group_of(*records: Record) -> Group:
    (group,) = attacks_of(*records).groups
    return group


def cells(text: str, title: str, method: str) -> list[str]:
    return [*row(tables_of(text), title, method).values()][1:]


def test_counts_and_middles_are_those_of_the_runs(attack: Record) -> None:
    records = [
        changed(attack, "ours", 0, T0=(0.8, 50, True), T1=(0.9, 9, False)),
        changed(attack, "ours", 1, T0=(0.6, None, True), T1=(0.9, 40, True)),
        changed(attack, "ours", 2, T0=(0.7, 90, True), T1=(0.9, 7, None)),
        changed(attack, "none", 0),
    ]
    text = attack_tables(attacks_of(*records))
    ours, none = (cells(text, "synthetic: which", method) for method in ("ours", "none"))
    assert ours[:3] == ["3", "3/3", "1/2 (1 undecided)"]
    assert (ours[5], none[5]) == ("T0 in 2, T1 in 1", "none")
    notes = text.partition("## REDUCED synthetic: which")[2].partition("## ")[0]
    assert all(told in notes for told in ("it diverged", "4 of 6 runs", "No benign third task was attacked"))
    assert cells(text, "synthetic: best score on the harmful", "ours")[0] == "0.7 ± 0.1"
    assert cells(text, "synthetic: best score on the harmful", THETA_0) == ["0.9 ± 0"] * 4
    assert cells(text, "synthetic: steps and FLOPs", "ours")[:2] == ["90", "1.8e+03"]
    assert cells(text, "synthetic: steps and FLOPs", CONTROL)[:2] == ["5", "1.0e+02"]


def test_retention_is_over_runs_with_an_interval(attack: Record) -> None:
    records = [changed(attack, "ours", seed) for seed in (0, 1, 2)]
    for record, value in zip(records, (0.3, 0.5, 0.4), strict=True):
        record["results"]["harmful"]["immunized"]["T1"]["retention"] = {"values": [value], "errors": [0.03]}
        record["results"]["harmful"]["immunized"]["T2"]["retention"] = {"values": [None], "errors": [None]}
    rows, seeds = 0.03**2, 0.01 / 3  # the rows are shared, the seeds are three
    half = student_t.ppf(0.975, (rows + seeds) ** 2 / (seeds**2 / 2)) * np.sqrt(rows + seeds)
    shown = cells(attack_tables(attacks_of(*records)), "synthetic: retention", "ours")
    assert shown[1:3] == [f"0.40 ({0.4 - half:.2f} to {0.4 + half:.2f})", "–"]
    assert interval_text({"values": [0.0, 1e-80], "errors": [0.05, 0.05]}) == "0.00 (−0.10 to 0.10)"
    assert interval_text({"values": [-0.001], "errors": [0.1]}) == "0.00 (−0.20 to 0.19)"


def test_reference_and_control_are_counted_once_a_seed(attack: Record) -> None:
    group = group_of(*(changed(attack, m, s) for m in ("ours", "none") for s in (0, 1)))
    assert len(group.of_method(THETA_0)) == len(group.of_method(CONTROL)) == 2
    tried = group.tried(THETA_0, "harmful", "T0")
    assert {resource: len(values) for resource, values in tried.paid.items()} == dict.fromkeys(RESOURCES, 2)
    assert tried.held == []
    for record in group.records:  # each run began with a θ_0 of its own, and all attackers draw alike
        record["config"]["seeds"] = [0]
        record["subject"]["theta_0_sha256"] = str(record["seed"])
    assert len(group.of_method(THETA_0)) == 2


def test_where_theta_0_learns_nothing_nothing_is_said_to_be_never_reached(attack: Record) -> None:
    record = changed(attack, "ours", 0, T0=(0.5, None, None))
    found = record["results"]["harmful"]["immunized"]["T0"]
    found["to_target_reference"] = {name: [None] for name in RESOURCES}
    group = group_of(record, changed(attack, "ours", 1, T0=(0.5, 30, True)))
    assert group.tried("ours", "harmful", "T0").paid["steps"] == [30]
    assert group.tried(THETA_0, "harmful", "T0").paid["steps"] == [5]
    known = frame_of([collected(record)]).query("part == 'harmful' and quantity == 'immunized/to_target/steps'")
    assert np.isnan(known.set_index("estimator").loc["T0", "value"])
    record["verdicts"]["harmful"]["immunized"] |= {"held": {"T0": None}, "first_broken": None, "highest_tier": None}
    assert verdict_sentence(record, "harmful").startswith("T0 is not decided; not decided in T0 (")
    assert "restoring cost" not in attack_tables(attacks_of(record))  # over nothing


def test_curves_of_many_steps_are_means_over_runs(attack: Record) -> None:
    """Of steps at which every run has a score; records of before have no curves, and no figure."""
    runs = [changed(attack, "ours", seed) for seed in range(2)]
    assert horizon_figure(attacks_of(*runs)) is None
    for record, curve in zip(runs, ([[1, 0.2], [10, 0.6]], [[5, 0.4]]), strict=True):
        for of in record["attacks"]["harmful"].values():
            numbers = {"last": 100, "area": 1.0, "end": 1.0, "deviation": 0.0, "steps": [1, 2], "curve": curve}
            of["lora"] = {"tier": "T4", "score": {"values": [0.5]}, "horizon": [numbers]}
    figure = horizon_figure(attacks_of(*runs))
    (axis,) = figure.axes
    theta_0, ours = axis.lines
    assert theta_0.get_linestyle() == "--"
    steps, score = ours.get_data()
    expected = np.where(steps < 5, np.nan, np.where(steps < 10, (0.2 + 0.4) / 2, (0.6 + 0.4) / 2))
    np.testing.assert_allclose(score, expected)
    assert (steps[0], steps[-1]) == (1, 100)


def test_names_and_titles_of_many_methods_fit_into_their_figure(attack: Record) -> None:
    attacks = attacks_of(*(changed(attack, f"a_long_name_{number}", 0) for number in range(17)))
    for figure in (best_figure(attacks), plane_figure(attacks)):
        figure.canvas.draw()
        (legend,) = figure.legends
        assert len(legend.get_texts()) == 18
        for drawn in (legend, figure._suptitle):
            box = drawn.get_window_extent()
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1
            assert box.y0 >= 0


def test_a_bar_below_minus_one_hides_no_other(attack: Record) -> None:
    """R² of a probe that fits noise may be -88."""
    for score, ylim, told in ((-88.0, -1, "R² below −1 is cut off"), (-0.25, -0.25, ""), (0.5, 0, "")):
        (axis, *_) = best_figure(attacks_of(changed(attack, "ours", 0, T1=(score, None, None)))).axes
        assert axis.get_ylim() == pytest.approx((ylim, 1.05 * 0.9))
        assert axis.get_xlabel() == told
    without = changed(attack, "ours", 0)
    for found in all_of(without):
        found["score"] = found["score_reference"] = {"mean": None, "std": None, "values": [None]}
    (axis, *_) = best_figure(attacks_of(without)).axes
    assert axis.get_ylim() == pytest.approx((0, 1.05))


def test_a_method_holds_always_where_no_run_is_undecided(attack: Record) -> None:
    records = [changed(attack, "ours", seed, T0=(0.5, 90, held)) for seed, held in enumerate((True, None, None))]
    assert "T0" in group_of(*records).broken
    assert "T0" not in group_of(records[0]).broken


def test_a_score_that_is_not_there_is_no_infinite_one_and_is_counted(attack: Record) -> None:
    records = [changed(attack, "ours", seed, T1=(score, None, None)) for seed, score in enumerate((0.9, None, 0.7))]
    for record, score in zip(records, (0.9, None, 0.7), strict=True):
        record["attacks"]["harmful"]["immunized"]["sgd"]["score"] = {"mean": score, "std": None, "values": [score]}
    text = attack_tables(attacks_of(*records))
    assert cells(text, "synthetic: best score on the harmful", "ours")[1] == "0.8 ± 0.141 (none in 1 of 3)"
    (alone,) = [rows for of, rows in tables_of(text).items() if "every attack by itself" in of]
    assert "0.8 (2/3 runs)" in next(found for found in alone if "`sgd`" in found.values()).values()


def test_harmful_tasks_alone_have_no_plane(attack: Record) -> None:
    for part in ("tasks", "results", "attacks", "verdicts"):
        attack[part] = {"harmful": attack[part]["harmful"]}
    assert plane_figure(attacks_of(attack)) is None


def test_some_attack_alone_pays_no_more_than_the_tier(attack: Record) -> None:
    for found in all_of(attack):
        for together, *alone in zip(found["to_target"]["flops"], *found["flops_by_attack"].values(), strict=True):
            # The tier's attacker may pass a point by that one of its attacks alone would have stopped at.
            assert together is None or min(paid for paid in alone if paid is not None) <= together


def test_report_is_the_same_from_what_it_left_and_tells_no_path(attack: Record, tmp_path: Path) -> None:
    attack["config"]["attack"]["attacks"]["last_block"] = {"tier": "T4"}  # of the grid, but of networks only
    for method in ("ours", "none"):
        write(changed(attack, method, 0, T0=(0.5, None, True)), tmp_path / "runs" / method)
    text = report_attacks(tmp_path / "runs", tmp_path / "out")
    assert report_attacks(tmp_path / "out", None) == text
    files = {"README.md", "table.md", "results.csv.gz"} | {
        f"{name}.{kind}" for name in ("best", "plane") for kind in ("png", "pdf")
    }
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "REDUCED" in readme
    assert ("\n| T3 | " in readme, "\n| T4 | " in readme) == (True, False)
    assert str(tmp_path) not in readme + gzip.decompress((tmp_path / "out" / "results.csv.gz").read_bytes()).decode()


def test_the_page_says_on_what_honest_tasks_are_measured(attack: Record, tmp_path: Path) -> None:
    """On rows that are set aside too, but in earlier records, which do not say so: `experiments/defence_search`."""
    attack["subject"] |= {"selection": "validation", "benign_rows": "fit"}
    report_attacks(write(attack, tmp_path / "run"), tmp_path / "out")
    told = next(line for line in (tmp_path / "out" / "README.md").read_text().splitlines() if "set aside" in line)
    assert "held-out" not in told


def write(record: Record, folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / ATTACK_RECORD).write_text(json.dumps(record))
    return folder


def test_a_table_is_made_in_pieces(attack: Record, table1: list[Record], tmp_path: Path) -> None:
    first, again, second = (changed(attack, method, 0) for method in ("ours", "ours", "none"))
    again["seconds"] = first["seconds"] + 1
    out = tmp_path / "out"
    with pytest.raises(FileNotFoundError, match="holds no attack_record"):
        report_attacks(write(first, tmp_path / "first"), out, keep=True)
    report_attacks(tmp_path / "first", out)
    report_attacks(write(second, tmp_path / "second"), out, keep=True)
    report_attacks(write(again, tmp_path / "again"), out, keep=True)
    assert load_attacks(out) == [collected(second), collected(again)]
    report_attacks(tmp_path / "second", out)
    assert [record["method"] for record in load_attacks(out)] == ["none"]
    write(first, out / "later")
    assert load_attacks(out) == [collected(second), collected(first)]
    assert set(frame(out)["method"]) == {"none", "ours"}
    write_results(table1[:1], tmp_path / "first")  # of runs beside the attack
    assert load_attacks(tmp_path / "first") == [collected(first)]


def test_only_a_written_table_keeps_runs(tmp_path: Path, called: Called) -> None:
    for others in (["experiment=table3", "out=out"], ["experiment=table_attacks"], ["out=out"]):
        assert "belongs to experiment=table_attacks" in called(main, f"runs={tmp_path}", "keep=true", *others).err


def test_what_does_not_go_together_is_refused(attack: Record) -> None:
    for path, value, words in (
        ("config__attack__budget__steps", 1, "different grids"),
        ("without_effect__images", 5, "different grids"),
        ("subject__selection", "validation", "different grids"),
        ("subject__data_hash", "0", "different data"),
        ("subject__run_seed", 0, "is there twice"),
        ("config__seeds", [0, 1], "differ in tasks, benign or the number of seeds"),
        ("tasks", {}, "differ in tasks, benign or the number of seeds"),
    ):
        with pytest.raises(ValueError, match=words):
            attacks_of(changed(attack, "ours", 0), with_change(changed(attack, "ours", 1), **{path: value}))


def test_checkpoint_from_elsewhere_stands_in_the_table_by_its_name(attack: Record) -> None:
    bare = with_change(attack, subject__method="theirs", subject__run_seed=None, config__seeds=[2])
    assert set(attacks_of(bare, changed(attack, "ours", 2)).groups[0].methods) == {"ours", "theirs"}


def test_what_is_no_attack_record_of_a_run_is_refused(attack: Record, tmp_path: Path, called: Called) -> None:
    with pytest.raises(FileNotFoundError, match=r"attack its runs first, python -m immunize\.attack"):
        load_attacks(tmp_path)
    for text, message in {
        "{": "cannot be read as an attack record",
        '{"status": "finished"}': "has no 'subject'",
        json.dumps(attack | {"schema_version": 2}): "has schema version 2",
    }.items():
        (tmp_path / ATTACK_RECORD).write_text(text)
        with pytest.raises(ValueError, match=message):
            load_attacks(tmp_path)
    assert message in called(main, "experiment=table_attacks", f"runs={tmp_path}").err
