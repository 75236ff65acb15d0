"""What the entry points share: user errors become one message and exit code 1, never a traceback."""

from __future__ import annotations

import difflib
import functools
import io
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from immunize.config import SCHEMAS, config_dir, register
from immunize.errors import UserError
from immunize.importing import start_quickly
from immunize.processes import is_first, signals_handled
from immunize.settings import check

_reached = {"task": False, "explained": False}
"""Whether a configuration was composed, so that a task has begun in this call of an entry point, and whether errors are
ours to show.

A plain dictionary, because joblib copies a task to its workers with what it refers to."""

FULL_ERROR = "HYDRA_FULL_ERROR"
"""Hydra's environment variable; set to 1 by the user, errors of every kind come with their traceback."""


_OPEN = re.compile(r"override '(model\.(kwargs|data)|objective\.optimizer|trainer|logger)\b")
"""Hydra's message of a setting whose class takes more than the configuration lists: "+" adds it."""


class _PastHydra(BaseException):
    """A user error of a single run, on its way past Hydra, which would show all overrides before the message."""


def command(config: str, *, values: bool = False) -> Callable[[Callable[..., Any]], Callable[[], None]]:
    """Decorate what a command does with its configuration: the entry point that composes it from the command line.

    Args:
        config: the primary configuration below `conf/`.
        values: hand over the values of its settings, in the order of their schema; otherwise the configuration.
    """
    folder, _, name = f"{config_dir()}/{config}".rpartition("/")

    def decorate(task: Callable[..., Any]) -> Callable[[], None]:
        def checked(cfg: DictConfig) -> Any:
            _refuse_several()
            if not values:
                return task(cfg)
            check(cfg, SCHEMAS[name])
            return task(*(cfg[field.name] for field in fields(SCHEMAS[name])))

        @entry_point
        @functools.wraps(task)
        def main() -> None:
            register()
            hydra.main(version_base="1.3", config_path=folder, config_name=name)(explain_errors(checked))()

        return main

    return decorate


def _refuse_several() -> None:
    """Refuse two choices of one group, such as logger=[csv,wandb]: Hydra would merge them into one of neither.

    Groups within groups, as harmful/sets, and `benign` are lists.
    """
    for line in HydraConfig.get().overrides.task:
        group, _, choice = line.partition("=")
        single = "/" not in group and group != "benign" and Path(config_dir(), group.partition("@")[0]).is_dir()
        if single and choice.startswith("[") and "," in choice:
            raise UserError(f"{line}: one {group} can be chosen; {group}={choice.strip('[]').partition(',')[0]} is one")


