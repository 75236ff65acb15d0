"""Reading a page that `immunize.report.html` wrote: as XML, for which every mistake in its markup is an error."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from xml.etree import ElementTree

Attributes = dict[str, str]


@dataclass(frozen=True)
class Table:
    """Caption, headings, and rows of cells."""

    caption: str
    heads: list[str]
    rows: list[list[str]]


class Page:
    """The parsed page.

    Attributes:
        elements: every element with its attributes, in order.
        tables: by their order.
        raw: text of style and script.
        text: what a reader sees, white space squeezed.
    """

    def __init__(self, text: str) -> None:
        code = re.compile(r"(<(style|script)>)(.*?)(</\2>)", re.DOTALL)
        self.raw = {found[2]: found[3] for found in code.finditer(text)}
        root = ElementTree.fromstring(code.sub(r"\1\4", text).removeprefix("<!doctype html>"))
        self.elements = [(element.tag, element.attrib) for element in root.iter()]
        self.text = re.sub(r"\s+", " ", _text(root))
        self.tables = [
            Table(
                "".join(map(_text, of.findall("caption"))),
                [_text(cell) for cell in of.findall("thead/tr/th")],
                [[_text(cell) for cell in row] for row in of.findall("tbody/tr")],
            )
            for of in root.iter("table")
        ]

    def of(self, name: str) -> list[Attributes]:
        """The attributes of every element of a name."""
        return [attributes for tag, attributes in self.elements if tag == name]

    def table(self, caption: str) -> Table:
        """The only table whose caption begins so."""
        (found,) = [table for table in self.tables if table.caption.startswith(caption)]
        return found


def _text(element: ElementTree.Element) -> str:
    return "".join(element.itertext())


def check(text: str) -> Page:
    """Parse a page and check what holds for all: no request, the policy, unique ids, links that lead somewhere."""
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids), sorted({i for i in ids if ids.count(i) > 1})  # type: ignore[type-var]
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        assert tag not in ("iframe", "object", "embed", "base", "form", "video", "audio")
        for name in ("src", "href", "action", "data", "srcset", "xlink:href"):
            target = attributes.get(name)
            if target is not None:
                drawn = tag == "img" and target.startswith("data:image/svg+xml;base64,")
                assert drawn or target == "data:," or target[1:] in ids, f"<{tag} {name}={target}>"
        assert attributes.get("aria-labelledby") in (None, *ids)
    (policy,) = [a["content"] for a in page.of("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for kind in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.raw[kind].encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
        assert len(page.of(kind)) == 1
        assert "http" not in page.raw[kind]
        assert "@import" not in page.raw[kind]
        assert "url(" not in page.raw[kind]
    assert len(text) < 3_000_000
    return page
