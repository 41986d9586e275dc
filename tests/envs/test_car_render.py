from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs.car_racing.render import GRASS, HULL, KERBS, ROAD, SCALE_COLOURS, Camera, Ground, Pose, trajectory
from envs.car_racing.track import generate


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


@functools.cache
def scenery(seed):
    track = generate(seed)
    return track, Ground(track)


at = st.floats(-300, 300)


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


@given(x=at, y=at, angle=st.floats(-4, 4), size=st.integers(50, 2000), span=st.floats(5, 500))
def test_a_camera_keeps_lengths_and_has_the_car_where_it_looks(x, y, angle, size, span):
    camera = Camera.behind(Pose(x, y, angle, 0.0), size, span)
    ahead = np.array([x - 10 * np.sin(angle), y + 10 * np.cos(angle)])
    right = np.array([x + 10 * np.cos(angle), y + 10 * np.sin(angle)])
    pixels = camera.pixels(np.stack([np.array([x, y]), ahead, right]))
    metre = size / span
    np.testing.assert_allclose(pixels[0], [size / 2, 0.72 * size], atol=1e-6 * size)
    np.testing.assert_allclose(pixels[1] - pixels[0], [0, -10 * metre], atol=1e-6 * size)
    np.testing.assert_allclose(pixels[2] - pixels[0], [10 * metre, 0], atol=1e-6 * size)


@given(seed=st.integers(0, 20), node=st.integers(0, 220), aside=st.floats(-40, 40), angle=st.floats(-4, 4))
@settings(max_examples=40)
def test_nothing_in_the_picture_is_left_out(seed, node, aside, angle):
    track, ground = scenery(seed)
    _, beta, x, y = track.nodes[node]
    camera = Camera.behind(Pose(x + aside * np.cos(beta), y + aside * np.sin(beta), angle, 0.0), 100)
    drawn = {tuple(np.round(points, 6).ravel()) for points, _ in ground.shapes(camera)}
    quads = camera.pixels(np.concatenate([track.tiles, track.kerb_tiles]))
    inside = ((quads >= 0) & (quads <= 100)).all(axis=-1).any(axis=-1)
    for quad in quads[inside]:
        assert tuple(np.round(quad, 6).ravel()) in drawn


def test_kerbs_lie_beside_the_road(episode):
    track, _ = scenery(6)
    kerb = int(np.flatnonzero(track.kerbs)[2])
    env, params, states = episode
    params = env.params_for_seeds([6])
    _, beta, x, y = track.nodes[kerb]
    car = jax.tree.map(lambda leaf: leaf[:1], states.car)
    car = car.replace(x=jnp.array([x]), y=jnp.array([y]), angle=jnp.array([beta]))
    (frame,) = env.render(jax.tree.map(lambda leaf: leaf[:1], states).replace(car=car), params)
    for colour in KERBS:
        rows, columns = np.nonzero(close(frame[40:], colour) & ~close(frame[40:], HULL))
        beside = np.abs(columns - 200) / 8  # m
        assert len(rows) > 20
        assert beside.max() > 6


def test_a_trajectory_is_coloured_by_its_values(episode):
    _, params, states = episode
    picture = trajectory(states, params)
    assert picture.shape == (800, 800, 3)
    assert picture.dtype == np.uint8
    legend = np.zeros((800, 800), bool)
    legend[:50, :190] = True
    rest = np.append(0.0, np.ones(39))  # the path's stretches have the colours of their ends
    high, low = trajectory(states, params, rest), trajectory(states, params, 1 - rest)
    for shown, other, colour in ((high, low, SCALE_COLOURS[-1]), (low, high, SCALE_COLOURS[0])):
        assert (close(shown, colour, tolerance=40) & ~legend).sum() > 10
        assert not (close(other, colour, tolerance=40) & ~legend).any()
    changed = (high != low).any(axis=-1)
    assert not (changed & legend).any()
    assert changed.sum() < 800  # the path of 0.8 s and nothing else
    for values in (np.zeros(39), np.full(40, np.nan)):
        with pytest.raises(ValueError, match="finite value for each of 40"):
            trajectory(states, params, values)
