"""A level of a program's graph as boxes and lines on a plane."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from jaxrefine.report.graph_layout import Box, Placement, Point, lay_out
from jaxrefine.report.graph_levels import Item, Level, listed

# CSS pixels. Widths of letters differ between fonts: these leave room for a wide one.
LINE_HEIGHT = 14
_LETTER = 6.7
_PADDING = 8
_MARGIN = 6
_HEAD = (6.0, 3.2)

_LETTERS_A_LINE = 15
_LINES = 3
_SIGNS = {"added": "+ ", "rewired": "~ ", "": ""}


@dataclass(frozen=True)
class DrawnBox:
    """A box with its upper left corner, its size, its label's lines, and what is said of it at length."""

    kind: str
    state: str
    used: bool
    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]
    told: str


@dataclass(frozen=True)
class Wire:
    """A line between two boxes: its corners, and its arrow's head."""

    new: bool
    corners: tuple[Point, ...]
    head: tuple[Point, Point, Point]


@dataclass(frozen=True)
class Drawing:
    """A drawn level; everything in pixels from the upper left corner."""

    width: float
    height: float
    boxes: tuple[DrawnBox, ...]
    wires: tuple[Wire, ...]
    forks: tuple[Point, ...]

    def path(self, new: bool) -> str:
        """The lines of new dependences, or of the others, as an SVG path."""
        return "".join("M" + "L".join(map(_at, wire.corners)) for wire in self.wires if wire.new == new)

    def heads(self, new: bool) -> str:
        """Their arrows' heads."""
        return "".join("M" + "L".join(map(_at, wire.head)) + "z" for wire in self.wires if wire.new == new)


def draw(level: Level) -> Drawing | None:
    """Draw a level that has anything in it; None if it cannot be drawn in reasonable time."""
    labels = [_lines(item) for item in level.items]
    boxes = [
        Box(
            width=round(max(map(len, lines)) * _LETTER + 2 * _PADDING, 1),
            height=LINE_HEIGHT * len(lines) + _PADDING,
            column={"observation": "first", "action": "last"}.get(item.kind, "free"),
        )
        for item, lines in zip(level.items, labels, strict=True)
    ]
    placed = lay_out(boxes, [(source, target) for source, target, _ in level.edges])
    if placed is None:
        return None
    return Drawing(
        width=round(placed.width + 2 * _MARGIN, 1),
        height=round(placed.height + 2 * _MARGIN, 1),
        boxes=tuple(
            _drawn(item, lines, box, centre)
            for item, lines, box, centre in zip(level.items, labels, boxes, placed.centres, strict=True)
        ),
        wires=tuple(_wires(level, placed)),
        forks=tuple(_inside(point) for point in placed.forks),
    )


def _drawn(item: Item, lines: tuple[str, ...], box: Box, centre: Point) -> DrawnBox:
    x, y = _inside(centre)
    return DrawnBox(
        kind=item.kind,
        state=item.state,
        used=item.used,
        x=round(x - box.width / 2, 1),
        y=round(y - box.height / 2, 1),
        width=box.width,
        height=box.height,
        lines=lines,
        told=_told(item),
    )


def _wires(level: Level, placed: Placement) -> list[Wire]:
    found = []
    for (_, _, new), line in zip(level.edges, placed.lines, strict=True):
        corners = tuple(map(_inside, line))
        (x0, y0), (x1, y1) = corners[-2:]
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5 or 1.0
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        back = (x1 - _HEAD[0] * dx, y1 - _HEAD[0] * dy)
        side = (_HEAD[1] * -dy, _HEAD[1] * dx)
        head = (
            (round(back[0] + side[0], 1), round(back[1] + side[1], 1)),
            (x1, y1),
            (round(back[0] - side[0], 1), round(back[1] - side[1], 1)),
        )
        found.append(Wire(new, corners, head))
    return found


def _lines(item: Item) -> tuple[str, ...]:
    text = _SIGNS[item.state] + re.sub(r"[_\s]+", " ", item.label).strip()
    lines = textwrap.wrap(text, _LETTERS_A_LINE, max_lines=_LINES, placeholder="…")
    return tuple(lines) or ("…",)


def _told(item: Item) -> str:
    """What hovering over a box says."""
    if item.kind == "operation":
        with_ = f"\nwith {listed(item.inputs)}" if item.inputs else ""
        return f"{item.label or 'operation'} (operation){with_}"
    parts = [f"{', '.join(item.names)} ({item.kind})"]
    if item.inputs:
        parts.append(f"from {listed(item.inputs)}")
    if item.state == "added":
        parts.append("new")
    else:
        parts += [
            f"{how} {listed(names)}"
            for how, names in (("now from", item.gained), ("no longer from", item.lost))
            if names
        ]
    if not item.used:
        parts.append("no action depends on it")
    return "\n".join(parts)


def _inside(point: Point) -> Point:
    return round(point[0] + _MARGIN, 1), round(point[1] + _MARGIN, 1)


def _at(point: Point) -> str:
    return f"{point[0]:g} {point[1]:g}"
