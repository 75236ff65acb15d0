"""The attack grid: who can learn the harmful task from released features, and at what cost (docs/attacks.md).

One file an attack; `protocol` says what they have in common, `grid` runs them, `judging` computes the verdict.
"""

from immunize.evaluation.attacks.adaptive import ImagesAlone, LinearMap, PublicReference
from immunize.evaluation.attacks.conjugate_gradient import ConjugateGradient
from immunize.evaluation.attacks.curves import RESOURCES, Cost, Curve, Point, Trace, best_so_far
from immunize.evaluation.attacks.first_order import FirstOrder
from immunize.evaluation.attacks.full_finetune import FullFinetune
from immunize.evaluation.attacks.gradient_descent import GradientDescent
from immunize.evaluation.attacks.grid import Entry, Store, attack_all, check_tiers, in_tier, version_of
from immunize.evaluation.attacks.horizon import Horizon, horizon_of
from immunize.evaluation.attacks.judging import Attacked, Estimate, TierResult, Verdict, compare, judge
from immunize.evaluation.attacks.kernel_ridge import KernelRidge
from immunize.evaluation.attacks.last_block import LastBlock
from immunize.evaluation.attacks.lbfgs import Lbfgs
from immunize.evaluation.attacks.logistic_descent import LogisticDescent
from immunize.evaluation.attacks.lora import Lora
from immunize.evaluation.attacks.nearest import NearestNeighbours
from immunize.evaluation.attacks.network import Inputs, Network
from immunize.evaluation.attacks.protocol import TIERS, Attack, AttackData, Budget, Outcome, Rows
from immunize.evaluation.attacks.repaired import Repaired
from immunize.evaluation.attacks.ridge import Ridge
from immunize.evaluation.attacks.stage_probes import StageProbes

__all__ = [
    "RESOURCES",
    "TIERS",
    "Attack",
    "AttackData",
    "Attacked",
    "Budget",
    "ConjugateGradient",
    "Cost",
    "Curve",
    "Entry",
    "Estimate",
    "FirstOrder",
    "FullFinetune",
    "GradientDescent",
    "Horizon",
    "ImagesAlone",
    "Inputs",
    "KernelRidge",
    "LastBlock",
    "Lbfgs",
    "LinearMap",
    "LogisticDescent",
    "Lora",
    "NearestNeighbours",
    "Network",
    "Outcome",
    "Point",
    "PublicReference",
    "Repaired",
    "Ridge",
    "Rows",
    "StageProbes",
    "Store",
    "TierResult",
    "Trace",
    "Verdict",
    "attack_all",
    "best_so_far",
    "check_tiers",
    "compare",
    "horizon_of",
    "in_tier",
    "judge",
    "version_of",
]
