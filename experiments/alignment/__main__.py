"""`make fig_alignment`: does what is known before training tell how far a pair can be immunized? (§3.1)

    python -m experiments.alignment runs=outputs/table2 [out=folder] [cache=folder] [data_root=folder]
        [families=mnist,synthetic]

Three numbers of the forecast, from the rows of D_P and D_H alone, against the RIR that two methods reach:

alignment      Σ|u_iᵀv_i| over the top 10 singular vectors of K_P and K_H; §3.1 expects the opposite order of RIR
RIR*           the bound on the rows of `fit`, with ρ
held-out RIR*  RIR by `ridge` on held-out rows of the map that attains RIR* (B = 1)

mnist      all pairs of digits that `runs` has finished records of, RIR as the geometric mean over seeds
synthetic  Gaussian pairs whose singular vectors differ by a prescribed angle, one run each, made here

They are those of `immunize.forecast` (a test compares them), of which only what they need is computed, and what both
orders of a pair of digits share only once: two seconds a pair of MNIST instead of seven.

Spearman's rank correlation with a 95 % interval from scipy's bootstrap. Ordered pairs of the same two digits share
their images, so that pairs of digits are drawn and not single rows. Forecasts and runs are kept in `cache`; the same
command goes on where it stopped.

The correlations are in `correlating.py`, what is made of them in `report.py`.

Shapes: N samples, D features.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from experiments.alignment.correlating import ESTIMATORS, METHODS, PARTS, Point, correlations
from experiments.alignment.report import ANGLES, DATA_SEEDS, NAME, RHO, draw, flat, readme_of
from experiments.reporting import choices, key_values, write_csv
from immunize.building import build
from immunize.cli import entry_point, explain_errors
from immunize.config import config_dir, hash_of_run, register
from immunize.errors import UserError
from immunize.files import write_text
from immunize.remembering import remembered

if TYPE_CHECKING:
    from torch import Tensor

    from immunize.data import Source

TOP_K = 10
"""k of the alignment, as in `immunize.evaluation.alignment`."""

FAMILIES = ("mnist", "synthetic")
SYNTHETIC = ("harmful=synthetic", "logger=none", "figure=false", "probe_steps=100")


@entry_point
def main() -> None:
    """Forecast, run what is missing, and write results.csv, correlations.csv, README.md and the figure."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> Path:
    """See the module's note.

    Raises:
        UserError: a bad argument, no record, or data that are missing.
    """
    given = key_values(arguments, {"runs", "out", "cache", "data_root", "families"})
    cache, out = Path(given.get("cache", f"outputs/{NAME}")), Path(given.get("out", f"experiments/{NAME}"))
    families = choices(given, "families", FAMILIES)
    root = [f"data_root={given['data_root']}"] if "data_root" in given else []
    register()
    points: list[Point] = []
    with initialize_config_dir(config_dir(), version_base="1.3"):
        if "mnist" in families:
            points += mnist_points(Path(given.get("runs", "outputs/table2")), cache, root)
        if "synthetic" in families:
            points += synthetic_points(cache)
    found = correlations(points)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "results.csv", [flat(point) for point in points])
    write_csv(out / "correlations.csv", [{**vars(one), "verdict": one.verdict} for one in found])
    draw(points, found, out / NAME)
    (out / "README.md").write_text(readme_of(points, found, families), encoding="utf-8")
    print((out / "README.md").read_text(encoding="utf-8"), end="")
    return out


# --- the points ---------------------------------------------------------------------------------------------------


