"""What each table of attacks is made of: sweeps, pairs, and where its grid departs from `conf/attack.yaml`."""

from __future__ import annotations

from dataclasses import dataclass

HORIZON = (
    *("last_block", "last_block_10_percent", "last_block_1_percent", "last_block_sgd", "lora"),
    *("full_finetune", "full_finetune_augmented"),
)
SAME_BLOCK = tuple(f"attack.attacks.{name}.modules=[layer4]" for name in HORIZON if name.startswith("last_block"))
"""Of networks that were immunized at different depths the same part moves."""

METHODS = ("none", "ill_only", "imma", "opt_kappa", "ours", "closed_form", "erase", "censor", "simulated")
PEERS = (
    *("none", "imma", "ours", "censor", "censor_after", "contract", "contract_gain"),
    *("mlac", "sophon_inverse", "sophon_uniform"),
)
"""Those that train one block; what trains more has pages of its own."""
SEEDS = (0, 1, 2)
REPAIRS_LIKE_STANDARDIZE = ("~attack.attacks.centre", "~attack.attacks.normalize")
"""Each takes as long as `standardize`, half a minute a run on 12,000 rows of 784 pixels."""

HEADS = (
    *("gd_line_search", "gd_logistic", "sgd", "adamw", "sgd_raw", "adam_raw", "lbfgs", "conjugate_gradient", "centre"),
    *("standardize", "normalize", "whiten", "batchnorm_head", "mlp_head"),
)
"""Attackers who are not the one of their kind that honest users have too."""

MOVING = ("last_block", "lora", "full_finetune")
"""T4, on the harmful task alone. At small a step on the whole ResNet at 64 px costs as much as a hundred passes over
the features, and so few are affordable that they teach nothing: `last_block` stands for the three there. Newton's
method is left out there too: it has to solve for a hundred classes at once."""


DEFENDED = (*HEADS, "linear_map", "public_reference", "images_alone")
"""Of the table of defences at small, attackers of the harmful task alone. Honest users of D_P, Imagenette and CIFAR-10
have one of each kind: gradient descent, Adam, ridge regression, neighbours, a Gaussian kernel and the stages."""


def only_for(*names: str, kind: str = "harmful") -> tuple[str, ...]:
    """Overrides by which these attacks are tried on tasks of one kind alone: a network is dear to train."""
    return tuple(f"+attack.attacks.{name}.kinds=[{kind}]" for name in names)


def alone(name: str) -> tuple[str, ...]:
    """Overrides by which of `attack=horizon` this attack is left, for a thousand steps."""
    others = (f"~attack.attacks.{other}" for other in HORIZON if other != name)
    return ("attack=horizon", "attack.budget.steps=1000", *others)


@dataclass(frozen=True)
class Scale:
    """What one table is made of.

    Attributes:
        runs: folders of sweeps, as their presets leave them.
        grid: overrides of `conf/attack.yaml`.
        pairs: of digits, of the runs that have one; the others are all taken.
        methods: those that are taken; None takes all.
        seeds: those that are taken.
    """

    runs: tuple[str, ...]
    grid: tuple[str, ...]
    pairs: str = ""
    methods: tuple[str, ...] | None = METHODS
    seeds: tuple[int, ...] = SEEDS


_DIGITS = (
    *("attack=full", "attack.budget.steps=1000", "attack.budget.flops=1e11", *only_for(*MOVING)),
    *(f"attack.attacks.{name}.flops=8e11" for name in MOVING),  # 1e11 would be two steps of LoRA
    "attack.attacks.lora.ranks=[8]",
)
_SMALL_HEADS = (
    *("attack=full", "attack.budget.steps=300", "attack.budget.flops=3e11", "images=4000"),
    *("~attack.attacks.newton", "~attack.attacks.lora", "~attack.attacks.full_finetune"),
)
_SMALL = (
    *(*_SMALL_HEADS, *only_for("last_block")),
    *("attack.attacks.last_block.steps=120", "attack.attacks.last_block.flops=6e12"),
)
_HONEST = (*only_for(*DEFENDED), "benign=[imagenette,cifar10]")
_DEFENCE = (*_SMALL, *_HONEST)
_LAST_BLOCK = (*alone("last_block"), SAME_BLOCK[0])
_LAST_BLOCK_SMALL = (*_LAST_BLOCK, "tasks=[harmful]", "images=4000")
_ALL_RATES = "attack.attacks.last_block.tuning_steps=null"
_ON_FEATURES = "tiers=[T0,T1,T2,T3]"
_OWN_ROWS = ("own_rows=true", "test_fraction=0.5")
_KINDS = ("lbfgs", "mlp_head", "standardize")
_DRAWS = f"seeds={list(range(20))}".replace(" ", "")

