"""Every `python -m immunize...` line in the README's bash blocks runs as written, only shorter.

Appended are few epochs. Lines that need real data run where IMMUNIZE_DATA is set. They run in a folder that holds what
earlier lines of the README would have left there: `outputs/demo/erase` of `make demo`, a run in `outputs/mine`, θ_0 in
`outputs/theta0`, folders of images. timm's networks have random weights and small images.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

import immunize
from tests.commands import ENVIRONMENT, run
from tests.data.image_files import write_noise

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
NEEDS_DATA = re.compile(r"\b(harmful|pretrain)=(housing|mnist)\b")
SHORTER = {
    "immunize.train": ["objective.epochs=20", "probe_steps=100", "figure=false"],
    "immunize.pretrain": ["epochs=1"],
    "immunize.attack": ["seeds=[0]", "attack.budget.steps=20"],
}
DEEPER = ["objective.epochs=1", "deep.probe_steps={gd:3,least_squares:null,sgd:null,adam:null}", "deep.replicates=2"]
OF_TIMM = {
    "immunize.pretrain": ["model.image_size=32", "model.pretrained=false"],
    "immunize.train": ["model.image_size=32"],
}
OUTPUT = re.compile(r"hydra\.run\.dir=(\S+)")
DEMO, MINE, THETA_0 = "outputs/demo/erase", "outputs/mine", "outputs/theta0"


def blocks_of(*languages: str) -> list[str]:
    """The README's fenced blocks in these languages; none if there is no README."""
    if not README.is_file():
        return []
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)


def readme_commands() -> list[str]:
    """The lines of all ```bash blocks that call a module of this package, continuation lines joined."""
    blocks = blocks_of("bash", "sh", "console")
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    called = (
        line.partition("  #")[0].strip() for line in lines
    )  # no comments, so that they are not part of test names
    return list(dict.fromkeys(line for line in called if re.search(r"\bpython -m immunize\b", line)))


def arguments_of(command: str) -> list[str]:
    """What follows `python -m`, without the comment at the end."""
    words = shlex.split(command, comments=True)
    return words[words.index("-m") + 1 :]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, and the outputs of a short run and of a short training of θ_0."""
    cwd = tmp_path_factory.mktemp("earlier")
    rng = np.random.default_rng(0)
    for folder in itertools.product(("mine", "bad"), ("train", "val"), ("a", "b")):
        for number in range(60):
            write_noise(cwd.joinpath(*folder, f"{number}.png"), rng)
    done = run("immunize.train", *SHORTER["immunize.train"], f"hydra.run.dir={DEMO}", cwd=cwd)
    assert done.returncode == 0, done.stderr
    shutil.copytree(cwd / DEMO, cwd / MINE)
    (trained,) = (line for line in readme_commands() if "immunize.pretrain" in line)
    module, *rest = arguments_of(trained)
    done = run(module, *rest, *SHORTER[module], *OF_TIMM[module], cwd=cwd)
    assert done.returncode == 0, done.stderr
    return cwd


def check(command: str, cwd: Path, earlier: Path) -> None:
    shutil.copytree(earlier, cwd, dirs_exist_ok=True)
    if written := OUTPUT.search(command):
        shutil.rmtree(cwd / written[1])
    before = set(cwd.rglob("record.json"))
    module, *rest = arguments_of(command)
    shorter = SHORTER.get(module, [])
    if "model=timm" in rest:
        shorter = [*(DEEPER if module == "immunize.train" else shorter), *OF_TIMM[module]]
    done = run(module, *rest, *shorter, cwd=cwd, environment=os.environ | ENVIRONMENT, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    if shorter and module != "immunize.attack":
        assert set(cwd.rglob("record.json")) - before
        assert Path(done.stdout.splitlines()[-1]).name in ("record.json", "checkpoint.safetensors")


def test_readme_shows_how_to_train_and_to_evaluate() -> None:
    shown = " ".join(readme_commands())
    assert "python -m immunize.train" in shown
    assert "python -m immunize.evaluate" in shown


@pytest.mark.parametrize("command", [line for line in readme_commands() if not NEEDS_DATA.search(line)])
def test_readme_command(command: str, tmp_path: Path, earlier: Path) -> None:
    check(command, tmp_path, earlier)


@pytest.mark.data
@pytest.mark.parametrize("command", [line for line in readme_commands() if NEEDS_DATA.search(line)])
def test_readme_command_on_real_data(command: str, data_root: Path, tmp_path: Path, earlier: Path) -> None:
    assert data_root.is_dir()
    check(re.sub(r"\s+data_root=\S+", "", command), tmp_path, earlier)


@pytest.mark.parametrize("code", blocks_of("python"))
def test_readme_python(code: str, tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(code, encoding="utf-8")
    done = run("shown.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_citations_agree() -> None:
    """CITATION.cff, the README's bibtex and the package: one title, one version; both name the paper alike."""
    cited = OmegaConf.create((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    paper, software = (
        dict(re.findall(r"^ *(\w+) *= \{+(.*?)\}+,?$", entry, re.M))
        for entry in "\n".join(blocks_of("bibtex")).split("\n\n")
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["version"] == software["version"] == immunize.__version__
    assert project["dynamic"] == ["version"], "it is said in immunize/__init__.py alone"
    assert cited["title"] == software["title"]
    assert [author["name"] for author in cited["authors"]] == [software["author"]]
    (reference,) = cited["references"]
    names = [f"{author['family-names']}, {author['given-names']}" for author in reference["authors"]]
    assert " and ".join(names) == paper["author"]
    assert (reference["title"], str(reference["year"])) == (paper["title"], paper["year"])
    assert int(software["year"]) >= int(paper["year"])
