"""What changed in a policy's structure from one round to the next, by names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jaxrefine.policy.graph import Dependence, SemanticGraph
from jaxrefine.policy.graph_text import bounded, families


@dataclass(frozen=True)
class Rewired:
    """A name that both programs have, and the nearest named values that it lost and gained on either side."""

    inputs_removed: tuple[str, ...]
    inputs_added: tuple[str, ...]
    dependents_removed: tuple[str, ...]
    dependents_added: tuple[str, ...]


@dataclass(frozen=True)
class NameChanges:
    """Names of one kind: those gained, those lost, and of those kept which are wired as before or anew."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: tuple[str, ...]
    rewired: dict[str, Rewired]


@dataclass(frozen=True)
class GraphDiff:
    """The difference between two programs' graphs."""

    latents: NameChanges
    weights: NameChanges
    actions: NameChanges
    columns_added: tuple[str, ...]
    columns_removed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, fields as they are named here."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    def describe(self, limit: int = 8_000) -> str:
        """The difference in words, in at most ``limit`` characters."""
        lines = []
        for kind, changes in (("latents", self.latents), ("weights", self.weights), ("actions", self.actions)):
            lines.append(
                f"{kind}: {len(changes.added)} added, {len(changes.removed)} removed, {len(changes.unchanged)} wired "
                f"as before, {len(changes.rewired)} wired anew."
            )
            for what, names in (("added", changes.added), ("removed", changes.removed)):
                if names:
                    lines.append(f"  {what}: {families(names, 20)}")
        for what, names in (("read now", self.columns_added), ("no longer read", self.columns_removed)):
            if names:
                lines.append(f"columns {what}: {families(names, 20)}")
        for changes in (self.actions, self.latents, self.weights):
            lines += [f"{name}: {_rewired(found)}" for name, found in changes.rewired.items()]
        return bounded(lines, limit)


def _rewired(found: Rewired) -> str:
    sides = (
        ("no longer from", found.inputs_removed),
        ("now from", found.inputs_added),
        ("no longer leads to", found.dependents_removed),
        ("now leads to", found.dependents_added),
    )
    return "; ".join(f"{what} {families(names)}" for what, names in sides if names) + "."


def _plain(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _plain(value) for key, value in values.items()}
    return list(values) if isinstance(values, tuple) else values


def diff(before: SemanticGraph, after: SemanticGraph) -> GraphDiff:
    """Compare two programs' graphs by the names that they report."""
    read_before, read_after = (
        [name for name in graph.columns if name not in graph.unused_columns] for graph in (before, after)
    )
    return GraphDiff(
        latents=_changes(before.latents, after.latents),
        weights=_changes(before.weights, after.weights),
        actions=_changes(before.actions, after.actions),
        columns_added=_without(read_after, read_before),
        columns_removed=_without(read_before, read_after),
    )


def _changes(before: Mapping[str, Dependence], after: Mapping[str, Dependence]) -> NameChanges:
    kept = [name for name in before if name in after]
    rewired = {}
    for name in kept:
        old, new = before[name], after[name]
        found = Rewired(
            inputs_removed=_without(old.inputs, new.inputs),
            inputs_added=_without(new.inputs, old.inputs),
            dependents_removed=_without(old.dependents, new.dependents),
            dependents_added=_without(new.dependents, old.dependents),
        )
        if any(asdict(found).values()):
            rewired[name] = found
    return NameChanges(
        added=_without(after, before),
        removed=_without(before, after),
        unchanged=tuple(name for name in kept if name not in rewired),
        rewired=rewired,
    )


def _without(names: Any, others: Any) -> tuple[str, ...]:
    return tuple(name for name in names if name not in others)
