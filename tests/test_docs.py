"""The documentation: its code runs, its commands compose, its links lead somewhere.

Blocks of `python` are executed, those of a page one after another in one namespace and a folder of its own. Every
`python -m immunize...` line of a `bash` block is composed: groups, choices and keys exist and values are allowed, but
nothing is run, but for the pages a newcomer begins with (`WHOLE`). A block may be left out by a line right above it,

    <!-- not run: why -->

Blocks with a title are files, which `test_extension.py` writes out and runs, with the commands of their page.

The README's commands run as written, only shorter, in a folder that holds folders of images and `outputs/demo/erase` of
`make demo`. timm's networks have random weights and small images.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

import immunize
from docs.hooks import MODULES, OF_ROOT, cells_of, choices_of, drawn, on_post_page, page_of, reference_of, settings_of
from experiments.readme_tables import PLACE, pages, with_tables
from immunize.config import resolved
from immunize.settings import check_settings
from tests.commands import DEEPER, ENVIRONMENT, ROOT, SHORTER, run
from tests.composing import compose_config
from tests.data.image_files import write_noisy_classes
from tests.report.making import tables_of
from tests.test_words import DOCS, NAVIGATION, README, pages_in

PAGES = sorted(DOCS.rglob("*.md"))
OWN_TEST = DOCS / "extending.md"
TUTORIAL = ROOT / "examples" / "tutorial.py"
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?"
    r"^```(?P<language>\w+)(?P<rest>[^\n]*)\n(?P<code>.*?)^```",
    re.M | re.S,
)
CONFIGS = {"pretrain": "pretrain_theta"}
"""Where the primary configuration is not called as the command is."""
WHOLE = ("quick_start.md", "own_arrays.md")
"""Pages of which everything is run, from the first block to the last, in one folder."""
FLAGS = {"--help": 0, "--cfg": 1, "-m": 0, "--multirun": 0}
"""Hydra's options that the pages use, and how many words follow each."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    language: str
    title: str
    code: str
    reason: str | None


def blocks_of(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(page, m["language"], m["rest"].strip(), m["code"], m["reason"]) for m in found]


BLOCKS = [block for page in (*PAGES, README) for block in blocks_of(page)]


def commands_of(block: Block) -> list[str]:
    """The lines that call a module of this package, continuation lines joined, without comments."""
    lines = [line.partition(" #")[0].strip() for line in block.code.replace("\\\n", " ").splitlines()]
    return [line for line in lines if re.match(r"(\w+=\S+ )*(\S+/)?python -m immunize\b", line)]


def code_of(page: Path) -> list[Block]:
    return [b for b in BLOCKS if b.page == page and b.language == "python" and not b.title and not b.reason]


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name


COMMANDS = {
    line: f"{name_of(block.page)}: {line}"
    for block in BLOCKS
    if block.language == "bash" and not block.reason and block.page not in (OWN_TEST, README)
    for line in commands_of(block)
}


@pytest.mark.parametrize("page", [p for p in (*PAGES, README) if code_of(p) or name_of(p) in WHOLE], ids=name_of)
def test_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the commands between it where the page is one that is run as a whole."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in (block for block in BLOCKS if block.page == page and not block.title and not block.reason):
        if block.language == "python":
            namespace = {"__name__": "__main__"} if page == README else namespace  # each of its blocks is taken alone
            exec(compile(block.code, f"{name_of(page)}, a block", "exec"), namespace)
        elif block.language == "bash" and name_of(page) in WHOLE:
            for command in commands_of(block):
                module, *rest = arguments_of(command)
                shorter = [] if "--cfg" in rest or "--help" in rest else SHORTER.get(module, [])
                done = run(module, *rest, *shorter, cwd=tmp_path)
                assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("command", COMMANDS, ids=COMMANDS.get)
def test_command_composes(command: str) -> None:
    module, *arguments = arguments_of(re.sub(r"<[^>]*>", "x", command))
    assert importlib.util.find_spec(module) is not None
    name = module.removeprefix("immunize.")
    if name == "report":
        name += f"/{arguments.pop(0) if arguments and '=' not in arguments[0] else name}"
    cfg = compose_config(*_one_run(arguments), primary=CONFIGS.get(name, name))
    resolved(cfg)
    if name == "train":
        check_settings(cfg)


def _one_run(arguments: list[str]) -> list[str]:
    """The overrides, without Hydra's options, and with the first of several values."""
    words, left = [], list(arguments)
    while left:
        word = left.pop(0)
        if word in FLAGS:
            del left[: FLAGS[word]]
        else:
            words.append(word)
    parsed = OverridesParser.create().parse_overrides(words)
    return [
        f"{override.get_key_element()}={next(override.sweep_string_iterator())}"
        if override.is_sweep_override()
        else str(override.input_line)
        for override in parsed
    ]


