"""The module of a deep network (§5.2, C.2): a frozen trunk without autograd, a trained tail, θ_0's classifier.

Shapes: N samples, D features, C classes; h whatever enters the tail.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from immunize.features.deep import DeepExtractor
from immunize.objective import DeepSide, DeepStep, Objective, OverSets, Step, TaskLoss
from immunize.training.module import Batch, ImmunizationModule, OptimizerFactory

__all__ = ["DeepModule"]


class DeepModule(ImmunizationModule):
    """Trains the tail of f_θ and the classifier ω on {pretrain, harmful} batches.

    Args:
        net: f_θ and ω, at θ_0.
        objective: the method.
        task_loss: L, (logits (N, C), labels (N,)) to a scalar.
        optimizer: builds the optimizer from groups of parameters.
        weight_decay: of the tail; C.2: 0.
        head_weight_decay: of the classifiers, ω and what the method owns; C.2: 2e-5.
        harmful_classes: C of each harmful data set where there are several, see :class:`~immunize.objective.DeepStep`.
        over_sets: what is done with their R_ill.
        cached: batches hold what the trunk made of the images, not images.
        log_every: steps between two rows of the loggers.
        lr_decay: see :class:`~immunize.training.module.ImmunizationModule`.
        max_steps: of a training that ends before its epochs do.
        reference: θ_0, for a method that looks at it; None makes a copy of `net` where one is needed.
        keep_answers: see :class:`~immunize.objective.DeepStep`.
    """

    def __init__(
        self,
        net: DeepExtractor,
        objective: Objective,
        task_loss: TaskLoss,
        optimizer: OptimizerFactory,
        *,
        weight_decay: float = 0.0,
        head_weight_decay: float = 0.0,
        harmful_classes: tuple[int, ...] = (),
        over_sets: OverSets = "sum",
        cached: bool = False,
        log_every: int = 10,
        lr_decay: float | None = None,
        max_steps: int | None = None,
        reference: DeepExtractor | None = None,
        keep_answers: bool = False,
    ) -> None:
        super().__init__(objective, optimizer, log_every=log_every, lr_decay=lr_decay)
        self.max_steps = max_steps
        self.net, self.task_loss, self.cached = net, task_loss, cached
        self.settings: dict[str, Any] = {
            "harmful_classes": harmful_classes,
            "over_sets": over_sets,
            "keep_answers": keep_answers,
        }
        theta_0 = reference or net.reference() if objective.looks_at_theta_0 or keep_answers else None
        self._theta_0 = (theta_0,)  # not registered: it is neither trained nor kept
        self.decay = {"tail": weight_decay, "heads": head_weight_decay}
        self.strict_loading = False  # a checkpoint of a training holds what is trained

    def step_of(self, batch: Batch) -> DeepStep:
        """What the method sees of a batch."""
        sides = {role: DeepSide(self.trunk(x), y) for role, (x, y) in batch.items()}
        theta_0 = self._theta_0[0]
        if theta_0 is not None:
            theta_0.to(self.device)
        step = DeepStep(self.net, sides["pretrain"], sides["harmful"], self.task_loss, **self.settings, theta_0=theta_0)
        self._latest = step  # whoever asked: a callback may be the first to see that features have no spectrum
        return step

    def reference_loss(self, step: Step, terms: dict[str, Tensor]) -> Tensor:
        """L by the labels also where θ_0's answers are kept, whose distance has no gradient at θ_0."""
        return step.loss("pretrain", step.omega) if self.settings["keep_answers"] else terms["task"]

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

    def configure_optimizers(self) -> Any:
        """Two groups, as in C.2: the tail, and the classifiers."""
        heads = [*self.net.head_parameters(), *self.objective.parameters()]
        groups = [
            {"params": self.theta_parameters(), "weight_decay": self.decay["tail"]},
            {"params": heads, "weight_decay": self.decay["heads"]},
        ]
        return self.decayed(self.optimizer_factory(groups))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what is trained, and the weights of the terms, which may have been balanced."""
        trained = {name for name, _ in self._trained()}
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if k in trained}
        checkpoint["objective_weights"] = dict(self.objective.weights)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the weights of the terms back."""
        self.objective.weights.update(checkpoint["objective_weights"])
