"""A straight line of array equations as a graph of scalars.

Every array becomes an array of scalar numbers, which primitives that only move elements are applied to. So the
element of an array is one scalar from where it is computed on, whatever it is sliced, stacked or reshaped into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from jaxrefine.policy.inline import Equation, StraightLine

Ids: TypeAlias = np.ndarray
MAX_EDGES = 2_000_000


def _named(primitives: str) -> frozenset[str]:
    return frozenset(primitives.split())


_ELEMENTWISE = _named(
    "abs acos acosh add and asin asinh atan atan2 atanh cbrt ceil clamp convert_element_type cos cosh digamma div eq "
    "erf erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le lgamma log log1p logistic lt max min mul ne "
    "neg nextafter not or pow reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor"
)
_REDUCTIONS = _named("argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor")
_CUMULATIVE = _named("cumlogsumexp cummax cummin cumprod cumsum")
# moved by the primitive itself, where all but these operands are known
_MOVED_BY_INDEX = {
    "dynamic_slice": (0,), "dynamic_update_slice": (0, 1), "gather": (0,), "pad": (0, 1), "scatter": (0, 2),
}  # fmt: skip


@dataclass(frozen=True)
class Scalar:
    """One number.

    Attributes:
        operation: the primitive that computes it; empty for an input or a constant.
        inputs: the scalars that it is computed from, each once.
        place: the slot and the flat index in it where it is first computed.
        constant: its value, where that is known beforehand.
    """

    operation: str
    inputs: tuple[int, ...]
    place: tuple[int, int]
    constant: np.generic | None = None


@dataclass(frozen=True)
class Scalars:
    """All numbers of a program, each after its inputs, and where the program's own names stand among them.

    Attributes:
        scalars: the numbers.
        parameters: of each parameter's elements.
        observation: of each entry's elements.
        mean: of the mean's.
        scale_tril: of the Cholesky factor's.
        info: of what is reported.
        cleaned: a number that is an element of the observation, but made finite or clipped with its whole entry ->
            that element.
    """

    scalars: tuple[Scalar, ...]
    parameters: dict[str, Ids]
    observation: dict[str, Ids]
    mean: Ids
    scale_tril: Ids
    info: dict[str, int]
    cleaned: dict[int, int]


def scalarise(line: StraightLine) -> Scalars:
    """Follow every number of a program.

    Raises:
        ValueError: there are more than can be followed one by one.
    """
    graph = _Graph(line.avals)
    slots: list[Ids] = [np.empty(0, int)] * len(line.avals)
    inputs = (*line.parameters.values(), *line.observation.values())
    for slot in inputs:
        slots[slot] = graph.new(slot, "", [()] * int(np.prod(line.avals[slot].shape)), line.avals[slot].shape)
    graph.entries = [slots[slot] for slot in line.observation.values()]
    graph.observed = {int(i) for entry in graph.entries for i in entry.flat}
    for slot, value in line.constants.items():
        slots[slot] = graph.constants(slot, np.asarray(value))
    for equation in line.equations:
        found = graph.follow(equation, [slots[slot] for slot in equation.inputs])
        for slot, ids in zip(equation.outputs, found, strict=True):
            slots[slot] = ids
    info = {name: int(slots[slot].item()) for name, slot in line.info.items()}
    outputs = [*slots[line.mean].tolist(), *slots[line.scale_tril].ravel().tolist(), *info.values()]
    return Scalars(
        scalars=tuple(graph.scalars),
        parameters={key: slots[slot] for key, slot in line.parameters.items()},
        observation={key: slots[slot] for key, slot in line.observation.items()},
        mean=slots[line.mean],
        scale_tril=slots[line.scale_tril],
        info=_reported(graph.scalars, info, outputs),
        cleaned=graph.cleaned,
    )


def ancestors(inputs: Sequence[tuple[int, ...]], of: Iterable[int]) -> set[int]:
    """All that some numbers are computed from, and they themselves, given what each is computed from directly."""
    found, left = set[int](), [int(i) for i in of]
    while left:
        if (i := left.pop()) not in found:
            found.add(i)
            left += inputs[i]
    return found


def _reported(scalars: Sequence[Scalar], info: dict[str, int], outputs: Sequence[int]) -> dict[str, int]:
    """A flag or a count is reported as a number that nothing else uses; what the policy uses is the flag itself."""
    live = ancestors([scalar.inputs for scalar in scalars], outputs)
    used = {source for i in live for source in scalars[i].inputs}

    def source(i: int) -> int:
        while scalars[i].operation == "convert_element_type" and i not in used:
            (i,) = scalars[i].inputs
        return i

    return {name: source(i) for name, i in info.items()}


class _Graph:
    """The scalars so far."""

    def __init__(self, avals: Sequence[Any]) -> None:
        self.avals = avals
        self.scalars: list[Scalar] = []
        self.entries: list[Ids] = []
        self.observed: set[int] = set()
        self.cleaned: dict[int, int] = {}
        # whether an element of the observation is finite, or which way it is not -> that element
        self.doubted: dict[int, int] = {}
        self.edges = 0

    def new(self, slot: int, operation: str, inputs: Sequence[Iterable[int]], shape: tuple[int, ...]) -> Ids:
        """New scalars in a slot, given what each is computed from."""
        first = len(self.scalars)
        for index, each in enumerate(inputs):
            distinct = tuple(dict.fromkeys(int(i) for i in each))
            self.edges += 1 + len(distinct)
            if self.edges > MAX_EDGES:
                raise ValueError(f"the program computes more than {MAX_EDGES:,} numbers and connections")
            self.scalars.append(Scalar(operation, distinct, (slot, index)))
        return np.arange(first, len(self.scalars)).reshape(shape)

    def constants(self, slot: int, values: np.ndarray) -> Ids:
        """New scalars that are known."""
        first = len(self.scalars)
        self.edges += values.size
        self.scalars += [Scalar("", (), (slot, index), value) for index, value in enumerate(values.ravel())]
        return np.arange(first, len(self.scalars)).reshape(values.shape)

    def known(self, ids: Ids) -> bool:
        return all(self.scalars[i].constant is not None for i in ids.flat)

    def values(self, ids: Ids, slot: int) -> np.ndarray:
        return np.array([self.scalars[i].constant for i in ids.flat], self.avals[slot].dtype).reshape(ids.shape)

    def is_zero(self, i: int) -> bool:
        constant = self.scalars[i].constant
        return constant is not None and bool(constant == 0)

    def follow(self, equation: Equation, ids: list[Ids]) -> list[Ids]:
        """The scalars of an equation's results, given those of its inputs."""
        name, params = equation.name, equation.params
        shapes = [self.avals[slot].shape for slot in equation.outputs]
        if name in _MOVES:
            return _MOVES[name](ids, params, shapes[0])
        if name in _MOVED_BY_INDEX and all(
            self.known(each) for i, each in enumerate(ids) if i not in _MOVED_BY_INDEX[name]
        ):
            return [self._move_by_index(equation, ids)]
        if name == "convert_element_type" and all(
            jnp.issubdtype(self.avals[slot].dtype, jnp.floating) for slot in (*equation.inputs, *equation.outputs)
        ):
            return ids
        if name != "select_n" and all(self.known(each) for each in ids):
            values = [jnp.asarray(self.values(*each)) for each in zip(ids, equation.inputs, strict=True)]
            results = zip(equation.outputs, equation.compute(values), strict=True)
            return [self.constants(slot, np.asarray(value)) for slot, value in results]
        if name in _ELEMENTWISE:
            return [self._elementwise(equation, ids, shapes[0])]
        (slot, *_), rest = equation.outputs, shapes[0]
        if name in _REDUCTIONS:
            return [self.new(slot, name, _groups(ids[0], params["axes"]), rest)]
        if name in _CUMULATIVE:
            return [self.new(slot, name, _prefixes(ids[0], params["axis"], params["reverse"]), rest)]
        if name == "dot_general":
            return [self.new(slot, name, self._products(ids[0], ids[1], params["dimension_numbers"]), rest)]
        if name == "sort":
            lanes = list(_lanes(ids, params["dimension"]))
            return [self.new(s, name, lanes, shape) for s, shape in zip(equation.outputs, shapes, strict=True)]
        every = [i for each in ids for i in each.ravel().tolist() if self.scalars[i].constant is None]
        return [
            self.new(s, name, [every] * int(np.prod(shape)), shape)
            for s, shape in zip(equation.outputs, shapes, strict=True)
        ]

    def _move_by_index(self, equation: Equation, ids: list[Ids]) -> Ids:
        data = _MOVED_BY_INDEX[equation.name]
        operands = [
            jnp.asarray(each if i in data else self.values(each, slot))
            for i, (each, slot) in enumerate(zip(ids, equation.inputs, strict=True))
        ]
        params = dict(equation.params) | ({"fill_value": -1} if equation.name == "gather" else {})
        moved = np.array(equation.primitive.bind(*operands, **params))
        outside = moved < 0
        if outside.any():
            moved[outside] = self.constants(equation.outputs[0], np.full(moved.shape, np.nan))[outside]
        return moved

    def _elementwise(self, equation: Equation, ids: list[Ids], shape: tuple[int, ...]) -> Ids:
        (slot,), name = equation.outputs, equation.name
        rows = list(zip(*(np.broadcast_to(each, shape).ravel().tolist() for each in ids), strict=True))
        found, zero = self.new(slot, name, rows, shape), self.avals[slot].dtype.type(0)
        # what is chosen by a known flag, or is zero whatever happens, is not computed
        for index, row in enumerate(rows):
            if name == "select_n" and (flag := self.scalars[row[0]].constant) is not None:
                found.flat[index] = row[1 + int(flag)]
            elif name == "mul" and any(self.is_zero(i) for i in row):
                self.scalars[found.flat[index]] = Scalar("", (), (slot, index), zero)
        self._recognise(name, rows, found)
        return found

    def _products(self, a: Ids, b: Ids, dimension_numbers: Any) -> list[list[int]]:
        """The factors of each sum, those that meet a zero left out."""
        (a_sum, b_sum), (a_batch, b_batch) = dimension_numbers

        def arranged(ids: Ids, batch: Sequence[int], summed: Sequence[int]) -> Ids:
            free = [axis for axis in range(ids.ndim) if axis not in (*batch, *summed)]
            sizes = [int(np.prod([ids.shape[axis] for axis in axes])) for axes in (batch, free, summed)]
            return np.transpose(ids, [*batch, *free, *summed]).reshape(sizes)

        left, right = arranged(a, a_batch, a_sum), arranged(b, b_batch, b_sum)
        return [
            [i for pair in zip(x, y, strict=True) if not any(map(self.is_zero, pair)) for i in pair]
            for rows, columns in zip(left.tolist(), right.tolist(), strict=True)
            for x in rows
            for y in columns
        ]

    def _recognise(self, name: str, rows: Sequence[tuple[int, ...]], found: Ids) -> None:
        """Note which results are still the observation's elements, made finite or clipped as a whole."""
        roots = [self._only(row, self._element) for row in rows]
        for row, root, i in zip(rows, roots, found.flat, strict=True):
            if name == "is_finite" or (name == "ne" and len(set(row)) == 1) or (name == "eq" and self._infinite(row)):
                if root is not None:
                    self.doubted[int(i)] = root
            elif name in ("not", "or", "and"):
                if (doubt := self._only(row, self.doubted.get)) is not None:
                    self.doubted[int(i)] = doubt
            elif name == "select_n":
                element = self._only(row[1:], self._element)
                if element is not None and element == self.doubted.get(row[0]):
                    self.cleaned[int(i)] = element
        if name in ("max", "min", "clamp"):
            whole = np.array([-1 if root is None else root for root in roots]).reshape(found.shape)
            if any(np.array_equal(whole, entry) for entry in self.entries):
                self.cleaned |= dict(zip(found.ravel().tolist(), whole.ravel().tolist(), strict=True))

    def _element(self, i: int) -> int | None:
        return i if i in self.observed else self.cleaned.get(i)

    def _infinite(self, row: tuple[int, ...]) -> bool:
        return any((c := self.scalars[i].constant) is not None and bool(np.isinf(c)) for i in row)

    def _only(self, row: Iterable[int], root: Callable[[int], int | None]) -> int | None:
        """The one root of all that is not constant; None if there are several or none."""
        roots = {root(i) for i in row if self.scalars[i].constant is None}
        return roots.pop() if len(roots) == 1 else None