def test_make_targets_in_the_pages_exist() -> None:
    every = (*BLOCKS, *blocks_of(ROOT / "CONTRIBUTING.md"))
    shown = "\n".join(block.code for block in every if block.language == "bash")
    targets = set(re.findall(r"^\s*make ([a-z0-9_]+)", shown, re.M))
    assert targets <= set(re.findall(r"^([a-z0-9_]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", README], ids=lambda page: page.name)
def test_links_lead_to_files_and_commands_are_in_blocks_where_they_are_tried(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert not re.search(r"^    python -m immunize.*$", text, re.M)
    text = re.sub(r"^    .*?$", "", text, flags=re.M)
    targets = {target for target in re.findall(r"\]\(([^)\s#]+)", text) if "://" not in target}
    elsewhere = {"tutorial.md"}  # made from examples/tutorial.py
    assert not [target for target in targets - elsewhere if not (page.parent / target).exists()]


def test_every_page_is_in_the_navigation() -> None:
    listed = pages_in(NAVIGATION)
    made = {"tutorial.md", *OF_ROOT, "experiments/README.md"}
    assert len(listed) == len(set(listed))
    assert set(listed) == {name_of(page) for page in PAGES} | made


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_tables_are_those_of_the_experiments(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert with_tables(text) == text


def test_results_are_not_typed() -> None:
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    assert PLACE.search(page)
    assert not re.search(r"^\|.*\d\.\d", PLACE.sub("", page), re.M)


TITLES = {
    "House Prices": "housing",
    "pairs of MNIST digits": "mnist",
    "ResNet18, Caltech-101": "tiny_imagenet against caltech101, resnet18_64px",
    "ResNet18, Stanford Cars": "tiny_imagenet against cars, resnet18_64px",
    "small ResNet, digits": "digits, resnet_small",
    "small ViT, digits": "digits, vit_small",
    "linear model, digits": "digits",
}
"""How the title of a table begins that counts the tiers which were held off on the data."""
OF_ATTACKS = (
    *("attacks_linear", "attacks_small", "defence_digits", "defence_digits_vit_small"),
    *("defence_small_caltech101", "defence_small_cars", "defence_deep_caltech101", "defence_deep_cars"),
)
"""The folders of these tables; the first one that has a method on the data counts."""
FURTHER = {("`censor_deep`", "ResNet18, Caltech-101"): "t4_full_deep"}
"""Where further tiers of a row are counted: fine-tuning has tables of its own there."""


def counted(folder: str, method: str, data: str) -> dict[str, list[str]]:
    """Of each tier, in how many runs the method held it off on the harmful task, and of how many."""
    tables = tables_of((ROOT / "experiments" / folder / "table.md").read_text(encoding="utf-8"))
    rows = (row for title, of in tables.items() if title.startswith(f"{TITLES[data]}: which") for row in of)
    found = next((row for row in rows if row["method"] == method), {})
    return {name.split()[0]: cell.split("/") for name, cell in found.items() if name.endswith("harmful ↑")}


def test_who_is_stopped_where_is_as_the_tables_count() -> None:
    text = (DOCS / "threat_model.md").read_text(encoding="utf-8").split("## What was found")[1]
    told = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    assert len(told) >= len(TITLES)
    for method, data, *tiers in told:
        counts = next(filter(None, (counted(folder, method, data) for folder in OF_ATTACKS)))
        if folder := FURTHER.get((method, data)):
            counts |= counted(folder, method, data)
        every = {tier for tier, (held, of) in counts.items() if held == of}
        never = {tier for tier, (held, _) in counts.items() if held == "0"}
        found = [every, set(counts) - every - never, never]
        assert [set(re.findall(r"T\d", cell)) for cell in tiers] == found, (method, data)


def test_reference_has_every_method_every_choice_and_every_setting_of_a_command() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    shown = MODULES.sub(lambda found: reference_of(ROOT / found[1]), text)
    modules = re.findall(r"^::: (\S+)$", shown, re.M)
    assert all(importlib.util.find_spec(module) for module in modules)
    methods = sorted(path.stem for path in (ROOT / "conf" / "method").glob("*.yaml"))
    assert {f"immunize.objective.{name}" for name in methods} <= set(modules)
    elsewhere = {"experiment", "report", "hydra", "objective_deep.yaml"}
    listed = set(re.findall(r"^<!-- (?:choices|settings): conf/(\S+) -->$", text, re.M))
    assert listed == {path.name for path in (ROOT / "conf").iterdir()} - elsewhere
    table = choices_of(ROOT / "conf" / "method")
    assert [line.split("`")[1] for line in table.splitlines()[2:]] == methods
    assert "| `ours` | Eq. (11)" in table
    train = settings_of(ROOT / "conf" / "train.yaml")
    assert "probe_steps: 20000" in train
    assert "hydra:" not in train


def test_tutorial_runs_offline(tmp_path: Path) -> None:
    script = TUTORIAL.read_text(encoding="utf-8")
    for word, module in (('"logger=none"', "immunize.train"), ('"attack=quick"', "immunize.attack")):
        assert word in script
        script = script.replace(word, ", ".join([word, *(f'"{setting}"' for setting in SHORTER[module])]))
    (tmp_path / "tutorial.py").write_text(script, encoding="utf-8")
    done = run("tutorial.py", cwd=tmp_path, environment=ENVIRONMENT | {"TMPDIR": str(tmp_path)}, timeout=300)
    assert done.returncode == 0, done.stderr
    assert all(words in done.stdout for words in ("can be immunized", "every number agrees"))
    assert all(f"{tier}: accuracy" in done.stdout for tier in ("T0", "T1", "T2", "T3"))
    assert float(re.findall(r"change of an output: (\S+)", done.stdout)[0]) < 1e-9


def test_tutorial_is_a_notebook() -> None:
    script = TUTORIAL.read_text(encoding="utf-8")
    cells = cells_of(script)
    assert {kind for kind, _ in cells} == {"markdown", "code"}
    assert all(text.strip() for _, text in cells)
    assert len(re.findall(r"^## \d\. ", page_of(script), re.M)) == 6


def test_formula_is_drawn_in_the_size_of_the_text() -> None:
    svg = drawn(r"\kappa(H) \leq \dfrac{a}{b}", "div")
    assert svg.startswith('<div class="formula"><svg')
    assert r'aria-label="\kappa(H) \leq \dfrac{a}{b}"' in svg
    with pytest.raises(ValueError, match="nosuch"):
        drawn(r"\nosuch", "span")


@pytest.mark.parametrize("start", ["https://", "//"])
def test_a_page_that_asks_another_host_is_not_built(start: str) -> None:
    """The site itself is built, strictly, by `make docs`."""
    page, link = SimpleNamespace(file=SimpleNamespace(src_uri="a.md")), '<link rel="canonical" href="https://a.org/">'
    for own in (link, '<script src="site.js"></script>', f'<a href="{start}a.org">'):
        assert on_post_page(own, page, {}) == own
    with pytest.raises(ValueError, match=r"a\.md asks another host: <script src="):
        on_post_page(f'{link}<script src="{start}a.org/x.js"></script>', page, {})


# The README: its commands run as they stand, only shorter.


OF_TIMM = {
    "immunize.pretrain": ["model.image_size=32", "model.pretrained=false"],
    "immunize.train": ["model.image_size=32"],
}
DEMO, MINE = "outputs/demo/erase", "outputs/mine"


def arguments_of(command: str) -> list[str]:
    """What follows `python -m`, without the comment at the end."""
    words = shlex.split(command, comments=True)
    return words[words.index("-m") + 1 :]


@pytest.mark.slow
def test_readme_commands_run(tmp_path: Path) -> None:
    """One after another; a linear model takes the place of the network that they train before they tell of it."""
    rng = np.random.default_rng(0)
    for folder in ("mine", "bad"):
        write_noisy_classes(tmp_path / folder, {"train": 60, "val": 60}, dict.fromkeys("ab", (0, 256)), rng)
    demo = run("immunize.train", *SHORTER["immunize.train"], f"hydra.run.dir={DEMO}", cwd=tmp_path)
    assert demo.returncode == 0, demo.stderr
    called = []
    for command in (line for block in BLOCKS if block.page == README for line in commands_of(block)):
        module, *rest = arguments_of(command)
        shorter = SHORTER.get(module, [])
        if "model=timm" in rest:
            shorter = [*(DEEPER if module == "immunize.train" else shorter), *OF_TIMM[module]]
        before = set(tmp_path.rglob("record.json"))
        done = run(module, *rest, *shorter, cwd=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        if shorter and module != "immunize.attack":
            assert set(tmp_path.rglob("record.json")) - before
            assert Path(done.stdout.splitlines()[-1]).name in ("record.json", "checkpoint.safetensors")
        if f"hydra.run.dir={MINE}" in rest:
            shutil.rmtree(tmp_path / MINE)
            shutil.copytree(tmp_path / DEMO, tmp_path / MINE)
        called.append(module)
    assert called == [f"immunize.{name}" for name in ("report", "pretrain", "train", "evaluate", "attack", "report")]


def test_citations_agree() -> None:
    """CITATION.cff, the README's bibtex and the package: one title, one version; both name the paper alike."""
    cited = OmegaConf.create((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    paper, software = (
        dict(re.findall(r"^ *(\w+) *= \{+(.*?)\}+,?$", entry, re.M))
        for entry in "\n".join(block.code for block in blocks_of(README) if block.language == "bibtex").split("\n\n")
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
