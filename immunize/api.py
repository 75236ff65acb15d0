"""`immunize.immunize`: any torch network and two loaders in, the immunized network and its numbers out.

The Python counterpart of `python -m immunize.train` for a network, without configuration files and without a record.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from omegaconf import DictConfig
from torch import Tensor, nn

from immunize.errors import DivergedError, UserError
from immunize.evaluation import Verdicts, verdicts_of
from immunize.evaluation.deep import Rows
from immunize.evaluation.ratios import PooledRatio, block_grams, generator, gram, pooled_ratios
from immunize.features.boundary import SAME_ROWS, close
from immunize.features.deep import DeepExtractor
from immunize.features.extract import Features, Once, device_of
from immunize.features.linear import OF_NETWORKS, refuse_precondition
from immunize.features.loaders import (
    Batches,
    Loader,
    TrainedOn,
    batches,
    check_loaders,
    features_of,
    judged_by,
    not_judged_by,
    output_of,
)
from immunize.objective import Objective, task_loss
from immunize.objective.deep import without_spectrum
from immunize.pipeline.assemble import method_named, new_trainer, optimizer_factory, shared_row
from immunize.pipeline.features import append_computed
from immunize.pipeline.fit import by_its_own_numbers, train
from immunize.settings import MULTIPLIER, RATE, RHO, SEED, Rule
from immunize.spectrum.condition import DEFAULT_RHO, Estimator, ZeroMatrixError, check_varying, default_tolerance
from immunize.spectrum.decompositions import eigh
from immunize.spectrum.erasing import SAME_DATA, same_data
from immunize.spectrum.separability import separability
from immunize.training import DeepModule
from immunize.training.callbacks import GradientBalance

log = logging.getLogger(__name__)

STEPS, LEARNING_RATE = 120, 3e-3
"""Of a method whose YAML says nothing of them."""

DEFAULT_MULTIPLIER = 3
"""Of gradient norms, where none is given (C.2)."""

BALANCE_EVERY = 5
"""Steps between two balancings of λ: what a gradient of R_ill is worth changes fast (ours)."""

SETTINGS: dict[str, Rule] = {
    "steps": ("steps", lambda value: value >= 1, "at least 1"),
    "learning_rate": RATE,
    "multiplier": MULTIPLIER,
    "keep": ("keep", lambda value: value in ("answers", "labels"), "answers or labels"),
    "label_smoothing": ("label_smoothing", lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "rho": RHO,
    "seed": SEED,
}
"""What values they may have, by the rules of the command line where it has them."""

AT_MOST_TO_LOOK_AT = 8
"""Rows of the first batch with which the network is cut into a frozen and a trained part."""


@dataclass(frozen=True)
class Immunized:
    """What came of it.

    Attributes:
        backbone: the immunized feature extractor, a changed copy; for a method that appends a map, with it at the end.
        head: the classifier of D_P that goes with it.
        steps: of the optimizer.
        ratios: RIR_θ0 (Eq. 17), (i) and (ii) with their intervals, by estimator, over all rows of the two loaders.
        accuracy: top-1 on the fifth of `pretrain_loader`'s images that was not trained on, percent, "before" and
            "after", and the "agreement" of the two.
        weights: of the loss's terms at the end, λ_P ("well") and λ_H ("ill") among them.
        facts: what a method that needs no training says of its map.
        verdicts: Definition 3.1: (a) and (b) on all rows of the loaders, (c) by that accuracy.
        separability: what a ridge probe learns of "harmful" and "pretrain", "before" and "after": the cross-fitted
            correlation c on all rows of a loader at the best ρ, near 0 or below it where nothing is left; without
            "pretrain" where D_P has one label, and None where D_H has one.
        aims_at_kappa: whether (i), (ii) and RIR are the method's measure; if not, c is.
    """

    backbone: nn.Module
    head: nn.Linear
    steps: int
    ratios: dict[Estimator, PooledRatio]
    accuracy: dict[str, float]
    weights: dict[str, float]
    facts: dict[str, Any]
    verdicts: Verdicts
    separability: dict[str, dict[str, float]] | None
    aims_at_kappa: bool

    @property
    def what_failed(self) -> str:
        """What does not hold of Definition 3.1 and what to do; of a method that does not aim at κ by (c) alone."""
        v, failed = self.verdicts, []
        more, fewer = ("take more steps", "take fewer steps") if self.steps else ("give other options",) * 2
        if self.aims_at_kappa and not v.a:
            failed.append(f"(a): D_H is not harder, (i) = {v.ratio_harmful:.5g}; {more}, or another method")
        if self.aims_at_kappa and not v.b:
            failed.append(f"(b): D_P is {v.ratio_pretrain:.5g} times as hard; {fewer}, or another method")
        if not v.c:
            failed.append(f"(c): D_P's accuracy fell to {v.accuracy_after:.2f} %; {fewer}, or another method")
        return "; ".join(f"Definition 3.1 fails {one}" for one in failed)

    def __str__(self) -> str:
        """A few lines to print."""
        ratios = {name: pooled.ratio for name, pooled in self.ratios.items()}
        lines = [
            f"{name:<9} (i) {ratio.ratio_harmful:.4g}  (ii) {ratio.ratio_pretrain:.4g}  RIR {ratio.rir:.4g}"
            for name, ratio in ratios.items()
        ]
        before, after = self.accuracy["before"], self.accuracy["after"]
        lines.insert(0, f"{self.steps} steps; D_P accuracy {before:.2f} % → {after:.2f} %")
        if self.separability is not None:
            sides = {"D_H": self.separability["harmful"], "D_P": self.separability.get("pretrain")}
            words = (f"{name} {c['before']:.2f} → {c['after']:.2f}" for name, c in sides.items() if c is not None)
            lines.append(f"what a ridge probe learns (c): {', '.join(words)}")
        if not self.aims_at_kappa:
            lines.append("κ is not what this method aims at: c is its measure, and not (i), (ii) and RIR")
        if told := self.what_failed or ("Definition 3.1 holds on these rows" if self.aims_at_kappa else ""):
            lines.append(told)
        return "\n".join(lines)


def immunize(
    backbone: nn.Module,
    head: nn.Linear,
    pretrain_loader: Loader,
    harmful_loader: Loader,
    *,
    method: str | Objective = "ours",
    trainable: str | Sequence[str] | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    lambda_well: float | None = None,
    lambda_ill: float | None = None,
    multiplier: int | None = None,
    label_smoothing: float = 0.1,
    keep: str = "answers",
    options: Mapping[str, Any] | None = None,
    rho: float = DEFAULT_RHO,
    seed: int = 0,
) -> Immunized:
    """Immunize a network against a harmful data set: Eq. (11) on the features of its batches (§5.2).

    The network is not changed: what comes back is a copy. BatchNorm statistics are frozen and dropout is off, as in
    `immunize.train`. The optimizer is C.2's, SGD with Nesterov momentum 0.9 and weight decay on the classifiers alone,
    unless the method's YAML has another.
    What comes before the first trainable module, and θ_0's features, are computed once an image, known by its bytes,
    while memory suffices.

    Args:
        backbone: inputs → features (N, D).
        head: D → C, the classifier of D_P that the backbone comes with.
        pretrain_loader: D_P: (inputs, labels) batches each time it is iterated over, the same images as in the pass
            before, in any order; labels (N,) of an integer type.
        harmful_loader: D_H, likewise. A spectrum is taken of every batch: a few dozen rows or more.
        method: a name in `conf/method`: "ours", "ill_only", "well_only", "opt_kappa", "imma", "none", "closed_form",
            "erase", "censor", "contract", "simulated"; or a method of your own, which brings its weights and options
            itself.
        trainable: names or patterns (`fnmatch`) of the modules or parameters of `backbone` that may change, of a method
            that takes steps.
        steps: of the optimizer, a batch of each data set a step; the shorter loader begins again. None: those of the
            method's YAML, or else `STEPS`.
        learning_rate: η. None: that of the method's YAML, or else `LEARNING_RATE`.
        lambda_well: λ_P. None: so that the gradient norm of R_well is `multiplier` times that of the loss by D_P's
            labels (C.2), balanced again every few steps. Give both λ or none.
        lambda_ill: λ_H, likewise.
        multiplier: 1, 2, 3 or 5. None: 3.
        label_smoothing: of the cross-entropy on D_P.
        keep: "answers": D_P's loss is the distance from θ_0's own answers, so that a loader that is a sample of D_P
            is not fitted; "labels": Eq. (11) as printed.
        options: the method's own settings, as in its YAML, such as {"budget": 10, "shrinkage": 0.01}.
        rho: ρ of the `ridge` estimator.
        seed: from 0 to 2**32 - 1: of what the method draws, of the bootstrap, and of the global generators of torch,
            numpy and Python while this runs, by which a loader shuffles that has no generator of its own. Afterwards
            they go on where they were. What a loader's own generator or the network holds is the caller's.

    Raises:
        UserError: a setting that is wrong, or a network, loaders and a method that do not go together.
        DivergedError: a term of the loss was not finite.
    """
    _check_settings(
        {"keep": keep, "label_smoothing": label_smoothing, "rho": rho, "seed": seed},
        {"steps": steps, "learning_rate": learning_rate, "multiplier": multiplier},
    )
    _check_kinds(backbone, head, method, options)
    backbone = getattr(backbone, "_orig_mod", backbone)  # of a compiled one
    seed, steps = int(seed), None if steps is None else int(steps)
    with by_its_own_numbers(seed):
        objective, row, balanced = _method(method, (lambda_well, lambda_ill), multiplier, options, seed)
        try:
            refuse_precondition(objective.precondition, OF_NETWORKS, "a network")
        except ValueError as error:
            raise UserError(str(error)) from None
        theta_0, omega_0 = _copied(backbone, head)
        loaders = {"pretrain": pretrain_loader, "harmful": harmful_loader}
        check_loaders(loaders)
        if objective.trains:
            if trainable is None:
                raise UserError("trainable= is needed: names or patterns of the modules that may change")
            if head.weight.dtype == torch.float16:  # methods and optimizers have an ε, which is 0 there
                raise UserError("float16 is too narrow to train in: give backbone and head as .float() or .bfloat16()")
            released, classifier = _copied(backbone, head)
            net, reference, theta_0, kept = _cut(released, classifier, trainable, pretrain_loader)
        found = {role: features_of([theta_0], x, role) for role, x in loaders.items()}
        before = {role: (x, y) for role, ((x,), y, _) in found.items()}
        known = found["pretrain"][2]
        _check(before, head)
        _check_pair(**before)

        if objective.trains:
            for once in kept:
                once.images = sum(len(y) for _, y in before.values())
            measured: list[nn.Module] = [nn.Sequential(net.trunk, net.tail), theta_0]
            objective.bind(
                net.n_features,
                torch.Generator().manual_seed(seed),
                int(before["harmful"][1].max()) + 1,
                net.dtype,
            )
            objective.prepare(net, [before["harmful"][1]], lambda: [Features(*before[role]) for role in loaders])
            module = DeepModule(
                net,
                objective,
                task_loss(row.loss, label_smoothing),
                optimizer_factory(row.optimizer, learning_rate or row.get("learning_rate", LEARNING_RATE)),
                head_weight_decay=row.head_weight_decay,
                lr_decay=row.get("lr_decay"),
                reference=reference,
                keep_answers=keep == "answers",
            )
            steps = steps or row.get("max_steps", STEPS)
            taken = _train(module, TrainedOn(pretrain_loader), Batches(harmful_loader), steps, balanced)
            facts: dict[str, Any] = {}
            for moved in (net, reference, theta_0):  # which Lightning leaves on the CPU in part
                moved.to(device_of(backbone))
            _as_it_came(released, backbone)
            _as_it_came(classifier, head)
        else:
            fitted = slice(None) if objective.has_inverse else not_judged_by(known)  # without one answers are fitted
            rows = Features(*(of[fitted] for of in before["pretrain"])), Features(*before["harmful"])
            whole, appended, facts = append_computed(objective, nn.Sequential(theta_0, omega_0), *rows, head="1")
            released = nn.Sequential(whole.get_submodule("0"), appended.map).eval()
            classifier, taken, measured = appended.head.eval(), 0, [theta_0]
        ratios, told, learned = _numbers(
            (measured, loaders, objective), (released, classifier, omega_0), known, taken, rho=rho, seed=seed
        )
        verdicts = verdicts_of(vars(ratios["spectrum"].ratio), told)
    used, aims = dict(objective.weights), objective.aims_at_kappa
    result = Immunized(released, classifier, taken, ratios, told, used, facts, verdicts, learned, aims)
    if objective.aims_at_kappa and not verdicts.b:
        log.warning("%s", result.what_failed)
    return result


def _numbers(
    of: tuple[list[nn.Module], Mapping[str, Loader], Objective],
    networks: tuple[nn.Module, nn.Linear, nn.Linear],
    known: Tensor,
    taken: int,
    *,
    rho: float,
    seed: int,
) -> tuple[dict[Estimator, PooledRatio], dict[str, float], dict[str, dict[str, float]] | None]:
    """`ratios`, `accuracy` and `separability` of what came of it.

    Args:
        of: the backbones to be run, loaders by role, the method.
        networks: the released backbone and its head, and θ_0's head.
        known: hashes of D_P's rows in the first pass.
        taken: steps of the optimizer.
        rho: ρ of the `ridge` estimator.
        seed: of the bootstrap.
    """
    (measured, loaders, objective), (released, classifier, omega_0) = of, networks
    # Both networks in one pass: a shuffling loader has another order each time, and the bootstrap pairs rows.
    both = {role: features_of(measured, x, role) for role, x in loaders.items()}
    if not objective.trains:
        weight = released.get_parameter("1.weight")
        for of_networks, _, _ in both.values():
            of_networks.insert(0, _behind(of_networks[0], weight))
    after, before = ({role: (x[which], y) for role, (x, y, _) in both.items()} for which in (0, 1))
    if (found := without_spectrum((role, x - x[:1]) for role, (x, _) in after.items())) is not None:
        raise DivergedError(taken, f"features of {found[0]}", found[1])
    _check(after, classifier)
    grams = [block_grams(rows[role][0], seed=seed) for rows in (after, before) for role in loaders]
    try:
        ratios = pooled_ratios(*grams, rho=rho, replicates=100, draws=generator(seed, "bootstrap"))
    except ZeroMatrixError:  # of rows that the bootstrap drew
        raise DivergedError(taken, "features of a group of rows", 0.0) from None
    _, y, hashes = both["pretrain"]
    aside = judged_by(hashes, hashes if objective.has_inverse and not objective.trains else known)
    old, new = answers(before["pretrain"][0], omega_0), answers(after["pretrain"][0], classifier)
    pairs = {"before": (old, y), "after": (new, y), "agreement": (old, new)}
    kept = {name: 100 * float((one == other)[aside].double().mean()) for name, (one, other) in pairs.items()}
    return ratios, kept, _learned(before, after)


def _learned(before: Mapping[str, Rows], after: Mapping[str, Rows]) -> dict[str, dict[str, float]] | None:
    """The largest c over ρ by role, before and after; None where D_H has one label."""
    found = {
        role: {
            which: max(separability(*rows[role])["cross_fitted"].values())
            for which, rows in (("before", before), ("after", after))
        }
        for role, (_, y) in before.items()
        if bool((y != y[0]).any())
    }
    return found if "harmful" in found else None


def _method(
    method: str | Objective,
    lambdas: tuple[float | None, float | None],
    multiplier: int | None,
    options: Mapping[str, Any] | None,
    seed: int,
) -> tuple[Objective, DictConfig, int | None]:
    """The method, the numbers that go with it, and by which multiple of gradient norms λ is balanced; None is not."""
    if (lambdas[0] is None) != (lambdas[1] is None):
        raise UserError("give both lambda_well and lambda_ill, or neither: then both come from the gradient norms")
    if isinstance(method, str):
        well, ill = (None if value is None else float(value) for value in lambdas)
        plain = {name: of.item() if isinstance(of, np.generic) else of for name, of in (options or {}).items()}
        objective, row = method_named(method, well, ill, plain, seed)
        own = {"lambda_well", "lambda_ill"} & (options or {}).keys()
        by_norms = lambdas[0] is None and not own and bool({"well", "ill"} & objective.weights.keys())
    else:
        if lambdas[0] is not None or options:
            raise UserError("a method of your own brings its weights and options itself: leave them out")
        objective, row = copy.deepcopy(method), shared_row()  # which may own parameters, as the network does
        by_norms = False
    if multiplier is not None and not by_norms:
        raise UserError("multiplier has no effect here: no λ comes from gradient norms; leave it out")
    return objective, row, (multiplier or DEFAULT_MULTIPLIER) if by_norms else None


def _check_kinds(backbone: Any, head: Any, method: Any, options: Any) -> None:
    kinds: dict[str, tuple[Any, Any, str]] = {
        "backbone": (backbone, nn.Module, "a torch module"),
        "head": (head, nn.Linear, "the nn.Linear that classifies D_P by its features"),
        "method": (method, str | Objective, "a name in conf/method or an Objective"),
        "options": (options or {}, Mapping, "a dictionary"),
    }
    for name, (value, kind, words) in kinds.items():
        if not isinstance(value, kind):
            raise UserError(f"{name} has to be {words}, it is {type(value).__name__}")
    if any(weight is head.weight for weight in backbone.parameters()):
        log.warning("backbone and head share a weight: what comes back has one each")
    if (dtype := head.weight.dtype) in (torch.bfloat16, torch.float16):
        log.warning("features of %s have three digits, of which κ is made: give backbone and head as .float()", dtype)


def _check_settings(needed: dict[str, Any], optional: Mapping[str, Any]) -> None:
    given = {name: value for name, value in optional.items() if value is not None}
    for name, value in (needed | given).items():
        if name in ("steps", "seed") and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise UserError(f"{name} has to be an int, it is {value!r}")
        _, holds, words = SETTINGS[name]
        try:
            held = holds(value)
        except TypeError:  # no number
            held = False
        if not held:
            raise UserError(f"{name} has to be {words}, it is {value!r}")


def _copied(backbone: nn.Module, head: nn.Linear) -> tuple[nn.Module, nn.Linear]:
    """In eval mode; a weight that both have becomes two."""
    try:
        return copy.deepcopy(backbone).eval(), copy.deepcopy(head).eval()
    except (RuntimeError, TypeError) as error:
        advice = ", call it once under torch.no_grad()" if "graph leaves" in str(error) else ""
        raise UserError(f"the network cannot be copied{advice}: {error}") from None


def _cut(
    backbone: nn.Module, head: nn.Linear, trainable: str | Sequence[str], loader: Loader
) -> tuple[DeepExtractor, DeepExtractor, nn.Module, list[Once]]:
    """The network that is trained, whose frozen part works once an image, θ_0 behind the same part, θ_0 as a whole.

    And those of them that keep what they computed, each with its share of what one of them could keep.
    """
    example = next(batches(loader, "pretrain"))[0][:AT_MOST_TO_LOOK_AT].clone()  # a network may write into its inputs
    with torch.no_grad():  # what modules keep of a forward pass can then be copied
        given = output_of(backbone.eval(), example.to(device_of(backbone)), "pretrain").dtype
    if given != head.weight.dtype:
        raise UserError(f"the backbone gives {given} and the head is of {head.weight.dtype}: give both as .float()")
    net = DeepExtractor.from_module(backbone, head, trainable, example=example)
    example = example.to(device_of(backbone))
    if not net(example[:2].clone()).requires_grad:
        raise UserError(f"trainable={trainable!r}: no gradient reaches it; the backbone's features do not depend on it")
    with torch.no_grad():
        few, more = (output_of(net, rows.clone(), "pretrain")[:2] for rows in (example[:2], example))  # as above
    net.compute_once()
    reference = net.reference()
    theta_0: nn.Module = nn.Sequential(net.trunk, reference.tail)
    if close(few, more, SAME_ROWS):  # of each image alone
        theta_0 = Once(theta_0)
    kept = [module for module in (net.trunk, theta_0) if isinstance(module, Once)]
    for once in kept:
        once.limit //= len(kept)
    return net, reference, theta_0, kept


def _as_it_came(copied: nn.Module, original: nn.Module) -> None:
    """No gradients, and trainable what the caller had trainable."""
    for mine, theirs in zip(copied.parameters(), original.parameters(), strict=True):
        mine.grad = None
        mine.requires_grad_(theirs.requires_grad)


def _train(module: DeepModule, pretrain: Loader, harmful: Loader, steps: int, multiplier: int | None) -> int:
    """Train in place; returns the steps taken."""
    callbacks: list[Callback] = []
    if multiplier is not None:
        callbacks.append(GradientBalance(multiplier, BALANCE_EVERY, lower=True))
    where = "cpu" if torch.backends.mps.is_available() else "auto"  # MPS has no float64, which spectra are in
    trainer = new_trainer(Trainer, [], callbacks, max_steps=steps, max_epochs=-1, devices=1, accelerator=where)
    fit = train(module, {"pretrain": pretrain, "harmful": harmful}, trainer)
    if fit.status == "interrupted":
        raise SystemExit(128 + fit.signal) if fit.signal else KeyboardInterrupt
    if fit.error is not None:
        raise fit.error
    return fit.steps


def _behind(x: Tensor, weight: Tensor) -> Tensor:
    """Features (N, D) behind a map, float64; of directions that are none but for rounding the map makes no new ones."""
    values, vectors = eigh(gram(x))
    own = vectors[:, values > default_tolerance(*x.shape) * values[-1]]
    mapped: Tensor = x.double() @ (own @ (own.T @ weight.detach().cpu().double().T))
    return mapped


def _check(rows: Mapping[str, tuple[Tensor, Tensor]], head: nn.Linear) -> None:
    for role, (x, y) in rows.items():
        if x.ndim != 2 or x.shape[1] != head.in_features:
            raise UserError(f"{role}: the backbone gives {tuple(x.shape)}, the head needs (N, {head.in_features})")
        if y.ndim != 1 or y.is_floating_point() or int(y.min()) < 0:
            raise UserError(f"{role}: labels have to be whole numbers from 0, one a row")
        if not bool(torch.isfinite(x).all()):
            raise UserError(f"{role}: the features contain NaN or infinite values")
    if int(rows["pretrain"][1].max()) >= head.out_features:
        raise UserError(f"D_P has labels up to {int(rows['pretrain'][1].max())}, the head {head.out_features} outputs")


def _check_pair(pretrain: Rows, harmful: Rows) -> None:
    try:
        check_varying(pretrain[0], "D_P")
        check_varying(harmful[0], "D_H")
    except ValueError as error:
        raise UserError(str(error)) from None
    if same_data([pretrain], [harmful]):
        raise UserError(SAME_DATA)


def answers(x: Tensor, head: nn.Linear) -> Tensor:
    """The class that a classifier gives each row, (N,), on the CPU."""
    with torch.no_grad():
        return head(x.to(head.weight)).argmax(1).cpu()  # type: ignore[no-any-return]
