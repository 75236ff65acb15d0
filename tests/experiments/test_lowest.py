"""`make lowest` installs the lower bound of every dependency."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_dependency_has_one_lower_bound() -> None:
    done = subprocess.run(["make", "--silent", "bounds"], cwd=ROOT, capture_output=True, text=True, check=True)
    bounds = dict(line.split("==") for line in done.stdout.splitlines())
    assert len(bounds) == len(done.stdout.splitlines()), "a package with two bounds"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for of in project["optional-dependencies"].values() for line in of]
    for line in [*project["dependencies"], *extras]:
        name, bound = re.match(r"([\w-]+)>=([\w.]+)", line).groups()  # type: ignore[union-attr]
        assert bounds[name] == bound
