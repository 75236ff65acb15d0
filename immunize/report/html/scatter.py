"""Scatter plots as inline SVG; labels are left out where there is no room for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from immunize.report.cells import short
from immunize.report.html.elements import Html, join, tag
from immunize.report.html.frame import BOTTOM, LEFT, RIGHT, TOP, Frame
from immunize.report.html.scales import Axis, scale_of

__all__ = ["Point", "scatter"]

_LETTER, _LINE, _AWAY = 6.6, 13, 8
"""Width of a letter, height of a line, distance of a label from its point."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True)
class Point:
    """A mark of a scatter plot.

    Attributes:
        x: where.
        y: where.
        slot: colour, from 0.
        name: what it is, shown on hovering.
        faint: one of many behind the others.
        ringed: it stands out.
        label: drawn beside it.
    """

    x: float
    y: float
    slot: int
    name: str
    faint: bool = False
    ringed: bool = False
    label: str = ""


def scatter(
    key: str,
    title: str,
    axes: tuple[Axis, Axis],
    points: Sequence[Point],
    *,
    fronts: Sequence[Sequence[tuple[float, float]]] = (),
    region: tuple[float, float] | None = None,
) -> Html:
    """A scatter plot.

    Args:
        key: of the chart in the page.
        title: what is shown.
        axes: below and to the left.
        points: drawn in their order.
        fronts: of each its corners, by ascending x, to join by steps.
        region: (x, y) of the corner of the good region, which extends to the left and upwards.
    """
    places = [*((p.x, p.y) for p in points), *(() if region is None else (region,))]
    frame = Frame(scale_of(axes[0], [a for a, _ in places]), scale_of(axes[1], [b for _, b in places]))
    marks: list[Html] = []
    if region is not None and (corner := frame.place(*region)) is not None:
        size = {"width": f"{corner[0] - LEFT:.1f}", "height": f"{corner[1] - TOP:.1f}"}
        marks.append(tag("rect", x=LEFT, y=TOP, **size, class_="region"))
    marks += [_front(frame, front) for front in fronts]
    drawn = [(p, place) for p in points if (place := frame.place(p.x, p.y)) is not None]
    marks += [tag("g", _dot(p, place), data_slot=p.slot) for p, place in drawn]
    labels = tag("g", *_labels(drawn))
    return tag("div", tag("h3", title), frame.svg(key, title, join(marks), labels, reads="dots"), class_="chart")


def _front(frame: Frame, front: Sequence[tuple[float, float]]) -> Html:
    corners = [place for a, b in front if (place := frame.place(a, b)) is not None]
    steps = "".join(f"H{a:.1f}V{b:.1f}" for a, b in corners[1:])
    path = f"M{corners[0][0]:.1f},{corners[0][1]:.1f}{steps}" if corners else ""
    return tag("path", d=path, class_="front")


def _dot(p: Point, place: tuple[float, float]) -> Html:
    told = tag("title", f"{p.name}: {short(p.x)}, {short(p.y)}")
    kind = " ".join(["dot", f"s{p.slot}", *(["faint"] if p.faint else []), *(["ringed"] if p.ringed else [])])
    return tag("circle", told, cx=f"{place[0]:.1f}", cy=f"{place[1]:.1f}", r=2 if p.faint else 5, class_=kind)


def _labels(drawn: Sequence[tuple[Point, tuple[float, float]]]) -> list[Html]:
    """Each label at the first of four places where it covers neither another one nor a large dot."""
    taken: list[Box] = [(x - 5, y - 5, x + 5, y + 5) for p, (x, y) in drawn if not p.faint]
    texts = []
    for p, place in drawn:
        free = (box for box in _boxes(place, p.label) if _inside(box) and not any(_overlap(box, b) for b in taken))
        if p.label and (box := next(free, None)) is not None:
            taken.append(box)
            at = {"x": f"{box[0]:.1f}", "y": f"{box[3] - 3:.1f}"}
            texts.append(tag("text", p.label, **at, class_="label halo", data_slot=p.slot))
    return texts


def _boxes(place: tuple[float, float], label: str) -> Iterator[Box]:
    """Above and below, first towards where there is more room."""
    x, y = place
    width = _LETTER * len(label)
    right, left = x + _AWAY - 2, x - _AWAY + 2 - width
    for start in (left, right) if x > (LEFT + RIGHT) / 2 else (right, left):
        for top in (y - _AWAY - _LINE + 3, y + _AWAY - 3):
            yield start, top, start + width, top + _LINE


def _inside(box: Box) -> bool:
    return box[0] >= LEFT and box[2] <= RIGHT and box[1] >= TOP and box[3] <= BOTTOM


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
