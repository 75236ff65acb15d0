"""T4: attackers who move the weights: all of them, the last block, or low-rank updates.

A new linear head behind the features and the weights that move are trained together on cross-entropy. The head starts
from a linear probe (`probed_head`), or at zero, on features divided by σ_1(X)/√N as everywhere in the grid. Every
learning rate is run to the end, with a cosine schedule, or over fewer steps with one of its own; what is left to run,
other variants of what moves included, then gets the rate that was best by validation. The rates do not race as in T1:
weights that start to move first unlearn what the probe knew, so that after a few steps the smallest rate looks best,
and through some features more than through others. The probe with nothing moved is a candidate too. Where one names
every validation image right, it and the larger rates end at that step: no later look could be chosen.

Measuring costs more than training here: a candidate is looked at four times a decade, on so many images drawn at random
from the validation rows and from the test rows, the same for every extractor.

Shapes: N images, B batch, D features, C classes.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from immunize.errors import UserError
from immunize.evaluation.attacks.coordinates import feature_scale
from immunize.evaluation.attacks.curves import Cost, Trace, look_steps
from immunize.evaluation.attacks.first_order import Candidate, Optimizer, batches, check_training, new_head
from immunize.evaluation.attacks.least_squares import Ridge, probed_head
from immunize.evaluation.attacks.network import AT_ONCE, Inputs, Network, Numbers, flops_of
from immunize.evaluation.attacks.protocol import Array, Attack, AttackData, Budget, Needs, Outcome, Rows, Task
from immunize.evaluation.attacks.scoring import Meter
from immunize.features.boundary import NoBoundaryError, split_network
from immunize.features.deep import matching_parameters
from immunize.features.lora import add_lora

LOOKS = 4
"""A decade; two looks are a factor of 1.8 in steps apart."""

ROUNDING = 1e-9
"""Pixels: 0.29 of 100 are 29, of which the product falls short."""

PERFECT = 1.0
"""Accuracy on the validation rows."""

UNTOUCHED = "the probe alone"
"""What the candidate is called that trains nothing."""


@dataclass(frozen=True, kw_only=True)
class FineTuning(Attack):
    """Weights and a new head, trained together.

    Attributes:
        optimizer: takes groups of parameters.
        learning_rates: the grid, of the network's weights.
        head_multiplier: the new head's rate over that of the weights.
        probe: what the new head starts from; None starts it at zero.
        steps: most of one candidate; the budget may allow fewer.
        tuning_steps: of a candidate that tries a learning rate, where `steps` is more; None: all of them.
        flops: most of all candidates together, in place of the budget's: an image's pass through a network costs a
            hundred to a thousand times that of its features through a head. None keeps the budget's.
        batch_size: B; all images where there are fewer.
        share: of the training images, at most 1, drawn at random, that the attacker has.
        measured: most validation images, and most test images, that a candidate is measured on.
        shift: training images are moved by up to so much of their side, below 1, in each direction, and cropped; each
            image by a draw of its own in every step, of whole pixels: a pixel at least. 0 leaves them as they are.
        flip: every other of them, drawn likewise, is mirrored, which no digit survives.
        batch_statistics: BatchNorm uses the statistics of the batch, and dropout is on, as in ordinary training.

    Raises:
        UserError: a setting out of its range.
    """

    optimizer: Optimizer
    learning_rates: tuple[float, ...]
    head_multiplier: float = 10.0
    probe: Ridge | None = None
    steps: int = 200
    tuning_steps: int | None = None
    flops: float | None = None
    batch_size: int = 64
    share: float = 1.0
    measured: int = 1000
    shift: float = 0.0
    flip: bool = False
    batch_statistics: bool = True
    needs: ClassVar[Needs] = "model"
    version: ClassVar[int] = 2  # 1: the probe with nothing moved became a candidate; 2: rates no longer race
    tasks: ClassVar[tuple[Task, ...]] = ("classification",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_training(self.optimizer, self.learning_rates)
        if not self.head_multiplier > 0:
            raise UserError(f"head_multiplier has to be positive, it is {self.head_multiplier:g}")
        if self.steps < 1 or self.batch_size < 2 or self.measured < 1:
            raise UserError("steps and measured have to be 1 or more, batch_size 2 or more")
        if self.tuning_steps is not None and self.tuning_steps < 1:
            raise UserError(
                f"tuning_steps={self.tuning_steps} has to be 1 or more; null tries every rate over all steps"
            )
        if not 0 < self.share <= 1:
            raise UserError(f"share={self.share:g} of the training images has to lie above 0 and be at most 1")
        if not 0 <= self.shift < 1:
            raise UserError(f"shift={self.shift:g} of an image's side has to be at least 0 and below 1")
        if self.flops is not None and not self.flops > 0:
            raise UserError(f"flops={self.flops:g}: a budget has to be positive; null is that of attack.budget")

    @abstractmethod
    def module(self, network: Network, variant: Hashable, seed: int) -> nn.Module:
        """A copy of what is trained, inputs → features; its parameters that require gradients are the ones that move.

        Args:
            network: the released one.
            variant: of `variants`.
            seed: of everything random.
        """

    def inputs(self, network: Network) -> tuple[Inputs, Cost]:
        """What `module` takes, and what it cost to compute that once."""
        return network.images, Cost()

    def augmented(self, x: Tensor) -> Tensor:
        """Images (B, channels, height, width) as a step of training sees them, by `shift` and `flip`.

        Raises:
            UserError: `shift` is less than a pixel of them.
        """
        if not self.shift and not self.flip:
            return x
        from torchvision.transforms import v2

        size = x.shape[-2:]
        margins = [int(self.shift * side + ROUNDING) for side in reversed(size)]
        if self.shift and not all(margins):
            raise UserError(f"shift={self.shift:g} of a side of {min(size)} pixels is less than a pixel: nothing moves")
        moved = v2.Compose([v2.RandomCrop(size, padding=margins), v2.RandomHorizontalFlip(0.5 * self.flip)])
        return torch.stack([moved(image) for image in x])

    def variants(self) -> Sequence[Hashable]:
        """Ways of moving the weights that are all tried, with one learning rate for all."""
        return ("",)

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """Try the learning rates; the seed decides the order of the images and which are measured on."""
        data = with_share(data, self.share, seed)
        assert data.network is not None
        task = _Task(self, data, data.network, seed)
        variants, rates = self.variants(), sorted(self.learning_rates)
        middle = variants[len(variants) // 2]
        allowed = budget if self.flops is None else Budget(budget.steps, self.flops)
        steps, tuned = self._affordable(allowed, max(task.flops(variant) for variant in variants))
        runs = [_Run(task, middle, rate, tuned) for rate in rates]
        last = tuned
        for run in runs:
            run.finish(last)
            last = run.step if run.best >= PERFECT else last
        chosen = max(runs, key=lambda run: run.best)  # of equals the smaller rate
        for variant in variants:
            if variant != middle or tuned < steps:
                runs.append(_Run(task, variant, chosen.rate, steps))
                runs[-1].finish(last if variant == middle and chosen.best >= PERFECT else steps)
        traces = [replace(run.meter.trace(), steps=0 if run.meter.diverged else run.steps) for run in runs]
        if self.probe is not None:
            traces.insert(0, task.untouched(middle))
        return Outcome(tuple(trace.after(task.setup) for trace in traces))

    def _affordable(self, allowed: Budget, flops: float) -> tuple[int, int]:
        """Steps of a candidate, and of one that tries a learning rate, of so many FLOPs a step."""
        rates, variants = len(self.learning_rates), len(self.variants())
        if self.tuning_steps and (left := allowed.flops - rates * self.tuning_steps * flops) > 0:
            steps = min(self.steps, Budget(allowed.steps, left).affordable(flops, variants))
            if steps > self.tuning_steps:
                return steps, self.tuning_steps
        steps = min(self.steps, allowed.affordable(flops, rates + variants - 1))
        return steps, steps


class _Task:
    """What all candidates share."""

    def __init__(self, attack: FineTuning, data: AttackData, network: Network, seed: int) -> None:
        self.attack, self.network, self.seed = attack, network, seed
        self.scale = feature_scale(data)
        self.inputs, self.setup = attack.inputs(network)
        if attack.probe is None:
            self.head = new_head("linear", data.n_features, data.n_classes, 0, seed)
        else:
            self.head, cost = probed_head(data, attack.probe, self.scale)
            self.setup += cost
        self.y = torch.from_numpy(data.train.y.astype(np.int64))
        self.batch = min(attack.batch_size, len(data.train))
        rng = np.random.default_rng(seed)
        drawn = [_drawn(rng, rows, numbers, attack.measured) for rows, numbers in (
            (data.validation, network.validation), (data.test, network.test),
        )]  # fmt: skip
        self.measured = [numbers for _, numbers in drawn]
        self.data = AttackData(data.train, drawn[0][0], drawn[1][0], data.n_classes)
        self._costs: dict[Hashable, float] = {}

    def module(self, variant: Hashable) -> nn.Module:
        """What is trained and a new head, of a known size."""
        moved = self.attack.module(self.network, variant, self.seed)
        return nn.Sequential(moved, _Scaled(self.scale), copy.deepcopy(self.head)).to(self.network.device)

    def untouched(self, variant: Hashable) -> Trace:
        """The released network under the probe, before the first step: an attacker may leave it at that."""
        run = _Run(self, variant, min(self.attack.learning_rates), 1)
        run.look()
        return replace(run.meter.trace(), label=UNTOUCHED)

    def loss(self, module: nn.Module, rows: Numbers, step: int = 0) -> Tensor:
        """Cross-entropy of some training rows, in this step of training."""
        images = self.inputs.at(self.network.train[rows])
        drawn, device = np.random.SeedSequence((self.seed, step)).generate_state(1), self.network.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.default_generator.manual_seed(int(drawn[0]))  # of what is augmented, and of dropout
            if device.type == "cuda":
                torch.cuda.manual_seed(int(drawn[0]))
            outputs = module(self.attack.augmented(images).to(device))
        return nn.functional.cross_entropy(outputs, self.y[torch.from_numpy(rows)].to(device))

    def flops(self, variant: Hashable) -> float:
        """Of one step, forward and backward."""
        if variant not in self._costs:
            module, rows = self.module(variant), np.arange(self.batch)
            self.inputs.at(self.network.train[rows])  # the first time may compute all of them, which is no step's cost
            self._costs[variant] = flops_of(lambda: self.loss(module, rows).backward())  # type: ignore[no-untyped-call]
        return self._costs[variant]


class _Run(Candidate):
    """One variant with one learning rate on its way, so many steps with a cosine schedule."""

    def __init__(self, task: _Task, variant: Hashable, rate: float, steps: int) -> None:
        self.task, self.steps, self.net = task, steps, task.module(variant)
        *_, head = self.net.children()
        own = {id(parameter) for parameter in head.parameters()}
        moved = [p for p in self.net.parameters() if p.requires_grad and id(p) not in own]
        groups = [
            {"params": moved, "lr": rate},
            {"params": list(head.parameters()), "lr": rate * task.attack.head_multiplier},
        ]
        label = ", ".join(filter(None, (str(variant), f"lr {rate:g}, cosine over {steps:,}")))
        self.optimizer = task.attack.optimizer(groups, lr=rate)
        meter = Meter(task.data, label, Cost(1, 0.0, task.batch, task.flops(variant)))
        super().__init__(self.optimizer.param_groups, rate, steps, meter)
        self.batches = batches(len(task.y), task.batch, task.seed)

    def finish(self, last: int) -> None:
        """Train to this step, or until every validation image is named right, and look now and then."""
        looks = set(look_steps(self.steps, LOOKS))
        self.meter.resume()
        while self.step < last and self.best < PERFECT and not self.meter.diverged:
            self.set_rates()
            self.net.train(self.task.attack.batch_statistics)
            loss = self.task.loss(self.net, next(self.batches).numpy(), self.step)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.step += 1
            if self.step in looks:
                self.look()
        self.meter.pause(self.step)

    def look(self) -> None:
        """Tell the meter."""
        self.meter.note(self.step, lambda: [self._outputs(numbers) for numbers in self.task.measured])

    @torch.no_grad()
    def _outputs(self, numbers: Numbers) -> Array:
        self.net.eval()
        device = self.task.network.device
        parts = np.array_split(numbers, max(1, -(-len(numbers) // AT_ONCE)))
        found = [self.net(self.task.inputs.at(part).to(device)).cpu().numpy() for part in parts]
        return np.concatenate(found).astype(np.float64)


class _Scaled(nn.Module):
    """Features over a number."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x / self.scale


