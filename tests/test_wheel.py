"""The wheel, installed outside the checkout: every file and `conf/` are inside, and the console scripts run.

Needs the package index for the build backend. The clean environment borrows the dependencies of the current one
instead of installing 6 GB again; the package itself comes from the wheel, which is asserted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.commands import ROOT, SHORTER, ended

pytestmark = pytest.mark.wheel

OUTSIDE = ("PYTHONPATH", "IMMUNIZE_DATA", "VIRTUAL_ENV", "HYDRA_FULL_ERROR")


def call(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in OUTSIDE} | {"OMP_NUM_THREADS": "1"}
    done = ended([str(word) for word in command], cwd, environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built in isolation from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a clean environment with the wheel in it."""
    home = tmp_path_factory.mktemp("clean") / "venv"
    venv.EnvBuilder(with_pip=True).create(home)
    bin_ = home / ("Scripts" if os.name == "nt" else "bin")
    (inside,) = home.glob("**/site-packages")
    call(bin_ / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    # Only now, so that pip does not take an installation of the checkout for one of this environment. A path in a
    # .pth file comes last on sys.path, and .pth files below it (an editable install) are not read.
    borrowed = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (inside / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return bin_


def test_wheel_holds_the_package_its_configuration_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    shipped = [path for path in (ROOT / "immunize").rglob("*.*") if path.is_file() and path.suffix != ".pyc"]
    of_conf = {f"immunize/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert of_conf
    assert names == {str(path.relative_to(ROOT)) for path in shipped} | of_conf | {"hydra_plugins/immunize_sweeps.py"}


def test_package_comes_from_the_wheel(programs: Path, tmp_path: Path) -> None:
    code = "import immunize, immunize.config as c; print(immunize.__file__, c.config_dir(), immunize.__version__)"
    where, conf, version = call(programs / "python", "-c", code, cwd=tmp_path).stdout.split()
    assert Path(where).is_relative_to(programs.parent)
    assert Path(conf) == Path(where).parent / "conf"
    assert version[0].isdigit()


def test_console_scripts_run(programs: Path, tmp_path: Path) -> None:
    done = call(programs / "immunize-train", *SHORTER["immunize.train"], "hydra.run.dir=run", cwd=tmp_path)
    assert Path(done.stdout.splitlines()[-1]) == tmp_path / "run" / "record.json"
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["status"] == "finished"
    assert record["git_commit"] is None  # an installed copy is not in the checkout
    shown = call(programs / "immunize-evaluate", "run=run", cwd=tmp_path).stdout
    assert "every number agrees" in shown
    page = tmp_path / call(programs / "immunize-report", "html", "run=run", cwd=tmp_path).stdout.strip()
    assert page.is_relative_to(tmp_path / "run")
    assert "</html>" in page.read_text(encoding="utf-8")