def _groups(ids: Ids, axes: Sequence[int]) -> list[list[int]]:
    """What each result of a reduction is computed from."""
    kept = [axis for axis in range(ids.ndim) if axis not in axes]
    count = int(np.prod([ids.shape[axis] for axis in kept]))
    found: list[list[int]] = np.transpose(ids, [*kept, *axes]).reshape(count, -1).tolist()
    return found


def _prefixes(ids: Ids, axis: int, reverse: bool) -> list[list[int]]:
    """What each result of a cumulative operation is computed from."""
    lanes, found = np.moveaxis(ids, axis, -1), []
    for index in np.ndindex(ids.shape):
        lane, here = lanes[index[:axis] + index[axis + 1 :]], index[axis]
        found.append((lane[here:] if reverse else lane[: here + 1]).tolist())
    return found


def _lanes(ids: Sequence[Ids], axis: int) -> list[list[int]]:
    """What each result of a sort is computed from: all that is sorted with it."""
    lanes = [np.moveaxis(each, axis, -1) for each in ids]
    where = [index[:axis] + index[axis + 1 :] for index in np.ndindex(ids[0].shape)]
    return [[i for each in lanes for i in each[index].tolist()] for index in where]


def _broadcast_in_dim(ids: Ids, params: Any, shape: tuple[int, ...]) -> Ids:
    full = [1] * len(shape)
    for axis, size in zip(params["broadcast_dimensions"], ids.shape, strict=True):
        full[axis] = size
    return np.broadcast_to(ids.reshape(full), shape)


