"""One self-contained HTML file from tables, sentences and figures: `assets/` says how each is shown.

Style and script are allowed by their hashes, figures as data, and nothing else at all: a page makes no request.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from immunize.report.table import Table
from immunize.report.templates import asset, filled_in

_MOST_NUMBERS = 400
"""Points of a line, from which on the numbers of its panel are not listed below the figure."""


@dataclass(frozen=True)
class Picture:
    """A figure, with the numbers of its lines folded away below it.

    Attributes:
        figure: drawn without a screen.
        caption: what to see in it.
    """

    figure: Figure
    caption: str

    @property
    def source(self) -> str:
        """An SVG as a data URI; the same figure gives the same text."""
        buffer = io.StringIO()
        with rc_context({"svg.hashsalt": "immunize", "svg.fonttype": "none"}):
            self.figure.savefig(buffer, format="svg", metadata={"Date": None})
        return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue().encode()).decode()}"

    @property
    def numbers(self) -> list[Table]:
        """A table a panel: a row a place on its axis, a column a line with a name."""
        tables = []
        for axis in self.figure.axes:
            named = [line for line in axis.lines if str(line.get_label())[:1] not in ("_", "")]
            at = [{float(x): float(y) for x, y in np.asarray(line.get_xydata())} for line in named]
            if at and max(map(len, at)) <= _MOST_NUMBERS:
                rows = [
                    [f"{x:,.10g}", *(f"{of[x]:.4g}" if x in of else "" for of in at)]
                    for x in sorted({x for of in at for x in of})
                ]
                columns = (axis.get_xlabel() or "at", *(str(line.get_label()) for line in named))
                tables.append(Table(axis.get_title() or axis.get_ylabel(), columns, rows))
        return tables


def page(name: str, *functions: Callable[..., Any], **values: Any) -> str:
    """The whole document.

    Args:
        name: of the template that extends `page.html`.
        functions: that it calls.
        values: its own, `title`, and `reduced`, whether its numbers are not to be reported.
    """
    style, script = (asset(name) for name in ("report.css", "report.js"))
    allowed = f"style-src {_hash(style)}; script-src {_hash(script)}"
    code = {"style": Markup(style), "script": Markup(script), "allowed": allowed}
    return filled_in(name, *functions, replace, picture=Picture, **code, **values)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
