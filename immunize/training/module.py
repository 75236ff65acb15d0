"""The LightningModules: a weighted sum of named terms is minimized, and no method is known here.

Eq. (11) is the sum that `method=ours` names; every other method is another set of terms (:mod:`immunize.objective`).
What a batch is made into for the method, and which parameters decay, is the business of the two kinds, linear and deep.
A θ_0 of one's own is trained by `SupervisedModule`.

Shapes: N samples, D features, C classes; h whatever enters a network's trained part.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from immunize.data import Parts, Role
from immunize.errors import DivergedError, UserError
from immunize.features.deep import DeepExtractor
from immunize.features.linear import LinearExtractor
from immunize.objective import (
    DeepSide,
    DeepStep,
    LinearStep,
    Objective,
    Side,
    Step,
    TaskLoss,
    all_finite,
    mean_over_ranks,
)
from immunize.spectrum.ranges import compress_rows

if TYPE_CHECKING:
    from immunize.data.pair import PairedData

Batch = dict[Role, tuple[Tensor, Tensor]]
OptimizerFactory = Callable[[Iterable[Any]], Optimizer]
"""From parameters, or groups of them with settings of their own, to their optimizer."""

MOMENTUM = (0.85, 0.95)
"""Nesterov's, of θ_0: the one-cycle schedule lowers it to the first while η rises, and raises it again."""


