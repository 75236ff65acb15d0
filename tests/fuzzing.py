"""Random settings and random damage, which the tests that look for mistakes nobody thought of share."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from immunize import records
from immunize.config import config_dir
from tests.commands import Called

# Nothing here makes a run long: counts are small, and what is huge is no whole number.
VALUES = (
    *("0", "1", "2", "3", "-1", "0.5", "-0.5", "1e-300", "1e300", "-1e300", "nan", "inf", "-inf", "0x10", "1_0"),
    *("null", "true", "false", "''", "auto", "κ", "foo", "???", "${seed}", "${nothing}", "nowhere/at/all", "'a b'"),
    *("[]", "[0]", "[0,0]", "[1,2,3]", "[[1],[2]]", "[null]", "{}", "{a:1}"),
)
Settings = st.SearchStrategy[list[str]]
EXAMPLES = int(os.environ.get("IMMUNIZE_FUZZ", "0"))
"""How many cases a test, drawn anew; 0: a few, the same every time."""


def cases(number: int) -> Any:
    """Settings of a search: `number` cases that never change, or `EXAMPLES` new ones."""
    return settings(
        max_examples=EXAMPLES or number,
        derandomize=not EXAMPLES,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def leaves(cfg: DictConfig, *, without: tuple[str, ...] = ()) -> list[str]:
    """The dotted names of all settings, groups of them included."""
    found = records.leaves(OmegaConf.to_container(cfg, resolve=False))
    names = {name for keys, _ in found for name in itertools.accumulate(keys, "{}.{}".format)}
    return sorted(name for name in names if not name.startswith(without))


def overrides(names: list[str]) -> Settings:
    """One to three settings, as Hydra's command line takes them: replaced, added or removed."""
    one = st.builds(
        "{}{}={}".format, st.sampled_from(["", "", "", "+", "++"]), st.sampled_from(names), st.sampled_from(VALUES)
    )
    gone = st.builds("~{}".format, st.sampled_from(names))
    return st.lists(st.one_of(one, one, one, gone), min_size=1, max_size=3)


def choices(*groups: str) -> Settings:
    """One to three settings that each are right by themselves: groups of `conf/` with one of their choices."""
    one = st.sampled_from(groups).flatmap(
        lambda group: st.sampled_from(sorted(path.stem for path in (Path(config_dir()) / group).glob("*.yaml"))).map(
            lambda choice: f"{group}={choice}"
        )
    )
    return st.lists(one, min_size=1, max_size=3, unique_by=lambda word: word.partition("=")[0])


def ends_well(called: Called, main: Callable[[], None], arguments: list[str], folder: Path) -> None:
    """`main` returns, or leaves with exit code 1 and a message that is no traceback; any other exception is one."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    done = called(main, *arguments, f"hydra.run.dir={run}")
    assert done.code in (0, 1), (arguments, done)
    assert done.code == 0 or done.err.strip(), arguments
    assert "Traceback" not in done.err, (arguments, done)


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """Cut short, with bytes replaced, with bytes put in, or something else altogether."""
    where = st.integers(0, len(content) - 1)
    some = st.binary(min_size=1, max_size=40)
    return st.one_of(
        where.map(lambda end: content[:end]),
        st.builds(lambda at, new: content[:at] + new + content[at + len(new) :], where, some),
        st.builds(lambda at, new: content[:at] + new + content[at:], where, some),
        st.binary(max_size=200),
    )
