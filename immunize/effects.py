"""Settings without effect: which they are, kept apart in a record, and refused where somebody has asked for one.

A row of hyper-parameters serves every method, and a data set, a model or a grid more runs than one; no run uses all of
it. What a run does not use stands under `without_effect` in its record, so that whatever `config` names was in force.
A setting that was given by name on the command line of a single run, and would do nothing, is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import get_object
from omegaconf import DictConfig

from immunize.config import OF_DEEP_NETS
from immunize.errors import UserError

__all__ = [
    "Idle",
    "apart",
    "asked_for",
    "given_names",
    "idle_in_attack",
    "idle_in_forecast",
    "idle_in_grid",
    "idle_in_pretraining",
    "idle_in_training",
    "refuse_idle",
]

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
WHERE = ("_target_", "accelerator", "devices", "num_nodes", "strategy", "precision")
"""Settings of `trainer` that say where a network is computed."""

OF_THE_OUTER = ("tier", "kinds")
"""Settings of an attack that prepares features which hold for its inner attacks; theirs do nothing."""


class Method(Protocol):
    """What has to be known of a method, such as :class:`~immunize.objective.Objective`."""

    weights: dict[str, float]

    @property
    def trains(self) -> bool:
        """Whether it takes steps."""

    @property
    def takes_loss(self) -> bool:
        """Whether a loss is among its terms."""

    @property
    def trains_classifier(self) -> bool:
        """Whether it trains a classifier."""

    @property
    def unused(self) -> tuple[str, ...]:
        """Settings of its own without effect."""


def idle_in_training(config: Config, method: Method) -> Idle:
    """What has no effect in a run of `immunize.train`.

    Args:
        config: the plain, resolved configuration.
        method: its method.
    """
    model, objective = config["model"], config["objective"]
    deep = _is_deep(model)
    idle = _of_kind(config, deep) | _of_data(config, *(["images"] if deep else []))
    if not objective["early_stopping"]:
        idle |= _all("objective.early_stopping is off", "objective.check_every", "objective.patience")
        if config["selection"] is None:
            idle |= _all("no rows are set aside", "objective.validation_fraction")
    idle |= _all("nothing is drawn with these settings", *(f"method.{key}" for key in method.unused))
    passed_on = objective["optimizer"].items()
    idle |= _all("null is not passed on", *(f"objective.optimizer.{key}" for key, value in passed_on if value is None))
    if method.trains:
        return idle | _of_terms(config, method)
    kept = {f"objective.{key}" for key in WITHOUT_STEPS} | ({f"trainer.{key}" for key in WHERE} if deep else set())
    groups = [f"{group}.{key}" for group in ("objective", "trainer", "init") for key in config[group]]
    return idle | _all(TAKES_NO_STEPS, *(name for name in groups if name not in kept), *_of_start(model), "pairing")


def idle_in_pretraining(config: Config) -> Idle:
    """What has no effect in `immunize.pretrain`, with the plain, resolved configuration."""
    idle = _of_data(config, "images") | _all("θ_0 is trained as a whole", "model.trainable")
    if not config["model"].get("fresh_head"):
        idle |= _all("weights are random without model.fresh_head", "model.pretrained", "model.checkpoint")
    elif config["model"].get("checkpoint") is not None:
        idle |= _all("model.checkpoint goes before it", "model.pretrained")
    return idle


def idle_in_forecast(config: Config) -> Idle:
    """What has no effect in `immunize.forecast`, with the plain, resolved configuration: it looks at no targets."""
    return _of_data(config, "rows")


def idle_in_attack(cfg: DictConfig, nodes: DictConfig) -> Idle:
    """What has no effect in `immunize.attack`.

    Args:
        cfg: the composed configuration.
        nodes: `model`, `pretrain` and `harmful` of what is attacked.
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
    if _is_deep(nodes.model):
        idle |= _all("image data sets have held-out images", "test_fraction")
        return idle | _all("a network has benign=[...]", "benign_digits")
    idle |= _all("a linear model has no images", "images", "workers", "reference", "benign")
    if not all(isinstance(digit, int) for digit in nodes.harmful.get("pair", [None])):
        idle |= _all("there is no third digit", "benign_digits")
    if all(_class_of(nodes[role], "held_out_protocol") == "split" for role in _ROLES):
        idle |= _all("the data set has held-out rows", "test_fraction")
    return idle


def idle_in_grid(cfg: DictConfig, found: Config) -> Idle:
    """What had no effect in a finished `immunize.attack`: attacks, and inner ones, that nothing here lets run.

    Args:
        cfg: the composed configuration.
        found: what `immunize.attack.measure` returned.
    """
    cells = [item for seen in found["attacks"].values() for of in seen.values() for item in of.items()]
    known, ran = {name for name, _ in cells}, {name for name, cell in cells if cell["status"] != "skipped"}
    tasks = {task["task"] for task in found["tasks"].values()}
    left_out = {"kinds"} | ({"tier"} if cfg.tiers is not None else set())  # what may have left an attack out
    idle: Idle = {}
    for name, node in cfg.attack.attacks.items():
        at = f"attack.attacks.{name}"
        if name not in known:
            idle |= _all("tried on no task", *(f"{at}.{key}" for key in node if key not in left_out))
        elif name not in ran:  # a tier that nobody can try here counts in the verdict
            idle |= _all("what it needs is not there", *(f"{at}.{key}" for key in node if key not in ("kinds", "tier")))
        for one, inner in node.get("inner", {}).items():
            if not tasks & set(_class_of(inner, "tasks")):
                idle |= _all("it can solve none of the tasks", f"{at}.inner.{one}")
    return idle


