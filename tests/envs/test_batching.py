"""However calls are batched, the function sees one batch in the trailing dimension, and the numbers are its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.batching import batch_last


def _made() -> tuple[list[tuple[int, ...]], object]:
    seen: list[tuple[int, ...]] = []

    @batch_last
    def function(shared, each):
        vector, scalar = each
        seen.append(vector.shape)
        total = shared[0] * jnp.sin(vector[0]) * vector[1] + shared[1] * scalar
        return {"total": total, "vector": jnp.stack([vector[1], vector[0], total])}

    return seen, function


def _reference(shared, vector, scalar):
    total = shared[0] * jnp.sin(vector[0]) * vector[1] + shared[1] * scalar
    return {"total": total, "vector": jnp.stack([vector[1], vector[0], total])}


SHARED = jnp.array([0.7, -1.3])
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("batch", [(), (5,), (4, 5), (3, 4, 5)])
def test_nested_batches_reach_the_function_as_one(batch):
    seen, function = _made()
    vector, scalar = jnp.asarray(RNG.normal(size=(*batch, 2))), jnp.asarray(RNG.normal(size=batch))
    ours, theirs = (lambda v, s: function(SHARED, (v, s))), (lambda v, s: _reference(SHARED, v, s))
    for _ in batch:
        ours, theirs = jax.vmap(ours), jax.vmap(theirs)
    found, expected = ours(vector, scalar), theirs(vector, scalar)
    for name in expected:
        assert found[name].shape == expected[name].shape
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-7)
    assert ((2, int(np.prod(batch))) if batch else (2,)) in seen


def test_one_batch_of_rows_and_another_of_columns():
    seen, function = _made()
    vector, scalar = jnp.asarray(RNG.normal(size=(4, 2))), jnp.asarray(RNG.normal(size=5))
    rows = jax.vmap(lambda v: jax.vmap(lambda s: function(SHARED, (v, s)))(scalar))(vector)
    expected = jax.vmap(lambda v: jax.vmap(lambda s: _reference(SHARED, v, s))(scalar))(vector)
    np.testing.assert_allclose(rows["vector"], expected["vector"], rtol=1e-6)
    columns = jax.vmap(lambda s: jax.vmap(lambda v: function(SHARED, (v, s)))(vector))(scalar)
    np.testing.assert_allclose(columns["total"], expected["total"].T, rtol=1e-6)
    assert (2, 20) in seen


def test_a_mapped_shared_argument_inside_and_outside_a_batch():
    _, function = _made()
    shared = jnp.asarray(RNG.normal(size=(3, 2)))
    vector, scalar = jnp.asarray(RNG.normal(size=(3, 4, 2))), jnp.asarray(RNG.normal(size=(3, 4)))
    expected = jax.vmap(jax.vmap(_reference, (None, 0, 0)))(shared, vector, scalar)
    inside = jax.vmap(lambda w, v, s: jax.vmap(lambda v, s: function(w, (v, s)))(v, s))(shared, vector, scalar)
    np.testing.assert_allclose(inside["vector"], expected["vector"], rtol=1e-6)
    swapped = (jnp.swapaxes(vector, 0, 1), scalar.T)
    outside = jax.vmap(lambda v, s: jax.vmap(lambda w, v, s: function(w, (v, s)))(shared, v, s))(*swapped)
    np.testing.assert_allclose(outside["total"], expected["total"].T, rtol=1e-6)


def test_derivatives_through_nested_batches():
    _, function = _made()
    vector, scalar = jnp.asarray(RNG.normal(size=(3, 4, 2))), jnp.asarray(RNG.normal(size=(3, 4)))

    def loss(call, vector):
        return jnp.sum(jax.vmap(jax.vmap(call))(vector, scalar)["vector"] ** 2)

    ours = jax.grad(lambda v: loss(lambda v, s: function(SHARED, (v, s)), v))(vector)
    theirs = jax.grad(lambda v: loss(lambda v, s: _reference(SHARED, v, s), v))(vector)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    each = jax.vmap(jax.vmap(jax.grad(lambda v, s: function(SHARED, (v, s))["total"])))(vector, scalar)
    np.testing.assert_allclose(
        each, jax.vmap(jax.vmap(jax.grad(lambda v, s: _reference(SHARED, v, s)["total"])))(vector, scalar), rtol=1e-5
    )
