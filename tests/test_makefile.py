"""The Makefile: every target is documented, `make help` lists them all, and nothing depends on where it is called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.commands import ROOT, ended

TEXT = (ROOT / "Makefile").read_text(encoding="utf-8")
PHONY = re.findall(r"^\.PHONY:(.*)$", TEXT, re.M)[0].split()

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    # `make test` runs these tests, and its own variables would make every other make a child of it.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    return ended(["make", *arguments], cwd, environment | variables, timeout=60)


def test_every_target_has_a_comment_is_phony_and_can_be_planned() -> None:
    targets = dict(re.findall(r"^([a-z0-9_]+):(.*)$", TEXT, re.M))
    assert set(targets) == set(PHONY)
    assert all(re.search(r"## \S+", rest) for rest in targets.values())
    planned = make("-n", *PHONY)
    assert planned.returncode == 0, planned.stderr


def test_help_lists_every_target_and_is_the_default() -> None:
    listed = make("help")
    assert listed.returncode == 0
    lines = listed.stdout.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == PHONY
    assert max(map(len, lines)) <= 100
    assert make().stdout == listed.stdout


def test_full_scale_takes_the_machine_s_accelerators_or_what_it_is_told(tmp_path: Path) -> None:
    told = make("-n", "table3", "TRAINER=ddp", "WORKERS=3", "ARGS=deep.batch_size=512").stdout
    assert "experiment=table3 trainer=ddp deep.workers=3 deep.batch_size=512" in told
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf '%b' \"$GPUS\"\n")
    smi.chmod(0o755)
    for gpus, trainer in (("", "cpu"), ("one\\n", "gpu"), ("one\\ntwo\\n", "ddp")):
        plan = make("-n", "table3", "WORKERS=3", PATH=f"{tmp_path}:{os.environ['PATH']}", GPUS=gpus).stdout
        assert f"experiment=table3 trainer={trainer} deep.workers=3" in plan
    assert "trainer=" not in make("-n", "table3", "SCALE=small").stdout
    plan = make("-n", "search_table3", "TRAINER=gpu", "WORKERS=3").stdout
    assert "experiment=search_table3 trainer=gpu deep.workers=3" in plan


def test_old_python_is_refused_with_advice(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")  # what the version check of an older Python ends with
    old.chmod(0o755)
    done = make("install", f"PYTHON={old}", cwd=tmp_path)
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed" in done.stdout
    assert not (tmp_path / ".venv").exists()


def test_every_dependency_has_one_lower_bound() -> None:
    """That `make lowest` installs."""
    done = make("--silent", "bounds")
    bounds = dict(line.split("==") for line in done.stdout.splitlines())
    assert len(bounds) == len(done.stdout.splitlines()), "a package with two bounds"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for of in project["optional-dependencies"].values() for line in of]
    for line in [*project["dependencies"], *extras]:
        name, bound = re.match(r"([\w-]+)>=([\w.]+)", line).groups()  # type: ignore[union-attr]
        assert bounds[name] == bound
