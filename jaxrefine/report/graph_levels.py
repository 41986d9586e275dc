"""A program's graph at two levels: what depends on what by name, and every operation between."""

from __future__ import annotations

import graphlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jaxrefine.report.graph_reading import Changes, Number

# What can be read, and placed within a second. Programs so far have at most 106 boxes and 151 lines by name, and 627
# and 803 by operation.
MOST_DRAWN = 150
MOST_LINES = 300
MOST_OPERATIONS = 700
MOST_OPERATION_LINES = 1_000
MOST_DEPENDENCES = 20_000

_AXIS = re.compile(r"_(x|y|z|w|theta)$")
_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_NUMBER = re.compile(rf"\d+|(?<![a-z])(?:{'|'.join(_WORDS)})(?![a-z])")


@dataclass
class Item:
    """What is drawn as one: a name, several that differ by a number, or several operations of one kind.

    Attributes:
        kind: `observation`, `weight`, `latent`, `action` or `operation`.
        label: What it is called in the drawing.
        names: All names that it stands for.
        count: How many operations it stands for.
        state: `added`, `rewired` or empty.
        inputs: Names of what it is computed from.
        gained: Those of `inputs` that are new to names that are not.
        lost: Names of what it is computed from no longer.
        used: Whether an action depends on it.
    """

    kind: str
    label: str
    names: list[str] = field(default_factory=list)
    count: int = 0
    state: str = ""
    inputs: dict[str, None] = field(default_factory=dict)
    gained: dict[str, None] = field(default_factory=dict)
    lost: dict[str, None] = field(default_factory=dict)
    used: bool = False


@dataclass(frozen=True)
class Level:
    """What is drawn: items, and which are computed from which.

    Attributes:
        items: Observations first and actions last.
        edges: Positions of two items, source first, and whether the dependence is new.
    """

    items: tuple[Item, ...]
    edges: tuple[tuple[int, int, bool], ...]


def listed(names: Iterable[str], most: int = 24) -> str:
    """Names in a row; those that differ by a number only are told together, and at most `most` are listed."""
    told = families(names)
    return ", ".join(told[:most]) + (f" and {len(told) - most} more" if len(told) > most else "")


def families(names: Iterable[str]) -> list[str]:
    """Names, those that differ by a number only as one."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found[_family(name)].append(name)
    return [_together(members) for members in found.values()]


def _together(names: Sequence[str]) -> str:
    """One name for several that differ by numbers only: `tile0…11_x`."""
    if len(names) == 1:
        return names[0]
    slots = list(zip(*(_NUMBER.findall(name) for name in names), strict=False))
    varying = [i for i, slot in enumerate(slots) if len(set(slot)) > 1]
    marks = [slot[0] for slot in slots]
    for i in varying:
        ordered = sorted(slots[i], key=_value)
        marks[i] = f"{ordered[0]}…{ordered[-1]}"
    values = sorted(_value(text) for i in varying for text in slots[i])
    whole = len(varying) == 1 and values == list(range(values[0], values[0] + len(names)))
    parts = _NUMBER.split(names[0])
    text = "".join(part + mark for part, mark in zip(parts, [*marks, ""], strict=False))
    return text if whole else f"{text} ({len(names)})"


def by_name(numbers: Sequence[Number], changes: Changes | None) -> Level | None:
    """The level of names, operations left out; None if more would be drawn than anyone can read."""
    kinds, inputs = _dependences(numbers)
    groups = _groups(kinds, inputs)
    if groups is None:
        return None
    items = _named(kinds, inputs, groups, changes)
    new = {(groups[source], key) for key, item in items.items() for source in item.gained if source in groups}
    edges = {
        (groups[source], key): item.state == "added" or (groups[source], key) in new
        for key, item in items.items()
        for source in item.inputs
        if groups[source] != key
    }
    return _level(items, edges) if len(edges) <= MOST_LINES else None


def by_operation(numbers: Sequence[Number], changes: Changes | None) -> Level | None:
    """The level of operations, those that do the same to the same things drawn as one; None if too many are left."""
    kinds, inputs = _dependences(numbers)
    groups = _groups(kinds, inputs)
    if groups is None:
        return None
    items = _named(kinds, inputs, groups, changes)
    edges: dict[tuple[str, str], bool] = {}
    merged: dict[tuple[str, ...], str] = {}
    carriers: list[str] = []  # of each number the item that stands for it; an unnamed constant has none
    for number in numbers:
        if number.kind == "constant" and not number.names:
            carriers.append("")
            continue
        sources = dict.fromkeys(carriers[i] for i in number.inputs if carriers[i])
        chain = [groups[name] for name in _in_order(number)]
        if not chain:
            chain = [merged.setdefault((number.operation, *sorted(sources)), f"operation {len(merged)}")]
            item = items.setdefault(chain[0], Item("operation", number.operation))
            item.count += 1
            item.inputs.update(dict.fromkeys(numbers[i].value for i in number.inputs if numbers[i].value))
        steps = [*((source, chain[0]) for source in sources), *itertools.pairwise(chain)]
        edges.update({step: False for step in steps if step[0] != step[1]})
        carriers.append(groups[_carrier(number)] if number.names else chain[0])
        if len(items) > MOST_OPERATIONS or len(edges) > MOST_OPERATION_LINES:
            return None
    for item in items.values():
        if item.count > 1:
            item.label = f"{item.label} ×{item.count}"
    return _level(items, edges)


def _named(
    kinds: Mapping[str, str], inputs: Mapping[str, Sequence[str]], groups: Mapping[str, str], changes: Changes | None
) -> dict[str, Item]:
    items: dict[str, Item] = {}
    for name, kind in kinds.items():
        item = items.setdefault(groups[name], Item(kind, ""))
        item.names.append(name)
        item.inputs.update(dict.fromkeys(inputs[name]))
    for item in items.values():
        item.label = _label(item)
        _mark(item, changes)
    return items


def _dependences(numbers: Sequence[Number]) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """The kind of each name, and the nearest names before it."""
    named = [number for number in numbers if number.names]
    bit = {id(number): 1 << i for i, number in enumerate(named)}
    nearest = [0] * len(numbers)
    kinds: dict[str, str] = {}
    inputs: dict[str, tuple[str, ...]] = {}
    for i, number in enumerate(numbers):
        for source in number.inputs:
            nearest[i] |= bit.get(id(numbers[source])) or nearest[source]
        names = _in_order(number)
        for name, before in zip(names, (None, *names), strict=False):
            kinds[name] = _kind(number, name)
            inputs[name] = (before,) if before else tuple(_carrier(named[j]) for j in _positions(nearest[i]))
    return kinds, inputs


def _in_order(number: Number) -> tuple[str, ...]:
    """A number's names, its latents after what they are copies of."""
    return tuple(sorted(number.names, key=lambda name: name.startswith("latent_")))


