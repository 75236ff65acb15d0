"""Templates of `assets/`, whose names say what becomes of them: what a card and a page say around their numbers."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from immunize.report.loading import infinite, with_infinities
from immunize.report.naming import HARDER_BY, NO_HARDER, PARTS, PROTOCOLS, RATIO_HEADS, part_words
from immunize.report.table import NOTHING, in_cell, percent, share, short, summary_text

if TYPE_CHECKING:
    from jinja2 import Environment

_CODE = re.compile(r"`([^`]*)`")


def asset(name: str) -> str:
    """The text of a file of `assets/`."""
    return files("immunize.report").joinpath("assets", name).read_text(encoding="utf-8")


@functools.cache
def _templates() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape  # which takes some time
    from jinja2.utils import missing
    from markupsafe import Markup, escape

    class Lacking(StrictUndefined):
        """What a record does not hold is a KeyError, as anywhere else that it is read."""

        def __init__(self, hint: Any = None, obj: Any = missing, name: Any = None, exc: Any = None) -> None:
            super().__init__(hint, obj, name, lambda _: KeyError(name))  # type: ignore[arg-type]

        __format__ = StrictUndefined._fail_with_undefined_error

    templates = Environment(
        autoescape=select_autoescape(["html"]),
        loader=FunctionLoader(asset),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=Lacking,
    )
    templates.globals |= {"harder": f"{HARDER_BY:g}", "no_harder": f"{NO_HARDER:g}", "parts": PARTS}
    templates.globals |= {"heads": RATIO_HEADS, "nothing": NOTHING, "protocols": PROTOCOLS}
    templates.globals |= {of.__name__: of for of in (infinite, part_words, percent, share)}
    templates.globals |= {of.__name__: of for of in (short, summary_text, with_infinities)}
    templates.filters["cell"] = in_cell
    templates.filters["coded"] = lambda text: Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))
    return templates


def filled_in(name: str, /, *functions: Callable[..., Any], **values: Any) -> str:
    """A template with its values; in HTML every text is escaped, and code where it stands between backticks.

    Args:
        name: of a file in `assets/`.
        functions: that it calls by their names, beside those that all may call.
        values: its own.
    """
    return _templates().get_template(name).render({of.__name__: of for of in functions}, **values)


def facts_in(name: str, /, *functions: Callable[..., Any], **values: Any) -> list[tuple[str, str]]:
    """What a template sets as `facts`: names and texts, for rows of a page's head.

    Args:
        name: of a file in `assets/`.
        functions: that it calls by their names.
        values: its own.
    """
    module = _templates().get_template(name).make_module({of.__name__: of for of in functions} | values)
    found: list[tuple[str, str]] = module.__dict__["facts"]
    return found