def with_share(data: AttackData, share: float, seed: int) -> AttackData:
    """The task with some of its training rows, and their images; two classes at least.

    It has no θ_0 beside it, which no attacker who moves weights looks at.

    Args:
        data: the task.
        share: of the training rows, in (0, 1].
        seed: of the draw, the same for every extractor.
    """
    if share == 1:
        return data
    y = data.train.y
    order = np.random.default_rng(seed).permutation(len(y))
    other = order[np.flatnonzero(y[order] != y[order[0]])[0]]  # there is one: see AttackData
    kept = np.unique(np.append(order[: max(1, round(share * len(y)))], other))
    network = data.network if data.network is None else replace(data.network, train=data.network.train[kept])
    return replace(data, train=Rows(data.train.x[kept], y[kept]), network=network, reference=None)


def _drawn(rng: np.random.Generator, rows: Rows, numbers: Numbers, most: int) -> tuple[Rows, Numbers]:
    """At most so many rows, with the numbers of their images."""
    if len(rows) <= most:
        return rows, numbers
    kept = np.sort(rng.permutation(len(rows))[:most])
    return Rows(rows.x[kept], rows.y[kept]), numbers[kept]


@dataclass(frozen=True, kw_only=True)
class LastBlock(FineTuning):
    """What the immunization itself trained (`model.trainable`), a map that was appended, and a new head.

    Attributes:
        modules: names or patterns of modules or parameters that move instead, such as ("layer4",): networks that were
            immunized at different depths then meet the same attacker. An appended map stands at the classifier's place.

    Raises:
        UserError: `shift` or `flip`, since the trunk sees every image once; modules that the network has not, or before
            which it cannot be cut.
    """

    modules: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shift or self.flip:
            raise UserError("shift and flip change images, which last_block's trunk sees once: use full_finetune")

    def module(self, network: Network, variant: Hashable, seed: int) -> nn.Module:
        """The part behind the frozen trunk."""
        return network.tail() if self.modules is None else self._cut(network, self.modules)[1]

    def inputs(self, network: Network) -> tuple[Inputs, Cost]:
        """What the trunk makes of the images."""
        if self.modules is None:
            return network.trunk_outputs, network.trunk_cost
        trunk, _ = self._cut(network, self.modules)
        return network.images.through(trunk), network.cost_of(trunk)

    def _cut(self, network: Network, modules: tuple[str, ...]) -> tuple[nn.Module, nn.Module]:
        whole = network.whole().cpu()  # an accelerator rounds by the size of the batch as if images hung on each other
        names = {*matching_parameters(whole, modules, "the network", "modules")}
        for name, parameter in whole.named_parameters():
            parameter.requires_grad_(name in names)
        moved = [parameter for parameter in whole.parameters() if parameter.requires_grad]
        try:
            trunk, tail = split_network(whole, moved, network.images.at(np.arange(2)))
        except NoBoundaryError as error:
            raise UserError(f"modules={[*modules]}: {error}") from error
        return trunk.to(network.device), tail.to(network.device)


