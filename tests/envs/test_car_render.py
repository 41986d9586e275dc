from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.car_racing.render import GRASS, HULL, ROAD


@pytest.fixture(scope="module")
def episode():
    env, _ = envs.make("car_racing")
    params = env.params_for_seeds([1002, 1003])

    @jax.jit
    def drive():
        def body(state, _):
            action = jnp.array([0.0, 0.5, 0.0])
            return env.step_env(jax.random.key(0), state, action, params)[1], state

        return jax.lax.scan(body, env.reset_to(params, 0)[1], None, 40)[1]

    return env, params, drive()


def close(picture, colour, tolerance=12):
    return (np.abs(picture.astype(int) - colour) < tolerance).all(axis=-1)


def test_a_frame_shows_the_car_on_the_road_between_grass(episode):
    env, params, states = episode
    frames = env.render(states, params)
    assert frames.shape == (40, 400, 400, 3)
    assert frames.dtype == np.uint8
    last = frames[-1]
    assert close(last[280:300, 190:210], HULL).any()
    assert close(last[288, 170:185], ROAD[1]).all()
    assert close(last[288, :60], GRASS).all()
    assert (frames[0] != last).any()


def test_the_trail_lies_behind_the_car(episode):
    env, params, states = episode
    frames = env.render(states, params)
    yellow = (frames[-1][..., 0] > 200) & (frames[-1][..., 2] < 140) & (frames[-1][..., 1] > 150)
    rows, columns = np.nonzero(yellow)
    assert len(rows) > 30
    assert rows.min() > 280
    assert np.abs(columns - 200).max() < 20


def test_states_of_several_tracks_or_of_no_time_are_refused(episode):
    env, params, states = episode
    with pytest.raises(ValueError, match="one episode"):
        env.render(states.replace(track=jnp.arange(40) % 2), params)
    with pytest.raises(ValueError, match="one episode"):
        env.render(jax.tree.map(lambda leaf: leaf[0], states), params)
