"""The LightningModule: it minimizes a weighted sum of named terms and knows no method.

Eq. (11) is the sum that `method=ours` names; every other method is another set of terms (:mod:`immunize.objective`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from immunize.errors import DivergedError
from immunize.features import LinearExtractor
from immunize.objective import Objective, Side, Step, TaskLoss
from immunize.spectrum import compress_rows, immunization_ratio, spectrum_of

__all__ = ["Batch", "ImmunizationModule", "OptimizerFactory"]

Batch = dict[str, tuple[Tensor, Tensor]]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


class ImmunizationModule(LightningModule):
    """Trains θ and ω (and whatever the method owns) on {pretrain, harmful} batches.

    Args:
        extractor: f_θ.
        head: ω, (D, 1).
        objective: the method.
        task_loss: L.
        optimizer: builds the optimizer from the parameters.
        full_batch: every batch is the whole of both data sets; they are then compressed once to at most D rows
            each, from which every step computes its spectra (K is fixed).
        log_every: steps between two rows of the loggers.
    """

    def __init__(
        self,
        extractor: LinearExtractor,
        head: nn.Parameter,
        objective: Objective,
        task_loss: TaskLoss,
        optimizer: OptimizerFactory,
        *,
        full_batch: bool,
        log_every: int = 10,
    ) -> None:
        super().__init__()
        self.extractor, self.head, self.objective = extractor, head, objective
        self.task_loss, self.optimizer_factory = task_loss, optimizer
        self.full_batch, self.log_every = full_batch, log_every
        self.last_finite: dict[str, Tensor] = {}
        self._latest: Step | None = None
        self._compressed: dict[str, Tensor] = {}

    def configure_optimizers(self) -> Optimizer:
        """One group with every trainable parameter."""
        return self.optimizer_factory(self.parameters())

    def step_of(self, batch: Batch) -> Step:
        """What the method sees of a batch."""
        return Step(
            self.extractor,
            self.head,
            self._side("pretrain", *batch["pretrain"]),
            self._side("harmful", *batch["harmful"]),
            self.task_loss,
        )

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
        if not bool(torch.isfinite(loss)):
            raise _diverged(self.global_step, terms, loss)
        self.keep(self.last_finite)
        if self.global_step % self.log_every == 0:
            self.log_now({"loss": loss.item(), **{f"term/{name}": term.item() for name, term in terms.items()}})
        return loss

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
        squares = torch.stack([parameter.detach().square().sum() for parameter in self.parameters()])
        if not bool(torch.isfinite(squares).all()):
            self.restore(self.last_finite)
            raise DivergedError(step, self._steepest_term(), math.nan)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """RIR (`spectrum`) and task loss on the validation split, for early stopping."""
        del batch_idx
        step = self._validation_step_of(batch)
        p, h = step.pretrain.x, step.harmful.x
        raw_p, raw_h = spectrum_of(p), spectrum_of(h)
        ratio = immunization_ratio(
            spectrum_of(self.extractor(p), rank_of_data=raw_p.rank),
            spectrum_of(self.extractor(h), rank_of_data=raw_h.rank),
            raw_p,
            raw_h,
        )
        values = {
            "val/log_rir": math.log(ratio.rir),
            "val/task_loss": step.pretrain_loss().item(),
        }
        self.log_dict(values, logger=False)
        self.log_now(values)

    def keep(self, snapshot: dict[str, Tensor]) -> None:
        """Copy all parameters into `snapshot`, reusing its memory."""
        for name, parameter in self.named_parameters():
            if name in snapshot:
                snapshot[name].copy_(parameter.detach())
            else:
                snapshot[name] = parameter.detach().clone()

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Put the parameters back to what :meth:`keep` copied."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(snapshot[name])

    def log_now(self, metrics: dict[str, float]) -> None:
        """Write to every logger at the current step (Lightning's own `log` costs more than a small step does)."""
        for logger in self.loggers:
            logger.log_metrics(metrics, step=self.global_step)

    def _steepest_term(self) -> str:
        assert self._latest is not None
        parameters = list(self.parameters())
        sizes: dict[str, float] = {}
        with torch.enable_grad():
            for name, term in self.weighted_terms(self._latest).items():
                gradients = torch.autograd.grad(term, parameters, allow_unused=True, retain_graph=True)
                size = sum(float(g.norm()) for g in gradients if g is not None)
                sizes[name] = size if math.isfinite(size) else math.inf
        return max(sizes, key=lambda name: sizes[name])

    def _side(self, name: str, x: Tensor, y: Tensor) -> Side:
        if not self.full_batch:
            return Side(x, y, x)
        if name not in self._compressed:
            self._compressed[name] = compress_rows(x)
        return Side(x, y, self._compressed[name])

    def _validation_step_of(self, batch: Batch) -> Step:
        sides = {name: Side(x, y, x) for name, (x, y) in batch.items()}
        return Step(self.extractor, self.head, sides["pretrain"], sides["harmful"], self.task_loss)


def _diverged(step: int, terms: dict[str, Tensor], loss: Tensor) -> DivergedError:
    for name, term in terms.items():
        if not bool(torch.isfinite(term)):
            return DivergedError(step, name, term.item())
    return DivergedError(step, "loss", loss.item())