@dataclass(frozen=True, kw_only=True)
class FullFinetune(FineTuning):
    """All parameters of the network, a map that was appended, and a new head."""

    def module(self, network: Network, variant: Hashable, seed: int) -> nn.Module:
        """The whole network."""
        return network.whole()


@dataclass(frozen=True, kw_only=True)
class Lora(FineTuning):
    """LoRA on every linear layer and convolution, and a new head; nothing else moves, BatchNorm's statistics included.

    Attributes:
        ranks: the grid; the learning rate is chosen with the one in the middle.
        alpha: an update is worth α/√r.

    Raises:
        UserError: an empty grid, a rank below 1, an α that is not positive, or `batch_statistics`.
    """

    ranks: tuple[int, ...]
    alpha: float = 1.0
    batch_statistics: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ranks or any(rank < 1 or rank != int(rank) for rank in self.ranks) or not self.alpha > 0:
            raise UserError("LoRA needs at least one rank, whole ranks of 1 or more, and a positive alpha")
        if self.batch_statistics:
            raise UserError("LoRA moves nothing but its updates and the head: batch_statistics has to be false")

    def module(self, network: Network, variant: Hashable, seed: int) -> nn.Module:
        """The network with updates of rank `variant`."""
        module = network.whole()
        add_lora(module, int(str(variant).removeprefix("rank ")), alpha=self.alpha, seed=seed)
        return module

    def variants(self) -> Sequence[Hashable]:
        """The ranks, in words."""
        return tuple(f"rank {rank}" for rank in sorted(self.ranks))
