"""A round's semantic graph, and what changed in it, read from files that a program's worker wrote and that may lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxrefine.report.fields import JSON, get, integer, items, read_json, string
from jaxrefine.report.untrusted import visible

LONGEST_NAME = 120
MOST_BYTES = 20_000_000
MOST_NUMBERS = 20_000
MOST_EDGES = 200_000
MOST_NAMED = 1_500

_KINDS = frozenset({"observation", "weight", "constant", "operation", "latent", "action"})


@dataclass(frozen=True)
class Number:
    """One number that the program computes.

    Attributes:
        kind: What it is to the policy: `observation`, `weight`, `constant`, `operation`, `latent` or `action`.
        names: What it is called; empty for most constants and operations.
        operation: The primitive that computes it; empty for an input.
        inputs: Positions of the numbers it is computed from; all before its own.
        value: A constant's, as text.
    """

    kind: str
    names: tuple[str, ...]
    operation: str
    inputs: tuple[int, ...]
    value: str


@dataclass(frozen=True)
class Changes:
    """What changed since an earlier round, by name.

    Attributes:
        since: That round; None where the file does not say.
        added: Latents, weights, actions and columns of the observation that are new.
        removed: Those that are gone.
        inputs_added: Of each name that both have, what it is computed from now and was not before.
        inputs_removed: The reverse.
    """

    since: int | None
    added: frozenset[str]
    removed: tuple[str, ...]
    inputs_added: Mapping[str, tuple[str, ...]]
    inputs_removed: Mapping[str, tuple[str, ...]]


def read_graph(path: Path, gaps: list[str]) -> tuple[Number, ...]:
    """The graph's numbers, each after its inputs; none if there is no graph or it is none.

    Args:
        path: A round's graph.json.
        gaps: Receives a sentence if the file is there and cannot be made sense of.
    """
    where = f"{path.parent.name}/{path.name}"
    data = _read(path, gaps)
    if data is None:
        return ()
    entries, edges = items(get(data, "nodes")), items(get(data, "edges"))
    if not entries:
        gaps.append(f"{where} holds no graph.")
        return ()
    if len(entries) > MOST_NUMBERS or len(edges) > MOST_EDGES:
        gaps.append(f"{where} is not drawn: it has {len(entries)} numbers and {len(edges)} edges.")
        return ()
    sources, damaged = _sources(edges, len(entries))
    numbers = []
    taken: set[str] = set()
    for entry, inputs in zip(entries, sources, strict=True):
        kind = get(entry, "kind")
        known = isinstance(kind, str) and kind in _KINDS
        names = tuple(name for name in dict.fromkeys(_names(get(entry, "names"))) if name not in taken)
        taken.update(names)
        value = get(entry, "value")
        numbers.append(
            Number(
                kind=kind if known else "operation",
                names=names,
                operation=(string(get(entry, "operation")) or "")[:LONGEST_NAME],
                inputs=tuple(dict.fromkeys(inputs)),
                value=visible(str(value))[:24] if isinstance(value, int | float | str) else "",
            )
        )
        damaged += not known
    if len(taken) > MOST_NAMED:
        gaps.append(f"{where} is not drawn: it names {len(taken)} numbers.")
        return ()
    if damaged:
        gaps.append(f"{where} is damaged: {damaged} of its nodes and edges were passed over.")
    return tuple(numbers)


def read_changes(path: Path, gaps: list[str]) -> Changes | None:
    """What a round's graph_changes.json says; None if there is none."""
    data = _read(path, gaps)
    if data is None:
        return None
    kinds = [get(data, kind) for kind in ("latents", "weights", "actions")]
    gained: dict[str, tuple[str, ...]] = {}
    lost: dict[str, tuple[str, ...]] = {}
    for kind in kinds:
        rewired = get(kind, "rewired")
        for name, sides in rewired.items() if isinstance(rewired, dict) else ():
            for side, found in (("inputs_added", gained), ("inputs_removed", lost)):
                if names := _names(get(sides, side)):
                    found[_short(name)] = names
    return Changes(
        since=integer(get(data, "before")),
        added=frozenset(
            name
            for names in (*(get(kind, "added") for kind in kinds), get(data, "columns_added"))
            for name in _names(names)
        ),
        removed=tuple(
            name
            for names in (*(get(kind, "removed") for kind in kinds), get(data, "columns_removed"))
            for name in _names(names)
        ),
        inputs_added=gained,
        inputs_removed=lost,
    )


def _read(path: Path, gaps: list[str]) -> JSON:
    where = f"{path.parent.name}/{path.name}"
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            gaps.append(f"{where} is not read: it has {size} bytes.")
            return None
        return read_json(path, gaps)
    except FileNotFoundError:
        return None
    except OSError as error:
        gaps.append(f"{where} cannot be read ({error.strerror}).")
        return None


def _sources(edges: list[JSON], count: int) -> tuple[list[list[int]], int]:
    """The inputs of each number, and how many edges are none: a number comes after its inputs, so none lead back."""
    found: list[list[int]] = [[] for _ in range(count)]
    damaged = 0
    for edge in edges:
        ends = [integer(end) for end in items(edge)]
        source, target = ends if len(ends) == 2 else (None, None)
        if source is not None and target is not None and 0 <= source < target < count:
            found[target].append(source)
        else:
            damaged += 1
    return found, damaged


def _names(value: JSON) -> tuple[str, ...]:
    return tuple(_short(name) for name in items(value)[:MOST_NAMED] if isinstance(name, str) and name)


def _short(name: str) -> str:
    return visible(name[: LONGEST_NAME + 1].replace("\n", " "))[:LONGEST_NAME]