def _carrier(number: Number) -> str:
    """By which of its names a number goes on to others: a copy stands between what it copies and what reads it."""
    names = _in_order(number)
    return next((name for name in names if name.startswith("latent_")), names[0])


def _kind(number: Number, name: str) -> str:
    prefix = name.partition("_")[0]
    if prefix in ("latent", "weight", "action"):
        return prefix
    return number.kind if number.kind in ("observation", "weight") else "latent"


def _groups(kinds: Mapping[str, str], inputs: Mapping[str, Sequence[str]]) -> dict[str, str] | None:
    """The item that each name belongs to, such that no item is computed from itself by way of another."""
    if sum(map(len, inputs.values())) > MOST_DEPENDENCES:
        return None
    groups = {name: f"{kind} {_family(name)}" for name, kind in kinds.items()}
    _join_axes(kinds, inputs, groups)
    while len(set(groups.values())) <= MOST_DRAWN:
        cycle = _cycle(groups, inputs)
        if not cycle:
            return groups
        groups |= {name: f"name {name}" for name, group in groups.items() if group in cycle}
    return None


def _join_axes(kinds: Mapping[str, str], inputs: Mapping[str, Sequence[str]], groups: dict[str, str]) -> None:
    """Observations along the axes of one thing, that the same things read, are one."""
    readers: dict[str, set[str]] = defaultdict(set)
    for name, sources in inputs.items():
        for source in sources:
            readers[groups[source]].add(groups[name])
    for name, kind in kinds.items():
        stem = _AXIS.sub("", groups[name])
        if kind == "observation" and stem != groups[name]:
            groups[name] = f"{stem} {sorted(readers[groups[name]])}"


def _cycle(groups: Mapping[str, str], inputs: Mapping[str, Sequence[str]]) -> set[str]:
    before: dict[str, dict[str, None]] = defaultdict(dict)
    for name, sources in inputs.items():
        before[groups[name]].update({groups[source]: None for source in sources if groups[source] != groups[name]})
    try:
        graphlib.TopologicalSorter(before).prepare()
    except graphlib.CycleError as error:
        return set(error.args[1])
    return set()


def _level(items: Mapping[str, Item], edges: Mapping[tuple[str, str], bool]) -> Level:
    order = {"observation": 0, "action": 2}
    keys = sorted(items, key=lambda key: order.get(items[key].kind, 1))
    place = {key: i for i, key in enumerate(keys)}
    readers: dict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        readers[target].append(source)
    waiting = [key for key in keys if items[key].kind == "action"]
    while waiting:
        key = waiting.pop()
        if not items[key].used:
            items[key].used = True
            waiting += readers[key]
    return Level(
        tuple(items[key] for key in keys),
        tuple(sorted((place[source], place[target], new) for (source, target), new in edges.items())),
    )


def _mark(item: Item, changes: Changes | None) -> None:
    if changes is None:
        return
    item.gained = dict.fromkeys(name for own in item.names for name in changes.inputs_added.get(own, ()))
    item.lost = dict.fromkeys(name for own in item.names for name in changes.inputs_removed.get(own, ()))
    added = [name in changes.added for name in item.names]
    if all(added):
        item.state = "added"
    elif any(added) or item.gained or item.lost:
        item.state = "rewired"


def _label(item: Item) -> str:
    names = [re.sub(r"^(latent|weight|action)_", "", name) for name in item.names]
    told = families(names)
    ends = [_AXIS.search(text) for text in told]
    if len(told) > 1 and all(ends):
        told[1:] = [end.group(1) for end in ends[1:] if end]
    return ", ".join(told)


def _family(name: str) -> str:
    return _NUMBER.sub("#", name)


def _value(text: str) -> int:
    return _WORDS.index(text) if text in _WORDS else int(text)


def _positions(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
