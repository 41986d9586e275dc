"""Small vector algebra with the batch in the trailing dimensions, written out so that each operation runs along it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def keep(values: Any, witness: Array) -> Any:
    """The same arrays, computed once however many times they are read.

    XLA's CPU backend fuses a chain of operations into each of its readers, and so computes it anew for each, up to
    exponentially often in the chain's length; an optimization barrier is gone before that. Through a branch it does
    not fuse.

    Args:
        values: arrays.
        witness: numbers that are not known when compiling; the branch is the same whatever they are, NaN included.
    """
    bits = jax.lax.bitcast_convert_type(witness.ravel()[0], f"uint{8 * witness.dtype.itemsize}")
    always = jax.lax.population_count(bits) <= 64
    return jax.lax.cond(always, lambda x: x, lambda x: jax.tree.map(jnp.zeros_like, x), values)


def constant(values: Any, like: Array, axes: int = 1) -> Array:
    """Numbers with dimensions for the batch of ``like``, whose first ``axes`` dimensions are not the batch's."""
    values = np.asarray(values)
    return jnp.asarray(values, like.dtype).reshape(*values.shape, *(1,) * (like.ndim - axes))


def total(rows: Array) -> Array:
    """Sum over the first dimension."""
    result = rows[0]
    for row in rows[1:]:
        result = result + row
    return result


def dot(a: Array, b: Array) -> Array:
    """Sum over the first dimension of the product."""
    result = a[0] * b[0]
    for i in range(1, a.shape[0]):
        result = result + a[i] * b[i]
    return result


def cross(a: Array, b: Array) -> Array:
    """Cross product of vectors in the first dimension."""
    return jnp.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def rotate(axes: Array, vectors: Array) -> Array:
    """Vectors (3, ...) from the frame whose axes are the columns of ``axes``, (3, 3, ...), to the one they are in."""
    return jnp.stack([dot(axes[i], vectors) for i in range(3)])


def rotate_back(axes: Array, vectors: Array) -> Array:
    """The inverse of `rotate`."""
    return jnp.stack([dot(axes[:, i], vectors) for i in range(3)])


def about_z(angle: Array) -> Array:
    """Axes, as columns, of a frame turned about z."""
    sine, cosine, zero, one = jnp.sin(angle), jnp.cos(angle), jnp.zeros_like(angle), jnp.ones_like(angle)
    rows = ([cosine, -sine, zero], [sine, cosine, zero], [zero, zero, one])
    return jnp.stack([jnp.stack(row) for row in rows])
