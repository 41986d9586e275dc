"""The semantic graph of a round's program as a picture: what is computed from what, and what changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from jaxrefine.report.graph_drawing import Drawing, draw
from jaxrefine.report.graph_figure import graph_figure
from jaxrefine.report.graph_levels import by_name, by_operation, families
from jaxrefine.report.graph_reading import Number, read_changes, read_graph
from jaxrefine.report.record import Record
from jaxrefine.report.svg import to_markup


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
    """The picture of every round that left a graph, by the round's number; as PDFs too, where those are kept."""
    found = {}
    for entry in record.rounds:
        gaps: list[str] = []
        picture = graph_picture(record.path / f"round_{entry.index}", gaps)
        if picture and picture.named:
            name = f"graph-{entry.index}"
            to_markup(graph_figure(picture.named, name), name, picture.description)  # the page has it drawn by hand
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
        named=draw(named) if named and named.items else None,
        operations=draw(operations) if operations and operations.items else None,
        numbers=len(numbers),
        counts={kind: kinds[kind] for kind in order if kinds[kind]},
        since=changes.since if changes else None,
        compared=changes is not None,
        added=len(changes.added) if changes else 0,
        rewired=len(changes.inputs_added.keys() | changes.inputs_removed.keys()) if changes else 0,
        removed=tuple(families(changes.removed)) if changes else (),
    )


def _kind(name: str, number: Number) -> str:
    prefix = name.partition("_")[0]
    return prefix if prefix in ("latent", "weight", "action") else number.kind
