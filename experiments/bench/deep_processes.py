"""Steps of several processes on one machine (gloo, one thread each): what they exchange, and how long that takes.

The batch is that of all processes: with W of them each does 1/W of the network's work, and all of the spectra's.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from experiments.bench.deep_parts import NETWORKS, Steps, random_batch
from immunize.objective import gather_rows

__all__ = ["measure_processes"]

WARM_UP = 2


class _Sum(nn.Module):
    """What DDP wraps, as Lightning does: the weighted sum of the terms."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.module = steps.module

    def forward(self, batch: Any) -> torch.Tensor:
        return self.module.training_step(batch, 0)


def measure_processes(name: str, batch_size: int, world: int, repeats: int) -> dict[str, Any]:
    """Time a step of W processes.

    Args:
        name: of the network.
        batch_size: B, of all processes.
        world: W.
        repeats: steps that are counted.

    Returns:
        `step_s`, the shortest step; `process_s`, processor time of all processes in the shortest; `exchange_s`, the
        shortest exchange of both data sets' features (there and back) and of a tensor as large as the gradient.
    """
    context = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results: Any = context.SimpleQueue()
    arguments = (name, batch_size, world, repeats, port, results)
    processes = [context.Process(target=_work, args=(rank, *arguments), daemon=True) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process of the bench failed, see above")
    found = [results.get() for _ in range(world)]
    return {
        "step_s": round(max(step for step, _, _ in found), 4),
        "process_s": round(sum(process for _, process, _ in found), 4),
        "exchange_s": round(max(exchange for _, _, exchange in found), 5),
    }


def _work(rank: int, name: str, batch_size: int, world: int, repeats: int, port: int, results: Any) -> None:  # noqa: PLR0917
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world)}
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    spec = NETWORKS[name]
    batch = random_batch(batch_size, spec.image_size)
    own = {role: (x[rank::world], y[rank::world]) for role, (x, y) in batch.items()}
    steps = Steps(spec.build(), own)
    wrapped = DistributedDataParallel(_Sum(steps))
    features = [torch.zeros(batch_size // world, steps.net.n_features, dtype=torch.float64) for _ in range(2)]
    gradient = torch.zeros(sum(p.numel() for p in steps.module.parameters() if p.requires_grad))

    def step() -> None:
        steps.optimizer.zero_grad()
        wrapped(own).backward()
        steps.optimizer.step()

    def exchange() -> None:
        for rows in features:
            gather_rows(rows.requires_grad_()).sum().backward()  # type: ignore[no-untyped-call]
        distributed.all_reduce(gradient)

    taken = []
    for work in (step, exchange):
        times = []
        for _ in range(WARM_UP + repeats):
            distributed.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
        taken.append([min(part) for part in zip(*times[WARM_UP:], strict=True)])
    results.put((taken[0][0], taken[0][1], taken[1][0]))
    distributed.destroy_process_group()
