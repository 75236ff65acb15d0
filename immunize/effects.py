"""Settings without effect: which they are, kept apart in a record, and refused where somebody has asked for one.

A row of hyper-parameters serves every method, and a data set, a model or a grid more runs than one; no run uses all of
it. What a run does not use stands under `without_effect` in its record, so that whatever `config` names was in force.
A setting that was given by name on the command line of a single run, and would do nothing, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig

from immunize.cli import in_sweep
from immunize.config import OF_DEEP_NETS, config_hash, is_deep
from immunize.errors import UserError
from immunize.instantiate import located
from immunize.records import parted

Idle = dict[str, str]
"""The dotted name of a setting, or of a group of them, to why it has no effect."""

Config = Mapping[str, Any]

TAKES_NO_STEPS = "the method computes θ and takes no steps"
WITHOUT_STEPS = ("validation_fraction", "early_stopping")
"""What a method that takes no steps may use of `objective`."""
BALANCED = (
    "objective.balance sets it; scale λ_H with objective.balance_multiplier_ill=2, both with "
    "objective.balance_multiplier=2, or give λ_P and λ_H with objective.balance=false"
)
WHERE = ("_target_", "accelerator", "devices", "num_nodes", "strategy")
"""Settings of `trainer` that say where a network is computed."""

NEEDED = "model.trainable"
"""What `model=timm` has to be given, whatever the method makes of it."""

OF_THE_OUTER = ("tier", "kinds")
"""Settings of an attack that prepares features which hold for its inner attacks; theirs do nothing."""


def idle_in_run(config: Config, method: Any) -> Idle:
    """What has no effect in `immunize.train`.

    Args:
        config: the plain, resolved configuration.
        method: its :class:`~immunize.objective.Objective`, whose room imports torch.
    """
    model, row, own, deep = config["model"], config["objective"], config["method"], is_deep(config)
    layer, stops = own.get("precondition") in ("dummy", "literal"), bool(row["early_stopping"])
    rules = [
        (deep, "a network has deep.probe_steps", "probe_steps"),
        (deep, "it is for linear models", "init"),
        (deep and row["epochs_on"] == "harmful", "an epoch is a pass of D_H (objective.epochs_on=harmful)", "pairing"),
        (deep and model.get("checkpoint") is not None, "model.checkpoint goes before it", "model.pretrained"),
        (not deep, "it is for networks", " ".join(("deep", *(f"objective.{key}" for key in OF_DEEP_NETS)))),
        (not deep and not layer, "it is of method.precondition=dummy or literal", "model.ridge"),
        (not deep and row["batch_size"] is None, "every step takes all rows (objective.batch_size=null)", "pairing"),
        (not deep and config["init"].get("_target_") is not None, "init says how θ starts", "model.init"),
        (not stops, "objective.early_stopping is off", "objective.check_every objective.patience"),
        (not stops and config["selection"] is None, "no rows are set aside", "objective.validation_fraction"),
        *(_rules_of_steps(row, own, method) if method.trains else ()),
    ]
    idle = idle_data(config, *(["images"] if deep else []))
    idle |= {name: why for holds, why, names in rules if holds for name in names.split()}
    idle |= _all("nothing is drawn with these settings", *(f"method.{key}" for key in method.unused))
    nulls = (key for key, value in row["optimizer"].items() if value is None)
    idle |= _all("null is not passed on", *(f"objective.optimizer.{key}" for key in nulls))
    if method.trains:
        return idle
    kept = {f"objective.{key}" for key in WITHOUT_STEPS} | ({f"trainer.{key}" for key in WHERE} if deep else set())
    groups = [f"{group}.{key}" for group in ("objective", "trainer", "init") for key in config[group]]
    start = (f"model.{key}" for key in ("init", "columns", "ridge", "trainable") if key in model)
    return idle | _all(TAKES_NO_STEPS, *(name for name in groups if name not in kept), *start, "pairing")


def _rules_of_steps(row: Config, own: Config, method: Any) -> list[tuple[bool, str, str]]:
    """Where a setting has no effect beside a method that takes steps, why, and which they are.

    Args:
        row: of hyper-parameters.
        own: settings of the method.
        method: it.
    """
    terms = [term for term in ("well", "ill") if term in method.weights]
    balanced, of_ill = bool(row["balance"] and terms), "objective.balance_multiplier_ill"
    replaced = [f"lambda_{term}" for term in terms if own.get(f"lambda_{term}") not in (None, row[f"lambda_{term}"])]
    return [
        *((term not in terms, f"the method has no R_{term}", f"objective.lambda_{term}") for term in ("well", "ill")),
        *((balanced, BALANCED, f"objective.lambda_{term} method.lambda_{term}") for term in terms),
        *((not balanced, f"method.{name} replaces it", f"objective.{name}") for name in replaced),
        (not terms, "the method has no λ", "objective.balance"),
        (not balanced, "no λ is balanced", "objective.balance_multiplier objective.balance_every"),
        (not balanced or "ill" not in terms, "no λ_H is balanced", of_ill),
        (not method.takes_loss, "the method has no loss", "objective.loss objective.label_smoothing"),
        (not method.trains_classifier, "the method trains no classifier", "objective.head_weight_decay"),
    ]


def idle_in_pretraining(*, fresh_head: bool, from_file: bool) -> Idle:
    """What has no effect in `immunize.pretrain`, beside what a data set does not use.

    Args:
        fresh_head: a new head is put on a network that is there.
        from_file: whose weights are read from a file.
    """
    idle = _all("θ_0 is trained as a whole", "model.trainable")
    if not fresh_head:
        return idle | _all("weights are random without model.fresh_head", "model.pretrained", "model.checkpoint")
    return idle | (_all("model.checkpoint goes before it", "model.pretrained") if from_file else {})


def idle_in_attack(cfg: DictConfig, nodes: DictConfig, found: Mapping[str, Any] | None = None) -> Idle:
    """What has no effect in `immunize.attack`.

    Args:
        cfg: the composed configuration.
        nodes: `model`, `pretrain` and `harmful` of what is attacked.
        found: what `immunize.attack.measure` returned, which tells of attacks, and inner ones, that nothing let run.
    """
    idle: Idle = {}
    for name, node in cfg.attack.attacks.items():
        of_it = node.get("inner")  # whatever was asked for: it is judged where attacks are made
        names = map(str, of_it if isinstance(of_it, DictConfig) else ())
        inner = [f"attack.attacks.{name}.inner.{one}" for one in names]
        inner += [f"attack.attacks.{name}.probe"] if node.get("probe") else []
        idle |= _all(
            "an inner attack has that of the one it is in", *(f"{one}.{key}" for one in inner for key in OF_THE_OUTER)
        )
    if cfg.run is not None:
        idle |= _all("it goes with checkpoint=; with run= model and data are those of the run", *_GROUPS)
    targets = [nodes[role].get("_target_") for role in _ROLES]
    held_out = is_deep(nodes) or all(_of_class(target, "held_out_protocol") == "split" for target in targets)
    if held_out and not cfg.get("own_rows"):
        what = "image data sets have held-out images" if is_deep(nodes) else "the data set has held-out rows"
        idle |= _all(what, "test_fraction")
    if is_deep(nodes):
        idle |= _all("a network has benign=[...]", "benign_digits")
    else:
        idle |= _all("a linear model has no images", "images", "workers", "features", "reference", "benign")
        pair = nodes.harmful.get("pair")  # of a data set of the user's own it may be anything
        if not (isinstance(pair, ListConfig) and all(isinstance(digit, int) for digit in pair)):
            idle |= _all("there is no third digit", "benign_digits")
    if found is None:
        return idle
    cells = [item for seen in found["attacks"].values() for of in seen.values() for item in of.items()]
    known, ran = {name for name, _ in cells}, {name for name, cell in cells if cell["status"] != "skipped"}
    tasks = {task["task"] for task in found["tasks"].values()}
    left_out = {"kinds"} | ({"tier"} if cfg.tiers is not None else set())  # what may have left an attack out
    for name, node in cfg.attack.attacks.items():
        at = f"attack.attacks.{name}"
        if name not in known:
            idle |= _all("tried on no task", *(f"{at}.{key}" for key in node if key not in left_out))
        elif name not in ran:  # a tier that nobody can try here counts in the verdict
            idle |= _all("what it needs is not there", *(f"{at}.{key}" for key in node if key not in ("kinds", "tier")))
        for one, inner_node in node.get("inner", {}).items():
            if not tasks & set(_of_class(inner_node.get("_target_"), "tasks")):
                idle |= _all("it can solve none of the tasks", f"{at}.inner.{one}")
    return idle


def told(settings: dict[str, Any], idle: Idle, hashed: str | None = None) -> dict[str, Any]:
    """What a record says of its settings: those that have an effect, the others, and the hash of all that matter."""
    config, without_effect = parted(settings, idle)
    return {"config": config, "without_effect": without_effect, "config_hash": hashed or config_hash(settings)}


def given_names(overrides: Iterable[str]) -> list[str]:
    """The names of settings in overrides as Hydra takes them; what is taken out is not asked for."""
    return [word.lstrip("+").partition("=")[0].partition("@")[0] for word in overrides if not word.startswith("~")]


def asked_for() -> list[str]:
    """The settings that the command line of the run names."""
    return given_names(HydraConfig.get().overrides.task)


def refuse_idle(given: Iterable[str], idle: Idle) -> None:
    """Refuse what was asked for by name and would do nothing.

    The runs of a sweep share their settings, which need not serve each of them. But λ that a balance sets would make
    runs of other λ the same.

    Raises:
        UserError: the first of them, with the reason.
    """
    alone = not in_sweep()
    for name in given:
        if name == NEEDED:
            continue
        why = next((why for one, why in idle.items() if name == one or name.startswith(f"{one}.")), None)
        if why == BALANCED or (why is not None and alone):
            raise UserError(f"{name} has no effect here: {why}{'' if why == BALANCED else '; leave it out'}")


_ROLES = ("pretrain", "harmful")
_GROUPS = ("model", *_ROLES)


def idle_data(config: Config, *uses: str) -> Idle:
    """What a data set does not use in its role, or for another use; its class says so.

    Args:
        config: plain and resolved.
        uses: "rows" of a forecast, which looks at no targets, or "images".
    """
    found: Idle = {}
    for role in _ROLES:
        node = config.get(role, {})
        for name, one in {
            role: node,
            **{f"{role}.sets.{key}": one for key, one in node.get("sets", {}).items()},
        }.items():
            unused = _of_class(one.get("_target_"), "unused") or {}
            for use in (role, *uses):
                names = (f"{name}.{key}" for key in unused.get(use, ()))
                found |= _all(f"the data set does not use it as {use}", *names)
    return found


def _of_class(target: str | None, attribute: str) -> Any:
    return None if target is None else getattr(located(target), attribute, None)


def _all(why: str, *names: str) -> Idle:
    return dict.fromkeys(names, why)
