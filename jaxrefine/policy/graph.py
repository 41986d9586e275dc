"""The semantic graph of a policy program: which named values are computed from which, down to single numbers.

It is read off what the program computes when it is traced, not off its text: a latent's entry says what the number
that is reported depends on, whatever it is called or commented to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from envs.base import Schema
from jaxrefine.policy.graph_text import describe
from jaxrefine.policy.inline import straight_line
from jaxrefine.policy.program import Program
from jaxrefine.policy.scalars import Scalars, ancestors, scalarise

Kind: TypeAlias = Literal["observation", "weight", "constant", "operation", "latent", "action"]
FORMAT = 1
MEAN, SPREAD = "action_mean_", "action_spread_"


@dataclass(frozen=True)
class Node:
    """One number.

    Attributes:
        kind: what it is to the policy; a reported value that is an observation, a weight or a constant is of that kind.
        names: an observation's column, a weight and a latent as reported, an action as tables write it; all that name
            this number. A weight that is reported only after some operation on it is named as its parameter, by path.
        operation: the primitive that computes it; empty for an input.
        inputs: positions of the nodes that it is computed from, each once.
        value: a constant's; as text where it is not finite.
    """

    kind: Kind
    names: tuple[str, ...] = ()
    operation: str = ""
    inputs: tuple[int, ...] = ()
    value: float | str | None = None


@dataclass(frozen=True)
class Dependence:
    """What one named value depends on, and what depends on it; all by name.

    Attributes:
        role: ``copy``, of an observation, a weight or another latent; ``constant``; or ``intermediate``.
        same_as: other names of the same number.
        inputs: the nearest named values that it is computed from.
        observations: all columns that it depends on.
        weights: all weights.
        latents: all latents.
        dependents: the nearest named values that are computed from it.
        means: the actions whose mean depends on it.
        spreads: the entries of the Cholesky factor that depend on it.
    """

    role: Literal["intermediate", "copy", "constant"]
    same_as: tuple[str, ...]
    inputs: tuple[str, ...]
    observations: tuple[str, ...]
    weights: tuple[str, ...]
    latents: tuple[str, ...]
    dependents: tuple[str, ...]
    means: tuple[str, ...]
    spreads: tuple[str, ...]

    @property
    def used(self) -> bool:
        """Whether any action depends on it."""
        return bool(self.means or self.spreads)


@dataclass(frozen=True)
class SemanticGraph:
    """A program's numbers, each after its inputs, without those that nothing named depends on.

    Attributes:
        entries: shape of each entry of the observation.
        columns: all columns of the observation, those that nothing depends on too.
        nodes: the numbers.
    """

    entries: tuple[tuple[str, tuple[int, ...]], ...]
    columns: tuple[str, ...]
    nodes: tuple[Node, ...]

    @cached_property
    def latents(self) -> dict[str, Dependence]:
        """Every reported latent, sorted by name; ``hold`` numbers them in this order."""
        return self._dependences("latent_")

    @cached_property
    def weights(self) -> dict[str, Dependence]:
        """Every reported weight, sorted by name."""
        return self._dependences("weight_")

    @cached_property
    def actions(self) -> dict[str, Dependence]:
        """Every mean, ``action_mean_<column>``, and every entry of the Cholesky factor that is not always zero.

        The latter are ``action_spread_<column>``, or ``action_spread_<row>_<column>`` off the diagonal.
        """
        return {n.names[0]: self._dependence(i, n.names[0]) for i, n in enumerate(self.nodes) if n.kind == "action"}

    @property
    def unused_latents(self) -> tuple[str, ...]:
        """Latents that are reported, but no action depends on them."""
        return tuple(name for name, found in self.latents.items() if not found.used)

    @property
    def unused_weights(self) -> tuple[str, ...]:
        """Weights that no action depends on."""
        return tuple(name for name, found in self.weights.items() if not found.used)

    @property
    def unused_columns(self) -> tuple[str, ...]:
        """Columns of the observation that no action depends on."""
        used = {name for found in self.actions.values() for name in found.observations}
        return tuple(name for name in self.columns if name not in used)

    def describe(self, limit: int = 16_000) -> str:
        """The graph in words, for a prompt or a report, in at most ``limit`` characters."""
        return describe(self, limit)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values in a stable order.

        ``nodes`` have the fields of ``Node`` that say anything, ``edges`` are pairs of their positions, source first,
        and ``summary`` holds what follows from both, a ``Dependence`` for each name.
        """
        summary = {
            kind: {name: _lists(asdict(found)) for name, found in named.items()}
            for kind, named in (("latents", self.latents), ("weights", self.weights), ("actions", self.actions))
        }
        unused = {
            "unused_latents": list(self.unused_latents),
            "unused_weights": list(self.unused_weights),
            "unused_columns": list(self.unused_columns),
        }
        return {
            "format": FORMAT,
            "entries": [[key, list(shape)] for key, shape in self.entries],
            "columns": list(self.columns),
            "nodes": [{"id": i, **_plain_node(node)} for i, node in enumerate(self.nodes)],
            "edges": [[source, i] for i, node in enumerate(self.nodes) for source in node.inputs],
            "summary": {**summary, **unused},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SemanticGraph:
        """The graph that ``to_json`` wrote.

        Raises:
            ValueError: it is of another format.
        """
        if data["format"] != FORMAT:
            raise ValueError(f"a semantic graph of format {data['format']}, not {FORMAT}")
        inputs: list[list[int]] = [[] for _ in data["nodes"]]
        for source, target in data["edges"]:
            inputs[target].append(source)
        return cls(
            entries=tuple((key, tuple(shape)) for key, shape in data["entries"]),
            columns=tuple(data["columns"]),
            nodes=tuple(
                Node(node["kind"], tuple(node["names"]), node.get("operation", ""), tuple(sources), node.get("value"))
                for node, sources in zip(data["nodes"], inputs, strict=True)
            ),
        )

    def _dependences(self, prefix: str) -> dict[str, Dependence]:
        found = {name: i for i, node in enumerate(self.nodes) for name in node.names if name.startswith(prefix)}
        return {name: self._dependence(i, name) for name, i in sorted(found.items())}

    @cached_property
    def _reach(self) -> tuple[list[int], ...]:
        """For each node, as bits: the named values nearest before it, all before it, nearest after, all after."""
        count = len(self.nodes)
        near_before, before, near_after, after = ([0] * count for _ in range(4))
        for i, node in enumerate(self.nodes):
            for source in node.inputs:
                named = 1 << source if self.nodes[source].names else 0
                near_before[i] |= named or near_before[source]
                before[i] |= named | before[source]
        for i in reversed(range(count)):
            named = 1 << i if self.nodes[i].names else 0
            for source in self.nodes[i].inputs:
                near_after[source] |= named or near_after[i]
                after[source] |= named | after[i]
        return near_before, before, near_after, after

    def _names(self, bits: int, *prefixes: str) -> tuple[str, ...]:
        found = (name for i in _positions(bits) for name in self.nodes[i].names)
        return tuple(name for name in found if name.startswith(prefixes)) if prefixes else tuple(found)

    def _dependence(self, i: int, name: str) -> Dependence:
        node = self.nodes[i]
        near_before, before, near_after, after = (bits[i] for bits in self._reach)
        inputs = self._names(near_before)
        own = tuple(other for other in node.names if other != name)
        origin = own[:1] if name.startswith("latent_") and node.kind in ("observation", "weight") else ()
        everything = before | (1 << i if origin else 0)
        return Dependence(
            role=self._role(i, bool(origin)),
            same_as=own,
            inputs=origin or inputs,
            observations=tuple(
                self.nodes[j].names[0] for j in _positions(everything) if self.nodes[j].kind == "observation"
            ),
            weights=tuple(
                label
                for j in _positions(everything)
                if self.nodes[j].kind == "weight"
                for label in self.nodes[j].names
                if not label.startswith("latent_")
            ),
            latents=self._names(before, "latent_"),
            dependents=self._names(near_after),
            means=self._names(after, MEAN),
            spreads=self._names(after, SPREAD),
        )

    def _role(self, i: int, is_input: bool) -> Literal["intermediate", "copy", "constant"]:
        node = self.nodes[i]
        while node.operation == "stop_gradient" and not is_input:
            node = self.nodes[node.inputs[0]]
            is_input = bool(node.names)
        return "copy" if is_input else "constant" if node.kind == "constant" else "intermediate"


def _positions(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _plain_node(node: Node) -> dict[str, Any]:
    plain: dict[str, Any] = {"kind": node.kind, "names": list(node.names)}
    if node.operation:
        plain["operation"] = node.operation
    return plain if node.value is None else plain | {"value": node.value}


def _lists(values: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def semantic_graph(program: Program, schema: Schema) -> SemanticGraph:
    """Read a program's graph off its trace, at a task's columns.

    Raises:
        ValueError: the program computes more numbers than can be followed one by one.
    """
    entries = tuple(schema.observation_shapes.items())
    scalars = scalarise(straight_line(program.apply, program.initial, entries))
    names = _names_of(scalars, schema)
    actions = _actions(scalars, schema)

    def seen(i: int) -> int:
        """An element of the observation that was made finite or clipped is still that element."""
        return scalars.cleaned.get(i, i)

    inputs = [tuple(dict.fromkeys(map(seen, scalar.inputs))) for scalar in scalars.scalars]
    kept = sorted(ancestors(inputs, map(seen, [*scalars.info.values(), *actions.values()])))
    position = {i: place for place, i in enumerate(kept)}
    observed = {int(i) for ids in scalars.observation.values() for i in ids.flat}
    parameters = {int(i) for ids in scalars.parameters.values() for i in ids.flat}
    nodes = []
    for i in kept:
        scalar, own = scalars.scalars[i], names.get(i, ())
        kind: Kind = "operation"
        if i in observed:
            kind = "observation"
        elif i in parameters or any(name.startswith("weight_") for name in own):
            kind = "weight"
        elif scalar.constant is not None:
            kind = "constant"
        elif own:
            kind = "latent"
        value = None if scalar.constant is None else float(scalar.constant)
        plain = value if value is None or np.isfinite(value) else str(value)
        nodes.append(Node(kind, own, scalar.operation, tuple(position[j] for j in inputs[i]), plain))
    nodes += [Node("action", (name,), "", (position[seen(i)],)) for name, i in actions.items()]
    return SemanticGraph(entries, tuple(column.name for column in schema.observation), tuple(nodes))


def _names_of(scalars: Scalars, schema: Schema) -> dict[int, tuple[str, ...]]:
    """The names of each number that has any, that of its kind first."""
    names: dict[int, list[str]] = {}
    for column in schema.observation:
        names[int(scalars.observation[column.key][column.index])] = [column.name]
    # a weight's own name before a latent's
    for name in sorted(scalars.info, key=lambda name: (name.startswith("latent_"), name)):
        i = scalars.info[name]
        names.setdefault(scalars.cleaned.get(i, i), []).append(name)
    for where, own_name in ((scalars.observation, ""), (scalars.parameters, "weight_")):
        for path, ids in where.items():
            for index, i in np.ndenumerate(ids):
                own = names.setdefault(int(i), [])
                if not own or not own[0].startswith(own_name):
                    own.insert(0, f"{path}[{', '.join(map(str, index))}]" if index else path)
    return {i: tuple(own) for i, own in names.items()}


def _actions(scalars: Scalars, schema: Schema) -> dict[str, int]:
    """The means, and the entries of the Cholesky factor that are not zero whatever happens."""
    columns = [column.name for column in schema.action]
    found = {MEAN + name: int(scalars.mean[i]) for i, name in enumerate(columns)}
    for row, name in enumerate(columns):
        for across, other in enumerate(columns[: row + 1]):
            i = int(scalars.scale_tril[row, across])
            constant = scalars.scalars[i].constant
            if constant is None or constant != 0:
                found[SPREAD + (name if row == across else f"{name}_{other}")] = i
    return found
