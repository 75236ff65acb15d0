"""A network in a run: images, a frozen trunk, θ_0 beside it, features of every image that is measured.

Features are those of θ_0 and of the immunized network, one pass of the trunk for both. Those of θ_0 are the same in
every run of a sweep and are kept in a folder. Where several processes share a run, each computes its share of the
images, and the first one gets them all, and keeps θ_0's for the next run of as many.

Sees every room; no room sees it. Shapes: N samples, D features.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import Logger
from torch import Tensor, distributed
from torch.utils.data import Dataset, Subset

from immunize.checkpoints import check_owner
from immunize.data import ROLES, Role
from immunize.data.images.pair import ImagePair
from immunize.errors import CheckpointError, DivergedError, UserError
from immunize.evaluation import EvaluationSettings, evaluate_deep
from immunize.evaluation.deep import PARTS
from immunize.features.append import released_network
from immunize.features.deep import DeepExtractor
from immunize.features.extract import Features, cache_place, cached_trunk, extract
from immunize.features.weights import load_weights, save_weights
from immunize.objective import Head, Objective, world_size
from immunize.objective.deep import without_spectrum
from immunize.pipeline.features import (
    Measured,
    accuracy,
    append_computed,
    by_set,
    head_of,
    mapped,
    measured_sets,
    shared,
    side_by_side,
    tell_of_unreadable,
)
from immunize.pipeline.fit import Fit, Telling, Training, train
from immunize.processes import is_first
from immunize.spectrum.condition import ZeroMatrixError
from immunize.training import DeepModule
from immunize.training.callbacks import NetworkMonitor, Resuming
from immunize.training.loggers import RunLogger

WATCHED_GROUPS = 5
"""So many of `deep.groups` times `deep.group_size` images of each data set are watched while a network trains."""

MOST_ROWS = 6000
"""Images of D_P whose features a method that prepares itself gets; more take time and change little (ours)."""


@dataclass(frozen=True, kw_only=True)
class NetworkModel:
    """f_θ behind a frozen trunk, with ω.

    Attributes:
        seed: of every draw.
        pair: D_P and D_H, set up.
        training: how a training goes.
        selection: see :class:`~immunize.pipeline.experiment.Experiment`.
        net: f_θ and ω, which are trained in place.
        reference: θ_0.
        objective: the method, with the parameters that it owns.
        theta_0: digests of its weights and of their file.
        plan: how large the evaluation is.
        batch_size: images at once when features are computed.
        workers: processes that read images.
        cache_dir: where computed features are kept for other runs; None keeps none.
        most_images: of each part and role that are measured; None takes all.
        on: the device; None is the trainer's.
        shares: how many processes this one stands for where a run of several is measured again.
        known: θ_0's features by part and role, as far as they were computed.
    """

    seed: int
    pair: ImagePair
    training: Training
    selection: str | None
    net: DeepExtractor
    reference: DeepExtractor
    objective: Objective
    theta_0: dict[str, str | None]
    plan: EvaluationSettings
    batch_size: int
    workers: int
    cache_dir: Path | None
    most_images: int | None
    on: torch.device | None = None
    shares: int = 1
    known: dict[tuple[str, Role], Features] = field(default_factory=dict, repr=False)

    @cached_property
    def images(self) -> dict[str, dict[Role, Any]]:
        """Part -> role -> images that are measured.

        Raises:
            UserError: a part has fewer than a group of the evaluation.
        """
        return measured_sets(self.pair, self.selection, self.plan.group_size, self.most_images)

    @cached_property
    def device(self) -> torch.device:
        """Where this process trains and measures.

        Raises:
            UserError: a bad `trainer` setting, such as devices that do not exist.
        """
        return self._trainer.strategy.root_device if self.on is None else self.on

    @cached_property
    def _trainer(self) -> Trainer:
        """Trains nothing, but knows where it would, and in how many processes."""
        return self.training.trainer([], [], self.pair)

    @property
    def cached(self) -> bool:
        """Whether every image goes through the frozen trunk once, and training begins behind it."""
        return bool(self.training.row.cache_frozen) and self.objective.trains

    @cached_property
    def inputs(self) -> dict[str, dict[Role, Any]]:
        """Part -> role -> the images, or what the frozen trunk makes of them; the network is moved to the device.

        Raises:
            UserError: images are augmented, the network is in one piece, or its outputs do not fit into the memory.
        """
        if not self.cached:
            return self.images
        if self.training.row.augment:
            raise UserError("objective.cache_frozen computes every image once; set objective.augment=false")
        return {part: self._behind_trunk(roles) for part, roles in self.images.items()}

    @cached_property
    def trained(self) -> dict[Role, Any]:
        """Role -> all of `fit`, likewise, of which :attr:`inputs` may have a part."""
        if self.cached and self.most_images is None:
            return self.inputs["fit"]
        images = {role: self.pair.measured(role).fit for role in ROLES}
        return self._behind_trunk(images) if self.cached else images

    def _behind_trunk(self, images: dict[Role, Any]) -> dict[Role, Any]:
        return {
            role: cached_trunk(
                self.net,
                of_role,
                batch_size=self.batch_size,
                workers=self.workers,
                device=self.device,
                cache_dir=self.cache_dir,
                key={"images": of_role.fingerprint},
            )
            for role, of_role in images.items()
        }

    # --- fit ------------------------------------------------------------------------------------------------------

    def fit(
        self, pair: ImagePair, loggers: list[Logger], telling: Telling, kept: tuple[Path, str] | None = None
    ) -> Fit:
        """Train in place, on from where it was interrupted; nothing but a look at the data if the method solves.

        See :class:`~immunize.pipeline.experiment.Model`.
        """
        assert kept is not None
        telling = replace(telling, label=self.training.method)
        seed_everything(self.seed, workers=True, verbose=False)
        _ = self.inputs  # of θ_0's trunk
        if not self.objective.trains:
            return Fit()
        if self.cached:
            for role in ROLES:
                pair.replace_fit(role, self.trained[role])
        self._prepare()
        module = self._module()
        training, row = self.training, self.training.row
        resuming = Resuming(kept[0], f"{kept[1]} {self.theta_0['theta_0_sha256']}", resume=training.resume)
        if resuming.place is not None:
            pair.go_on(*resuming.place)
        for logger in loggers:
            if resuming.run_id is not None and isinstance(logger, RunLogger):
                logger.go_on(resuming.run_id)
        monitor = NetworkMonitor(
            self.reference,
            self._watched(),
            every=row.check_every if row.early_stopping else training.monitor_every,
            patience=row.patience if row.early_stopping else None,
            cached=self.cached and pair.validation("pretrain") is None,
            quiet=telling.quiet,
        )
        callbacks = training.callbacks(self.objective, monitor, telling)
        trainer = training.trainer(loggers, [*callbacks, resuming], pair)
        return train(module, pair, trainer, label=telling.label, checkpoint=resuming.begins_with)

    def _prepare(self) -> None:
        """Let the method see what it needs of θ_0 and of D_H's labels, before the first step."""
        inputs, labels = self.trained, self.pair.labels("harmful")
        rows = [torch.from_numpy(own) for own in self.pair.rows_by_set("harmful")]

        def theta_0() -> list[Features]:
            draw = torch.Generator().manual_seed(self.seed)
            some = torch.randperm(len(inputs["pretrain"]), generator=draw)[:MOST_ROWS]
            sides: list[tuple[Role, Tensor]] = [("pretrain", some), *(("harmful", own) for own in rows)]
            if self.cached and self.most_images is None and self._trainer.world_size == 1:  # measured later
                measured = self._features(None, {"fit": inputs})
                assert measured is not None
                fit = measured["theta_0"]["fit"]
                return [Features(fit[role].x[chosen], fit[role].y[chosen]) for role, chosen in sides]
            self.net.to(self.device)
            return [
                extract(
                    self.net.features if self.cached else self.net,
                    Subset(inputs[role], chosen.tolist()),
                    batch_size=self.batch_size,
                    workers=self.workers,
                    device=self.device,
                )
                for role, chosen in sides
            ]

        self.objective.prepare(self.net, [labels[own] for own in rows], theta_0)

    def _module(self) -> DeepModule:
        row = self.training.row
        assert row.weight_decay is not None
        assert row.head_weight_decay is not None
        return DeepModule(
            self.net,
            weight_decay=row.weight_decay,
            head_weight_decay=row.head_weight_decay,
            harmful_classes=tuple(self.pair.harmful_sets.values()),
            cached=self.cached,
            reference=self.reference,
            **self.training.of(self.objective),
        )

    def _watched(self) -> dict[Role, Dataset[Any]]:
        """Of both data sets what is looked at while training: images set aside if there are any, or inputs of `fit`."""
        most = self.plan.group_size * min(self.plan.n_groups, WATCHED_GROUPS)
        found: dict[Role, Dataset[Any]] = {}
        for role in ROLES:
            aside = self.pair.validation(role)
            images = self.trained[role] if aside is None else aside
            drawn = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.seed))[:most]
            found[role] = Subset(images, drawn.tolist())
        return found

    # --- evaluate -------------------------------------------------------------------------------------------------

    def numbers(self, fits: dict[str, Fit], say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        """The numbers of the record, from the features of every image; a map that there is none of yet is computed."""
        say("measuring: features of all images")
        features = self._features(self.net if self.objective.trains else None, self.inputs)
        if features is None:
            return {}
        after, fit = head_of(self.net.head), fits["fit"]
        if not self.objective.trains:
            if fit.appended is None:
                rows = features["theta_0"]["fit"]
                started = time.perf_counter()
                computed = append_computed(self.objective, self.net.network.cpu(), rows["pretrain"], rows["harmful"])
                fit.released, fit.appended, fit.facts["closed_form"] = computed
                fit.seconds = time.perf_counter() - started
            after = mapped(features, fit.appended)
        say("measuring: condition numbers with intervals, then probes")
        return self._numbers(features, after, fit.steps)

    def _features(self, trained: DeepExtractor | None, inputs: dict[str, dict[Role, Any]]) -> Measured | None:
        """Of both networks on the same images; None in every process but the first.

        Args:
            trained: the immunized network; None where nothing was trained: θ_0's features then stand for its own.
            inputs: part -> role -> images, or trunk outputs, of :attr:`images`.
        """
        moved = [] if trained is None else [trained.to(self.device)]
        dtype = [self.reference, *moved][-1].dtype  # a trainer's precision is that of the network it has moved
        self.reference.to(self.device, dtype)
        compute = partial(extract, dtype=dtype, device=self.device, batch_size=self.batch_size, workers=self.workers)
        facts = {} if self.cache_dir is None else self.reference.cache_facts()
        facts["trunk"] = "kept" if self.cached else "computed"
        count = max(self.shares, world_size())
        if count > 1:
            facts["shares"] = count  # they round differently
        kept = self.known if count == 1 else {}
        out: Measured = {"immunized": {}, "theta_0": {}}
        for part, roles in inputs.items():
            for role, rows in roles.items():
                place = None
                if self.cache_dir is not None:
                    key = {"images": self.images[part][role].fingerprint, **facts}
                    place = cache_place(self.cache_dir, key, dtype, self.device, self.batch_size)
                known = kept.get((part, role))
                if known is not None and known.x.dtype != dtype:
                    known = None
                if known is None and place is not None and is_first():
                    known = place.load()
                first_knows = [known is not None]
                if world_size() > 1:  # others may not see its disk
                    distributed.broadcast_object_list(first_knows)
                wanted = [*moved, *([] if first_knows[0] else [self.reference])]
                found = known
                if wanted:
                    found = shared(partial(compute, side_by_side(wanted, cached=self.cached)), rows, self.shares)
                if found is None:
                    continue
                each = torch.split(found.x, self.reference.n_features, dim=1)
                if known is None:
                    known = Features(each[-1].contiguous(), found.y)
                    if place is not None:
                        place.save(known)
                kept[part, role] = known
                out["immunized"].setdefault(part, {})[role] = Features(each[0].contiguous(), found.y)
                out["theta_0"].setdefault(part, {})[role] = known
        tell_of_unreadable(inputs)
        return out if out["immunized"] else None

    def _numbers(self, features: Measured, after: Head, step: int) -> dict[str, Any]:
        """The numbers of the record.

        Of several harmful data sets each is evaluated by itself, under "harmful_sets". The numbers beside it are those
        of the weakest, the one with the smallest RIR (pooled, `spectrum`, on images that training never saw): (ii) and
        the accuracy on D_P are the same for all, so that Definition 3.1 by the pooled numbers of that part holds for
        all sets where it holds for that one.

        Args:
            features: of the images of D_P and of all harmful data sets.
            after: the classifier of the released network.
            step: the last, to be named where the features are of no use.

        Raises:
            DivergedError: the immunized network's features are not finite, or all zero where a spectrum is taken.
            UserError: those of θ_0 are.
        """
        broken = {
            which: without_spectrum((role, rows.x) for roles in parts.values() for role, rows in roles.items())
            for which, parts in features.items()
        }
        if (found := broken["theta_0"]) is not None:
            raise UserError(
                f"θ_0's features of {found[0]} are {'all zero' if found[1] == 0 else 'not finite'}: check the weights "
                "and the transform of model=..., no number of this run would mean anything"
            )
        if (found := broken["immunized"]) is not None:
            raise DivergedError(step, f"features of {found[0]}", found[1])
        held = {which: of["held_out"]["pretrain"] for which, of in features.items()}
        top = {
            "before": accuracy(held["theta_0"], head_of(self.reference.head)),
            "after": accuracy(held["immunized"], after),
        }
        try:
            each = {
                name: evaluate_deep(of, top, seed=self.seed, settings=self.plan)
                for name, of in by_set(features, self.pair.harmful_sets).items()
            }
        except ZeroMatrixError:  # of a whole group
            raise DivergedError(step, "features of a group of images", 0.0) from None
        weakest = min(each, key=lambda name: float(each[name]["metrics"][PARTS[1]]["spectrum"]["rir"]))
        numbers = {**each[weakest], "weakest": weakest, "harmful_sets": each} if len(each) > 1 else each[weakest]
        return numbers if self.selection is None else _renamed(numbers, PARTS[1], self.selection)

    def read(self, path: Path, record: dict[str, Any]) -> dict[str, Fit]:
        """The weights of the run, into the network; what was not trained has to be θ_0's."""
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist: the run did not get as far as a checkpoint")
        known = record["network"].get("theta_0_sha256")
        if known is not None and self.theta_0["theta_0_sha256"] != known:
            raise CheckpointError("θ_0 is not that of the run: is model.checkpoint still the file that it began with?")
        state = load_weights(path)
        check_owner(path, record["config_hash"])
        net, fit = self.net, Fit(steps=record["training"]["fit"]["steps"])
        if (name := net.moved_weight(state, tail=self.objective.trains)) is not None:
            raise CheckpointError(
                f"{path}: {name} was not trained, but is not θ_0's; is model.checkpoint the file that the run began "
                "with, and this the run's own checkpoint?"
            )
        if self.objective.trains:
            _ = self.inputs  # of θ_0's trunk
            net.to(next(value.dtype for value in state.values() if value.is_floating_point()))
            net.load_full_state_dict(state, str(path))
        else:
            fit.appended = released_network(net, state, str(path)).appended
            if fit.appended is None:
                raise CheckpointError(f"{path} has no appended map, which is all that the method changes")
        return {"fit": fit}

    def write(self, path: Path, fits: dict[str, Fit], config_hash: str) -> None:
        """The released network, by the names that it has in timm."""
        released = fits["fit"].released
        state = (self.net.network if released is None else released).state_dict()
        save_weights(path, state, {"config_hash": config_hash})


def network_facts(net: DeepExtractor) -> dict[str, Any]:
    """What of a network is trained and what is not, for the record."""
    trained = net.trainable_parameters()
    return {
        "architecture": net.name,
        "features": net.n_features,
        "parameters": sum(parameter.numel() for parameter in net.network.parameters()),
        "trained": [name for name, _ in trained],
        "trained_parameters": sum(parameter.numel() for _, parameter in trained),
        "split": net.no_split_reason or "at the first trained module",
        "input": {key: str(value) for key, value in net.data_config.items()},
    }


def _renamed(value: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """The same with a key renamed wherever it stands."""
    return {
        (new if key == old else key): _renamed(item, old, new) if isinstance(item, dict) else item
        for key, item in value.items()
    }