def explain_errors(task: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a task, of Hydra or not: its user errors become Hydra's kind of error that needs no traceback.

    In a multirun the other jobs still run; Hydra reports the first failure at the end, with exit code 1.
    """

    @functools.wraps(task)
    def wrapped(given: Any) -> Any:
        _reached["task"] = True
        try:
            return task(given)
        except MissingMandatoryValue as error:
            raise _told(f"error: {error.full_key}=... is missing; --help says what it is") from None
        except (UserError, OmegaConfBaseException) as error:
            raise _told(f"error: {error}") from None
        except BrokenExecutor:
            raise _told(
                "error: a process was killed, as the system does where memory runs out; the same command goes on from "
                "what was finished"
            ) from None

    return wrapped


def entry_point(main: Callable[[], None]) -> Callable[[], None]:
    """Decorate a `main`: bad options end with Hydra's message, Ctrl-C with exit code 130, neither with a traceback.

    SIGHUP, of a terminal that is closed, is SIGTERM, unless it is ignored (nohup).
    """

    @functools.wraps(main)
    def wrapped() -> None:
        start_quickly()
        for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():  # by their numbers
            if getattr(sys, name) is None:  # closed before we began: what is opened next would take its number
                os.set_inheritable(nothing := os.open(os.devnull, os.O_RDWR), True)
                setattr(sys, name, os.fdopen(nothing, mode, encoding="utf-8"))
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a stdout that cannot show κ is no reason to fail
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        ending = {} if ignored else {signal.SIGHUP: lambda *_: signal.raise_signal(signal.SIGTERM)}
        try:
            with signals_handled(ending):
                main() if os.environ.get(FULL_ERROR) == "1" else _explained(main)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
        except BrokenPipeError:  # `| head` closed our stdout
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)

    return wrapped


def in_sweep() -> bool:
    """Whether this job is one of a multirun."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def output_folder() -> Path:
    """Of this job."""
    return Path(HydraConfig.get().runtime.output_dir)


def tell(text: str) -> None:
    """Print to stderr what the seconds go by with in which nothing else is shown."""
    print(text, file=sys.stderr, flush=True)


def pasted(name: str, folder: str | Path) -> str:
    """A setting that is a folder, as a shell and then Hydra take it."""
    shell = HydraConfig.get().runtime.cwd if HydraConfig.initialized() else os.curdir  # hydra.job.chdir leaves it
    path = os.path.relpath(folder, shell)
    if re.fullmatch(r"[\w./+-]+", path):
        return f"{name}={path}"
    setting = "{}='{}'".format(name, path.replace("'", r"\'"))
    return shlex.quote(setting) if re.search(r'["$`\\!]', setting) else f'"{setting}"'  # which reads better


def now_and_then(seconds: float = 10.0) -> Callable[[str], None]:
    """:func:`tell` for lines that come by the hundred: the first, and then one in so many seconds."""
    next_at = 0.0

    def tell_some(text: str) -> None:
        nonlocal next_at
        if (now := time.monotonic()) >= next_at:
            next_at = now + seconds
            tell(text)

    return tell_some


def teller(quiet: bool) -> Callable[[str], None]:
    """:func:`tell`, or nothing where a run is to be quiet or another of its processes tells."""
    return tell if is_first() and not quiet else lambda text: None


def sigint_restored() -> AbstractContextManager[None]:
    """Undo on leaving what is done to Ctrl-C within: Lightning has it ignored once it was pressed."""
    return signals_handled({signal.SIGINT: signal.getsignal(signal.SIGINT)})


def _explained(main: Callable[[], None]) -> None:
    # Hydra explains its own errors only, shows others (an output folder that cannot be made) as a traceback, and
    # lets some of its own pass (--help with a misspelt key). Told to let everything pass, it leaves that to us.
    os.environ[FULL_ERROR] = "1"
    _reached.update(task=False, explained=True)
    try:
        main()
    except (_PastHydra, HydraException, OmegaConfBaseException) as error:
        print(_of_use(with_cause(error)), file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except (ValueError, TypeError, AttributeError) as error:
        if _reached["task"]:
            raise  # a mistake of ours
        print(f"error: {error}", file=sys.stderr)  # Hydra's own, such as `method=0`: what it composes is the user's
        sys.exit(1)
    finally:
        _reached["explained"] = False
        del os.environ[FULL_ERROR]


def with_cause(error: BaseException) -> str:
    """Hydra's message, OmegaConf's below it, and the settings that a misspelt one is close to."""
    lines, cause = [str(error)], error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        lines.append(str(cause))
        if isinstance(cause, AttributeError) and isinstance(cause.parent_node, DictConfig):
            above = str(cause.full_key).removesuffix(str(cause.key))
            if close := difflib.get_close_matches(str(cause.key), map(str, cause.parent_node)):
                lines.append(f"Did you mean {' or '.join(above + name for name in close)}?")
    return "\n".join(filter(None, lines))


def _told(message: str) -> BaseException:
    alone = HydraConfig.initialized() and not in_sweep()
    return _PastHydra(message) if alone and _reached["explained"] else CompactHydraException(message)


def _of_use(told: str) -> str:
    """Hydra's message without the names of our classes, where it looked, and the advice to add a misspelt name."""
    lines = told.partition("Config search path:")[0].rstrip().splitlines()
    others = ("object_type=", "reference_type=", *(() if _OPEN.search(told) else ("To append to your config use",)))
    if lines and "Could not find 'objective/" in lines[0] and not any(of.startswith("objective=") for of in sys.argv):
        lines.append("This model has no row of hyper-parameters for these data: start from one above, objective=<row>")
    return "\n".join(line for line in lines if not line.strip().startswith(others))
