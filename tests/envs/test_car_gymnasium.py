"""Car Racing against the live Gymnasium, step by step: the pose of reset, state, reward and observation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from bench.car_gymnasium import NO_TILE, Live, distance, in_gymnasium, in_jax
from envs.car_racing import dynamics
from envs.car_racing.schema import LENGTH_SCALE, TILES

SEEDS = (1000, 1003, 36, 2024, 77)
STEPS = 300
CENTIMETRE, TENTH_OF_A_DEGREE = 0.01, np.deg2rad(0.1)


def smooth(seed):
    """Gentle curves, gas and a dab of the brake."""
    t = np.arange(STEPS)
    phase = np.random.default_rng(seed).uniform(0, 2 * np.pi, 3)
    steer = 0.3 * np.sin(0.05 * t + phase[0])
    gas = 0.35 + 0.25 * np.sin(0.03 * t + phase[1])
    brake = 0.1 * (np.sin(0.02 * t + phase[2]) > 0.7)
    return np.stack([steer, gas, brake], axis=1).astype(np.float32)


def violent(seed):
    """Full lock, full gas and locked wheels, changing every eight steps."""
    random = np.random.default_rng(seed)
    held = [(random.choice([-1, 0, 1]), random.choice([0, 1]), random.choice([0, 0, 0.5, 1])) for _ in range(38)]
    return np.repeat(np.array(held, np.float32), 8, axis=0)[:STEPS]


def look(world):
    """The observation without its kerb flags, computed afresh from the live world in float64."""
    hull = world.car.hull
    nodes = np.array(world.track)
    sin, cos = np.sin(hull.angle), np.cos(hull.angle)
    away = nodes[:, 2:] - np.array(hull.position)
    right, ahead = away @ (cos, sin), away @ (-sin, cos)
    first = np.argmin((away**2).sum(axis=1))
    first += ahead[first] < 0
    index = (first + np.arange(TILES)) % len(nodes)
    theta = (nodes[index, 1] - hull.angle + np.pi) % (2 * np.pi) - np.pi
    tiles = np.stack([right[index] * LENGTH_SCALE, ahead[index] * LENGTH_SCALE, theta / np.pi], axis=1)
    speeds = [wheel.omega / 200 for wheel in world.car.wheels]
    front = world.car.wheels[0].joint.angle / np.pi
    return tiles, np.array([hull.linearVelocity.length / 100, front, hull.angularVelocity / 10, *speeds])


@pytest.fixture(scope="module")
def car():
    env, _ = envs.make("car_racing")
    return env


@pytest.fixture(scope="module")
def params(car):
    return car.params_for_seeds(SEEDS)


@pytest.fixture(scope="module")
def live():
    return Live()


@pytest.fixture(scope="module", params=[smooth, violent], ids=["smooth", "violent"])
def script(request):
    return np.stack([request.param(seed) for seed in SEEDS])


@pytest.fixture(scope="module")
def both(script, car, params, live):
    return in_jax(car, params, script), in_gymnasium(live, SEEDS, script)


@pytest.fixture(scope="module")
def observed(script, car, params, live):
    """What is seen after each step, ours and theirs: tiles (episode, step, 12, 3) and indicators."""

    @jax.jit
    def watch(params, actions):
        def body(state, action):
            step = jax.vmap(car.step_env, (None, 0, 0, None))
            obs, state, *_ = step(jax.random.key(0), state, action, params)
            return state, (obs["tiles"][..., :3], obs["indicators"])

        _, state = jax.vmap(car.reset_to, (None, 0))(params, jnp.arange(len(SEEDS)))
        return jax.lax.scan(body, state, actions.swapaxes(0, 1))[1]

    ours = [np.asarray(entry).swapaxes(0, 1) for entry in watch(params, jnp.asarray(script))]
    theirs = []
    for seed, actions in zip(SEEDS, script, strict=True):
        live.reset(seed=seed)
        for action in actions:
            live.step(action)
            theirs.append(look(live))
    return ours, [np.stack(entry).reshape(len(SEEDS), STEPS, *entry[0].shape) for entry in zip(*theirs, strict=True)]


def test_the_first_second_agrees_to_a_centimetre(both):
    ours, theirs = both
    assert distance(ours, theirs)[:, :50].max() < CENTIMETRE
    assert np.abs(ours.angle - theirs.angle)[:, :50].max() < TENTH_OF_A_DEGREE


def test_six_seconds_stay_at_float32s_noise(both):
    ours, theirs = both
    assert distance(ours, theirs).max() < CENTIMETRE
    assert np.abs(ours.angle - theirs.angle).max() < 1e-3
    assert np.abs(ours.speed - theirs.speed).max() < 5e-3
    assert np.abs(ours.front_angle - theirs.front_angle).max() < 1e-4
    assert np.abs(ours.wheel_speeds - theirs.wheel_speeds).max() < 0.02


def test_every_step_pays_and_touches_the_same(both):
    ours, theirs = both
    np.testing.assert_allclose(ours.reward, theirs.reward, atol=1e-3)
    np.testing.assert_array_equal(ours.tiles, theirs.tiles)
    np.testing.assert_array_equal(ours.terminated, theirs.terminated)


def test_the_observation_is_the_references(observed):
    (tiles, indicators), (their_tiles, their_indicators) = observed
    np.testing.assert_allclose(indicators, their_indicators, atol=2e-4)
    apart = np.abs(tiles - their_tiles)
    apart[..., 2] = np.minimum(apart[..., 2], 2 - apart[..., 2])
    # where two nodes are equally near, rounding may choose either
    assert np.mean(apart.max(axis=(2, 3)) < 2e-3) > 0.998


def test_the_violent_script_reaches_grass_lock_and_limit(car, params):
    trace = in_jax(car, params, np.stack([violent(seed) for seed in SEEDS]))
    assert (np.abs(trace.front_angle) > 0.41).any()
    assert (trace.tiles == NO_TILE).all(axis=-1).any(), "no wheel leaves the road"
    assert (np.abs(trace.wheel_speeds) < 3).all(axis=-1)[trace.speed > 10].any(), "no wheel locks"


def test_full_gas_from_a_standstill_to_the_engines_limit(car, params, live):
    """Box2D holds every body below 100 m/s; ours must do so for each body, not for the car as a whole."""
    script = np.tile(np.float32([0, 1, 0]), (len(SEEDS), STEPS, 1))
    script[:, ::40, 0] = 0.02
    ours = in_jax(car, params, script)
    theirs = in_gymnasium(live, SEEDS[:1], script[:1])
    steps = theirs.lengths[0]
    assert theirs.speed.max() == pytest.approx(100, abs=0.01)
    assert np.hypot(ours.x[0] - theirs.x[0], ours.y[0] - theirs.y[0])[:steps].max() < 0.05
    assert ours.lengths[0] == steps
    np.testing.assert_allclose(ours.reward[0, :steps], theirs.reward[0, :steps], atol=1e-3)


def test_reset_starts_in_gymnasiums_slightly_twisted_pose(car, params, live):
    for i, seed in enumerate(SEEDS):
        live.reset(seed=seed)
        obs, state = car.reset_to(params, i)
        hull, wheels = live.car.hull, live.car.wheels
        twist = hull.angle - live.track[0][1]
        assert abs(twist) > 1e-3
        np.testing.assert_allclose(state.car.angle, hull.angle, atol=1e-6)
        np.testing.assert_allclose(state.car.front_angle, -twist, atol=1e-6)
        np.testing.assert_allclose(dynamics.hull_position(state.car), hull.position, atol=1e-4)
        assert [bool(int(state.on_road) >> w & 1) for w in range(4)] == [bool(wheel.tiles) for wheel in wheels]
        assert int(state.tiles_visited) == live.tile_visited_count
        tiles, indicators = look(live)
        np.testing.assert_allclose(obs["tiles"][:, :3], tiles, atol=1e-5)
        np.testing.assert_allclose(obs["indicators"], indicators, atol=1e-6)
