"""A term that becomes non-finite, and Ctrl-C: the run ends in order, with a record and usable parameters."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from immunize import evaluate
from immunize.data import Splits
from immunize.data.synthetic import Synthetic
from immunize.errors import UserError
from immunize.files import held
from immunize.objective import Step
from immunize.objective.ours import Ours
from immunize.pipeline import experiment
from immunize.records import FIGURE, diverged_cross_fit, read_record, without
from immunize.report import show_record
from immunize.sweeping import value_of
from tests.composing import SGD, D, run_tiny, theta_of
from tests.tampering import strict_json

Terms = dict[str, Tensor]
Changed = Callable[..., None]


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Changed:
    """Change what `ours` computes in its n-th step (from 0) of every training, or of the second extractor's alone."""
    original = Ours.terms

    def install(number: int, change: Callable[[Terms], Terms], *, second: bool = False) -> None:
        counts: dict[Ours, int] = {}

        def terms(self: Ours, step: Step) -> Terms:
            count = counts.get(self, 0)
            counts[self] = count + 1
            computed = original(self, step)
            return change(computed) if count == number and (len(counts) == 2 or not second) else computed

        monkeypatch.setattr(Ours, "terms", terms)
        if second:
            monkeypatch.setattr(experiment, "can_fork", lambda processes: False)  # in a fork nobody is the second

    return install


def spoil(name: str, value: float) -> Callable[[Terms], Terms]:
    return lambda terms: {key: term * value if key == name else term for key, term in terms.items()}


@pytest.fixture
def cross_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Synthetic data without held-out rows of their own, as House Prices has none."""
    load = Synthetic.load

    def halves(self: Synthetic, seed: int) -> Splits:
        rows = load(self).fit
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        return Splits(rows.take(order[::2]), rows.take(order[1::2]))

    monkeypatch.setattr(Synthetic, "held_out_protocol", "cross_fit")
    monkeypatch.setattr(Synthetic, "cross_fit", halves)
    monkeypatch.setattr(Synthetic, "load", lambda self: Splits(load(self).fit, None))


TERMS = {"ours": {"task", "well", "ill"}, "well_only": {"well"}, "none": {"task"}}


def interrupt(terms: Terms) -> Terms:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("name", "value"), [("task", math.nan), ("well", math.inf), ("ill", -math.inf), ("", 0.0)])
def test_the_last_good_parameters_are_kept(name: str, value: float, tmp_path: Path, at_step: Changed) -> None:
    """Of a term that is not finite, which is named, those of the step before; of Ctrl-C those that were reached."""
    run_tiny(tmp_path / "short", f"objective.epochs={4 if name else 5}")
    handler = signal.getsignal(signal.SIGINT)
    at_step(5, spoil(name, value) if name else interrupt)
    record = run_tiny(tmp_path / "run")
    assert record["status"] == ("diverged" if name else "interrupted")
    found = {"step": 5, "term": name, "value": str(value)} if name else None
    assert record["training"]["fit"].get("diverged") == found
    assert record["training"]["fit"]["steps"] == 5
    assert strict_json(tmp_path / "run" / "record.json") == read_record(tmp_path / "run")
    assert torch.equal(theta_of(tmp_path / "run"), theta_of(tmp_path / "short"))
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"record.json", "checkpoint.safetensors"}
    assert "metrics" not in record
    assert {"config", "config_hash", "data_hash", "seconds", "git_commit", "versions"} <= record.keys()
    assert signal.getsignal(signal.SIGINT) is handler  # Lightning has Ctrl-C ignored from then on


@pytest.mark.usefixtures("cross_fitted")
def test_a_cross_fit_that_diverges(tmp_path: Path, at_step: Changed, capsys: pytest.CaptureFixture[str]) -> None:
    """It costs the held-out numbers alone."""
    whole = run_tiny(tmp_path / "whole")
    assert whole["metrics"].keys() == {"fit", "held_out"}
    assert diverged_cross_fit(whole) is None

    at_step(5, spoil("ill", math.inf), second=True)
    record = run_tiny(tmp_path / "run", "figure=true")
    assert (record["status"], record["held_out_protocol"]) == ("finished", "cross_fit")
    assert record["training"]["cross_fit"]["diverged"] == {"step": 5, "term": "ill", "value": "inf"}
    assert "diverged" not in record["training"]["fit"]
    assert diverged_cross_fit(record) == "the cross-fit diverged in step 5: ill became inf"
    for key in ("metrics", "separability", "steps_to_norm_ratio", "spectra"):
        assert record[key] == {"fit": whole[key]["fit"]}
    assert record["curves"]["norm_ratio"] == {"fit": whole["curves"]["norm_ratio"]["fit"]}
    assert record["verdicts"] == without(whole["verdicts"], "held_out")
    assert torch.equal(theta_of(tmp_path / "run"), theta_of(tmp_path / "whole"))
    assert (tmp_path / "run" / FIGURE).is_file()
    assert value_of(read_record(tmp_path / "run")) == record["metrics"]["fit"]["spectrum"]["rir"]
    assert evaluate.run(tmp_path / "run")[1] == []
    show_record(record)
    assert "no held-out numbers: the cross-fit diverged in step 5: ill became inf" in capsys.readouterr().out


@pytest.mark.usefixtures("cross_fitted")
def test_an_interrupted_cross_fit_is_an_interrupted_run(tmp_path: Path, at_step: Changed) -> None:
    at_step(5, interrupt, second=True)
    record = run_tiny(tmp_path)
    assert record["status"] == "interrupted"
    assert record["training"].keys() == {"fit", "cross_fit"}
    assert "metrics" not in record


@pytest.mark.parametrize(
    ("method", "more"),
    [
        *((method, [f"objective.learning_rate={rate}"]) for method in TERMS for rate in ("1e3", "1e305")),
        ("ours", ["guard=warn"]),
        ("ours", ["objective.early_stopping=true", "objective.check_every=1"]),
        ("ours", ["objective.balance=true", "objective.balance_every=1"]),
        ("ours", ["objective.batch_size=16"]),
        ("ours", ["objective.epochs=1", "objective.learning_rate=1e305"]),  # in the very last step
        ("ours", ["objective.epochs=1", "objective.learning_rate=1e305", "monitor_every=100"]),
    ],
)
def test_enormous_learning_rates_end_as_divergence(method: str, more: list[str], tmp_path: Path) -> None:
    record = run_tiny(tmp_path, f"method={method}", *SGD, "objective.learning_rate=1e200", "monitor_every=1", *more)
    assert record["status"] == "diverged"
    diverged = record["training"]["fit"]["diverged"]
    assert diverged["term"] in TERMS[method]
    assert 0 <= diverged["step"] < record["config"]["objective"]["epochs"]
    assert theta_of(tmp_path).isfinite().all()
    assert strict_json(tmp_path / "record.json")["status"] == "diverged"


@pytest.mark.parametrize(("term", "rate", "well", "ill"), [("well", "1", "1e290", "1"), ("ill", "1e300", "0", "1e9")])
def test_term_of_the_overflowing_gradient_is_named(term: str, rate: str, well: str, ill: str, tmp_path: Path) -> None:
    weights = (f"objective.lambda_well={well}", f"objective.lambda_ill={ill}")
    record = run_tiny(tmp_path, *SGD, f"objective.learning_rate={rate}", *weights)
    assert record["training"]["fit"]["diverged"]["term"] == term


def test_a_terminal_that_is_closed_does_not_end_a_training_before_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_step: Changed
) -> None:
    def closed(terms: Terms) -> Terms:
        monkeypatch.setattr(sys, "stderr", Mock(write=Mock(side_effect=OSError), isatty=bool))
        signal.raise_signal(signal.SIGTERM)
        return terms

    at_step(5, closed)
    with pytest.raises(SystemExit):
        run_tiny(tmp_path)
    assert read_record(tmp_path)["status"] == "interrupted"


def test_ctrl_c_during_the_evaluation_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("immunize.pipeline.linear.evaluate_part", Mock(side_effect=KeyboardInterrupt))
    record = run_tiny(tmp_path)
    assert record["status"] == "interrupted"
    assert record["training"]["fit"]["steps"] == 30
    assert theta_of(tmp_path).shape == (D, D)


def test_lightning_leaves_no_weights_in_the_working_directory_of_a_slurm_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_step: Changed
) -> None:
    for name in ("PROCID", "LOCALID", "NODEID"):
        monkeypatch.setenv(f"SLURM_{name}", "0")
    for name, value in {"NTASKS": "1", "JOB_ID": "1", "JOB_NAME": "job", "NODELIST": "localhost"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    handlers = []
    at_step(0, lambda terms: (handlers.append(signal.getsignal(signal.SIGUSR1)), terms)[1])
    assert run_tiny(tmp_path)["status"] == "finished"
    assert handlers == [signal.SIG_DFL]  # Lightning's would keep them there, for all that train there later


def test_a_figure_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It does not cost the record."""
    monkeypatch.setattr("immunize.report.curves.norm_ratio_figure", Mock(side_effect=OSError("no space left")))
    run_tiny(tmp_path, "figure=true")
    assert read_record(tmp_path)["status"] == "finished"
    assert "no space left" in caplog.text


