"""A policy with one of its latents held at a value, wherever the program uses it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrefine.learn.ablation import HeldPolicy
from jaxrefine.learn.types import Info, Observation, Params
from jaxrefine.policy.graph import SemanticGraph
from jaxrefine.policy.inline import straight_line
from jaxrefine.policy.program import Program
from jaxrefine.policy.scalars import scalarise


def hold(program: Program, graph: SemanticGraph) -> HeldPolicy:
    """Build the pure function ``policy(params, observation, which, value)`` of a program.

    ``which`` numbers ``graph.latents``; that latent's number is replaced by ``value`` where it is first computed, so
    that everything downstream sees it, under whatever name and also as an element of an array; -1 holds none. Names
    of one and the same number are held together: an element of the observation, made finite or clipped, that the
    program reports as a latent is held for every later use of it. A flag is held true by a value of at least one
    half, and a count at the nearest integer.
    """
    line = straight_line(program.apply, program.initial, graph.entries)
    scalars = scalarise(line)
    numbers = [scalars.info[name] for name in graph.latents]
    # numbers of one slot's elements that are held, -2 for those that never are
    held: dict[int, np.ndarray] = {}
    for number in numbers:
        slot, index = scalars.scalars[number].place
        held.setdefault(slot, np.full(line.avals[slot].shape, -2)).flat[index] = number
    chosen = np.array([*numbers, -1])

    def policy(
        params: Params, observation: Observation, which: Int[Array, ""], value: Float[Array, ""]
    ) -> tuple[Array, Array, Info]:
        number = jnp.asarray(chosen)[which]  # -1 is the last

        def changed(slot: int, computed: Any) -> Any:
            if slot not in held:
                return computed
            return jnp.where(number == held[slot], _as(value, line.avals[slot].dtype), computed)

        return line.run(params, observation, changed)

    return policy


def _as(value: Array, dtype: Any) -> Array:
    if dtype == jnp.bool_:
        return value >= 0.5
    return (jnp.round(value) if jnp.issubdtype(dtype, jnp.integer) else value).astype(dtype)
