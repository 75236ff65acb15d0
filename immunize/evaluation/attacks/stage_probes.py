"""T3: probes of what every stage of the network puts out, averaged over places, and with an appended map taken off.

What is taken out of the features that a network releases may still be there one layer earlier. The attacker has the
weights, reads all stages in one pass, probes each, and chooses among them by validation. Nothing of the network moves.

Shapes: N images, D_s channels of stage s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from immunize.evaluation.attacks.inner import Preparing, run_inner
from immunize.evaluation.attacks.network import Numbers
from immunize.evaluation.attacks.protocol import AttackData, Budget, Needs, Outcome, Rows

__all__ = ["StageProbes"]


@dataclass(frozen=True, kw_only=True)
class StageProbes(Preparing):
    """The inner attacks on every stage's outputs, each with an equal share of the budget."""

    needs: ClassVar[Needs] = "model"
    called: ClassVar[str] = "the attack on a network's stages"

    def run(self, data: AttackData, budget: Budget, seed: int) -> Outcome:
        """One pass of the images through the network, then the inner attacks on each stage."""
        network = data.network
        assert network is not None
        assert network.stages is not None
        assert network.stage_outputs is not None
        outputs, share = network.stage_outputs, budget.share(len(network.stages.columns))
        setup = network.cost_of(network.stages)
        traces = []
        for name, columns in network.stages.columns.items():

            def rows(numbers: Numbers, of: Rows, columns: slice = columns) -> Rows:
                return Rows(outputs.at(numbers)[:, columns].double().numpy(), of.y)

            train, validation, test = (rows(getattr(network, part), of) for part, of in data.parts.items())
            stage = AttackData(train, validation, test, data.n_classes)
            traces += run_inner(self.inner, stage, share, seed, setup=setup, prefix=f"stage {name}")
        return Outcome(tuple(traces))