def mnist_points(runs: Path, cache: Path, root: list[str]) -> list[Point]:
    """A point for each pair of digits that has a finished record of either method.

    Raises:
        UserError: there is none.
    """
    latest: dict[tuple[str, tuple[int, int], int], dict[str, Any]] = {}
    for path in runs.glob("*/record.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.get("status") != "finished" or record["harmful"] != "mnist" or record["method"] not in METHODS:
            continue
        p, h = record["config"]["harmful"]["pair"]
        key = record["method"], (p, h), record["seed"]
        if key not in latest or latest[key]["started"] < record["started"]:
            latest[key] = record
    by_pair: dict[tuple[int, int], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for (method, pair, _), record in latest.items():
        by_pair[pair][method].append(record)
    if not by_pair:
        raise UserError(f"{runs} holds no finished record of {' or '.join(METHODS)} on MNIST; make table2 first")
    points = []
    for (p, h), of in sorted(by_pair.items(), key=lambda item: (sorted(item[0]), item[0])):
        known = forecast_of(cache, f"mnist_{p}{h}", ["harmful=mnist", f"harmful.pair=[{p},{h}]", *root])
        points.append(Point("mnist", f"{p}→{h}", f"{min(p, h)}{max(p, h)}", known, reached(of)))
    return points


def synthetic_points(cache: Path) -> list[Point]:
    """A point for each angle and seed of the data; a run of each method."""
    from immunize.train import run as train

    points = []
    for angle in ANGLES:
        for seed in DATA_SEEDS:
            data = [f"harmful.angle={angle}", f"harmful.seed={seed}"]
            known = forecast_of(cache, f"synthetic_{angle}_{seed}", ["harmful=synthetic", *data])
            records = {}
            for method in METHODS:
                cfg = compose("train", [*SYNTHETIC, *data, f"method={method}", "resume=true"])
                records[method] = [_run(train, cfg, cache / "runs" / hash_of_run(cfg))]
            points.append(Point("synthetic", f"{angle}°, seed {seed}", f"{angle}_{seed}", known, reached(records)))
    return points


def _run(train: Any, cfg: DictConfig, folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = train(cfg, folder, quiet=True)
    if record["status"] == "interrupted":
        raise KeyboardInterrupt
    return record


def forecast_of(cache: Path, name: str, overrides: list[str]) -> dict[str, float]:
    """The predictors of a pair, from the cache, or computed and kept there.

    Args:
        cache: the folder.
        name: of the pair.
        overrides: of `conf/forecast.yaml` that make it.
    """
    path = cache / "forecasts" / f"{name}.json"
    key = {"rho": RHO, "top_k": TOP_K, "overrides": [one for one in overrides if not one.startswith("data_root=")]}
    stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if stored.get("key") != key:
        print(f"forecast: {name}", file=sys.stderr, flush=True)
        cfg = compose("forecast", overrides)
        stored = {
            "key": key,
            "forecast": predictors(*(side_of_source(build(of)) for of in (cfg.pretrain, cfg.harmful))),
        }
        write_text(path, json.dumps(stored) + "\n")
    found: dict[str, float] = stored["forecast"]
    return found


@dataclass(frozen=True)
class Side:
    """One data set: of the rows of `fit` K and its leading eigenvectors, of the held-out rows K and its κ.

    Attributes:
        samples: N, how many rows of `fit` there are.
        gram: (D, D) float64, their K.
        leading: (D, k) its eigenvectors to the k largest eigenvalues, descending.
        samples_held_out: how many held-out rows there are.
        gram_held_out: (D, D), their K.
        kappa_held_out: its κ, by `ridge`.
    """

    samples: int
    gram: Tensor
    leading: Tensor
    samples_held_out: int
    gram_held_out: Tensor
    kappa_held_out: float


def side_of_source(source: Source) -> Side:
    """Of a source with held-out rows of its own."""
    split = source.load()
    assert split.held_out is not None
    return side_of(split.fit.x, split.held_out.x)


@remembered(2)  # the other order of a pair of digits has the same two data sets
def side_of(fit: Tensor, held_out: Tensor) -> Side:
    """Args: the rows of both parts, (N, D) and (M, D) float64."""
    import torch

    from immunize.spectrum import DEFAULT_RHO
    from immunize.spectrum.budget import kappa_of_gram

    gram, gram_held_out = fit.T @ fit, held_out.T @ held_out
    leading = torch.linalg.eigh(gram).eigenvectors.flip(1)[:, :TOP_K]
    kappa = kappa_of_gram(gram_held_out, len(held_out), "ridge", DEFAULT_RHO)
    return Side(len(fit), gram, leading, len(held_out), gram_held_out, kappa)


def predictors(pretrain: Side, harmful: Side) -> dict[str, float]:
    """The numbers that `PREDICTORS` names."""
    from immunize.spectrum import DEFAULT_RHO, frontier, generalized_spectrum
    from immunize.spectrum.budget import kappa_of_gram

    counts = pretrain.samples, harmful.samples
    spectrum = generalized_spectrum(pretrain.gram, harmful.gram, n_samples=counts, shrinkage=RHO)
    theta = frontier(spectrum, 1.0).theta
    ratio_pretrain, ratio_harmful = (
        kappa_of_gram(theta.T @ of.gram_held_out @ theta, of.samples_held_out, "ridge", DEFAULT_RHO) / of.kappa_held_out
        for of in (pretrain, harmful)
    )
    return {
        "alignment": float((pretrain.leading * harmful.leading).sum(0).abs().clamp_max(1).sum()),
        "rir_star": spectrum.rir_star,
        "rir_star_held_out": ratio_harmful / ratio_pretrain,
    }


def reached(of: dict[str, list[dict[str, Any]]]) -> dict[tuple[str, str, str], float]:
    """Geometric mean over seeds of every RIR that all seeds have."""
    found = {}
    for method, records in of.items():
        for part in PARTS:
            for estimator in ESTIMATORS:
                values = [record.get("metrics", {}).get(part, {}).get(estimator, {}).get("rir") for record in records]
                if values and all(value is not None and value > 0 for value in values):
                    found[method, part, estimator] = math.exp(sum(map(math.log, values)) / len(values))
    return found


if __name__ == "__main__":
    main()
