"""HTML from Python: text is escaped unless it is already :class:`Html`, so that nothing in a record becomes markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

__all__ = ["Html", "coded", "join", "tag"]

_VOID = {"br", "hr", "input", "link", "meta"}
_CODE = re.compile(r"`([^`]*)`")


class Html(str):
    """Markup that may stand in a page as it is. Joined or formatted with anything it is a plain string again."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element.

    Args:
        name: of the element.
        children: text, which is escaped; or `Html`. None is left out.
        attributes: by name, `_` for `-` and a trailing `_` for names that are Python's (`class_`). None and False are
            left out, True is an attribute without a value.
    """
    shown = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    opening = f"<{name}{shown}>"
    return Html(opening) if name in _VOID else Html(f"{opening}{join(children)}</{name}>")


def join(parts: Iterable[object]) -> Html:
    """Text and markup one after the other, the text escaped."""
    return Html("".join(_safe(part) for part in parts if part is not None))


def coded(text: str) -> Html:
    """Text in which what stands between backticks is code, as in the cells of :class:`immunize.report.layout.Table`."""
    return join(tag("code", part) if i % 2 else part for i, part in enumerate(_CODE.split(text)))


def _safe(part: object) -> str:
    return part if isinstance(part, Html) else html.escape(str(part))


def _attribute(name: str, value: object) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
