"""From configuration nodes to objects, and the data sources found, before anything heavy is imported."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf

from immunize.config import is_deep
from immunize.errors import CheckpointError, UserError

if TYPE_CHECKING:
    from immunize.data import SourceBase

NOT_ARGUMENTS = ("name", "kind", "columns")
"""Keys of a model, method or start that its class does not take: its name in records, and what the run itself reads."""


def build(node: Mapping[str, Any], *, leave_out: Collection[str] = (), nulls: bool = True, **arguments: Any) -> Any:
    """Instantiate a `_target_`; what its constructor objects to is the user's to mend.

    Args:
        node: `_target_` and its arguments.
        leave_out: keys that are none of them, such as `NOT_ARGUMENTS` of a model, method or start.
        nulls: pass on what is null; otherwise it is left to the constructor.
        arguments: further ones, that the run itself provides.

    Raises:
        UserError: there is no `_target_`, the constructor refused its arguments, one that is annotated as a number is
            none (Hydra knows no types here), or the configuration sets one that the run provides.
    """
    target = node.get("_target_")
    if target is None:
        raise UserError(f"_target_ is missing beside {', '.join(map(str, node)) or 'nothing'}: it names what is built")
    if leave_out or not nulls:
        whole = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node
        assert isinstance(whole, Mapping)
        kept = {str(key): value for key, value in whole.items() if key not in leave_out}
        node = OmegaConf.create({key: value for key, value in kept.items() if nulls or value is not None})
    _check_numbers(target, node)
    if clash := sorted(str(key) for key in node if key in arguments):
        raise UserError(f"{target}: {', '.join(clash)} cannot be set here, the run provides it")
    try:
        return instantiate(node, **arguments)
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, ValueError):
            raise UserError(str(cause)) from error
        if isinstance(cause, ImportError):
            raise UserError(f"{target} cannot be imported, or what it needs: {cause}") from error
        raise UserError(f"{target}: {cause}" if cause else str(error)) from error


def located(target: str) -> Any:
    """What a `_target_` names; None where it cannot be imported, which :func:`build` says better."""
    try:
        return get_object(target)
    except (ImportError, ValueError, TypeError, AttributeError):
        return None


def build_source(node: Mapping[str, Any], setting: str) -> SourceBase:
    """A source of data; `setting` is where the configuration has it.

    Raises:
        UserError: its `_target_` makes none.
    """
    source: SourceBase = build(node)
    if not all(hasattr(source, name) for name in ("name", "role", "task", "require", "load")):
        raise UserError(f"{setting}._target_ has to make a SourceBase, it makes a {type(source).__name__}")
    return source


def sources_of(cfg: DictConfig) -> tuple[SourceBase, SourceBase]:
    """The sources of D_P and D_H, with their files found.

    Args:
        cfg: of a run.

    Raises:
        UserError: a loss of a linear model that does not suit D_P, or a file that is not there.
    """
    sources = build_source(cfg.pretrain, "pretrain"), build_source(cfg.harmful, "harmful")
    for source in sources:
        if not is_deep(cfg) and source.role == "pretrain":  # a network has one loss for all tasks
            try:
                check_loss(cfg.objective.loss, source)
            except UserError:  # a method that computes θ has none, and needs no other than is there by itself
                if cfg.objective.loss in LABELS or build(cfg.method, leave_out=NOT_ARGUMENTS).trains:
                    raise
        source.require()
    return sources


PARTS = ("SourceBase", "Objective", "LinearExtractor", "DeepExtractor", "Attack", "Optimizer")
"""Classes whose subclasses a record may have built, by name, so that none has to be imported: ours, and torch's."""


def check_parts(*nodes: Any) -> None:
    """Refuse what a record has built and is no part of a run: who evaluates runs of others is not to run anything else.

    Args:
        nodes: of the configuration of a record; what is none is left out.

    Raises:
        CheckpointError: a `_target_`, at any depth, is neither a class derived from one of `PARTS`, or a method of such
            a class, nor a function whose annotation says that it returns one.
    """
    for target in _targets([OmegaConf.to_container(node, resolve=True) for node in nodes if OmegaConf.is_config(node)]):
        if (found := located(target)) is None:
            continue
        of_class = getattr(found, "__self__", found)
        if inspect.isclass(of_class):
            ours = {one.__name__ for one in of_class.__mro__ if one.__module__.startswith(("immunize.", "torch."))}
        else:
            returned = getattr(found, "__annotations__", {}).get("return")
            ours = {str(getattr(returned, "__name__", returned)).rpartition(".")[2]}
        if ours.isdisjoint(PARTS):
            raise CheckpointError(
                f"the record has {target} called, which makes no part of a run, and nothing else is run for a record; "
                "if it is a network of your own, annotate the function with -> DeepExtractor"
            )


def _targets(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and isinstance(value.get("_target_"), str):
        yield value["_target_"]
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _targets(item)


LABELS = {"bce": "binary", "ce": "classification"}
"""Losses of a linear model to the only task that they are for; the others take any target of one column."""


def check_loss(loss: str, source: SourceBase) -> None:
    """Refuse a loss of a linear model that does not suit the task of a source.

    Raises:
        UserError: it does not.
    """
    needed = LABELS.get(loss)
    if source.task == (needed or source.task) and (needed or source.task != "classification"):
        return
    what = f"is for a {needed} task" if needed else "knows no classes"
    raise UserError(
        f"objective.loss={loss} {what}, but {source.name} ({source.role}) is a {source.task} task; choose "
        f"objective.loss={'ce' if source.task == 'classification' else 'mse'}"
    )


NUMBERS = {int: "a whole number", float: "a number", bool: "true or false"}


def _check_numbers(target: str, arguments: Mapping[str, Any]) -> None:
    """Refuse what is no number where the annotation asks for one or a tuple of any length; others pass."""
    found = located(target)
    try:
        own = inspect.isclass(found) and not is_dataclass(found)  # whose fields know their own modules' names
        hints = typing.get_type_hints(found.__init__ if own else found)
    except (NameError, TypeError, AttributeError):
        return  # there are no annotations that can be read here
    for name, hint in hints.items():
        several = typing.get_origin(hint) is tuple and typing.get_args(hint)[1:] == (...,)
        kind = typing.get_args(hint)[0] if several else hint
        union = typing.get_origin(kind) in (typing.Union, types.UnionType)
        allowed = set(typing.get_args(kind)) if union else {kind}
        kinds = allowed - {type(None)}
        if name not in arguments or not kinds or not kinds <= NUMBERS.keys():
            continue
        value = arguments[name]
        fitting = allowed | {int} if float in kinds else allowed
        values = value if several and isinstance(value, list | ListConfig) else [value]
        if (several and values is not value) or not all(type(one) in fitting for one in values):
            words = " or ".join(word for kind, word in NUMBERS.items() if kind in kinds)
            words = f"a list, and each item {words}" if several else words
            raise UserError(
                f"{target}: {name} has to be {words}{', or null' if kinds < allowed else ''}; it is {value}"
            )
