"""The frame that charts are drawn in: axes with ticks and grid, as inline SVG that inherits the page's colours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from immunize.report.html.elements import Html, join, tag
from immunize.report.html.scales import Scale, tick_text

__all__ = ["BOTTOM", "LEFT", "RIGHT", "TOP", "Frame", "Readable"]

Readable = Literal["rows", "dots"]

_WIDTH, _HEIGHT = 420, 290
LEFT, RIGHT, TOP, BOTTOM = 62, _WIDTH - 10, 10, _HEIGHT - 44
"""Edges of the area that is drawn in, in units of the SVG; y grows downwards."""


@dataclass(frozen=True)
class Frame:
    """Two axes and the places between them.

    Attributes:
        x: the axis below.
        y: the axis to the left.
    """

    x: Scale
    y: Scale

    def across(self, value: float) -> float | None:
        """Where a number of the x axis lies; None if it has no place."""
        share = self.x.share(value)
        return None if share is None else LEFT + share * (RIGHT - LEFT)

    def down(self, value: float) -> float | None:
        """Where a number of the y axis lies; None if it has no place."""
        share = self.y.share(value)
        return None if share is None else BOTTOM - share * (BOTTOM - TOP)

    def place(self, a: float, b: float) -> tuple[float, float] | None:
        """Where the point (a, b) lies; None if it has no place."""
        across, down = self.across(a), self.down(b)
        return None if across is None or down is None else (across, down)

    def svg(self, key: str, title: str, marks: Html, over: Html | None = None, *, reads: Readable = "rows") -> Html:
        """The drawing, and below it the line in which `report.js` reads its values out, by pointer and keys.

        Args:
            key: of the chart in the page.
            title: what is shown.
            marks: cut off where the frame ends.
            over: on top of them, not cut off.
            reads: rows of the chart's table, whose first cells know their place, or dots by their titles.
        """
        clip = tag("clipPath", tag("rect", x=LEFT, y=TOP, width=RIGHT - LEFT, height=BOTTOM - TOP), id=f"{key}-clip")
        described = f"{title}. {self.y.axis.label or 'Values'} against {self.x.axis.label}."
        drawing = tag(
            "svg",
            tag("title", described),
            tag("defs", clip),
            self._below(),
            self._beside(),
            tag("g", marks, clip_path=f"url(#{key}-clip)"),
            over,
            tag("line", x1=LEFT, x2=LEFT, y1=TOP, y2=BOTTOM, class_="guide"),
            viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
            role="img",
            aria_label=f"{described} The arrow keys read its values.",
            tabindex="0",
            data_reads=reads,
        )
        return join([drawing, tag("p", class_="readout", aria_live="polite")])

    def _below(self) -> Html:
        parts = []
        for tick in self.x.ticks():
            if (at := self.across(tick)) is not None:
                parts.append(tag("line", x1=f"{at:.1f}", x2=f"{at:.1f}", y1=TOP, y2=BOTTOM, class_="grid"))
                parts.append(tag("text", tick_text(tick), x=f"{at:.1f}", y=BOTTOM + 15, text_anchor="middle"))
        middle = (LEFT + RIGHT) / 2
        label = tag("text", self.x.axis.label, x=middle, y=_HEIGHT - 8, text_anchor="middle", class_="label")
        return tag("g", *parts, label, class_="axis", aria_hidden="true")

    def _beside(self) -> Html:
        parts = []
        for tick in self.y.ticks():
            if (at := self.down(tick)) is not None:
                parts.append(tag("line", x1=LEFT, x2=RIGHT, y1=f"{at:.1f}", y2=f"{at:.1f}", class_="grid"))
                parts.append(tag("text", tick_text(tick), x=LEFT - 6, y=f"{at + 4:.1f}", text_anchor="end"))
        middle = (TOP + BOTTOM) / 2
        turned = f"rotate(-90 12 {middle:.1f})"
        label = tag("text", self.y.axis.label, x=12, y=middle, text_anchor="middle", transform=turned, class_="label")
        return tag("g", *parts, label, class_="axis", aria_hidden="true")
