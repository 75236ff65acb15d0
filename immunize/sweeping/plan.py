"""Which runs a sweep consists of, and which of them are done, without composing each configuration from its files.

Hydra takes a tenth of a second to compose a configuration, minutes for all runs of a large sweep. Runs that differ in
the values of the same settings alone share the composed rest. The sweeper at the end is hydra/sweeper=grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.errors import CompactHydraException, HydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from immunize.config import config_hash, resolved
from immunize.records import SWEEP

PLUGINS = "hydra_plugins.immunize_sweeps"

BY_HASH = "${immunize.config_hash:}"
"""`hydra.sweep.subdir` of a sweep whose runs are found again by their configuration."""

Place = tuple[Path, str, bool]
"""The output folder of a run, its config hash, and whether it is done again whatever is there."""


def jobs_of(
    params: Mapping[str, object], grids: Sequence[Mapping[str, object]], arguments: Sequence[str]
) -> list[list[str]]:
    """The runs of a sweep, as lists of overrides.

    Args:
        params: setting to values, "0,1,2" or "range(0,3)", common to all grids.
        grids: further ones; the sweep is one grid after another. Empty is a single grid of `params`.
        arguments: overrides of the command line; a setting that stands there is taken from there. A group that a grid
            chooses from (`method`) is restricted to what both name, and a grid that has nothing in common is left out.

    Raises:
        HydraException: an override that cannot be parsed, or whose values cannot be listed.
    """
    parser = OverridesParser.create()
    jobs: list[list[str]] = []
    for grid in grids or ({},):
        lines = [f"{key}={value}" for key, value in {**params, **grid}.items()]
        choices = {one.get_key_element(): _choices(one) for one in parser.parse_overrides(lines)}
        for override in parser.parse_overrides(list(arguments)):
            key, given = override.get_key_element(), _choices(override)
            restricted = key in grid and "." not in key
            choices[key] = [line for line in given if line in choices[key]] if restricted else given
        jobs += [list(job) for job in itertools.product(*choices.values())]
    return [list(job) for job in dict.fromkeys(map(tuple, jobs))]


class Plan:
    """Where the runs of a sweep go, as far as that can be told cheaply.

    Args:
        context: Hydra's.
        master: the configuration of the sweep.
        threads: what `threads: null` of a network stands for where the runs are done; None is what it does here.
    """

    def __init__(self, context: HydraContext, master: DictConfig, threads: int | None = None) -> None:
        self._loader, self._master, self._threads = context.config_loader, master, threads
        self._composed: dict[tuple[tuple[str, ...], tuple[str, ...]], DictConfig] = {}
        self._parsed = lru_cache(maxsize=None)(self._parse)

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of one run, with Hydra's own node.

        Raises:
            HydraException: it cannot be composed.
        """
        return self._loader.load_sweep_config(self._master, list(overrides))

    def check(self, jobs: Sequence[Sequence[str]]) -> None:
        """Compose one run of each kind, so that a misspelt name ends the sweep before it begins.

        Raises:
            HydraException: one cannot be composed.
        """
        for job in jobs:
            self._base(job)

    def place(self, overrides: Sequence[str]) -> Place | None:
        """Where a run goes; None unless the sweep finds its runs again by their hash."""
        base, values = self._base(overrides)
        for override in values:  # as Hydra applies them; every run of this kind sets all of them
            OmegaConf.update(base, override.key_or_group, override.value(), merge=True)
        sweep = OmegaConf.to_container(base.hydra.sweep, resolve=False)
        assert isinstance(sweep, dict)
        if sweep["subdir"] != BY_HASH:
            return None
        digest = config_hash(resolved(base, self._threads))
        return Path(str(self._master.hydra.sweep.dir)) / digest, digest, bool(base.overwrite or not base.resume)

    def _base(self, overrides: Sequence[str]) -> tuple[DictConfig, list[Override]]:
        parsed = [(line, *self._parsed(line)) for line in overrides]
        kind = tuple(line for line, _, plain in parsed if not plain)
        values = [override for _, override, plain in parsed if plain]
        key = (kind, tuple(override.key_or_group for override in values))
        if key not in self._composed:
            self._composed[key] = self.compose(overrides)
        return self._composed[key], values

    def _parse(self, line: str) -> tuple[Override, bool]:
        """An override, and whether it sets nothing but a value."""
        (override,) = OverridesParser.create().parse_overrides([line])
        changes = override.is_add() or override.is_delete() or override.is_force_add() or override.package is not None
        key = override.key_or_group
        group = "." not in key and bool(self._loader.get_group_options(key))
        plain = not (changes or group or override.is_hydra_override() or isinstance(override.value(), dict))
        return override, plain


def _choices(override: Override) -> list[str]:
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        kind = "" if override.value_type is None else override.value_type.name
        raise HydraException(f"{key}: a grid has no values of the kind {kind}; list them, or choose another sweeper")
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


class GridSweeper(Sweeper):
    """Hydra's basic sweeper, but for several grids, and sweeps of thousands of runs.

    Args:
        params: setting to values, "0,1,2", of every grid.
        grids: what each grid has beside them; null is a single grid.
    """

    def __init__(
        self,
        params: Mapping[str, Any] | None = None,
        grids: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.params, self.grids = params or {}, grids or []

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's way to say what is swept."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Do every run, and print the folder of the sweep.

        Args:
            arguments: overrides of the command line.

        Returns:
            Hydra's returns of the runs.

        Raises:
            CompactHydraException: runs failed; the others were done nevertheless.
        """
        assert self.hydra_context is not None
        assert self.config is not None
        assert self.launcher is not None
        if several := next((one for one in arguments if one.startswith("experiment=") and "," in one), None):
            raise CompactHydraException(f"error: {several}: a preset is a sweep of its own; start one at a time")
        jobs = jobs_of(self.params, self.grids, arguments)
        if not jobs:
            raise CompactHydraException("error: no grid of this sweep has such runs; see hydra.sweeper.grids")
        if type(self.launcher).__module__ != PLUGINS:  # our launchers, which look for runs that are done, do so too
            Plan(self.hydra_context, self.config).check(jobs)
            Path(str(self.config.hydra.sweep.dir), SWEEP).unlink(missing_ok=True)  # it lists the runs of another sweep
        returns = self.launcher.launch(jobs, 0)
        failed = sum(done.status is JobStatus.FAILED for done in returns)
        print(Path(str(self.config.hydra.sweep.dir)).absolute(), flush=True)
        if failed:
            raise CompactHydraException(f"error: {failed} of {len(jobs)} runs failed, as told above")
        return returns
