"""How README and the pages of Start, Guides and Results are written: short sentences, plain beginnings, symbols said.

The rules are CONTRIBUTING.md's "Words". What a program cannot judge is for a reader.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
FORBIDDEN = ("Who", "Whoever", "What", "Whose")
"""No statement begins so; a question may."""
MEANINGS = {
    "θ_0": "original",
    "D_H": "harmful",
    "D_P": "pre-training",
    "κ": "condition number",
    "RIR": "relative immunization ratio",
    "T0": "gradient descent",
}
"""What has to stand near a symbol where the README has it first."""
NEAR = 100
"""Characters."""


def pages_in(node: Any) -> list[str]:
    """The pages below a node of the site's navigation."""
    if isinstance(node, str):
        return [node]
    return [name for item in (node.values() if isinstance(node, dict) else node) for name in pages_in(item)]


NAVIGATION = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]


def pages_of(*sections: str) -> list[Path]:
    """The pages of sections of the site, those that are made from something else left out."""
    found = [name for part in NAVIGATION for title in part if title in sections for name in pages_in(part[title])]
    return [DOCS / name for name in found if (DOCS / name).is_file()]


def prose_of(text: str) -> list[str]:
    """The paragraphs and points of lists of a page; code, tables, headings, formulas and comments left out."""
    text = re.sub(
        r"^```.*?^```|^<!-- table:.*?^<!-- /table -->|<!--.*?-->|^\$\$.*?^\$\$", "\n", text, flags=re.M | re.S
    )
    text = re.sub(r"^(?:\||#| {4,}\S|!\[|---).*$", "", text, flags=re.M)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n", text, flags=re.M)
    text = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`|\$[^$]*\$", "X", text)
    return [" ".join(part.replace("*", "").split()) for part in re.split(r"\n\s*\n| · ", text) if part.strip()]


def sentences_of(text: str) -> list[str]:
    """Sentences; a colon or semicolon does not end one, an abbreviation or a number does neither."""
    return [
        sentence
        for paragraph in prose_of(text)
        for sentence in re.split(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!App\.)(?<!Eq\.)\)?\s+(?=[A-Z\[(θκλ])", paragraph)
    ]


def long_ones(text: str, most: int = 30) -> list[str]:
    return [sentence for sentence in sentences_of(text) if len(sentence.split()) > most]


def badly_begun(text: str) -> list[str]:
    return [s for s in sentences_of(text) if s.split()[0] in FORBIDDEN and not s.endswith("?")]


PAGES = [README, *pages_of("Start", "Guides", "Results", "Theory")]


def test_the_rules_find_what_they_are_for() -> None:
    page = "# A heading\n\nWho comes first is served. *Why?* Ask (`so`)!\n\n- One [two](three four.md)\n"
    page += "- Five `six seven`.\n\n| a | table |\n\n```bash\nWho am I\n```\n"
    assert prose_of(page) == ["Who comes first is served. Why? Ask (X)!", "One two", "Five X."]
    assert sentences_of(page)[:3] == ["Who comes first is served.", "Why?", "Ask (X)!"]
    assert badly_begun(page) == ["Who comes first is served."]
    assert long_ones(page, most=4) == ["Who comes first is served."]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short_and_begin_with_their_subject(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not badly_begun(text)
    assert page in pages_of("Theory") or not long_ones(text)


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_a_page_begins_with_its_reader_and_shows_code_early(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.match(r"# [^\n]+\n\n\*For [^*]+\*\n", text), "a heading, then *For whom, and what for*"
    if page in pages_of("Start", "Guides"):
        begin = text.split("\n## ")[0]
        assert "```" in begin or "| --- |" in begin, "the shortest command, or a list, before the second heading"


def test_symbols_are_said_where_the_readme_first_has_them() -> None:
    text = " ".join(README.read_text(encoding="utf-8").split())
    for symbol, meaning in MEANINGS.items():
        first = text.index(symbol)
        assert meaning in text[max(0, first - NEAR) : first + NEAR], symbol


def test_the_readme_is_short_and_docs_are_read_to_the_end() -> None:
    assert len(README.read_bytes()) <= 7_000
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in DOCS.rglob("*.md")) <= 20_000