class ImmunizationModule(LightningModule):
    """Trains θ and ω (and whatever the method owns) on {pretrain, harmful} batches.

    Args:
        objective: the method.
        task_loss: L.
        optimizer: builds the optimizer from the parameters, or groups of them.
        log_every: steps between two rows of the loggers.
        lr_decay: share of the steps, the last ones, over which the learning rate falls linearly to zero; None for none.
        max_steps: of a training that ends before its epochs do.

    Attributes:
        last_finite: the trained parameters of the last step at which all terms were finite.
    """

    def __init__(
        self,
        objective: Objective,
        task_loss: TaskLoss,
        optimizer: OptimizerFactory,
        *,
        log_every: int = 10,
        lr_decay: float | None = None,
        max_steps: int | None = None,
    ) -> None:
        super().__init__()
        self.objective, self.task_loss, self.optimizer_factory = objective, task_loss, optimizer
        self.log_every, self.lr_decay, self.max_steps = log_every, lr_decay, max_steps
        self.last_finite: dict[str, Tensor] = {}
        self._latest: Step | None = None
        self.strict_loading = False  # a checkpoint of a training holds what is trained

    @abstractmethod
    def step_of(self, batch: Batch) -> Step:
        """What the method sees of a batch."""

    @abstractmethod
    def unusable(self) -> tuple[str, float] | None:
        """Of what a spectrum cannot be taken any more although θ is finite, and its value."""

    @abstractmethod
    def theta_parameters(self) -> list[nn.Parameter]:
        """The parameters of θ that are trained, without those of classifiers."""

    def reference_loss(self, step: Step, terms: dict[str, Tensor]) -> Tensor:
        """The loss whose gradient norm λ_P and λ_H are balanced with."""
        return terms["task"]

    def groups(self) -> Iterable[Any]:
        """What is trained, as an optimizer takes it: one group with every parameter."""
        return self.parameters()

    def configure_optimizers(self) -> Any:
        """The optimizer, with the decay of its learning rate if there is one."""
        optimizer = self.optimizer_factory(self.groups())
        if self.lr_decay is None:
            return optimizer
        steps, share = self.steps, self.lr_decay
        schedule = LambdaLR(optimizer, lambda step: max(0.0, min(1.0, (steps - step) / (share * steps))))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @property
    def steps(self) -> int:
        """Of the whole training."""
        steps = int(self.trainer.estimated_stepping_batches)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def on_train_start(self) -> None:
        """A training that was interrupted after its last step takes no other."""
        self.on_train_batch_end()

    def on_train_batch_end(self, *_: Any) -> None:
        """Stop at `max_steps`, wherever that is in an epoch.

        Lightning's own `max_steps` does so too. But with it, a training that goes on from the end of an epoch takes one
        more step of that epoch first, as its loop waits for a validation that never comes (2.5 to 2.6), so that its
        results are not those of a training without interruption.
        """
        self.trainer.should_stop |= self.max_steps is not None and self.trainer.global_step >= self.max_steps

    def on_train_end(self) -> None:
        """Let go of the last batch and its graph, with which the module cannot be copied."""
        self._latest = None

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The weighted sum of the method's terms.

        Raises:
            DivergedError: a term is not finite. `last_finite` then holds the parameters of the last step at which
                all were.
            UserError: a method without terms, or with one that is no scalar or that its weights do not name.
        """
        self._latest = self.step_of(batch)
        terms = self.objective.terms(self._latest)
        weights = self.objective.weights
        if not terms or not terms.keys() <= weights.keys():
            raise UserError(f"the method has the weights {sorted(weights)}, and its terms are {sorted(terms)}")
        for name, term in terms.items():
            if not isinstance(term, Tensor) or term.ndim:
                found = f"one of shape {tuple(term.shape)}" if isinstance(term, Tensor) else type(term).__name__
                raise UserError(f"the method's term {name!r} has to be a scalar tensor, it is {found}")
        weighted = self._weighted(terms)
        loss = torch.stack([*weighted.values()]).sum()
        if not all_finite(loss):
            broken = [(name, terms[name].item()) for name in weighted if not bool(torch.isfinite(terms[name]))]
            raise DivergedError(self.global_step, *(broken or [("loss", loss.item())])[0])
        self.keep(self.last_finite)
        if self.global_step % self.log_every == 0:
            means = mean_over_ranks([of.detach() for of in (loss, *terms.values())])
            named = dict(zip(("loss", *(f"term/{name}" for name in terms)), means, strict=True))
            self.log_now({name: value.item() for name, value in (named | self.objective.watched).items()})
        return loss

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """The trainer's, then the method's own."""
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
        if self.objective.gradient_clip is not None:
            nn.utils.clip_grad_norm_(self.parameters(), self.objective.gradient_clip)

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer | LightningOptimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Lightning's, and a look at the parameters before anybody takes a spectrum of them.

        Raises:
            DivergedError: a parameter left the range of numbers in this step. It names the term whose weighted gradient
                was the largest; the parameters are those of before.
        """
        step = self.global_step
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        norms = torch.stack([torch.linalg.vector_norm(parameter.detach()) for _, parameter in self._trained()])
        if not bool(torch.isfinite(norms).all()):
            self.restore(self.last_finite)
            raise DivergedError(step, self._steepest_term(), math.nan)

    def keep(self, snapshot: dict[str, Tensor]) -> None:
        """Copy all trained parameters into `snapshot`, reusing its memory."""
        for name, parameter in self._trained():
            if name in snapshot:
                snapshot[name].copy_(parameter.detach())
            else:
                snapshot[name] = parameter.detach().clone()

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Put the parameters back to what :meth:`keep` copied."""
        with torch.no_grad():
            for name, parameter in self._trained():
                parameter.copy_(snapshot[name])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what is trained or the method's own, the weights of terms, balanced or not, what the record counts."""
        trained = {name for name, _ in self._trained()}
        kept = {k: v for k, v in checkpoint["state_dict"].items() if k in trained or k.startswith("objective.")}
        checkpoint["state_dict"] = kept
        checkpoint["objective_weights"] = dict(self.objective.weights)
        checkpoint["attackers_diverged"] = dict(self.objective.diverged)
        checkpoint["watched"] = {name: value.detach().cpu() for name, value in self.objective.watched.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the weights of the terms back, and what the record counts."""
        _take_precision(self, checkpoint["state_dict"])
        self.objective.weights.update(checkpoint["objective_weights"])
        self.objective.diverged.update(checkpoint["attackers_diverged"])
        self.objective.watched.update(checkpoint["watched"])

    def log_now(self, metrics: dict[str, float]) -> None:
        """Write to every logger at the current step (Lightning's own `log` costs more than a small step does)."""
        for logger in self.loggers:
            logger.log_metrics(metrics, step=self.global_step)

    def _weighted(self, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """Terms times their weights, without those of no weight that are infinite, as R_ill of one direction is."""
        given = self.objective.weights
        kept = (name for name, term in terms.items() if given[name] or bool(torch.isfinite(term)))
        return {name: given[name] * terms[name] for name in kept} or terms

    def _steepest_term(self) -> str:
        assert self._latest is not None
        parameters = [parameter for _, parameter in self._trained()]
        sizes: dict[str, float] = {}
        with torch.enable_grad():
            for name, weighted in self._weighted(self.objective.terms(self._latest.again())).items():
                gradients = torch.autograd.grad(weighted, parameters, allow_unused=True, retain_graph=True)
                size = sum(float(g.norm()) for g in gradients if g is not None)
                sizes[name] = size if math.isfinite(size) else math.inf
        return max(sizes, key=lambda name: sizes[name])

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad]


def compressed(parts: Parts) -> dict[Role, Tensor]:
    """At most D rows of each data set with the same K, see :func:`~immunize.spectrum.ranges.compress_rows`."""
    return {role: compress_rows(part.x) for role, part in parts.items()}


class LinearModule(ImmunizationModule):
    """The linear model, f_θ(x) = xᵀθ.

    Args:
        extractor: f_θ.
        head: ω, (D, 1).
        common: what every :class:`ImmunizationModule` takes by position.
        rows: of full batches, :func:`compressed`, from which every step computes its spectra; None for mini-batches.
        options: what it takes by name.
    """

    def __init__(
        self,
        extractor: LinearExtractor,
        head: nn.Parameter,
        *common: Any,
        rows: Mapping[Role, Tensor] | None,
        **options: Any,
    ) -> None:
        super().__init__(*common, **options)
        self.extractor, self.head, self._rows = extractor, head, rows

    def step_of(self, batch: Batch) -> LinearStep:
        """What the method sees of a batch."""
        sides = {role: Side(x, y, x if self._rows is None else self._rows[role]) for role, (x, y) in batch.items()}
        return LinearStep(self.extractor, self.head, sides["pretrain"], sides["harmful"], self.task_loss)

    def theta_parameters(self) -> list[nn.Parameter]:
        """θ alone."""
        return list(self.extractor.parameters())

    def unusable(self) -> tuple[str, float] | None:
        """Of which of the trainer's rows the squared features are not finite, and what they come to."""
        pair: PairedData = self.trainer.datamodule  # type: ignore[attr-defined]
        with torch.no_grad():
            for role, part in pair.fit.items():
                size = float(self.extractor(part.x).square().sum())
                if not math.isfinite(size):
                    return f"squared features of {role}", size
        return None


class DeepModule(ImmunizationModule):
    """A network (§5.2, C.2): a frozen trunk without autograd, a trained tail, θ_0's classifier.

    Args:
        net: f_θ and ω, at θ_0.
        common: what every :class:`ImmunizationModule` takes by position.
        weight_decay: of the tail; C.2: 0.
        head_weight_decay: of the classifiers, ω and what the method owns; C.2: 2e-5.
        harmful_classes: C of each harmful data set where there are several, see :class:`~immunize.objective.DeepStep`.
        cached: batches hold what the trunk made of the images, not images.
        reference: θ_0, for a method that looks at it; None makes a copy of `net` where one is needed.
        keep_answers: see :class:`~immunize.objective.DeepStep`.
        options: what every one takes by name.
    """

    def __init__(
        self,
        net: DeepExtractor,
        *common: Any,
        weight_decay: float = 0.0,
        head_weight_decay: float = 0.0,
        harmful_classes: tuple[int, ...] = (),
        cached: bool = False,
        reference: DeepExtractor | None = None,
        keep_answers: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(*common, **options)
        self.net, self.cached = net, cached
        self.harmful_classes, self.keep_answers = harmful_classes, keep_answers
        theta_0 = reference or net.reference() if self.objective.looks_at_theta_0 or keep_answers else None
        self._theta_0 = (theta_0,)  # not registered: it is neither trained nor kept
        self.decay = {"tail": weight_decay, "heads": head_weight_decay}

    def step_of(self, batch: Batch) -> DeepStep:
        """What the method sees of a batch."""
        sides = {role: DeepSide(self.trunk(x), y) for role, (x, y) in batch.items()}
        theta_0 = self._theta_0[0]
        if theta_0 is not None:
            theta_0.to(self.device)
        step = DeepStep(
            self.net,
            sides["pretrain"],
            sides["harmful"],
            self.task_loss,
            self.harmful_classes,
            theta_0,
            self.keep_answers,
            self.global_step,
        )
        self._latest = step  # whoever asked: a callback may be the first to see that features have no spectrum
        return step

    def reference_loss(self, step: Step, terms: dict[str, Tensor]) -> Tensor:
        """L by the labels also where θ_0's answers are kept, whose distance has no gradient at θ_0."""
        return step.loss("pretrain", step.omega) if self.keep_answers else terms["task"]

    def trunk(self, x: Tensor) -> Tensor:
        """H of images, computed without autograd; what a cache holds of them is h already."""
        if self.cached:
            return x
        h: Tensor = self.net.trunk(x)
        return h

    def unusable(self) -> tuple[str, float] | None:
        """What of the latest step has no spectrum: NaN if it is not finite, 0 if all zero."""
        found = self._latest.unusable() if isinstance(self._latest, DeepStep) else None
        return None if found is None else (f"features of {found[0]}", found[1])

    def theta_parameters(self) -> list[nn.Parameter]:
        """The trained parameters of the tail."""
        return [parameter for _, parameter in self.net.trainable_parameters()]

    def groups(self) -> list[dict[str, Any]]:
        """Two, as in C.2: the tail, and the classifiers."""
        heads = [*self.net.head_parameters(), *self.objective.parameters()]
        return [
            {"params": self.theta_parameters(), "weight_decay": self.decay["tail"]},
            {"params": heads, "weight_decay": self.decay["heads"]},
        ]


def _take_precision(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """That of each weight to be loaded: Lightning converts a module to the trainer's only later, which would round."""
    for name, weight in module.state_dict(keep_vars=True).items():
        weight.data = weight.data.to(state[name].dtype if name in state else weight.dtype)


class SupervisedModule(LightningModule):
    """Ordinary training of a whole network, for a θ_0 of one's own: SGD with a one-cycle learning rate.

    Every parameter is trained, and BatchNorm statistics with them.

    Args:
        network: images → logits (N, C).
        loss: (logits, labels (N,)) to a scalar.
        learning_rate: the highest of the schedule.
        weight_decay: of every parameter with more than one dimension; biases and norms have none.
    """

    def __init__(self, network: nn.Module, loss: TaskLoss, *, learning_rate: float, weight_decay: float) -> None:
        super().__init__()
        self.network, self.loss = network, loss
        self.learning_rate, self.weight_decay = learning_rate, weight_decay

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return int(self.trainer.estimated_stepping_batches)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of one batch.

        Raises:
            DivergedError: it is not finite.
        """
        x, y = batch
        loss = self.loss(self.network(x), y)
        if not bool(torch.isfinite(loss)):
            raise DivergedError(self.global_step, "task", loss.item())
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Dropout of the network draws from torch's state, which a training that goes on has to find again."""
        checkpoint["torch_random_state"] = torch.get_rng_state()
        if self.device.type == "cuda":
            checkpoint["cuda_random_state"] = torch.cuda.get_rng_state(self.device)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the random states back."""
        _take_precision(self, checkpoint["state_dict"])
        torch.set_rng_state(checkpoint["torch_random_state"].cpu())
        if "cuda_random_state" in checkpoint and torch.cuda.is_available():
            torch.cuda.set_rng_state(checkpoint["cuda_random_state"].cpu())

    def configure_optimizers(self) -> Any:
        """SGD, and the schedule that Lightning steps after every batch."""
        parameters = list(self.network.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer = SGD(groups, lr=self.learning_rate, momentum=MOMENTUM[1], nesterov=True)
        schedule = OneCycleLR(
            optimizer, self.learning_rate, self.steps, base_momentum=MOMENTUM[0], max_momentum=MOMENTUM[1]
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
