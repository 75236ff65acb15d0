"""Time and memory of one step at one point of the scaling study. Meant for a fresh process a point.

The step is the real one: a Lightning training of :class:`~immunize.training.LinearModule` with `method=ours` and
Adam, on Gaussian data, including the loading of its batch, without loggers and without looks at κ.
The data have full rank, so D is the width that θ is trained in (`model.columns` finds no smaller joint range).

Shapes: N samples, B batch size, D features.
"""

from __future__ import annotations

import gc
import logging
import math
import statistics
import time
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from immunize.data import Part, Splits
from immunize.data.pair import PairedData
from immunize.data.splits import SourceBase, random_generator
from immunize.features import LinearExtractor
from immunize.objective import new_head, task_loss
from immunize.objective.ours import Ours
from immunize.records import peak_memory_mib, reset_peak_memory
from immunize.training import LinearModule, compressed

WARM_UP, FEWEST = 2, 3
"""Steps that are not counted (the first compresses the rows in full-batch mode), and how many are at least."""
LAMBDA_WELL, LAMBDA_ILL, LEARNING_RATE = 1.0, 1e7, 1e-3
PASSES = 500
"""Full-batch steps an epoch; an epoch is followed by another one."""
WARMING = 8
"""D of the training that goes before, so that no code is loaded while memory is measured."""


@dataclass(frozen=True)
class Point:
    """Where to measure.

    Attributes:
        mode: "full" or "mini-batch".
        d: D.
        n: N, rows of each data set.
        batch: B; None in full-batch mode.
        threads: of torch.
    """

    mode: str
    d: int
    n: int
    batch: int | None
    threads: int


class Gaussian(SourceBase):
    """N rows with independent columns of variance (1 - p)/p, p = (i + ½)/D, in opposite order for D_P and D_H.

    As in real data the ends of the spectrum are apart, at every D: the largest eigenvalues are 2D, 2D/3, 2D/5, ...
    and the smallest 1/(2D), 3/(2D), ..., so that finding them costs what it costs in real trainings. The targets are
    random.

    Args:
        role: "pretrain" or "harmful".
        n_samples: N.
        n_features: D.
    """

    name, task = "gaussian", "regression"

    def __init__(self, role: str, n_samples: int, n_features: int) -> None:
        super().__init__(role)
        self.n_samples, self.n_features = n_samples, n_features

    def load(self) -> Splits:
        """Draw the rows; there are no held-out ones."""
        rng = random_generator(0, ("pretrain", "harmful").index(self.role))
        x = rng.standard_normal((self.n_samples, self.n_features))
        p = (np.arange(self.n_features) + 0.5) / self.n_features
        deviations = np.sqrt((1 - p) / p)
        x *= deviations if self.role == "pretrain" else deviations[::-1]
        return Splits(Part(torch.from_numpy(x), torch.from_numpy(rng.standard_normal(self.n_samples))), None)

    def describe(self) -> dict[str, object]:
        """N and D."""
        return {"n_samples": self.n_samples, "n_features": self.n_features}


class _StepClock(Callback):
    """Notes when each step ends, and ends the training after enough of them.

    Args:
        seconds: how long to go on after the warm-up.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ends: list[float] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.ends = [time.perf_counter()]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.ends.append(time.perf_counter())
        done = len(self.ends) - 1 - WARM_UP
        if done >= FEWEST and self.ends[-1] - self.ends[WARM_UP] >= self.seconds:
            trainer.should_stop = True

    @property
    def steps(self) -> list[float]:
        """Seconds of every step, warm-up included."""
        return [end - start for start, end in zip(self.ends, self.ends[1:], strict=False)]


def measure(point: Point, seconds: float) -> dict[str, Any]:
    """Train at one point.

    Args:
        point: where.
        seconds: how long to repeat the step.

    Returns:
        the point; `steps` counted; `step_ms`, median time of a step, with the quartiles around it; `first_ms`, the
        first step, which in full-batch mode compresses the rows; `memory_mib`, by how much the resident set grew
        beyond data and θ (gradients, optimizer state, workspace), at its peak.
    """
    torch.set_num_threads(point.threads)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    _train(*_build(Point(point.mode, WARMING, 4 * WARMING, point.batch and WARMING, point.threads)), seconds=0.0)
    module, data = _build(point)
    gc.collect()
    reset_peak_memory()  # gives back what is free but kept: it would be used again, and growth be taken for less
    before = peak_memory_mib()
    clock = _train(module, data, seconds=seconds)
    memory = peak_memory_mib() - before
    counted = clock.steps[WARM_UP:]
    lower, _, upper = statistics.quantiles(counted, n=4)
    return {
        **asdict(point),
        "steps": len(counted),
        "step_ms": round(1e3 * statistics.median(counted), 4),
        "step_ms_quartile_1": round(1e3 * lower, 4),
        "step_ms_quartile_3": round(1e3 * upper, 4),
        "first_ms": round(1e3 * clock.steps[0], 2),
        "memory_mib": round(memory, 2),
    }


def _build(point: Point) -> tuple[LinearModule, PairedData]:
    pretrain, harmful = (Gaussian(role, point.n, point.d) for role in ("pretrain", "harmful"))
    data = PairedData(pretrain, harmful, batch_size=point.batch, passes=1 if point.batch else PASSES)
    data.setup()
    generator = torch.Generator().manual_seed(0)
    module = LinearModule(
        LinearExtractor(point.d, generator=generator),
        new_head(point.d, generator),
        Ours(LAMBDA_WELL, LAMBDA_ILL),
        task_loss("mse"),
        lambda parameters: torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True),
        rows=compressed(data.fit) if data.full_batch else None,
    )
    return module, data


def _train(module: LinearModule, data: PairedData, *, seconds: float) -> _StepClock:
    clock = _StepClock(seconds)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=-1,
        min_epochs=0,
        logger=False,
        callbacks=[clock],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, datamodule=data)
    assert all(math.isfinite(second) for second in clock.steps)
    return clock