def _slice(ids: Ids, params: Any) -> Ids:
    starts, limits = params["start_indices"], params["limit_indices"]
    strides = params["strides"] or (1,) * ids.ndim
    return ids[tuple(map(slice, starts, limits, strides))]


# primitives that only move elements: (inputs, parameters, shape of the first result) -> results
_MOVES: dict[str, Callable[[list[Ids], Any, tuple[int, ...]], list[Ids]]] = {
    "broadcast_in_dim": lambda ids, params, shape: [_broadcast_in_dim(ids[0], params, shape)],
    "concatenate": lambda ids, params, shape: [np.concatenate(ids, params["dimension"])],
    "copy": lambda ids, params, shape: ids,
    "copy_p": lambda ids, params, shape: ids,
    "reshape": lambda ids, params, shape: [ids[0].reshape(shape)],
    "rev": lambda ids, params, shape: [np.flip(ids[0], params["dimensions"])],
    "slice": lambda ids, params, shape: [_slice(ids[0], params)],
    "split": lambda ids, params, shape: np.split(ids[0], np.cumsum(params["sizes"])[:-1], params["axis"]),
    "squeeze": lambda ids, params, shape: [ids[0].reshape(shape)],
    "stack": lambda ids, params, shape: [np.stack(ids, params["axis"])],
    "tile": lambda ids, params, shape: [np.tile(ids[0], params["reps"])],
    "transpose": lambda ids, params, shape: [np.transpose(ids[0], params["permutation"])],
}
