"""`python -m immunize.forecast`: before any training, can this pair of data sets be immunized at all?

`main` only parses; :func:`run` loads, computes (:mod:`immunize.evaluation.alignment`), puts the numbers into words
(:mod:`immunize.evaluation.forecast_verdict`) and returns the record. Nothing is trained, so the data come from their
sources directly, without Lightning.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from immunize.cli import command, output_folder, tell
from immunize.config import resolved
from immunize.effects import asked_for, idle_data, refuse_idle, told
from immunize.errors import DataError, UserError
from immunize.instantiate import build_source
from immunize.records import begun, peak_memory_mib, plain, provenance, without, write_record
from immunize.schemas import ForecastConfig
from immunize.settings import RHO, SEED, THREADS, Rule, check, check_folder
from immunize.threads import cpu_threads, threads_in_force

if TYPE_CHECKING:
    from immunize.data import SourceBase
    from immunize.data.loading import LoadedPair
    from immunize.evaluation.alignment import Forecast

FORECAST, FIGURE = "forecast.json", "forecast.png"

WORDS = ("auto", "ledoit_wolf")
RULES: tuple[Rule, ...] = (
    SEED,
    ("top_k", lambda value: value is None or value >= 1, "at least 1, or null"),
    ("budget", lambda value: 1 <= value < math.inf, "at least 1 and finite: it is a bound on κ(H_P)"),
    RHO,
    THREADS,
    (
        "shrinkage",
        lambda value: value in WORDS or (type(value) in (int, float) and 0 <= value < math.inf),
        f"a finite number, 0 or more, or one of {', '.join(WORDS)}",
    ),
)


def run(
    cfg: DictConfig, folder: Path, tell: Callable[[str], None] = lambda text: None, given: Sequence[str] = ()
) -> dict[str, Any]:
    """Forecast, and write `forecast.json` and `forecast.png` into `folder`.

    Args:
        cfg: the composed configuration (`conf/forecast.yaml`).
        folder: the output folder.
        tell: gets a line where seconds go by.
        given: settings that somebody has asked for, which have to have an effect.

    Returns:
        The record, as written.

    Raises:
        UserError: anything in the configuration or the data that the user has to mend.
    """
    record: dict[str, Any] = begun()
    clock = time.perf_counter()
    check(cfg, ForecastConfig, RULES)  # before anything heavy is imported
    OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    settings = resolved(cfg)
    idle = idle_data(settings, "rows")
    refuse_idle(given, idle)
    sources = build_source(cfg.pretrain, "pretrain"), build_source(cfg.harmful, "harmful")
    for source in sources:
        source.require()  # missing files are reported before the heavy imports below, which take seconds
    check_folder(folder)
    if (folder / FORECAST).exists() and not cfg.overwrite:
        raise UserError(f"{folder} already holds a forecast; choose another folder or set overwrite=true")
    tell(f"{sources[0].name} against {sources[1].name}: loading")
    from immunize.evaluation.alignment import forecast
    from immunize.evaluation.forecast_verdict import judge
    from immunize.report.forecast import forecast_figure

    with cpu_threads(threads_in_force(cfg.threads)):
        made_with = provenance()
        whole, apart = _load(sources, cfg.seed)
        tell("measuring")
        fit = _rows(whole, "fit")
        try:
            found = forecast(
                fit,
                (fit if apart is whole else _rows(apart, "fit"), _rows(apart, "held_out")),
                top_k=cfg.top_k,
                shrinkage=cfg.shrinkage,
                budget=cfg.budget,
                rho=cfg.rho,
                seed=cfg.seed,
            )
        except ValueError as error:
            raise UserError(str(error)) from None
    record |= {
        "kind": "forecast",
        "status": "finished",
        "pretrain": sources[0].name,
        "harmful": sources[1].name,
        "seed": cfg.seed,
        **told(settings, idle),
        **made_with,
        "data": {"pretrain": sources[0].describe(), "harmful": sources[1].describe()},
        "data_hash": whole.hash,
        "held_out_protocol": "split" if apart is whole else "cross_fit",
        **_numbers(found),
        "verdict": asdict(judge(found, tunable=not isinstance(cfg.shrinkage, str))),
    }
    record = plain(record)
    forecast_figure(record, folder / FIGURE)
    record["seconds"] = time.perf_counter() - clock
    record["peak_memory_mib"] = peak_memory_mib()
    write_record(folder, record, FORECAST)
    return record


@command("forecast")
def main(cfg: DictConfig) -> None:
    """One job: print the tables and the verdict, then the record's path as the last line of stdout."""
    from immunize.report.forecast import show_forecast

    folder = output_folder()
    show_forecast(run(cfg, folder, tell, asked_for()))
    print(folder / FORECAST, flush=True)


# --- the data -----------------------------------------------------------------------------------------------------


def _load(sources: Sequence[SourceBase], seed: int) -> tuple[LoadedPair, LoadedPair]:
    """All rows of D_P and D_H, and with those to measure on set apart, as `PairedData` loads and checks them.

    The second is the first where the data have held-out rows of their own, else a half against the other half.
    """
    from immunize.data.loading import load_pair
    from immunize.data.splits import ROLES

    whole = load_pair(*sources)
    crossed = any(source.held_out_protocol == "cross_fit" for source in sources)
    apart = load_pair(*sources, cross_fit=seed) if crossed else whole
    for source, role in zip(sources, ROLES, strict=True):
        if apart.splits[role].held_out is None:
            raise DataError(f"{source.name} ({role}): there are no held-out rows; correct the source's load()")
    return whole, apart


def _rows(loaded: LoadedPair, part: str) -> Any:
    """One part of D_P and of D_H."""
    return tuple(getattr(splits, part).x for splits in loaded.splits.values())


# --- the record ---------------------------------------------------------------------------------------------------


def _numbers(found: Forecast) -> dict[str, Any]:
    """Every number by name, with the part and the estimator it belongs to."""
    from immunize.evaluation.numbers import ratio_numbers

    theory, aligned, maps = found.spectrum, found.alignment, {"fit": found.fit, "held_out": found.held_out}
    sets = {"pretrain": found.pretrain, "harmful": found.harmful}
    facts = {role: without(asdict(of), "estimator") for role, of in sets.items()}
    return {
        "data_sets": {"part": "fit", **without(facts, "eigenvalues")},
        "alignment": {
            "part": "fit",
            **without(vars(aligned), "angles"),
            "cosines": aligned.cosines.tolist(),
            "principal_angles_degrees": aligned.angles.tolist(),
        },
        "joint_range": {"part": "fit", **_named(theory, "pretrain_only", "harmful_only", "unseen")},
        "bound": {
            "part": "fit",
            "estimator": "ridge" if theory.shrinkage[0] > 0 else "spectrum",
            "rho": list(theory.shrinkage),
            **_named(theory, "kappa_gen", "kappa_pretrain", "kappa_harmful", "rir_star"),
        },
        "maps": {part: {"budget": found.budget, **without(vars(one), "ratios")} for part, one in maps.items()},
        "metrics": {
            part: {estimator: ratio_numbers(ratio) for estimator, ratio in one.ratios.items()}
            for part, one in maps.items()
        },
        "curves": {
            "eigenvalues": {role: of.eigenvalues.tolist() for role, of in sets.items()},
            "generalized_eigenvalues": theory.mu.tolist(),
        },
    }


def _named(of: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


if __name__ == "__main__":
    main()
