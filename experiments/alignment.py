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

Shapes: N samples, D features.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from experiments.reporting import choices, key_values, provenance_lines, verdict_of, write_csv
from immunize.building import build
from immunize.cli import entry_point, explain_errors
from immunize.config import config_dir, hash_of_run, register
from immunize.errors import UserError
from immunize.remembering import remembered
from immunize.report.figures import save_figure

if TYPE_CHECKING:
    from torch import Tensor

    from immunize.data import Source

NAME = "alignment"
RHO = 3e-2
"""ρ of every forecast: the best on MNIST by cross-validation (docs/closed_form.md)."""

TOP_K = 10
"""k of the alignment, as in `conf/forecast.yaml`."""

METHODS = ("ours", "closed_form")
PARTS, ESTIMATORS = ("fit", "held_out"), ("ridge", "spectrum")
PREDICTORS = {"alignment": "alignment of the top 10", "rir_star": "RIR* on fit", "rir_star_held_out": "RIR* held out"}
EXPECTED = {"alignment": -1, "rir_star": 1, "rir_star_held_out": 1}
"""The sign of a rank correlation that speaks for the claim."""

FAMILIES = ("mnist", "synthetic")
ANGLES, DATA_SEEDS = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90), (0, 1)
SYNTHETIC = ("harmful=synthetic", "logger=none", "figure=false", "probe_steps=100")
RESAMPLES, BOOTSTRAP_SEED = 5000, 0
FEWEST = 5
"""Points below which no correlation is reported."""

STYLES = {"ours": ("#0072B2", "o"), "closed_form": ("#D55E00", "s")}  # Okabe-Ito


@dataclass(frozen=True)
class Point:
    """One pair of data sets.

    Attributes:
        family: "mnist" or "synthetic".
        label: "3→8", or the angle and the seed of the data.
        cluster: what is drawn as a whole by the bootstrap.
        forecast: the predictors by name.
        reached: (method, part, estimator) to RIR; what is missing or not finite is left out.
    """

    family: str
    label: str
    cluster: str
    forecast: dict[str, float]
    reached: dict[tuple[str, str, str], float]


