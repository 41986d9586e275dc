"""One vector in place of an observation's entries."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from envs.base import Observation, Schema


def flatten(schema: Schema, observation: Observation) -> Float[jax.Array, " columns"]:
    """One observation's numbers in the schema's order: ``Schema.flatten`` under ``jit`` and ``vmap``."""
    shapes = schema.observation_shapes
    numbers = jnp.concatenate([observation[key].reshape(-1) for key in shapes])
    starts = dict(zip(shapes, np.cumsum([0, *(np.prod(shape, dtype=int) for shape in shapes.values())]), strict=False))
    order = np.array([starts[c.key] + np.ravel_multi_index(c.index, shapes[c.key]) for c in schema.observation])
    # a gather, where the schema does not go through the entries from front to back
    return numbers if np.array_equal(order, np.arange(numbers.size)) else numbers[order]
