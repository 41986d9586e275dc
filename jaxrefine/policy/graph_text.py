"""A semantic graph, and the difference between two, in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxrefine.policy.graph import Dependence, SemanticGraph

_MANY = 3  # names that differ in a number only are told as one from here on


def families(names: Iterable[str], most: int = 8) -> str:
    """Names in a row; those that differ in a number only are told together, and at most ``most`` are listed."""
    grouped: dict[str, list[str]] = {}
    for name in names:
        grouped.setdefault(_family(name), []).append(name)
    told = [
        text
        for family, members in grouped.items()
        for text in ([f"{family} ({len(members)})"] if len(members) >= _MANY else members)
    ]
    return ", ".join(told[:most]) + (f" and {len(told) - most} more" if len(told) > most else "")


def _family(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def bounded(lines: Sequence[str], limit: int) -> str:
    """Lines from the first on, as many as fit into ``limit`` characters, and how many do not."""
    text = "\n".join(lines)
    kept = len(lines)
    while len(text) > limit and kept:
        kept -= 1
        text = "\n".join([*lines[:kept], f"... and {len(lines) - kept} more lines"])
    return text


def describe(graph: SemanticGraph, limit: int) -> str:
    """See ``SemanticGraph.describe``."""
    used = len(graph.columns) - len(graph.unused_columns)
    reported = f"{len(graph.latents)} latents and {len(graph.weights)} weights are reported"
    lines = [f"{reported}; the actions depend on {used} of the observation's {len(graph.columns)} columns."]
    for what, names in (
        ("Latents that no action depends on", graph.unused_latents),
        ("Weights that no action depends on", graph.unused_weights),
        ("Columns that no action depends on", graph.unused_columns),
    ):
        if names:
            lines.append(f"{what}: {families(names)}.")
    lines += [f"{name}: {_origin(found)}." for name, found in graph.actions.items()]
    for name, found in _grouped(graph.latents):
        reached = f"moves {_moved(found)}" if found.used else "moves no action"
        dependents = [other for other in found.dependents if not other.startswith("action_")]
        leads = f"; leads to {families(dependents)}" if dependents else ""
        lines.append(f"{name}: {_origin(found)}{leads}; {reached}.")
    return bounded(lines, limit)


def _origin(found: Dependence) -> str:
    kind = {"intermediate": "from", "copy": "a copy of", "constant": "a constant"}[found.role]
    parts = [f"{kind} {families(found.inputs)}".strip()]
    if found.same_as and found.role != "copy":
        parts.append(f"the same number as {families(found.same_as)}")
    further = [name for name in found.observations if name not in found.inputs]
    if further:
        parts.append(f"through these {families(further)}")
    elif not found.observations and found.role == "intermediate":
        parts.append("the same at every step")
    return "; ".join(parts)


def _moved(found: Dependence) -> str:
    means = [name.removeprefix("action_mean_") for name in found.means]
    spreads = [name.removeprefix("action_spread_") for name in found.spreads]
    parts = (("the mean of", means), ("the spread of", spreads))
    return " and ".join(f"{what} {', '.join(names)}" for what, names in parts if names)


def _grouped(latents: dict[str, Dependence]) -> list[tuple[str, Dependence]]:
    """Latents that differ in a number only, and depend on the same families of names, become one."""

    def key(name: str, found: Dependence) -> Hashable:
        near = tuple(frozenset(map(_family, names)) for names in (found.inputs, found.dependents))
        return _family(name), found.role, near, found.means, found.spreads

    groups: dict[Hashable, list[str]] = {}
    for name, found in latents.items():
        groups.setdefault(key(name, found), []).append(name)
    told = []
    for members in groups.values():
        if len(members) < _MANY:
            told += [(name, latents[name]) for name in members]
        else:
            told.append((f"{_family(members[0])} ({len(members)})", _union([latents[name] for name in members])))
    return told


def _union(found: Sequence[Dependence]) -> Dependence:
    def every(names: Callable[[Dependence], tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for each in found for name in names(each)))

    first = found[0]
    return type(first)(
        role=first.role,
        same_as=every(lambda each: each.same_as),
        inputs=every(lambda each: each.inputs),
        observations=every(lambda each: each.observations),
        weights=every(lambda each: each.weights),
        latents=every(lambda each: each.latents),
        dependents=every(lambda each: each.dependents),
        means=first.means,
        spreads=first.spreads,
    )
