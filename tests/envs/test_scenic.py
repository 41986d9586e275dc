"""Where things are and what stands still, as pictures need them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import Block

import envs
from bench.car_gymnasium import Live
from envs.base import Scenic, draws

STEPS = 60
SEED = 1003


@pytest.fixture(scope="module")
def live() -> Live:
    return Live()


def test_the_car_is_where_gymnasiums_is(live: Live) -> None:
    env, _ = envs.make("car_racing")
    params = env.params_for_seeds([1000, SEED])
    actions = np.stack([0.2 * np.sin(np.arange(STEPS) / 9), np.full(STEPS, 0.4), np.zeros(STEPS)], axis=1)

    @jax.jit
    def drive():
        def body(state, action):
            return env.step_env(jax.random.key(0), state, action, params)[1], env.place(state)

        return jax.lax.scan(body, env.reset_to(params, 1)[1], jnp.asarray(actions, jnp.float32))[1]

    ours = jax.device_get(drive())
    live.reset(seed=SEED)
    for t, action in enumerate(actions):
        hull = live.car.hull
        assert (ours["x"][t], ours["y"][t]) == pytest.approx(tuple(hull.position), abs=0.02)
        # Box2D's hull points along its y axis
        forward = hull.GetWorldVector((0, 1))
        assert (np.cos(ours["heading"][t]), np.sin(ours["heading"][t])) == pytest.approx(tuple(forward), abs=2e-3)
        assert ours["speed"][t] == pytest.approx(hull.linearVelocity.length, abs=0.1)
        live.step(action.astype(np.float32))
    assert ours["speed"][-1] > 5, "it moved"


def test_the_roads_borders_are_those_of_gymnasiums_tiles(live: Live) -> None:
    env, _ = envs.make("car_racing")
    outline = env.outline(env.params_for_seeds([1000, SEED]), 1)
    live.reset(seed=SEED)
    # the polygons of kerbs are coloured otherwise and come after their tile's
    tiles = np.array([corners for corners, colour in live.road_poly if len(set(np.array(colour).tolist())) <= 2])
    theirs = {tuple(np.round(corner, 2)) for corner in np.concatenate(tiles)}
    for side in ("left", "right"):
        line = outline[side]
        np.testing.assert_array_equal(line[0], line[-1])
        near = [min(np.hypot(x - a, y - b) for a, b in theirs) for x, y in line[::20]]
        assert max(near) < 0.02
    width = np.linalg.norm(outline["left"] - outline["right"], axis=1)
    np.testing.assert_allclose(width, 80 / 6, rtol=1e-4)


def test_the_doors_places_are_those_that_are_observed() -> None:
    env, _ = envs.make("door")
    params = env.params_for_seeds([3, 4])
    observation, state = env.reset_to(params, 1)
    seen = env.place(state)
    names = [column.name for column in env.schema.observation]
    for name, value in seen.items():
        assert value == observation["features"][names.index(name)], name
    outline = env.outline(params, 1)
    goal = [observation["features"][names.index(f"target_{axis}")] for axis in "xyz"]
    np.testing.assert_allclose(outline["target"][0], goal, atol=1e-6)
    # a shut door: its handle is within a hand's reach of the panel, in front of it
    handle = np.array([seen["handle_x"], seen["handle_y"]])
    low, high = outline["panel"].min(axis=0)[:2], outline["panel"].max(axis=0)[:2]
    assert low[0] < handle[0] < high[0] + 0.1
    assert 0 < low[1] - handle[1] < 0.2


def test_what_an_environment_has_is_found_out() -> None:
    for name in envs.names():
        env, _ = envs.make(name)
        assert isinstance(env, Scenic)
        assert draws(env)
    assert not isinstance(Block(), Scenic)
    assert not draws(Block())
