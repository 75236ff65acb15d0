"""`make demo`: its table holds the numbers of the attack records, and the committed one those of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import demo
from immunize.records import ATTACK_RECORD
from immunize.report.attacks.records import Attacks, load_attacks

ROOT = Path(__file__).parents[2]


def test_both_methods_are_attacked_and_shown_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "BUDGET", ("attack=quick", "attack.budget.steps=40", "tiers=[T0,T2]", "seeds=[0]"))
    figure = demo.run([f"out={tmp_path}"], shorter=("figure=false", "probe_steps=50"))
    *_, last = printed = capsys.readouterr().out.splitlines()
    assert last == str(figure)
    assert figure.is_file()
    records = {method: json.loads((tmp_path / method / ATTACK_RECORD).read_text()) for method in demo.METHODS}
    assert max(map(len, printed[:-1])) <= 100
    rows = [line.split()[-3:] for line in printed]
    for method, record in records.items():
        for task in ("harmful", "pretrain"):
            tiers = record["results"][task]["immunized"]
            assert [method, *(f"{tiers[tier]['score']['mean']:.3g}" for tier in ("T0", "T2"))] in rows
        assert any(line.startswith(f"{method}: RIR ") for line in printed)
    harmful = records["erase"]["results"]["harmful"]["immunized"]
    for tier in harmful.values():
        assert tier["score"]["mean"] <= 0.3
        assert tier["score_reference"]["mean"] >= 0.9


def test_the_committed_table_is_what_its_records_make() -> None:
    folder = ROOT / "experiments" / "demo"
    table = demo.table_of(Attacks.of(load_attacks(folder)))
    assert table.markdown() == (folder / "table.md").read_text(encoding="utf-8")
