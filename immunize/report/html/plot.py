"""Figures as inline SVG that inherits the page's colours, each with its numbers in a table below it.

Nothing is drawn by a script: figures are there in print and without JavaScript. `report.js` adds the readout under the
pointer, and under the arrow keys, from the table; and legends that hide series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from immunize.report.html.elements import Html, coded, join, tag
from immunize.report.html.frame import Frame
from immunize.report.html.scales import Axis, scale_of
from immunize.report.html.tables import Cell, data_table

__all__ = ["SLOTS", "Chart", "Line", "figure", "legend"]

SLOTS = 8
"""Colours, each with a dash pattern of its own, that `report.css` has."""

_FEW = 3
"""Points of a line up to which each is marked."""


@dataclass(frozen=True)
class Line:
    """A series of a chart.

    Attributes:
        name: in legend and table.
        slot: colour and dash, from 0; series of one name in one figure share it.
        x: (T,) ascending.
        y: (T,); numbers that the axis has no place for interrupt the line.
    """

    name: str
    slot: int
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """Lines over one pair of axes.

    Attributes:
        title: what is shown.
        x: the axis below.
        y: the axis to the left.
        lines: drawn in their order.
    """

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]


def figure(key: str, caption: str, charts: Sequence[Chart]) -> Html:
    """Charts side by side where there is room, the numbers folded away below each.

    Charts of the same series have one legend, others each their own.

    Args:
        key: of the figure in the page.
        caption: what to see in it; code between backticks.
        charts: in their order.
    """
    slots = {line.name: line.slot for chart in charts for line in chart.lines}
    shared = len(set(slots.values())) == len(slots)
    drawn = [_chart(f"{key}-{index}", chart, own_legend=not shared) for index, chart in enumerate(charts)]
    return tag(
        "figure",
        legend(slots) if shared and len(slots) > 1 else None,
        tag("div", *drawn, class_="charts"),
        tag("figcaption", coded(caption)),
        id=key,
    )


def legend(slots: dict[str, int], *, dots: bool = False) -> Html:
    """Buttons that show and hide series.

    Args:
        slots: name of each to its colour.
        dots: they are drawn as points.
    """
    buttons = (
        tag(
            "button", _swatch(slot, dots=dots), name, type="button", aria_pressed="true", data_toggle=slot, class_="key"
        )
        for name, slot in slots.items()
    )
    return tag("div", *buttons, class_="legend", role="group", aria_label="Series shown")


def _chart(key: str, chart: Chart, *, own_legend: bool) -> Html:
    x = scale_of(chart.x, [value for line in chart.lines for value in line.x])
    y = scale_of(chart.y, [value for line in chart.lines for value in line.y])
    frame = Frame(x, y)
    marks = join(tag("g", _path(frame, line), *_dots(frame, line), data_slot=line.slot) for line in chart.lines)
    return tag(
        "div",
        tag("h3", chart.title),
        legend({line.name: line.slot for line in chart.lines}) if own_legend and len(chart.lines) > 1 else None,
        frame.svg(key, chart.title, marks),
        tag("details", tag("summary", "Numbers"), _numbers(chart, frame)),
        class_="chart",
    )


def _numbers(chart: Chart, frame: Frame) -> Html:
    """The table of a chart; its rows know their place in it, for the readout."""
    at = [dict(zip(line.x, line.y, strict=True)) for line in chart.lines]
    rows = [
        [Cell(f"{step:,.10g}", frame.across(step)), *(_value(of.get(step)) for of in at)]
        for step in sorted({step for line in chart.lines for step in line.x})
    ]
    return data_table(chart.title, [chart.x.label, *(line.name for line in chart.lines)], rows)


def _value(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(f"{value:.4g}")


def _path(frame: Frame, line: Line) -> Html:
    parts, drawing = [], False
    for a, b in zip(line.x, line.y, strict=True):
        place = frame.place(a, b)
        if place is not None:
            parts.append(f"{'L' if drawing else 'M'}{place[0]:.1f},{place[1]:.1f}")
        drawing = place is not None
    return tag("path", d="".join(parts), class_=f"line s{line.slot}")


def _dots(frame: Frame, line: Line) -> list[Html]:
    """The points themselves where there are too few to see a line."""
    if len(line.x) > _FEW:
        return []
    places = [place for a, b in zip(line.x, line.y, strict=True) if (place := frame.place(a, b)) is not None]
    return [tag("circle", cx=f"{a:.1f}", cy=f"{b:.1f}", r=4, class_=f"dot s{line.slot}") for a, b in places]


def _swatch(slot: int, *, dots: bool) -> Html:
    line = tag("path", d="M1,6H27", class_=f"line s{slot}")
    dot = tag("circle", cx=14, cy=6, r=5, class_=f"dot s{slot}")
    return tag("svg", dot if dots else line, viewBox="0 0 28 12", width=28, height=12, aria_hidden="true")
