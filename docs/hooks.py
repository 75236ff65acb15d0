"""What the site does beyond MkDocs: the experiments and the tutorial as pages, formulas drawn, links out of docs/.

Every page reads well in the repository too, where none of this runs: links there lead to the files themselves, and
formulas are TeX, which code hosts show.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
EXPERIMENTS, TUTORIAL = "experiments", "examples/tutorial.py"
OF_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md")
SHOWN = (".md", ".png", ".csv", ".json", ".gz", ".tex", ".pdf")
"""Kinds of files of an experiment that the site has; the rest is code."""

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
SIZE = 20.0
"""Of a formula's letters, in the units of its drawing; it is shown relative to the text around it."""
PATH = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}
"""From matplotlib's codes to those of SVG."""

MODULES = re.compile(r"^<!-- modules: (\S+) -->$", re.MULTILINE)
CHOICES = re.compile(r"^<!-- choices: (\S+) -->$", re.MULTILINE)
SETTINGS = re.compile(r"^<!-- settings: (\S+) -->$", re.MULTILINE)
CELL = re.compile(r"^# %%(.*)$", re.MULTILINE)
LOADED = re.compile(
    r"""<(?:script|img|link|iframe)\b(?![^>]*rel="canonical")[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>"""
)
"""A tag that asks another host for something."""
ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):<code>(~?)([\w.]+)</code>")
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the folders of `experiments/`, the pages of the root and the tutorial."""
    from mkdocs.structure.files import File

    for path in sorted((ROOT / EXPERIMENTS).rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and path.suffix in SHOWN:
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for name in OF_ROOT:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    tutorial = (ROOT / TUTORIAL).read_text(encoding="utf-8")
    files.append(File.generated(config, "tutorial.md", content=page_of(tutorial)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Fill in lists of modules, choices and settings, and turn links to files of the repository into the site's."""
    source = page.file.src_uri
    here = PurePosixPath(source if source.startswith((EXPERIMENTS, *OF_ROOT)) else f"docs/{source}").parent
    filled = MODULES.sub(lambda found: reference_of(ROOT / found[1]), markdown)
    filled = CHOICES.sub(lambda found: choices_of(ROOT / found[1]), filled)
    filled = SETTINGS.sub(lambda found: settings_of(ROOT / found[1]), filled)
    return LINK.sub(lambda link: _within_site(link, here, source, files), filled)


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Formulas as drawings, which need neither a script nor a font; names in docstrings as links."""

    def name(found: re.Match[str]) -> str:
        shown = found[2].rpartition(".")[2] if found[1] else found[2]
        return f'<autoref identifier="{found[2]}" optional><code>{shown}</code></autoref>'

    return ROLE.sub(name, MATH.sub(lambda found: drawn(html.unescape(found[2]), found[1]), content))


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse to build a page that asks another host for anything.

    Raises:
        ValueError: it does.
    """
    if found := LOADED.findall(output):
        raise ValueError(f"{page.file.src_uri} asks another host: {found[0]}")
    return output


def reference_of(folder: Path) -> str:
    """What mkdocstrings takes for the public names of every module of a folder, its own `__init__` left out."""
    modules = [path.relative_to(ROOT).with_suffix("").parts for path in sorted(folder.glob("[!_]*.py"))]
    return "\n\n".join(f"::: {'.'.join(parts)}" for parts in modules)


def choices_of(group: Path) -> str:
    """A table of a group's choices, each with what the first line of its file says."""
    lines = [(path.stem, path.read_text(encoding="utf-8").splitlines()[0]) for path in sorted(group.glob("*.yaml"))]
    rows = [f"| `{name}` | {said.removeprefix('# ')} |" for name, said in lines]
    return "\n".join([f"| `{group.name}=` | |", "| --- | --- |", *rows])


def settings_of(path: Path) -> str:
    """A configuration as it is, with its comments, under its name; what is Hydra's own is left out."""
    kept = path.read_text(encoding="utf-8").partition("\nhydra:\n")[0]
    return f'```yaml title="{path.relative_to(ROOT).as_posix()}"\n{kept.strip()}\n```'


def drawn(tex: str, tag: str) -> str:
    """A formula as SVG in the colour and size of the text around it, with its TeX for who cannot see it.

    Args:
        tex: in the words that matplotlib's mathtext knows.
        tag: "span", or "div" for a formula on a line of its own.

    Raises:
        ValueError: something that mathtext does not know.
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import MathTextParser
    from matplotlib.textpath import TextPath

    prop = FontProperties(size=SIZE, math_fontfamily="cm")
    words = " ".join(tex.split())
    width, height, depth, _, _ = MathTextParser("path").parse(f"${words}$", dpi=72, prop=prop)
    steps = []
    for points, code in TextPath((0, 0), f"${words}$", prop=prop).iter_segments(curves=True, simplify=False):
        letter = PATH[int(code)]
        steps.append(letter if letter == "Z" else letter + " ".join(f"{value:.2f}" for value in points))
    box = f"0 {-height - 1:.2f} {width:.2f} {height + depth + 2:.2f}"
    style = f"width:{width / SIZE:.3f}em;height:{(height + depth + 2) / SIZE:.3f}em;"
    style += f"vertical-align:{-(depth + 1) / SIZE:.3f}em"
    label = html.escape(words, quote=True)
    svg = f'<svg class="math" role="img" aria-label="{label}" viewBox="{box}" style="{style}">'
    svg += f'<path transform="scale(1,-1)" d="{"".join(steps)}"/></svg>'
    return f'<{tag} class="formula">{svg}</{tag}>'


def cells_of(script: str) -> list[tuple[str, str]]:
    """The cells of a script in the percent format: "markdown" or "code", and the text without comment signs.

    Args:
        script: what stands before the first `# %%` is not part of a cell.
    """
    starts = [(found.start(), found.end(), found[1].strip()) for found in CELL.finditer(script)]
    ends = [start for start, _, _ in starts[1:]] + [len(script)]
    cells = []
    for (_, begin, kind), end in zip(starts, ends, strict=True):
        text = script[begin:end].strip("\n")
        if kind == "[markdown]":
            cells.append(
                ("markdown", "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines()))
            )
        else:
            cells.append(("code", text))
    return cells


def page_of(script: str) -> str:
    """A script in the percent format as a page."""
    return "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells_of(script))


def _within_site(link: re.Match[str], here: PurePosixPath, source: str, files: Files) -> str:
    """The link as the site needs it; the words alone where the site does not have what it leads to."""
    image, words, target, anchor = link[1], link[2], link[3], link[4] or ""
    path = PurePosixPath(os.path.normpath(here / target))
    uri = str(path).removeprefix("docs/")
    if path == PurePosixPath(TUTORIAL):
        uri = "tutorial.md"
    elif path == PurePosixPath("README.md"):
        uri = "index.md"
    elif (ROOT / path).is_dir():
        uri = f"{uri}/README.md"
    if files.get_file_from_path(uri) is None:
        known = (ROOT / path).exists() and not str(path).startswith("docs/")
        return words if known else link[0]  # what does not exist is left for MkDocs to report
    return f"{image}[{words}]({os.path.relpath(uri, PurePosixPath(source).parent)}{anchor})"