@pytest.mark.usefixtures("cross_fitted")
def test_a_selection_is_measured_on_rows_set_aside_without_a_cross_fit(tmp_path: Path) -> None:
    record, other = (run_tiny(tmp_path / seed, "selection=validation", f"seed={seed}") for seed in "01")
    assert record["training"].keys() == {"fit"}
    assert record["held_out_protocol"] is None
    assert record["metrics"].keys() == {"fit", "validation"}
    assert record["data"]["pretrain"]["fit_rows"] == 32  # of 40
    assert evaluate.run(tmp_path / "0")[1] == []
    assert record["metrics"]["validation"] != other["metrics"]["validation"]


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    told = pytest.raises(UserError, match=r"another run is at work in .*hydra\.run\.dir")
    with held(tmp_path, AssertionError()), told:
        run_tiny(tmp_path)
    assert not list(tmp_path.iterdir())
    assert run_tiny(tmp_path)["status"] == "finished"


def test_a_run_that_finished_while_another_was_loading_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_record = experiment.new_record

    def after_the_other(*arguments: Any) -> dict[str, Any]:
        with monkeypatch.context() as alone:
            alone.setattr(experiment, "new_record", new_record)
            run_tiny(tmp_path)
        return new_record(*arguments)

    monkeypatch.setattr(experiment, "new_record", after_the_other)
    with pytest.raises(UserError, match="already holds a finished record"):
        run_tiny(tmp_path, "seed=1")
    assert read_record(tmp_path)["seed"] == 0