@dataclass(frozen=True)
class Correlation:
    """A rank correlation over one family.

    Attributes:
        family: see :class:`Point`.
        predictor: a key of `PREDICTORS`.
        method: whose RIR.
        part: of the data.
        estimator: of the RIR.
        points: how many.
        rho: Spearman's.
        low: lower end of the 95 % interval.
        high: upper end.
    """

    family: str
    predictor: str
    method: str
    part: str
    estimator: str
    points: int
    rho: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Whether the interval lies on the side that the claim expects."""
        return verdict_of(EXPECTED[self.predictor], self.low, self.high)


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
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(stored) + "\n", encoding="utf-8")
        os.replace(partial, path)
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


# --- the correlations ---------------------------------------------------------------------------------------------


def correlations(points: Sequence[Point]) -> list[Correlation]:
    """Every predictor against every RIR of both methods, family by family; those of few points are left out."""
    found = []
    for family in dict.fromkeys(point.family for point in points):
        for predictor in PREDICTORS:
            for method in METHODS:
                for part in PARTS:
                    for estimator in ESTIMATORS:
                        key = (method, part, estimator)
                        known = [p for p in points if p.family == family and key in p.reached]
                        varied = len({p.forecast[predictor] for p in known}) > 1
                        if varied and len({p.cluster for p in known}) >= FEWEST:
                            rho, low, high = spearman(
                                [p.forecast[predictor] for p in known],
                                [p.reached[key] for p in known],
                                [p.cluster for p in known],
                            )
                            found.append(Correlation(family, predictor, *key, len(known), rho, low, high))
    return found


def spearman(x: Sequence[float], y: Sequence[float], clusters: Sequence[str]) -> tuple[float, float, float]:
    """Spearman's rank correlation and its 95 % interval, percentiles of a bootstrap that draws whole clusters.

    Args:
        x: one number a point.
        y: likewise.
        clusters: what each point belongs to.
    """
    import numpy as np
    from scipy.stats import DegenerateDataWarning, bootstrap, spearmanr

    first, second = np.asarray(x), np.asarray(y)
    members: dict[str, list[int]] = defaultdict(list)
    for index, cluster in enumerate(clusters):
        members[cluster].append(index)
    rows = [np.array(of) for of in members.values()]

    def of(drawn: Any) -> float:
        index = np.concatenate([rows[int(one)] for one in drawn])
        if np.ptp(first[index]) == 0 or np.ptp(second[index]) == 0:
            return math.nan  # a draw of one point alone has no ranks
        return float(spearmanr(first[index], second[index]).statistic)

    with warnings.catch_warnings():
        # Of its own interval, which draws without ranks make NaN; the one below leaves them out.
        warnings.simplefilter("ignore", DegenerateDataWarning)
        result = bootstrap(
            (np.arange(len(rows)),),
            of,
            n_resamples=RESAMPLES,
            vectorized=False,
            method="percentile",
            rng=np.random.default_rng(BOOTSTRAP_SEED),
        )
    drawn = result.bootstrap_distribution
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return of(range(len(rows))), float(low), float(high)


# --- the report ---------------------------------------------------------------------------------------------------


def flat(point: Point) -> dict[str, Any]:
    """One line of results.csv."""
    line: dict[str, Any] = {"family": point.family, "pair": point.label, **point.forecast}
    for method in METHODS:
        for part in PARTS:
            for estimator in ESTIMATORS:
                line[f"rir_{method}_{part}_{estimator}"] = point.reached.get((method, part, estimator))
    return line


def readme_of(points: Sequence[Point], found: Sequence[Correlation], families: Iterable[str]) -> str:
    """The correlations as a table, and what they say of the claim."""
    counts = {family: [p for p in points if p.family == family] for family in families}
    facts = [("ρ of the forecasts", f"{RHO:g}")]
    if "mnist" in counts:
        facts.append(("mnist", f"{len(counts['mnist'])} of 90 pairs" + _by_method(counts["mnist"])))
    if "synthetic" in counts:
        facts.append(("synthetic", f"{len(ANGLES)} angles, {len(DATA_SEEDS)} data sets each, D = 32, N = 512"))
    facts.append(
        ("interval", f"95 %, percentiles of {RESAMPLES:,} bootstrap draws of pairs of digits, or of data sets")
    )
    held = [one for one in found if one.part == "held_out" and one.estimator == "ridge"]
    lines = [
        "# Does the forecast forecast?",
        "",
        *provenance_lines("make fig_alignment", facts),
        "",
        "Spearman's rank correlation of what is known before training with log RIR, by `ridge` on held-out rows:",
        "",
        "| family | method | " + " | ".join(PREDICTORS.values()) + " |",
        "| --- | --- |" + " --- |" * len(PREDICTORS),
    ]
    for family in counts:
        for method in METHODS:
            of = {one.predictor: one for one in held if (one.family, one.method) == (family, method)}
            cells = [_cell(of.get(predictor)) for predictor in PREDICTORS]
            lines.append(f"| {family} | `{method}` | {' | '.join(cells)} |")
    lines += ["", *(f"- {sentence}" for sentence in conclusions(held)), ""]
    lines += [
        "Bold: the interval excludes zero on the side that the claim expects (alignment negative, RIR* positive); "
        "italic: on the other side. `correlations.csv` has the other parts and estimators, `results.csv` every point.",
        "",
        f"![forecast and outcome]({NAME}.png)",
        "",
    ]
    return "\n".join(lines)


def conclusions(held: Sequence[Correlation]) -> list[str]:
    """A sentence a predictor and family: how many of the methods speak for it, and how many against."""
    sentences = []
    for family in dict.fromkeys(one.family for one in held):
        for predictor, words in PREDICTORS.items():
            of = [one for one in held if (one.family, one.predictor) == (family, predictor)]
            said = {
                word: [f"`{one.method}`" for one in of if one.verdict == word] for word in ("for", "against", "open")
            }
            parts = [
                f"{text} for {' and '.join(names)}"
                for text, names in (
                    ("orders RIR as expected", said["for"]),
                    ("orders it the other way round", said["against"]),
                    ("says nothing that these points could show", said["open"]),
                )
                if names
            ]
            sentences.append(f"{family}: {words} {'; '.join(parts)}.")
    return sentences


def draw(points: Sequence[Point], found: Sequence[Correlation], stem: Path) -> None:
    """A row a family, a column a predictor; held-out RIR by `ridge` of both methods."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    families = list(dict.fromkeys(point.family for point in points))
    figure = Figure(figsize=(11.5, 3.6 * len(families)), layout="constrained")
    axes = figure.subplots(len(families), len(PREDICTORS), squeeze=False, sharey="row")
    for row, family in zip(axes, families, strict=True):
        for axis, (predictor, title) in zip(row, PREDICTORS.items(), strict=True):
            for method in METHODS:
                key = (method, "held_out", "ridge")
                known = [p for p in points if p.family == family and key in p.reached]
                one = next(
                    (
                        c
                        for c in found
                        if (c.family, c.predictor, c.method, c.part, c.estimator) == (family, predictor, *key)
                    ),
                    None,
                )
                label = f"{method}" + ("" if one is None else f": {one.rho:+.2f} [{one.low:+.2f}, {one.high:+.2f}]")
                colour, marker = STYLES[method]
                x, y = [p.forecast[predictor] for p in known], [p.reached[key] for p in known]
                axis.plot(x, y, marker, color=colour, markersize=4, alpha=0.7, label=label)
            axis.set(xlabel=title, yscale="log")
            if predictor != "alignment":
                axis.set_xscale("log")
                axis.xaxis.set_minor_formatter(NullFormatter())  # 3·10⁰ beside 4·10⁰ would overlap
            axis.axhline(1, color="#888888", linewidth=0.8)
            axis.grid(alpha=0.25, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(frameon=False, fontsize=7.5, title="rank correlation", title_fontsize=7.5)
        row[0].set_ylabel(f"{family}: held-out RIR, ridge")
    figure.suptitle("What is known before training, and the RIR that is reached", fontsize=11)
    save_figure(figure, stem)


def _by_method(points: Sequence[Point]) -> str:
    counts = [f"`{method}` {sum(any(key[0] == method for key in p.reached) for p in points)}" for method in METHODS]
    return f" with records ({', '.join(counts)})"


def _cell(one: Correlation | None) -> str:
    if one is None:
        return "–"
    text = f"{one.rho:+.2f} [{one.low:+.2f}, {one.high:+.2f}], n = {one.points}"
    return {"for": f"**{text}**", "against": f"*{text}*", "open": text}[one.verdict]


if __name__ == "__main__":
    main()
