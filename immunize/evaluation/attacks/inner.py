"""Attacks that prepare the features and leave the rest to other attacks: how the inner ones are run and paid for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from immunize.errors import UserError
from immunize.evaluation.attacks.curves import Cost, Trace
from immunize.evaluation.attacks.protocol import Attack, AttackData, Budget

__all__ = ["Preparing", "check_inner", "run_inner"]


@dataclass(frozen=True, kw_only=True)
class Preparing(Attack):
    """Of the attacks that hand the inner ones features from elsewhere.

    Attributes:
        inner: attacks by name.

    Raises:
        UserError: no inner attack.
    """

    inner: Mapping[str, Attack]
    called: ClassVar[str]
    """What messages call it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_inner(self.inner, self.called)


def check_inner(inner: Mapping[str, Attack], what: str) -> None:
    """Check the inner attacks of `what`.

    Raises:
        UserError: there is none, or one that needs more than features.
    """
    if not inner:
        raise UserError(f"{what} needs an inner attack")
    if demanding := [name for name, attack in inner.items() if attack.needs != "features"]:
        raise UserError(f"{what} cannot have {demanding[0]} as an inner attack: it needs more than features")


def run_inner(
    inner: Mapping[str, Attack], data: AttackData, budget: Budget, seed: int, *, setup: Cost, prefix: str
) -> list[Trace]:
    """Run those that can solve the task.

    Args:
        inner: attacks by name.
        data: the prepared features.
        budget: shared equally.
        seed: of everything random.
        setup: what the preparation cost; stands before the first step of every candidate.
        prefix: of the candidates' labels.
    """
    able = {name: attack for name, attack in inner.items() if data.task in attack.tasks}
    traces = []
    for name, attack in able.items():
        outcome = attack.run(data, budget.share(len(able)), seed)
        traces += [trace.after(setup, f"{prefix}, {name}: ") for trace in outcome.traces]
    return traces
