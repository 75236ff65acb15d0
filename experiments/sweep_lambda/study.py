"""Settings that trade (i) against (ii) best, searched by Optuna: `python -m experiments.sweep_lambda.study`.

    python -m experiments.sweep_lambda.study n_trials=30 out=outputs/study harmful=housing \\
        'objective.lambda_ill=tag(log,interval(1e4,1e16))' 'objective.learning_rate=tag(log,interval(0.003,0.05))'

Settings of its own:

    n_trials=20            finished and diverged trials to reach, those of earlier calls included
    out=outputs/study      one folder a trial with its record, Optuna's study.db, and pareto.csv
    estimator=ridge        of κ: spectrum, released or ridge; on few validation rows no rank cut decides it

Everything else goes to `immunize.train`. What is written as a sweep, key=interval(low,high) or key=choice(a,b), is the
search space, by default objective.lambda_ill=tag(log,interval(1e4,1e16)). (i) is maximized and (ii) minimized on rows
set aside from `fit` (selection=validation, unless it is given). The same command again goes on where it stopped; one
process at a time.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from omegaconf import OmegaConf

from immunize.cli import entry_point, explain_errors
from immunize.config import config_dir, hash_of_run, register
from immunize.errors import UserError
from immunize.settings import check_settings

if TYPE_CHECKING:
    from optuna import Study, Trial

PARETO = "pareto.csv"
DEFAULT_SPACE = "objective.lambda_ill=tag(log,interval(1e4,1e16))"
ESTIMATORS = ("spectrum", "released", "ridge")
ALWAYS = ("logger=none", "resume=true", "figure=false")
STATUS, OVERRIDES = "status", "overrides"
"""User attributes of a trial and of the study."""


@dataclass
class StudyConfig:
    """The study's own settings, explained above."""

    n_trials: int = 20
    out: str = "outputs/study"
    estimator: str = "ridge"


@entry_point
def main() -> None:
    """Entry point of `python -m experiments.sweep_lambda.study`."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
    else:
        explain_errors(run_study)(sys.argv[1:])


def run_study(arguments: Sequence[str]) -> Path:
    """Run trials until there are `n_trials`, and write the Pareto set.

    Args:
        arguments: of the command line.

    Returns:
        the CSV file: trial, part, estimator, the settings searched, (i), (ii), RIR, the folder of the record, and
        the command that does the run without the validation split, so that it has held-out numbers.

    Raises:
        UserError: a bad setting, a package that is missing, or a study with other settings in `out`.
        KeyboardInterrupt: Ctrl-C; the trial under way is repeated by the next call.
    """
    register()
    own, fixed, space = _parsed(arguments)
    with initialize_config_dir(config_dir(), version_base="1.3"):
        check_settings(compose("train", [*fixed, *(f"{one.get_key_element()}={_first(one)}" for one in space)]))
        study = _opened(own, [f"estimator={own.estimator}", *fixed, *(str(one.input_line) for one in space)])
        _repeat_what_was_cut_off(study)
        while (done := _count(study)) < own.n_trials:
            trial = study.ask()
            overrides = [*fixed, *(f"{one.get_key_element()}={_suggested(trial, one)}" for one in space)]
            _run_trial(study, trial, overrides, own, f"trial {done + 1} of {own.n_trials}")
    path = Path(own.out) / PARETO
    searched = [one.get_key_element() for one in space]
    keys = ["trial", "part", "estimator", *searched, "ratio_harmful", "ratio_pretrain", "rir", "folder", "command"]
    pd.DataFrame(_front(study, own, fixed), columns=keys).to_csv(path, index=False, lineterminator="\n")
    print(path)
    return path


def _parsed(arguments: Sequence[str]) -> tuple[StudyConfig, list[str], list[Override]]:
    """The study's own settings, the fixed overrides of every trial, and the search space."""
    names = {field.name for field in fields(StudyConfig)}
    overrides = OverridesParser.create().parse_overrides(list(arguments))
    mine = {one.key_or_group: one.value() for one in overrides if one.key_or_group in names}
    own: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(StudyConfig), mine))
    assert isinstance(own, StudyConfig)
    if own.n_trials < 1:
        raise UserError(f"n_trials has to be at least 1, it is {own.n_trials}")
    if own.estimator not in ESTIMATORS:
        raise UserError(f"estimator has to be one of {', '.join(ESTIMATORS)}; it is {own.estimator}")
    theirs = [one for one in overrides if one.key_or_group not in names]
    space = [one for one in theirs if one.is_sweep_override()]
    for one in space:
        _check_interval(one)
    fixed = [str(one.input_line) for one in theirs if not one.is_sweep_override()]
    if not any(one.key_or_group == "selection" for one in theirs):
        fixed.append("selection=validation")
    return own, [*fixed, *ALWAYS], space or [OverridesParser.create().parse_override(DEFAULT_SPACE)]


