"""Car Racing's rules where Gymnasium itself is the judge: the same situation is set up in both."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from bench.car_gymnasium import Live
from envs.car_racing import dynamics, pool
from envs.car_racing.env import PLAYFIELD

SEEDS = (1000, 1003, 36, 2024)
KEY = jax.random.key(0)
COAST = np.zeros(3, np.float32)


@pytest.fixture(scope="module")
def car():
    env, _ = envs.make("car_racing")
    return env


@pytest.fixture(scope="module")
def params(car):
    return car.params_for_seeds(SEEDS)


@pytest.fixture(scope="module")
def step(car, params):
    jitted = jax.jit(car.step_env)
    return lambda state, action: jitted(KEY, state, jnp.asarray(action), params)


@pytest.fixture
def live():
    world = Live()
    world.reset(seed=SEEDS[0])
    return world


@pytest.fixture
def start(car, params):
    return car.reset_to(params, 0)[1]


def visit(live, state, tiles):
    """Count these tiles, and no others, as visited in both."""
    for tile in live.road:
        tile.road_visited = tile.idx in tiles
    live.tile_visited_count = len(tiles)
    words = np.zeros(pool.WORDS, np.uint32)
    for tile in tiles:
        words[tile // pool.WORD] |= np.uint32(1 << tile % pool.WORD)
    return state.replace(
        time=jnp.int32(100), visited=jnp.asarray(words), tiles_visited=jnp.asarray(len(tiles), jnp.int32)
    )


def move(live, state, forward):
    """Place the car so far ahead (m) of where it is, in both."""
    angle = live.car.hull.angle
    x, y = -np.sin(angle) * forward, np.cos(angle) * forward
    for body in (live.car.hull, *live.car.wheels):
        body.position = (body.position[0] + x, body.position[1] + y)
    return state.replace(
        car=state.car.replace(x=state.car.x + x, y=state.car.y + y), touching=jnp.zeros_like(state.touching)
    )


def roll(live, state, speed):
    """Let the car roll ahead (m/s) with its wheels, in both."""
    angle, omega = live.car.hull.angle, speed / dynamics.WHEEL_RADIUS
    for body in (live.car.hull, *live.car.wheels):
        body.linearVelocity = (-np.sin(angle) * speed, np.cos(angle) * speed)
    for wheel in live.car.wheels:
        wheel.omega = omega
    return state.replace(
        car=state.car.replace(
            velocity_x=-jnp.sin(state.car.angle) * speed,
            velocity_y=jnp.cos(state.car.angle) * speed,
            wheel_speeds=jnp.full(4, omega),
        )
    )


def together(live, state, step, action, steps):
    """Drive in both; rewards and terminations have to agree. The last state, all rewards, and the tiles touched."""
    rewards, touched = [], set()
    for _ in range(steps):
        _, theirs, ended, _, _ = live.step(action)
        _, state, ours, terminated, _ = step(state, action)
        assert float(ours) == pytest.approx(theirs, abs=1e-3)
        assert bool(terminated) == ended
        rewards.append(theirs)
        touched.update(tile.idx for wheel in live.car.wheels for tile in wheel.tiles)
    return state, rewards, touched


def test_tile_0_is_visited_by_reset_on_every_track(car):
    tracks = car.default_params.tracks
    assert (np.asarray(tracks.starts.visited)[0] & 1 == 1).all()


def test_returning_to_the_start_with_95_per_cent_does_not_end_the_episode(live, start, step):
    """Gymnasium's ``new_lap`` asks for a first visit of tile 0, and reset made that one already."""
    assert live.road[0].road_visited
    length = len(live.track)
    live.prev_reward = live.reward = 0.0
    state = visit(live, start, set(range(length)) - {length // 2, length // 2 + 1})
    state, _, touched = together(live, roll(live, move(live, state, -15.0), 20.0), step, COAST, 40)
    assert {length - 2, length - 1, 0, 1} <= touched
    assert live.tile_visited_count / length > 0.95
    assert not live.new_lap
    assert float(state.tiles_visited) == length - 2


def test_gymnasiums_new_lap_is_there_for_a_first_visit_of_tile_0(live, start):
    # what the test above would see if reset did not visit tile 0
    length = len(live.track)
    visit(live, start, set(range(1, length)) - {length // 2, length // 2 + 1})
    roll(live, move(live, start, -15.0), 20.0)
    ended = [live.step(COAST)[2] for _ in range(40)]
    assert any(ended)
    assert live.new_lap


def test_the_last_tile_ends_the_episode_in_the_step_that_finds_it(live, start, step):
    length, last = len(live.track), 4
    live.prev_reward = live.reward = 0.0
    state = roll(live, visit(live, start, set(range(length)) - {last}), 20.0)
    ended = []
    for _ in range(30):
        _, theirs, there, _, _ = live.step(COAST)
        _, state, ours, here, _ = step(state, COAST)
        assert float(ours) == pytest.approx(theirs, abs=1e-3)
        assert bool(here) == there
        ended.append(there)
        if there:
            break
    assert 3 < len(ended) < 30
    assert theirs == pytest.approx(1000 / length - 0.1)


def test_a_tile_pays_once(live, start, step):
    live.prev_reward = live.reward = 0.0
    state = visit(live, start, {0, 1})
    state, rewards, _ = together(live, roll(live, state, 20.0), step, COAST, 30)
    paid = sum(rewards) + 0.1 * len(rewards)
    assert paid == pytest.approx((int(state.tiles_visited) - 2) * 1000 / len(live.track), abs=1e-3)
    # back to the start, and over the same tiles again
    again = roll(live, move(live, state, -12.0), 20.0)
    _, rewards, touched = together(live, again, step, COAST, 20)
    assert len(touched) > 2
    assert sum(rewards) == pytest.approx(-0.1 * len(rewards))


@pytest.mark.parametrize("edge", ["x", "y"])
@pytest.mark.parametrize("side", [-1, 1])
def test_leaving_the_playfield_on_each_side_ends_with_minus_a_hundred(live, start, step, edge, side):
    live.prev_reward = live.reward = 0.0
    state = visit(live, start, {0, 1})
    index = "xy".index(edge)
    shift = np.zeros(2)
    shift[index] = side * (PLAYFIELD - 0.5) - live.car.hull.position[index]
    for body in (live.car.hull, *live.car.wheels):
        body.position = tuple(np.array(body.position) + shift)
        velocity = np.zeros(2)
        velocity[index] = side * 20.0
        body.linearVelocity = tuple(velocity)
    moved = state.car.replace(
        x=state.car.x + shift[0],
        y=state.car.y + shift[1],
        velocity_x=jnp.float32(side * 20.0 * (index == 0)),
        velocity_y=jnp.float32(side * 20.0 * (index == 1)),
    )
    _, rewards, _ = together(live, state.replace(car=moved, touching=jnp.uint32(0)), step, COAST, 6)
    assert rewards[0] == pytest.approx(-0.1)
    assert -100 in rewards


def test_contacts_are_felt_a_step_late_on_the_way_to_the_grass(live, start, step):
    """Thrown sideways off the road the tyres hold on for one step more than they touch it."""
    live.prev_reward = live.reward = 0.0
    state = visit(live, start, {0, 1})
    sideways = 70 * np.array([np.cos(live.car.hull.angle), np.sin(live.car.hull.angle)])
    for body in (live.car.hull, *live.car.wheels):
        body.linearVelocity = tuple(sideways)
    velocity = dict(zip(("velocity_x", "velocity_y"), jnp.asarray(sideways, jnp.float32), strict=True))
    state = state.replace(car=state.car.replace(**velocity))
    felt = []
    for _ in range(25):
        live.step(COAST)
        state = step(state, COAST)[1]
        np.testing.assert_allclose(dynamics.hull_position(state.car), live.car.hull.position, atol=2e-3)
        felt.append([bool(wheel.tiles) for wheel in live.car.wheels])
        assert [bool(int(state.on_road) >> wheel & 1) for wheel in range(4)] == felt[-1]
    assert felt[0] == [True] * 4
    assert not any(felt[-1])
