"""`make lowest`: the tests with the oldest version of every direct dependency that pyproject.toml allows.

`python -m experiments.lowest [arguments of pytest]` makes an environment in outputs/lowest (about 6 GB), installs the
lower bound of every dependency and of the extra `dev`, runs the test suite there, or what the arguments choose, and
writes what came of it to README.md in this folder. A bound has to be the number of a release. Dependencies of
dependencies are as new as the oldest direct ones let them be.

The exit code is pytest's, or 1 where the versions cannot be installed together.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from immunize.records import provenance

__all__ = ["Outcome", "bounds", "main", "outcome", "page"]

ROOT = Path(__file__).parents[2]
README = Path(__file__).with_name("README.md")
WORK = ROOT / "outputs/lowest"
EXTRA = "dev"
EVERYTHING = ("-m", "not wheel")
"""The wheel's own test installs the newest versions."""

PARALLEL = ("-n", os.environ.get("JOBS", "2"), "--dist", "loadfile")
"""As `make test` has it."""


@dataclass(frozen=True)
class Outcome:
    """What pytest found.

    Attributes:
        passed: how many tests.
        skipped: likewise.
        failed: names of those that failed, or could not be run.
        seconds: of all.
    """

    passed: int
    skipped: int
    failed: tuple[str, ...]
    seconds: float


def bounds(project: Mapping[str, Any]) -> dict[str, str]:
    """Package to the oldest version that is allowed, of the dependencies and of the extra `dev`.

    Args:
        project: the table `project` of pyproject.toml.

    Raises:
        ValueError: a dependency without a lower bound, or with two.
    """
    found: dict[str, str] = {}
    for text in [*project["dependencies"], *project["optional-dependencies"][EXTRA]]:
        match = re.fullmatch(r"([\w.-]+)>=([\w.]+)(,<[\w.]+)?", text)
        if match is None:
            raise ValueError(f"{text!r} has no lower bound")
        name, version, _ = match.groups()
        if found.setdefault(name, version) != version:
            raise ValueError(f"{name} has two lower bounds, {found[name]} and {version}")
    return dict(sorted(found.items()))


def outcome(junit: Path) -> Outcome:
    """What stands in pytest's junit file."""
    cases = list(ET.parse(junit).getroot().iter("testcase"))
    bad = tuple(
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    )
    skipped = sum(case.find("skipped") is not None for case in cases)
    seconds = sum(float(case.get("time", 0)) for case in cases)
    return Outcome(len(cases) - skipped - len(bad), skipped, bad, seconds)


def page(found: Outcome, asked: Sequence[str], lowest: Mapping[str, str], facts: Mapping[str, Any]) -> str:
    """README.md.

    Args:
        found: by the tests.
        asked: arguments of pytest.
        lowest: from :func:`bounds`.
        facts: `installed`, versions by name; `python`, `git_commit`, `date` and `hardware`.
    """
    hardware = facts["hardware"]
    tests = "all but the wheel's" if tuple(asked) == EVERYTHING else f"a part: `pytest {' '.join(asked)}`"
    rows = [f"| `{name}` | {bound} | {facts['installed'].get(name, 'missing')} |" for name, bound in lowest.items()]
    failed = [f"- `{name}`" for name in found.failed]
    return "\n".join(
        [
            "# Lowest supported versions",
            "",
            "The tests with the oldest version of every direct dependency, written by `make lowest`.",
            "",
            "| | |",
            "| --- | --- |",
            f"| tests | {tests} |",
            f"| outcome | {found.passed:,} passed, {len(found.failed):,} failed, {found.skipped:,} skipped |",
            f"| date | {facts['date']} |",
            f"| commit | {facts['git_commit']} |",
            f"| Python | {facts['python']} |",
            f"| machine | {hardware['processor']}, {hardware['cores']} cores, {hardware['system']} |",
            f"| seconds in tests | {found.seconds:,.0f} |",
            "",
            *(["## Failed", "", *failed, ""] if failed else []),
            "## Versions",
            "",
            "| package | bound | installed |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


def main(arguments: Sequence[str]) -> int:
    """Install, test, write.

    Args:
        arguments: of pytest; none for all tests.
    """
    lowest = bounds(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])
    python = WORK / "venv/bin/python"
    if not _install(python, lowest):
        return 1
    asked, junit = tuple(arguments) or EVERYTHING, WORK / "junit.xml"
    junit.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PARALLEL, f"--junitxml={junit}", *asked],
        cwd=ROOT,
        env=environment,
        check=False,
    )
    if not junit.is_file():
        return ran.returncode
    code = (
        "import importlib.metadata as m, json, platform; print(json.dumps([platform.python_version(), "
        "{d.name.lower().replace('_', '-'): d.version for d in m.distributions()}]))"
    )
    version, installed = json.loads(subprocess.run([python, "-c", code], capture_output=True, check=True).stdout)
    made = provenance()
    facts = {
        "installed": installed,
        "python": version,
        "git_commit": made["git_commit"],
        "hardware": made["hardware"],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    README.write_text(page(outcome(junit), asked, lowest, facts), encoding="utf-8")
    print(README)
    return ran.returncode


def _install(python: Path, lowest: Mapping[str, str]) -> bool:
    """Make the environment, unless it is there with these versions."""
    pins = "".join(f"{name}=={version}\n" for name, version in lowest.items())
    stamp, digest = WORK / "installed", hashlib.sha256(pins.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == digest:
        return True
    print(f"installing the oldest versions into {python.parents[1]}: about 6 GB, some minutes", flush=True)
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "constraints.txt").write_text(pins, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "venv", "--clear", python.parents[1]], check=True)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "-c", str(WORK / "constraints.txt"), "-e", f"{ROOT}[{EXTRA}]"], check=False)
    if done.returncode == 0:
        stamp.write_text(digest, encoding="utf-8")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
