"""The node nearest to the car, against a search of all nodes in float64; and the sines that everything is turned by."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.car_racing import nearest, pool
from envs.car_racing.trigonometry import sin_cos

CARS, STEPS = 256, 40
MILLIMETRE = 1e-3


@pytest.fixture(scope="module")
def tracks():
    return pool.from_seeds((1000, 36, 5, 2024))


@pytest.fixture(scope="module")
def follow(tracks):
    """Nodes along paths (step, car) from a first look that starts at node 0."""

    @jax.jit
    def run(track, x, y):
        def body(search, position):
            node, search = nearest.follow(tracks, track, search, *position)
            return search, node

        start = nearest.begin(jnp.zeros(CARS, jnp.int32), x[0], y[0])
        return jax.lax.scan(body, start, (x, y))[1]

    return run


def regret(tracks, track, node, x, y):
    """By how much (m) the node is farther than the nearest of all, in float64."""
    worst = 0.0
    for i in range(tracks.count):
        mine = track == i
        length = int(tracks.length[i])
        assert (node[:, mine] < length).all()
        assert (node >= 0).all()
        nodes = np.stack([tracks.x[i], tracks.y[i]], axis=1)[pool.LEAD : pool.LEAD + length].astype(np.float64)
        cars = np.stack([x[:, mine], y[:, mine]], axis=-1)[..., None, :]
        distances = np.sqrt(((cars - nodes) ** 2).sum(axis=-1))
        chosen = np.take_along_axis(distances, node[:, mine][..., None], axis=-1)[..., 0]
        worst = max(worst, float((chosen - distances.min(axis=-1)).max()))
    return worst


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), speed=st.sampled_from([0.2, 1.0, 2.0]), jumps=st.booleans())
def test_the_node_followed_is_the_nearest_of_all(tracks, follow, seed, speed, jumps):
    random = np.random.default_rng(seed)
    track = random.integers(0, tracks.count, CARS)
    column = pool.LEAD + random.integers(0, 200, CARS)
    start = np.stack([np.asarray(tracks.x)[track, column], np.asarray(tracks.y)[track, column]])
    start += random.normal(0, random.choice([3.0, 30.0]), start.shape)
    heading = random.uniform(0, 2 * np.pi, CARS) + np.cumsum(random.normal(0, 0.2, (STEPS, CARS)), axis=0)
    path = start[:, None] + speed * np.cumsum(np.stack([-np.sin(heading), np.cos(heading)]), axis=1)
    if jumps:  # whoever puts a car elsewhere by hand is owed the truth as well
        path[:, STEPS // 2 :] = np.clip(path[:, STEPS // 2 :] + random.uniform(-200, 200, (2, 1, CARS)), -330, 330)
    x, y = path.astype(np.float32)
    node = np.asarray(follow(jnp.asarray(track, jnp.int32), x, y))
    assert regret(tracks, track, node, x, y) < MILLIMETRE


def test_on_the_road_no_car_needs_a_search_of_all_nodes(tracks, monkeypatch):
    def marked(needed, tracks, track, node, search, x, y):
        return jnp.where(needed, -1, node), search

    monkeypatch.setattr(nearest, "_search_where", marked)
    look = jax.jit(lambda *arguments: nearest.follow(*arguments)[0])
    random = np.random.default_rng(0)
    for i in range(tracks.count):
        node = np.arange(pool.MAX_NODES) % int(tracks.length[i])
        beta = np.asarray(tracks.beta[i])[pool.LEAD + node]
        aside = random.uniform(-6.6, 6.6, len(node))
        x = np.asarray(tracks.x[i])[pool.LEAD + node] + aside * np.cos(beta)
        y = np.asarray(tracks.y[i])[pool.LEAD + node] + aside * np.sin(beta)
        search = nearest.begin(jnp.asarray(node, jnp.int32), jnp.asarray(x), jnp.asarray(y))
        found = look(tracks, jnp.full(len(node), i), search, jnp.asarray(x), jnp.asarray(y))
        assert np.mean(np.asarray(found) < 0) < 0.02


def test_one_car_and_a_batch_of_batches_are_followed_alike(tracks):
    x, y = jnp.asarray(tracks.x[:, 50]) + 40, jnp.asarray(tracks.y[:, 50])
    track, zero = jnp.arange(4), jnp.zeros(4, jnp.int32)
    look = jax.jit(lambda track, zero, x, y: nearest.follow(tracks, track, nearest.begin(zero, x, y), x, y)[0])
    together = look(track, zero, x, y)
    for i in range(4):
        alone = look(track[i], zero[i], x[i], y[i])
        assert int(alone) == int(together[i])
        assert alone.shape == ()


@pytest.mark.parametrize("scale", [0.5, 10.0, 1000.0])
def test_sines_and_cosines_are_float32s_own(scale):
    angles = np.random.default_rng(0).uniform(-scale, scale, 20_000).astype(np.float32)
    sine, cosine = jax.jit(sin_cos)(jnp.asarray(angles))
    exact = angles.astype(np.float64)
    np.testing.assert_allclose(sine, np.sin(exact), atol=1.3e-7)
    np.testing.assert_allclose(cosine, np.cos(exact), atol=1.3e-7)


def test_quarters_of_a_turn_and_their_derivatives():
    quarters = jnp.arange(-8, 9) * jnp.float32(np.pi / 2)
    sine, cosine = sin_cos(quarters)
    np.testing.assert_allclose(sine, np.sin(np.asarray(quarters, float)), atol=2e-7)
    np.testing.assert_allclose(cosine, np.cos(np.asarray(quarters, float)), atol=2e-7)
    slope = jax.vmap(jax.grad(lambda a: sin_cos(a)[0]))(jnp.linspace(-7, 7, 101))
    np.testing.assert_allclose(slope, np.cos(np.linspace(-7, 7, 101)), atol=1e-5)


def test_double_precision_stays_double():
    with jax.enable_x64(True):
        angles = jnp.linspace(-50, 50, 1001)
        sine, cosine = sin_cos(angles)
        assert sine.dtype == cosine.dtype == jnp.float64
        np.testing.assert_allclose(sine, np.sin(np.asarray(angles)), atol=1e-15)
