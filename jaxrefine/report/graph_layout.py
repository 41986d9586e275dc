"""Where the boxes and lines of a graph go, from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import graphlay

Point: TypeAlias = tuple[float, float]

# In CSS pixels. Tighter than the library's own, for pages are narrow and these graphs deep.
_OPTIONS: dict[str, Any] = {
    "spacing": {
        "layer_gap": 20,
        "node_gap": 10,
        "dummy_gap": 7,
        "port_gap": 5,
        "port_stroke_clear": 4,
        "stub": 7,
        "isolated_gap": 10,
        "isolated_max_columns": 8,
    },
    "routing": {"style": "orthogonal", "port_sides": "facing_only", "merge_edges": "forks", "lane_gap": 5},
    "limits": {"max_dummies": 3_000},
}
_FEW_EDGES = 200  # up to here there is time to look harder for fewer crossings


@dataclass(frozen=True)
class Box:
    """What is to be placed: its size in pixels, and where it belongs: `first`, `last` or (`free`) anywhere between."""

    width: float
    height: float
    column: str


@dataclass(frozen=True)
class Placement:
    """Where everything went, in pixels from the upper left corner.

    Attributes:
        width: Of the whole.
        height: Of the whole.
        centres: Of each box.
        lines: For each edge its corners, from the border of one box to the border of the other.
        forks: Where lines from the same box part.
    """

    width: float
    height: float
    centres: tuple[Point, ...]
    lines: tuple[tuple[Point, ...], ...]
    forks: tuple[Point, ...]


def lay_out(boxes: Sequence[Box], edges: Sequence[tuple[int, int]]) -> Placement | None:
    """Place boxes in layers, so that few lines cross; the same graph is placed the same way.

    Args:
        boxes: At least one.
        edges: Pairs of positions in `boxes`, source first. Edges that lead back are drawn as such.

    Returns:
        None if lines would pass so many layers that placing them takes long.
    """
    graph = graphlay.Graph()
    sources, targets = {source for source, _ in edges}, {target for _, target in edges}
    for i, box in enumerate(boxes):
        # the outermost layers are for what nothing comes before or after
        held = (box.column == "first" and i not in targets) or (box.column == "last" and i not in sources)
        graph.node(i, width=box.width, height=box.height, rank=box.column if held else "free")
    for source, target in edges:
        graph.edge(source, target)
    effort = "balanced" if len(edges) <= _FEW_EDGES else "fast"
    try:
        found = graphlay.layout(graph, options={**_OPTIONS, "effort": effort}).to_dict()
    except graphlay.GraphlayError:  # what else it may complain of cannot be asked for above
        return None
    left, top = found["bounds"]["min"]["x"], found["bounds"]["min"]["y"]

    def point(at: dict[str, float]) -> Point:
        return round(at["x"] - left, 1), round(at["y"] - top, 1)

    right, bottom = point(found["bounds"]["max"])
    return Placement(
        width=right,
        height=bottom,
        centres=tuple(point(node["center"]) for node in found["nodes"]),
        lines=tuple(tuple(map(point, edge["points"])) for edge in found["edges"]),
        forks=tuple(map(point, found.get("junctions", ()))),
    )
