"""A traced function as one straight line of equations: what inner functions compute stands in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jax_core
from jaxtyping import Array

from jaxrefine.learn.types import Params, Policy

# functions within a function that compute what their body computes; a derivative of its own does not matter here
_CALLS = {
    "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
    "remat", "remat2", "checkpoint",
}  # fmt: skip


@dataclass(frozen=True)
class Equation:
    """One primitive applied to slots, and the slots that hold its results."""

    primitive: Any
    params: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def name(self) -> str:
        """The primitive's name."""
        return str(self.primitive.name)

    def compute(self, values: Sequence[Any]) -> Sequence[Any]:
        """The results for these inputs."""
        found = self.primitive.bind(*values, **self.primitive.get_bind_params(self.params))
        return found if self.primitive.multiple_results else [found]


@dataclass
class StraightLine:
    """A policy's computation over numbered slots, each of which is written once.

    Attributes:
        avals: shape and dtype of each slot.
        parameters: the parameters' slots, by path.
        observation: the observation's slots, by entry.
        constants: the slots that are known beforehand, literals included.
        equations: in an order in which they can be computed.
        mean: the slot of the mean.
        scale_tril: the slot of the Cholesky factor.
        info: the slots of what is reported, by name.
    """

    avals: list[Any] = field(default_factory=list)
    parameters: dict[str, int] = field(default_factory=dict)
    observation: dict[str, int] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)
    equations: list[Equation] = field(default_factory=list)
    mean: int = -1
    scale_tril: int = -1
    info: dict[str, int] = field(default_factory=dict)

    def run(
        self, params: Params, observation: Mapping[str, Array], changed: Callable[[int, Any], Any]
    ) -> tuple[Array, Array, dict[str, Array]]:
        """Compute it, every slot passed through ``changed(slot, value)`` before it is used."""
        slots: list[Any] = [None] * len(self.avals)
        inputs = {slot: params[key] for key, slot in self.parameters.items()}
        inputs |= {slot: observation[key] for key, slot in self.observation.items()}
        for slot, value in (self.constants | inputs).items():
            slots[slot] = changed(slot, value)
        for equation in self.equations:
            values = equation.compute([slots[slot] for slot in equation.inputs])
            for slot, value in zip(equation.outputs, values, strict=True):
                slots[slot] = changed(slot, value)
        info = {name: jnp.asarray(slots[slot]) for name, slot in self.info.items()}
        return jnp.asarray(slots[self.mean]), jnp.asarray(slots[self.scale_tril]), info


def straight_line(apply: Policy, initial: Params, entries: Sequence[tuple[str, tuple[int, ...]]]) -> StraightLine:
    """Trace a program's function and write it out.

    Args:
        apply: the pure function of a program that loads.
        initial: its parameters, of which shapes and dtypes are used.
        entries: shape of each entry of the observation.
    """
    example = {key: jax.ShapeDtypeStruct(shape, jnp.result_type(float)) for key, shape in entries}
    closed, returned = jax.make_jaxpr(apply, return_shape=True)(initial, example)
    line = StraightLine()
    arguments = [_slot(line, variable.aval) for variable in closed.jaxpr.invars]
    line.parameters, line.observation = jax.tree.unflatten(jax.tree.structure((initial, example)), arguments)
    outputs = _write(line, closed.jaxpr, closed.consts, arguments)
    line.mean, line.scale_tril, line.info = jax.tree.unflatten(jax.tree.structure(returned), outputs)
    return line


def _slot(line: StraightLine, aval: Any) -> int:
    line.avals.append(aval)
    return len(line.avals) - 1


def _constant(line: StraightLine, aval: Any, value: Any) -> int:
    slot = _slot(line, aval)
    # a literal is a Python number, which alone would say nothing of its dtype
    line.constants[slot] = np.asarray(value, aval.dtype) if np.ndim(value) == 0 else value
    return slot


def _write(line: StraightLine, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[int]) -> list[int]:
    """Append a jaxpr's equations; the slots of its results."""
    slots: dict[Any, int] = dict(zip(jaxpr.invars, arguments, strict=True))
    for variable, value in zip(jaxpr.constvars, constants, strict=True):
        slots[variable] = _constant(line, variable.aval, value)

    def read(atom: Any) -> int:
        return _constant(line, atom.aval, atom.val) if isinstance(atom, jax_core.Literal) else slots[atom]

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        if equation.primitive.name in _CALLS:
            inner = equation.params["jaxpr" if "jaxpr" in equation.params else "call_jaxpr"]
            body, known = (inner.jaxpr, inner.consts) if isinstance(inner, jax_core.ClosedJaxpr) else (inner, ())
            outputs = _write(line, body, known, inputs)
        else:
            outputs = [_slot(line, variable.aval) for variable in equation.outvars]
            line.equations.append(Equation(equation.primitive, equation.params, tuple(inputs), tuple(outputs)))
        slots.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]
