"""One self-contained HTML file: style and script inside, a policy that forbids everything else, no request."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from immunize.errors import UserError
from immunize.files import write_text
from immunize.report.html.elements import Html, coded, join, tag

__all__ = ["REDUCED", "Section", "note", "page", "write_page"]

REDUCED = "REDUCED: a shortened version that shows the code path; its numbers are not to be reported."
_ASSETS = files("immunize.report.html") / "assets"


@dataclass(frozen=True)
class Section:
    """A part of the page with an entry in its table of contents.

    Attributes:
        key: for links to it.
        title: its heading.
        content: what stands below.
    """

    key: str
    title: str
    content: Html


def page(title: str, lead: Html, sections: Sequence[Section]) -> str:
    """The whole document.

    Style and script are allowed by their hashes, data images for the empty icon, and nothing else at all.

    Args:
        title: of the page.
        lead: below the title: what it is about in a line or two.
        sections: in their order.
    """
    style, script = (_ASSETS.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = join(
        [
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("link", rel="icon", href="data:,"),  # a browser asks the server for one otherwise
            tag("title", title),
            tag("style", Html(style)),
        ]
    )
    contents = tag("ol", *(tag("li", tag("a", s.title, href=f"#{s.key}")) for s in sections))
    body = join(
        [
            tag("a", "Skip to the content", href="#content", class_="skip"),
            tag("header", tag("h1", title), lead, tag("nav", contents, aria_label="Contents")),
            tag("main", *map(_section, sections), id="content"),
            tag("footer", tag("p", "Made by ", tag("code", "python -m immunize.report html"), " from records alone.")),
            tag("script", Html(script)),
        ]
    )
    document = tag("html", tag("head", head), tag("body", body), lang="en")
    return f"<!doctype html>\n{document}\n"


def note(text: str) -> Html:
    """A sentence beside numbers; code between backticks."""
    return tag("p", coded(text), class_="note")


def write_page(text: str, path: Path) -> Path:
    """Write the document whole or not at all, and return its path.

    Raises:
        UserError: it cannot be written there.
    """
    try:
        return write_text(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); choose another folder with out=") from None


def _section(section: Section) -> Html:
    heading = f"{section.key}-heading"
    return tag(
        "section", tag("h2", section.title, id=heading), section.content, id=section.key, aria_labelledby=heading
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
