"""``jax.vmap`` with the batch in the last dimension.

``vmap`` puts the batch first, so an array of four wheels becomes ``(batch, 4)`` and every loop over wheels and
tiles runs in the innermost, narrow dimension. The environment's code is written so that it can be handed the whole
batch in the trailing dimension instead; this rule does so wherever a user writes ``jax.vmap``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

if TYPE_CHECKING:
    Leaf = jax.Array
else:
    # JAX also rebuilds a state or parameters with tracers, shapes, axes or flags in the place of arrays
    Leaf = Any

Shared = TypeVar("Shared")
Each = TypeVar("Each")
Result = TypeVar("Result")


def batch_last(function: Callable[[Shared, Each], Result]) -> Callable[[Shared, Each], Result]:
    """Make ``vmap`` of ``function(shared, each)`` call it once, with the batch in the trailing dimension.

    ``function`` must accept, in every leaf of ``each``, no or one trailing batch dimension and return the same.
    However many ``vmap`` stand around a call, it sees all of their batches as one: two nested batches of 40 and 8
    would otherwise leave it 8 wide. Where ``shared`` itself is mapped, JAX's ordinary rules apply. Derivatives are
    those of ``function`` in every order of ``vmap`` and ``grad``.
    """
    # compiled as one where a user steps without a jit of his own; inside one it is inlined
    function = jax.jit(function)

    @custom_vmap
    def flat(shared: Shared, each: Each) -> Result:
        return function(shared, each)

    @flat.def_vmap
    def flatten(size: int, batched: Sequence[Any], shared: Shared, each: Each) -> tuple[Any, Any]:
        shared_batched, each_batched = batched
        if any(jax.tree.leaves(shared_batched)):
            return _ordinary(function, size, batched, shared, each)

        def merge(leaf: Leaf, flag: bool) -> Leaf:
            apart = jnp.moveaxis(leaf, 0, -2) if flag else jnp.repeat(leaf[..., None, :], size, -2)
            return apart.reshape(*apart.shape[:-2], size * apart.shape[-1])

        def part(leaf: Leaf) -> Leaf:
            return jnp.moveaxis(leaf.reshape(*leaf.shape[:-1], size, leaf.shape[-1] // size), -2, 0)

        apart = jax.tree.map(part, flat(shared, jax.tree.map(merge, each, each_batched)))
        return apart, jax.tree.map(lambda _: True, apart)

    @custom_vmap
    def mapped(shared: Shared, each: Each) -> Result:
        return function(shared, each)

    @mapped.def_vmap
    def rule(size: int, batched: Sequence[Any], shared: Shared, each: Each) -> tuple[Any, Any]:
        shared_batched, each_batched = batched
        if any(jax.tree.leaves(shared_batched)):
            return _ordinary(function, size, batched, shared, each)
        trailing = jax.tree.map(
            lambda leaf, flag: (
                jnp.moveaxis(leaf, 0, -1) if flag else jnp.broadcast_to(leaf[..., None], (*leaf.shape, size))
            ),
            each,
            each_batched,
        )
        result = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), flat(shared, trailing))
        return result, jax.tree.map(lambda _: True, result)

    # a custom_vmap has no reverse mode of its own
    differentiable = jax.custom_jvp(mapped)
    differentiable.defjvp(lambda primals, tangents: jax.jvp(function, primals, tangents))
    return differentiable


def _ordinary(
    function: Callable[..., Any], size: int, batched: Sequence[Any], shared: Any, each: Any
) -> tuple[Any, Any]:
    """What JAX makes of a mapped call by itself."""
    axes = jax.tree.map(lambda flag: 0 if flag else None, tuple(batched))
    result = jax.vmap(function, in_axes=axes, axis_size=size)(shared, each)
    return result, jax.tree.map(lambda _: True, result)