def apart(config: Config, idle: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A configuration in two: the settings that have an effect, and the others; `whole_config` puts them together.

    Args:
        config: plain.
        idle: names as in `Idle`.
    """

    def divided(node: Config, prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
        kept: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for key, value in node.items():
            name = f"{prefix}{key}"
            if name in idle:
                rest[key] = value
            elif isinstance(value, dict) and value:
                some, others = divided(value, f"{name}.")
                kept |= {key: some} if some else {}
                rest |= {key: others} if others else {}
            else:
                kept[key] = value
        return kept, rest

    return divided(config, "")


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
    in_sweep = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
    for name in given:
        why = next((why for one, why in idle.items() if name == one or name.startswith(f"{one}.")), None)
        if why == BALANCED or (why is not None and not in_sweep):
            raise UserError(f"{name} has no effect here: {why}{'' if why == BALANCED else '; leave it out'}")


_ROLES = ("pretrain", "harmful")
_GROUPS = ("model", *_ROLES)


def _of_kind(config: Config, deep: bool) -> Idle:
    """Settings of the other kind of model, and those of this kind that others of them replace."""
    model = config["model"]
    if deep:
        own = _all("a network has deep.probe_steps", "probe_steps")
        own |= _all("it is for linear models", "guard", "init")
        if config["objective"]["epochs_on"] == "harmful":
            own |= _all("an epoch is a pass of D_H (objective.epochs_on=harmful)", "pairing")
        replaced = model.get("checkpoint") is not None and "pretrained" in model
        return own | (_all("model.checkpoint goes before it", "model.pretrained") if replaced else {})
    own = _all("it is for networks", "deep", *(f"objective.{key}" for key in OF_DEEP_NETS))
    if config["method"].get("precondition") not in ("dummy", "literal"):
        own |= _all("it is of method.precondition=dummy or literal", "model.ridge")
    if config["objective"]["batch_size"] is None:
        own |= _all("every step takes all rows (objective.batch_size=null)", "pairing")
    if config["init"].get("_target_") is not None:
        own |= _all("init says how θ starts", "model.init")
    return own


def _of_start(model: Config) -> list[str]:
    """Where θ starts, and which part of it moves."""
    return [f"model.{key}" for key in ("init", "columns", "ridge", "trainable") if key in model]


def _of_terms(config: Config, method: Method) -> Idle:
    """What the terms of a loss do not use."""
    objective, terms = config["objective"], method.weights.keys()
    own: Idle = {}
    balanced = bool(objective["balance"] and {"well", "ill"} & terms)
    for term in ("well", "ill"):
        if term not in terms:
            own |= _all(f"the method has no R_{term}", f"objective.lambda_{term}")
        elif balanced:
            own |= _all(BALANCED, f"objective.lambda_{term}", f"method.lambda_{term}")
        elif config["method"].get(f"lambda_{term}") not in (None, objective[f"lambda_{term}"]):
            own |= _all(f"method.lambda_{term} replaces it", f"objective.lambda_{term}")
    if not {"well", "ill"} & terms:
        own |= _all("the method has no λ", "objective.balance")
    if not balanced:
        own |= _all("no λ is balanced", "objective.balance_multiplier", "objective.balance_every")
    if not balanced or "ill" not in terms:
        own |= _all("no λ_H is balanced", "objective.balance_multiplier_ill")
    if not method.takes_loss:
        own |= _all("the method has no loss", *(f"objective.{key}" for key in _OF_LOSS))
    if not method.trains_classifier:
        own |= _all("the method trains no classifier", "objective.head_weight_decay")
    return own


_OF_LOSS = ("loss", "label_smoothing")


def _of_data(config: Config, *uses: str) -> Idle:
    """What a data set does not use in its role, or for another use; its class says so."""
    found: Idle = {}
    for role in _ROLES:
        node = config.get(role, {})
        for name, one in {
            role: node,
            **{f"{role}.sets.{key}": one for key, one in node.get("sets", {}).items()},
        }.items():
            unused = _class_of(one, "unused") or {}
            for use in (role, *uses):
                names = (f"{name}.{key}" for key in unused.get(use, ()))
                found |= _all(f"the data set does not use it as {use}", *names)
    return found


def _class_of(node: Config | DictConfig, attribute: str) -> Any:
    target = node.get("_target_")
    return None if target is None else getattr(get_object(target), attribute, None)


def _is_deep(model: Config | DictConfig) -> bool:
    return bool(model.get("kind") == "deep")


def _all(why: str, *names: str) -> Idle:
    return dict.fromkeys(names, why)
