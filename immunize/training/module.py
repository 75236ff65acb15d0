"""The LightningModule: it minimizes a weighted sum of named terms and knows no method.

Eq. (11) is the sum that `method=ours` names; every other method is another set of terms (:mod:`immunize.objective`).
What a batch is made into for the method is the business of its two kinds, :mod:`.linear` and :mod:`.deep`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from immunize.errors import DivergedError
from immunize.objective import Objective, Step, all_finite

__all__ = ["Batch", "ImmunizationModule", "OptimizerFactory"]

Batch = dict[str, tuple[Tensor, Tensor]]
OptimizerFactory = Callable[[Iterable[Any]], Optimizer]
"""From parameters, or groups of them with settings of their own, to their optimizer."""


class ImmunizationModule(LightningModule):
    """Trains θ and ω (and whatever the method owns) on {pretrain, harmful} batches.

    Args:
        objective: the method.
        optimizer: builds the optimizer from the parameters.
        log_every: steps between two rows of the loggers.
        lr_decay: share of the steps, the last ones, over which the learning rate falls linearly to zero; None for none.

    Attributes:
        last_finite: the trained parameters of the last step at which all terms were finite.
    """

    def __init__(
        self, objective: Objective, optimizer: OptimizerFactory, *, log_every: int = 10, lr_decay: float | None = None
    ) -> None:
        super().__init__()
        self.objective = objective
        self.optimizer_factory = optimizer
        self.log_every = log_every
        self.lr_decay = lr_decay
        self.max_steps: int | None = None  # of a training that ends before its epochs do
        self.last_finite: dict[str, Tensor] = {}
        self._latest: Step | None = None

    @abstractmethod
    def step_of(self, batch: Batch) -> Step:
        """What the method sees of a batch."""

    @abstractmethod
    def theta_parameters(self) -> list[nn.Parameter]:
        """The parameters of θ that are trained, without those of classifiers."""

    def reference_loss(self, step: Step, terms: dict[str, Tensor]) -> Tensor:
        """The loss whose gradient norm λ_P and λ_H are balanced with."""
        del step
        return terms["task"]

    def configure_optimizers(self) -> Any:
        """One group with every trainable parameter, and the decay of the learning rate if there is one."""
        return self.decayed(self.optimizer_factory(self.parameters()))

    def decayed(self, optimizer: Optimizer) -> Any:
        """The optimizer with the decay of its learning rate, as Lightning takes them."""
        if self.lr_decay is None:
            return optimizer
        steps, share = int(self.trainer.estimated_stepping_batches), self.lr_decay
        steps = steps if self.max_steps is None else min(steps, self.max_steps)
        schedule = LambdaLR(optimizer, lambda step: max(0.0, min(1.0, (steps - step) / (share * steps))))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def weighted_terms(self, step: Step) -> dict[str, Tensor]:
        """The method's terms, each times its weight."""
        return {name: self.objective.weights[name] * term for name, term in self.objective.terms(step).items()}

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The weighted sum of the method's terms.

        Raises:
            DivergedError: a term is not finite. `last_finite` then holds the parameters of the last step at which
                all were.
        """
        del batch_idx
        self._latest = self.step_of(batch)
        terms = self.objective.terms(self._latest)
        weights = self.objective.weights
        loss = torch.stack([weights[name] * term for name, term in terms.items()]).sum()
        if not all_finite(loss):
            raise _diverged(self.global_step, terms, loss)
        self.keep(self.last_finite)
        if self.global_step % self.log_every == 0:
            self.log_now(
                {"loss": loss.item(), **{f"term/{name}": term.item() for name, term in terms.items()}, **self.watched()}
            )
        return loss

    def watched(self) -> dict[str, float]:
        """What the method has noted of the latest step beside its terms."""
        return {name: value.item() for name, value in self.objective.watched.items()}

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

    def log_now(self, metrics: dict[str, float]) -> None:
        """Write to every logger at the current step (Lightning's own `log` costs more than a small step does)."""
        for logger in self.loggers:
            logger.log_metrics(metrics, step=self.global_step)

    def _steepest_term(self) -> str:
        assert self._latest is not None
        parameters = [parameter for _, parameter in self._trained()]
        sizes: dict[str, float] = {}
        with torch.enable_grad():
            for name, term in self.weighted_terms(self._latest.again()).items():
                gradients = torch.autograd.grad(term, parameters, allow_unused=True, retain_graph=True)
                size = sum(float(g.norm()) for g in gradients if g is not None)
                sizes[name] = size if math.isfinite(size) else math.inf
        return max(sizes, key=lambda name: sizes[name])

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad]


def _diverged(step: int, terms: dict[str, Tensor], loss: Tensor) -> DivergedError:
    for name, term in terms.items():
        if not bool(torch.isfinite(term)):
            return DivergedError(step, name, term.item())
    return DivergedError(step, "loss", loss.item())
