"""RIR against D_P's accuracy of networks: points are means over seeds, and the front is what nothing beats."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from experiments import network_front
from immunize.errors import UserError
from immunize.report.loading import load_records
from tests.report.making import EXPERIMENTS

FOLDER = EXPERIMENTS / "front_digits"


@pytest.mark.usefixtures("undrawn")
def test_the_committed_page_is_what_its_records_make(tmp_path: Path) -> None:
    out = network_front.run(["experiment=front_digits", f"runs={FOLDER}", f"out={tmp_path}"])
    assert {path.name for path in out.iterdir()} == {path.name for path in FOLDER.iterdir()}
    for name in ("table.md", "README.md"):
        assert (out / name).read_bytes() == (FOLDER / name).read_bytes()


def test_a_point_is_a_mean_of_seeds_and_the_front_what_nothing_beats() -> None:
    records = load_records(FOLDER)
    settings = [(of["config"]["objective"], of["config"]["model"]["trainable"]) for of in records]
    own = [of for of, setting in zip(records, settings, strict=True) if setting == settings[0]]
    assert len(own) == 3
    rir = statistics.geometric_mean(of["metrics_groups"]["held_out"]["spectrum"]["rir"] for of in own)
    gain = statistics.fmean(of["pretrain_accuracy"]["after"] - of["pretrain_accuracy"]["before"] for of in own)
    points = [*network_front.points_of(records)[["rir", "gain", "front"]].itertuples(index=False)]
    assert (pytest.approx(rir), pytest.approx(gain, abs=1e-9)) in [(point.rir, point.gain) for point in points]
    for point in points:
        assert point.front is not any(of.rir > point.rir and of.gain >= point.gain for of in points)


def test_runs_of_a_linear_model_are_refused(finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sweep_lambda"):
        network_front.run(["experiment=front_digits", f"runs={finished_run}", f"out={tmp_path / 'out'}"])
    with pytest.raises(UserError, match="experiment=: needed"):
        network_front.run([])
