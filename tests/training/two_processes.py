"""One of several gloo processes: a step of a network on its share of a batch, by every method.

python -m tests.training.two_processes <out> <rank> <world>, which `tests/test_processes.py` calls.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from immunize.data import ROLES
from immunize.features.deep import DeepExtractor
from immunize.features.extract import Features
from immunize.features.linear import preconditioned_features
from immunize.objective import Objective, deep, gather_rows, task_loss
from immunize.objective.censor import Censor
from immunize.objective.contract import Contract
from immunize.objective.imma import Imma
from immunize.objective.opt_kappa import OptKappa
from immunize.objective.ours import Ours
from immunize.objective.simulated import SimulatedFineTuning
from immunize.training import DeepModule
from immunize.training.callbacks import GradientBalance
from immunize.training.module import Batch

N, D, CLASSES = 8, 12, 3
METHODS = {
    "ours": lambda: Ours(1e-3, 1e2, "none"),
    "ours at features": lambda: Ours(1e-3, 1e2, "features"),
    "opt_kappa": OptKappa,
    "censor": lambda: Censor(depths=["2"], lambda_ill=1e-2),
    "censor after steps": lambda: Censor(attack_steps=2, attack_learning_rate=0.1, attack_batch_size=3),
    "contract": lambda: Contract(attack_steps=2, attack_learning_rate=0.1, attack_batch_size=3),
    "simulated": lambda: SimulatedFineTuning(attack_steps=2, attack_learning_rate=0.1, attack_batch_size=3),
    "imma": lambda: Imma(inner_steps=2, inner_learning_rate=0.1),
}


def weighted(module: DeepModule, batch: Batch) -> torch.Tensor:
    """The weighted sum of the terms."""
    terms = module.objective.terms(module.step_of(batch))
    return torch.stack([module.objective.weights[name] * term for name, term in terms.items()]).sum()


def step(method: str, rank: int, world: int) -> dict[str, Any]:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, D), nn.Tanh()).double()
    net = DeepExtractor.from_module(backbone, nn.Linear(D, CLASSES).double(), ["2"], example=torch.rand(2, 6).double())
    objective: Objective = METHODS[method]()
    objective.bind(D, torch.Generator().manual_seed(1), CLASSES)
    module = DeepModule(net, objective, task_loss("ce", 0.1), torch.optim.SGD)
    if objective.looks_at_theta_0:  # away from where the distances to it are zero
        with torch.no_grad():
            net.head.weight.mul_(1.5)
            backbone[2].weight.mul_(1.5)
    data = torch.Generator().manual_seed(2)
    batch: Batch = {}
    features = []
    for role in ROLES:
        x, y = torch.randn(N, 6, dtype=torch.float64, generator=data), torch.arange(N) % CLASSES
        batch[role] = (x[rank::world], y[rank::world])
        features.append(Features(net(x).detach(), y))
    objective.prepare(net, [features[1].y], lambda: features)
    if method.startswith("ours"):
        GradientBalance(3).balance(module, batch)
    module.forward = partial(weighted, module)  # type: ignore[method-assign]
    wrapped = DistributedDataParallel(module, find_unused_parameters=True)  # as Lightning wraps it
    loss = wrapped(batch)
    loss.backward()
    mean = loss.detach().clone()
    distributed.all_reduce(mean)
    before = kappas(net, batch)
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    after = kappas(net, batch)
    gradients = {n: p.grad.flatten().tolist() for n, p in module.named_parameters() if p.grad is not None}
    rir = after[1] / before[1] * before[0] / after[0]
    numbers = {"loss": float(mean) / world, "kappa": after[1], "rir": rir}
    return {"gradients": gradients, "weights": objective.weights, **numbers}


@torch.no_grad()
def kappas(net: DeepExtractor, batch: Batch) -> list[float]:
    """κ of both Hessians, of the features of all processes."""
    return [float(torch.linalg.cond(gather_rows(net(x))) ** 2) for x, _ in batch.values()]


def main(out: Path, rank: int, world: int) -> None:
    # a larger ε than training's, which blows up the rounding of a sum over two processes
    deep.preconditioned_features = partial(preconditioned_features, ridge=1e-3)  # type: ignore[assignment]
    meeting = f"file://{out}.store"  # a port that is free now may be taken by then
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    found = {method: step(method, rank, world) for method in METHODS}
    if rank == 0:
        out.write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