SCALES = {
    "linear": Scale(
        ("outputs/table1", "outputs/table2"),
        (
            "attack=full",
            *REPAIRS_LIKE_STANDARDIZE,
            "attack.budget.steps=1000",
            "attack.budget.flops=3e10",
            "benign_digits=1",
        ),
        "01,06,08,10,12,13",
    ),
    "digits": Scale(("outputs/table3_digits",), _DIGITS),
    "small": Scale(("outputs/table3_small",), (*_SMALL, "benign=[imagenette]", "tasks=[harmful,benign_imagenette]")),
    "defence_digits": Scale(
        ("outputs/defence_linear", "outputs/defence_digits"),
        _DIGITS,
        methods=(*METHODS, "censor_deep", "censor_erased"),
    ),
    "defence_linear": Scale(("outputs/defence_linear",), (*_DIGITS, _ON_FEATURES), methods=None),
    "defence_own": Scale(
        ("outputs/defence_linear",),
        (*_DIGITS, _ON_FEATURES, *_OWN_ROWS),
        methods=("ours", "erase"),
    ),
    "defence_newrows": Scale(
        ("outputs/defence_front",),
        (*_SMALL_HEADS, "~attack.attacks.last_block", _ON_FEATURES, *_OWN_ROWS, "tasks=[harmful,pretrain]"),
        methods=("erase", "rank_100"),
        seeds=(0,),
    ),
    "defence_search": Scale(
        ("outputs/defence_search",),
        (*_DIGITS, _ON_FEATURES, *only_for(*DEFENDED)),
        methods=None,
        seeds=(0, 1),
    ),
    "defence_small": Scale(("outputs/defence_small",), _DEFENCE),
    "defence_weights": Scale(
        ("outputs/defence_weights",),
        (
            *(*_SMALL_HEADS, "~attack.attacks.last_block", _ON_FEATURES, "benign=[imagenette,cifar10]"),
            *(f"~attack.attacks.{name}" for name in HEADS if name not in _KINDS),
            *only_for(*_KINDS),
        ),
        methods=None,
        seeds=(0,),
    ),
    "defence_front": Scale(
        ("outputs/defence_front",),
        _DEFENCE,
        methods=None,
        seeds=(0,),
    ),
    "defence_ridge": Scale(
        ("outputs/defence_front",),
        (
            *("attack=full", "images=4000", "benign=[imagenette,cifar10]", "tiers=[T2,T3]"),
            *(f"~attack.attacks.{name}" for name in (*HEADS, "newton", "nearest_neighbours", "stage_probes")),
        ),
        methods=None,
        seeds=(0,),
    ),
    "t4_digits": Scale(
        ("outputs/t4_digits",),
        (
            *("attack=horizon", "attack.budget.steps=1000", "tasks=[harmful,pretrain]"),
            *only_for("last_block_10_percent", "last_block_1_percent", "lora", "full_finetune"),
            *SAME_BLOCK,
            "~attack.attacks.full_finetune_augmented",  # a fifth of the time, for images of 8 x 8 pixels
        ),
        methods=PEERS,
    ),
    "defence_deep": Scale(
        ("outputs/t4_small",),
        (*_SMALL_HEADS, *_HONEST, "~attack.attacks.last_block"),
        methods=("censor_deep",),
    ),
    "defence_floor": Scale(
        ("outputs/t4_small",),
        (*_SMALL_HEADS, "~attack.attacks.last_block", "tiers=[T5]", "tasks=[harmful]"),
        methods=("censor_deep",),
        seeds=(0,),
    ),
    "t4_rates": Scale(("outputs/t4_digits",), (*_LAST_BLOCK, _ALL_RATES, "tasks=[harmful]"), methods=None),
    # whoever moves all that the immunization trained, and not the last stage alone
    "t4_stages": Scale(
        ("outputs/t4_digits",),
        (*alone("last_block"), _ALL_RATES, "tasks=[harmful]"),
        methods=("censor_deep", "sophon_deep"),
    ),
    "t4_long": Scale(
        ("outputs/t4_digits",),
        (
            *("attack=horizon", "tasks=[harmful,pretrain]", "~attack.attacks.last_block_sgd", SAME_BLOCK[0]),
            *("~attack.attacks.last_block_10_percent", "~attack.attacks.last_block_1_percent"),
        ),
        methods=("imma", "censor_deep", "censor_after_deep", "contract_deep", "sophon_deep"),
        seeds=(0,),
    ),
    "t4_search": Scale(
        ("outputs/t4_search",),
        (*_LAST_BLOCK, _ALL_RATES, "tasks=[harmful,pretrain]"),
        methods=None,
        seeds=(0,),
    ),
    "t4_small": Scale(
        ("outputs/t4_small",),
        (
            *(*_LAST_BLOCK, "images=4000", "benign=[imagenette,cifar10]"),
            "tasks=[harmful,pretrain,benign_imagenette,benign_cifar10]",
        ),
        methods=None,
    ),
    "t4_weights": Scale(("outputs/defence_weights",), _LAST_BLOCK_SMALL, methods=None, seeds=(0,)),
    **{
        scale: Scale(
            ("outputs/t4_small",),
            (*alone(attack), "tasks=[harmful]", "images=4000"),
            methods=("censor_deep",),
        )
        for scale, attack in (("t4_lora", "lora"), ("t4_full", "full_finetune"))
    },
    "rotations": Scale(
        ("outputs/defence_small",),
        (
            *("attack=standard", "attack.budget.steps=300", "attack.budget.flops=3e11", "images=2000"),
            *("~attack.attacks.newton", "tasks=[harmful]", _DRAWS),
        ),
        methods=("none",),
        seeds=(0,),
    ),
}
"""Budgets are ours: what two cores do in an hour or two, of `t4_small` in several; FLOPs bind on MNIST, steps
elsewhere. `defence_front` has settings of `censor` by name, for what each costs benign tasks; `defence_search` those
that were tried on digits, `defence_weights` on a ResNet18, by an attack of each kind; `defence_ridge` has two closed
forms alone. In `defence_own` and `defence_newrows` attackers have rows that no method saw. `defence_deep` has heads
on what `t4_small` leaves; `t4_small` the last block alone, to honest users too: LoRA (`t4_lora`) and all weights
(`t4_full`) take an hour a run there. `t4_long` takes 3,000 steps, augmented ones too. `t4_rates` runs every learning
rate of the last block to its end: where 200 steps teach nothing, they cannot tell rates apart. `rotations` tries the
verdict: 20 random rotations of θ_0's features, none of which may count as a defence but by accident."""
