"""The semantic graph of a round's program as a picture: what is computed from what, and what changed."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxrefine.report.graph_layout import Box, Placement, Point, lay_out
from jaxrefine.report.graph_levels import Item, Level, by_name, by_operation, listed, together
from jaxrefine.report.graph_reading import Number, read_changes, read_graph
from jaxrefine.report.record import Record

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


@dataclass(frozen=True)
class GraphPicture:
    """A round's graph.

    Attributes:
        named: What depends on what, by name; None if it has too much to draw.
        operations: With every operation between; None likewise.
        numbers: How many numbers the program computes.
        counts: How many of each kind are named.
        since: The round that changes are counted from; None where that is not known.
        compared: Whether it is compared with an earlier round's.
        added: How many names are new.
        rewired: How many names are computed from other names than before.
        removed: Names that are gone, those that differ by a number only together.
    """

    named: Drawing | None
    operations: Drawing | None
    numbers: int
    counts: dict[str, int]
    since: int | None
    compared: bool
    added: int
    rewired: int
    removed: tuple[str, ...]

    @property
    def description(self) -> str:
        """What a person who cannot see the picture is told."""
        counted = ", ".join(f"{count} {kind}{'s' * (count != 1)}" for kind, count in self.counts.items())
        return f"What the program computes from what: {counted}"


@dataclass(frozen=True)
class RoundGraph:
    """A round's picture, if there is one, and a sentence for everything that could not be read."""

    picture: GraphPicture | None
    gaps: tuple[str, ...]


def graph_pictures(record: Record) -> dict[int, RoundGraph]:
    """The picture of every round that left a graph, by the round's number."""
    found = {}
    for entry in record.rounds:
        gaps: list[str] = []
        picture = graph_picture(record.path / f"round_{entry.index}", gaps)
        if picture or gaps:
            found[entry.index] = RoundGraph(picture, tuple(gaps))
    return found


def graph_picture(folder: Path, gaps: list[str]) -> GraphPicture | None:
    """Draw a round's graph.

    Args:
        folder: The round's, with its graph.json and, beside it, what changed.
        gaps: Receives a sentence for each file that is there and cannot be made sense of.

    Returns:
        None if the round left no graph.
    """
    numbers = read_graph(folder / "graph.json", gaps)
    if not numbers:
        return None
    changes = read_changes(folder / "graph_changes.json", gaps)
    named, operations = by_name(numbers, changes), by_operation(numbers, changes)
    kinds = Counter(_kind(name, number) for number in numbers for name in number.names)
    order = ("observation", "weight", "latent", "action")
    return GraphPicture(
        named=_draw(named, "balanced") if named and named.items else None,
        operations=_draw(operations, "fast") if operations and operations.items else None,
        numbers=len(numbers),
        counts={kind: kinds[kind] for kind in order if kinds[kind]},
        since=changes.since if changes else None,
        compared=changes is not None,
        added=len(changes.added) if changes else 0,
        rewired=len(changes.inputs_added.keys() | changes.inputs_removed.keys()) if changes else 0,
        removed=_families(changes.removed) if changes else (),
    )


def _draw(level: Level, effort: str) -> Drawing:
    labels = [_lines(item) for item in level.items]
    boxes = [
        Box(
            width=round(max(map(len, lines)) * _LETTER + 2 * _PADDING, 1),
            height=LINE_HEIGHT * len(lines) + _PADDING,
            column={"observation": "first", "action": "last"}.get(item.kind, "free"),
        )
        for item, lines in zip(level.items, labels, strict=True)
    ]
    placed = lay_out(boxes, [(source, target) for source, target, _ in level.edges], effort)
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


def _families(names: Sequence[str]) -> tuple[str, ...]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    return tuple(together(members) for members in found.values())


def _kind(name: str, number: Number) -> str:
    prefix = name.partition("_")[0]
    return prefix if prefix in ("latent", "weight", "action") else number.kind


def _inside(point: Point) -> Point:
    return round(point[0] + _MARGIN, 1), round(point[1] + _MARGIN, 1)


def _at(point: Point) -> str:
    return f"{point[0]:g} {point[1]:g}"
