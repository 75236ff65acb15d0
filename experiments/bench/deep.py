"""A step of a deep net with regularizers against the same two forward passes and backward pass: deep_step.csv.

At most 1.10 times as long is promised. Networks have random weights, and images are noise: nothing depends on either.

Shapes: B images of each data set in a batch, D features.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.bench.machine import show, write_csv
from immunize.features.deep import DeepExtractor
from immunize.objective import task_loss
from immunize.objective.ours import Ours
from immunize.spectrum.regularizers import r_ill_of_features, r_well_of_features
from immunize.training import DeepModule
from immunize.training.module import Batch

STEP_LIMIT, SECONDS_A_STEP = 1.10, 20.0
BATCH, CLASSES = 64, 10


@dataclass(frozen=True)
class Net:
    """A network of the bench.

    Attributes:
        architecture: timm's name.
        trainable: as in `conf/model`.
        image_size: pixels.
        kwargs: further arguments of the architecture.
    """

    architecture: str
    trainable: str
    image_size: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> DeepExtractor:
        """With random weights."""
        return DeepExtractor.from_timm(
            self.architecture,
            trainable=[self.trainable],
            n_classes=CLASSES,
            image_size=self.image_size,
            kwargs=dict(self.kwargs),
            data={"crop_pct": 1.0},
        )


NETWORKS = {
    "resnet18_64px": Net("resnet18", "layer4", 64),  # conf/model/resnet18_64px.yaml
    "vit_small": Net(  # conf/model/vit_small.yaml
        "vit_tiny_patch16_224", "blocks.3", 32, {"patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 4}
    ),
    "vit_tiny_64px": Net("vit_tiny_patch16_224", "blocks.11", 64, {"patch_size": 8}),
}


class Steps:
    """One network, and the two steps that are compared.

    Args:
        net: f_θ and ω.
        batch: of images, {"pretrain": (x, y), "harmful": (x, y)}.
    """

    def __init__(self, net: DeepExtractor, batch: Batch) -> None:
        self.net, self.batch = net, batch
        self.module = DeepModule(
            net,
            Ours(1e-6, 1e-6, "none"),
            task_loss("ce", 0.1),
            partial(torch.optim.SGD, lr=1e-9, momentum=0.9, nesterov=True),
        )
        self.optimizer = self.module.configure_optimizers()

    def immunize(self) -> None:
        """A step of `method=ours`, with all that training does in one: checks, the copy of the last finite weights."""

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = self.module.training_step(self.batch, 0)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        self.module.optimizer_step(0, 0, self.optimizer, closure)

    def plain(self) -> None:
        """The same two forward passes and the backward pass through both, without regularizers and checks."""

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            features = {role: self.net.features(self.module.trunk(x)) for role, (x, _) in self.batch.items()}
            logits = self.net.head(features["pretrain"])
            loss = self.module.task_loss(logits, self.batch["pretrain"][1]) + features["harmful"].mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        self.optimizer.step(closure)


def random_batch(batch_size: int, image_size: int) -> Batch:
    """B images of noise and random labels of each data set."""
    draws = torch.Generator().manual_seed(0)
    return {
        role: (
            torch.randn(batch_size, 3, image_size, image_size, generator=draws),
            torch.randint(CLASSES, (batch_size,), generator=draws),
        )
        for role in ("pretrain", "harmful")
    }


def spectra(rows: int, n_features: int) -> Callable[[], None]:
    """R_well and R_ill of one batch of features each, with their gradients: what a step has beside the network.

    Args:
        rows: B.
        n_features: D.
    """
    draws = torch.Generator().manual_seed(0)
    features = [torch.randn(rows, n_features, dtype=torch.float64, generator=draws) for _ in range(2)]

    def both() -> None:
        well, ill = (f.requires_grad_() for f in features)
        (r_well_of_features(well) + r_ill_of_features(ill)).backward()  # type: ignore[no-untyped-call]

    return both


def in_turns(*works: Callable[[], object], seconds: float, fewest: int = 3) -> list[tuple[float, float]]:
    """The shortest time of each, after one call to warm up; in turns, so that a busy moment hits all.

    Args:
        works: what to time.
        seconds: how long to go on, all together.
        fewest: repeats at least.

    Returns:
        (wall, process) seconds each; the second does not count what other processes take.
    """
    for work in works:
        work()
    best = [(float("inf"), float("inf"))] * len(works)
    end, done = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or done < fewest:
        for index, work in enumerate(works):
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            taken = time.perf_counter() - wall, time.process_time() - cpu
            best[index] = min(best[index][0], taken[0]), min(best[index][1], taken[1])
        done += 1
    return best


def measure_step(name: str, batch_size: int, seconds: float) -> dict[str, Any]:
    """An immunization step against a plain one.

    Args:
        name: in `NETWORKS`.
        batch_size: B.
        seconds: how long to repeat both.

    Returns:
        a row of deep_step.csv: shortest wall times, their quotient, and that of process times.
    """
    spec = NETWORKS[name]
    net = spec.build()
    steps = Steps(net, random_batch(batch_size, spec.image_size))
    ours, plain = in_turns(steps.immunize, steps.plain, seconds=seconds)
    (alone,) = in_turns(spectra(batch_size, net.n_features), seconds=min(seconds, 1.0))
    return {
        "network": name,
        "image": spec.image_size,
        "batch": batch_size,
        "features": net.n_features,
        "threads": torch.get_num_threads(),
        "immunize_ms": round(1e3 * ours[0], 2),
        "plain_ms": round(1e3 * plain[0], 2),
        "ratio": round(ours[0] / plain[0], 4),
        "process_ratio": round(ours[1] / plain[1], 4),
        "spectra_ms": round(1e3 * alone[0], 2),
        "limit": STEP_LIMIT,
    }


def run(out: Path) -> None:
    """Measure, print and write.

    Args:
        out: the folder of results.
    """
    steps = [measure_step(name, BATCH, SECONDS_A_STEP) for name in NETWORKS]
    write_csv(out / "deep_step.csv", steps)
    show("one step, with and without regularizers", steps)