def _check_interval(one: Override) -> None:
    value: Any = one.value()
    if isinstance(value, IntervalSweep):
        low: Any = value.start
        high: Any = value.end
        if not low < high:
            raise UserError(f"{one.input_line}: the interval is empty")
        if "log" in value.tags and not low > 0:
            raise UserError(f"{one.input_line}: a logarithmic interval has to begin above 0")


def _opened(own: StudyConfig, settings: list[str]) -> Study:
    """The study, new or as it was left."""
    try:
        import optuna
    except ImportError as error:
        raise UserError("this study needs Optuna, which is not installed: pip install -e '.[optuna]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    Path(own.out).mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{Path(own.out) / 'study.db'}"
    study = optuna.create_study(
        storage=storage, study_name="tradeoff", directions=["maximize", "minimize"], load_if_exists=True
    )
    before = study.user_attrs.get(OVERRIDES, settings)
    if before != settings:
        raise UserError(f"the study in {own.out} was begun with {shlex.join(before)}; choose another folder with out=")
    study.set_user_attr(OVERRIDES, settings)
    # A sampler knows nothing of the draws of an earlier process, so its seed has to differ from that process's.
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
    return study


def _repeat_what_was_cut_off(study: Study) -> None:
    """Put trials of a process that was killed at the head of the queue; a record that it finished is found again."""
    from optuna.trial import TrialState

    for trial in study.get_trials(states=[TrialState.RUNNING]):
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)


def _count(study: Study) -> int:
    return sum(STATUS in trial.user_attrs for trial in study.trials)


def _run_trial(study: Study, trial: Trial, overrides: list[str], own: StudyConfig, label: str) -> None:
    from optuna.trial import TrialState

    from immunize.train import run

    cfg = compose("train", overrides)
    folder = hash_of_run(cfg)
    try:
        record = run(cfg, Path(own.out) / folder, quiet=True)
    except UserError:
        study.tell(trial, state=TrialState.FAIL)
        raise
    if record["status"] == "interrupted":
        raise KeyboardInterrupt
    trial.set_user_attr("folder", folder)
    values, outcome = None, record["status"]
    if outcome == "finished":
        part = _part(record)
        i, ii = (record["metrics"][part][own.estimator][name] for name in ("ratio_harmful", "ratio_pretrain"))
        trial.set_user_attr("numbers", {"part": part, "ratio_harmful": i, "ratio_pretrain": ii})
        if i is None or ii is None:  # infinite: not a number that a sampler could learn from
            outcome = "infinite"
        else:
            values, outcome = [math.log10(i), math.log10(ii)], f"(i) = {i:.4g}, (ii) = {ii:.4g} on {part}"
    trial.set_user_attr(STATUS, record["status"])
    if values is None:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, values)
    print(f"{label}: {_settings(trial.params)}: {outcome}", file=sys.stderr)


def _part(record: dict[str, Any]) -> str:
    """Where the two numbers are taken from: never from `held_out`."""
    return "validation" if "validation" in record["metrics"] else "fit"


def _suggested(trial: Trial, one: Override) -> str:
    """What Optuna chooses for a setting, as an override has it."""
    key, value = one.get_key_element(), one.value()
    if not isinstance(value, IntervalSweep):
        return str(trial.suggest_categorical(key, list(one.sweep_string_iterator())))
    log = "log" in value.tags
    low: Any = value.start
    high: Any = value.end
    if isinstance(low, int) and isinstance(high, int):
        return str(trial.suggest_int(key, low, high, log=log))
    return repr(trial.suggest_float(key, float(low), float(high), log=log))


def _first(one: Override) -> str:
    """Any value of the space, to compose a configuration with."""
    value = one.value()
    return repr(value.start) if isinstance(value, IntervalSweep) else next(iter(one.sweep_string_iterator()))


def _front(study: Study, own: StudyConfig, fixed: Sequence[str]) -> Iterator[dict[str, Any]]:
    kept = [one for one in fixed if one != "selection=validation" and one not in ALWAYS]
    for trial in sorted(study.best_trials, key=lambda trial: trial.values[1]):
        numbers = trial.user_attrs["numbers"]
        i, ii = numbers["ratio_harmful"], numbers["ratio_pretrain"]
        words = ["python", "-m", "immunize.train", *kept, *(f"{key}={value}" for key, value in trial.params.items())]
        yield {
            "trial": trial.number,
            "part": numbers["part"],
            "estimator": own.estimator,
            **trial.params,
            "ratio_harmful": i,
            "ratio_pretrain": ii,
            "rir": i / ii,
            "folder": trial.user_attrs["folder"],
            "command": shlex.join(words),
        }


def _settings(params: dict[str, Any]) -> str:
    return ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in params.items()
    )


if __name__ == "__main__":
    main()
