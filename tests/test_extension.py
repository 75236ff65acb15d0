"""A method, a data set, a network and an attack from outside the package: the files and commands of docs/extending.md.

The page is the fixture: its blocks with a title are written out as files, its commands run as they stand, only shorter.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from immunize import export
from immunize.errors import UserError
from tests.commands import DEEPER, ENVIRONMENT, ROOT, SHORTER, fresh, run

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', PAGE, re.M | re.S))

WEIGHTS = {"checkpoint": "immunized_net", "reference": "plain_net"}


def commands() -> list[list[str]]:
    """Module and arguments of every command of the page, made shorter."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    called = [shlex.split(line, comments=True)[2:] for line in lines]
    return [[module, *arguments, *_shorter(module, arguments)] for module, *arguments in called]


def _shorter(module: str, arguments: list[str]) -> list[str]:
    network = any(word.startswith("model=") for word in arguments)
    return DEEPER if network and module == "immunize.train" else SHORTER.get(module, [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the toy package lies, far from the repository."""
    folder = tmp_path_factory.mktemp("outside")
    for name, text in {"mine/__init__.py": "", "mine/conf/__init__.py": "", **FILES}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_an_installed_package_is_found_by_the_search_path(folder: Path, tmp_path: Path) -> None:
    path = "'hydra.searchpath=[pkg://mine.conf]'"
    assert path in PAGE
    environment = ENVIRONMENT | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    train, *chosen = next(command for command in commands() if command[0] == "immunize.train")
    chosen = [word for word in chosen if not word.startswith(("--config-dir", "mine/conf", "hydra.run.dir="))]
    assert {"method=log_kappa", "harmful=waves"} <= {*chosen}
    words = [train, *shlex.split(path), *chosen, "hydra.run.dir=out"]
    done = fresh("-m", *words, cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "record.json").read_text(encoding="utf-8"))["method"] == "log_kappa"


def record(folder: Path, name: str) -> dict[str, Any]:
    found = json.loads((folder / "outputs" / name).read_text(encoding="utf-8"))
    assert found["status"] == "finished"
    return found


def test_the_commands_of_the_page_do_what_it_says(folder: Path) -> None:
    again = [["immunize.verify", "run=outputs/waves"], ["immunize.train", "--config-dir", "mine/conf", "--help"]]
    weights = [f"{name}=outputs/{of}/checkpoint.safetensors" for name, of in WEIGHTS.items()]
    grid = ["attack=quick", "tiers=[T2]", "tasks=[harmful]", "seeds=[0]", "out=outputs/weights"]
    again.append(["immunize.attack", "--config-dir", "mine/conf", *weights, "model=plain_net", "harmful=digits", *grid])
    told = ""
    for module, *arguments in [*commands(), *again]:
        done = run(module, *arguments, cwd=folder, environment=ENVIRONMENT | {"COLUMNS": "500"})
        assert done.returncode == 0, f"{module}\n{done.stdout}\n{done.stderr}"
        told += f"$ {module}\n{done.stdout}"

    # the method and the data set train
    waves = record(folder, "waves/record.json")
    assert (waves["method"], waves["pretrain"], waves["harmful"]) == ("log_kappa", "waves", "waves")
    coefficients = {role: waves["data"][role]["coefficient"] for role in ("pretrain", "harmful")}
    assert coefficients == {"pretrain": -0.5, "harmful": 0.9}
    assert waves["metrics"]["held_out"]["spectrum"]["rir"] > 1
    assert waves["command"].startswith("python -m immunize.train --config-dir mine/conf method=log_kappa")

    # the network is pretrained and immunized: training began with what pretrain wrote, and only the named parts moved
    assert record(folder, "plain_net/record.json")["accuracy"] > 0
    found = record(folder, "immunized_net/record.json")
    assert found["model"] == "plain_net"
    assert found["network"]["trained"] == ["body.0.weight", "body.0.bias"]
    assert found["network"]["split"] == "at the first trained module"
    networks = [folder / "outputs" / name for name in ("plain_net", "immunized_net")]
    before, after = (load_file(network / "checkpoint.safetensors") for network in networks)
    moved = {name for name in before if (before[name] != after[name]).any()}
    assert moved == {"backbone.body.0.weight", "backbone.body.0.bias", "head.weight", "head.bias"}
    with pytest.raises(UserError, match=r"mine\.plain_net\.plain_net, not from timm"):
        export.run(networks[1])
    assert not (networks[1] / "export").exists()

    # its weights are attacked without a run as well, by the number of D_P's classes
    assert record(folder, "weights/attack_record.json")["subject"]["method"] == WEIGHTS["checkpoint"]

    # the attack runs in its tier
    attack = record(folder, "waves/attack_record.json")["attacks"]["harmful"]["immunized"]["truncated"]
    assert (attack["tier"], attack["candidates"]) == ("T2", 4)
    assert attack["score"]["mean"] is not None

    # the record suffices to build them again, help lists them, and their test passes
    assert "every number agrees" in told
    assert all(name in told.rpartition("$ immunize.train")[2] for name in ("log_kappa", "waves", "plain_net"))
    assert "1 passed" in told.rpartition("$ pytest")[2]
