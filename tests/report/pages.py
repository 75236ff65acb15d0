"""Reading a page that `immunize.report.html` wrote, as a browser's parser does, with every mistake an error."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"br", "hr", "img", "input", "link", "meta"}
Attributes = dict[str, str | None]


@dataclass
class Table:
    """Caption, headings, and rows of cells."""

    caption: str = ""
    heads: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


class Page(HTMLParser):
    """The parsed page.

    Attributes:
        elements: every element with its attributes, in order.
        tables: by their order.
        raw: text of style and script.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, Attributes]] = []
        self.tables: list[Table] = []
        self.raw: dict[str, str] = {}
        self._text: list[str] = []
        self._open: list[str] = []
        self._cell: list[str] | None = None
        self.feed(text)
        self.close()
        assert self._open == [], f"not closed: {self._open}"

    @property
    def text(self) -> str:
        """What a reader sees, white space squeezed."""
        return re.sub(r"\s+", " ", "".join(self._text))

    def of(self, name: str) -> list[Attributes]:
        """The attributes of every element of a name."""
        return [attributes for tag, attributes in self.elements if tag == name]

    def classes(self, name: str) -> list[Attributes]:
        """The attributes of every element of a class."""
        return [a for _, a in self.elements if name in (a.get("class") or "").split()]

    def table(self, caption: str) -> Table:
        """The only table whose caption begins so."""
        (found,) = [table for table in self.tables if table.caption.startswith(caption)]
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"an attribute twice in <{tag}>"
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append(Table())
        elif tag == "tr" and "tbody" in self._open:
            self.tables[-1].rows.append([])
        elif tag in ("th", "td", "caption"):
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes another element"
        if tag in ("th", "td", "caption"):
            text = "".join(self._cell or [])
            if tag == "caption":
                self.tables[-1].caption = text
            elif "tbody" in self._open:
                self.tables[-1].rows[-1].append(text)
            else:
                self.tables[-1].heads.append(text)
            self._cell = None

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside in ("style", "script"):
            self.raw[inside] = self.raw.get(inside, "") + data
            return
        self._text.append(data)
        if self._cell is not None:
            self._cell.append(data)


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
        for name in ("aria-labelledby",):
            assert attributes.get(name) in (None, *ids)
    (policy,) = [a["content"] for a in page.of("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
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
