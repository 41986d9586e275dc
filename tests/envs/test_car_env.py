"""Car Racing's rules, one by one, and what every user of a gymnax environment expects of it."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs.car_racing import dynamics
from envs.car_racing.env import PLAYFIELD

SEEDS = (1000, 1003, 36, 2024)
KEY = jax.random.key(0)
COAST = jnp.zeros(3)


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
    return lambda state, action: jitted(KEY, state, jnp.asarray(action, jnp.float32), params)


@pytest.fixture(scope="module")
def physics():
    jitted = jax.jit(dynamics.step)

    def advance(state, steer=0.0, gas=0.0, brake=0.0, friction=dynamics.ROAD_FRICTION):
        steer, gas, brake = (jnp.asarray(value, jnp.float32) for value in (steer, gas, brake))
        return jitted(state, steer, gas, brake, jnp.full(4, friction, jnp.float32))

    return advance


@pytest.fixture(scope="module")
def rollout(car, params):
    """Every track under its own actions (episode, step, 3), stepped as a batch."""

    @jax.jit
    def run(actions):
        def body(state, action):
            obs, state, reward, terminated, info = jax.vmap(car.step_env, (None, 0, 0, None))(
                KEY, state, action, params
            )
            return state, (obs, state, reward, terminated, info)

        _, state = jax.vmap(car.reset_to, (None, 0))(params, jnp.arange(len(SEEDS)))
        return jax.lax.scan(body, state, actions.swapaxes(0, 1))[1]

    return run


def with_car(state, **changes):
    values = {name: jnp.asarray(value, jnp.float32) for name, value in changes.items()}
    return state.replace(car=state.car.replace(**values))


def at_speed(car, speed):
    return car.replace(velocity_x=-speed * jnp.sin(car.angle), velocity_y=speed * jnp.cos(car.angle))


@pytest.fixture
def start(car, params):
    return car.reset_to(params, 0)[1]


# the car


def test_gas_rises_by_a_tenth_a_step_and_drops_at_once(start, step):
    state, seen = start, []
    for gas in (1, 1, 1, 0.05, 0.5):
        state = step(state, (0, gas, 0))[1]
        seen.append(float(state.car.gas))
    assert seen == pytest.approx([0.1, 0.2, 0.3, 0.05, 0.15])


def test_brakes_lock_the_wheels_above_nine_tenths_as_gymnasium_reads_float32(start, physics):
    rolling = at_speed(start.car, 54.0).replace(wheel_speeds=jnp.full(4, 100.0))
    # the locked wheel is dragged along by the ground: dt * force * radius / inertia
    dragged = dynamics.TIME_STEP * dynamics.ROAD_FRICTION * dynamics.WHEEL_RADIUS / dynamics.WHEEL_INERTIA
    np.testing.assert_allclose(physics(rolling, brake=1.0).wheel_speeds, dragged, rtol=5e-3)
    slowed = 100 - 0.9 * dynamics.BRAKE_DECELERATION + dragged
    np.testing.assert_allclose(physics(rolling, brake=np.float32(0.9)).wheel_speeds, slowed, rtol=5e-3)
    np.testing.assert_allclose(physics(rolling).wheel_speeds, 100, atol=0.3)


def test_brakes_do_not_turn_the_wheels_backwards(start, physics):
    crawling = start.car.replace(wheel_speeds=jnp.full(4, 3.0))
    assert np.abs(physics(crawling, brake=0.5).wheel_speeds).max() < 0.1


@pytest.mark.parametrize("friction", [dynamics.ROAD_FRICTION, dynamics.GRASS_FRICTION])
def test_spinning_wheels_pull_with_the_grounds_friction(start, physics, friction):
    # from a standstill only the two driven wheels push, and even a tenth of the engine makes them spin
    moved = physics(start.car, gas=1.0, friction=friction)
    gained = np.hypot(moved.velocity_x, moved.velocity_y)
    assert gained == pytest.approx(2 * friction * dynamics.TIME_STEP / dynamics.MASS, rel=1e-3)


def test_steering_stops_at_the_soft_limit_and_comes_back(start, step):
    state = start
    angles = []
    for t in range(80):
        state = step(state, (-1 if t < 50 else 0, 0, 0))[1]
        angles.append(float(state.car.front_angle))
    assert max(angles[:50]) < 0.46
    assert angles[49] == pytest.approx(0.42, abs=0.02)
    assert angles[79] == pytest.approx(0.0, abs=1e-3)
    # three radians a second, at most
    assert np.diff(angles[:5]).max() <= 3 * dynamics.TIME_STEP + 1e-6


def test_no_part_of_the_car_outruns_the_engines_limit(start, physics):
    fast = start.car.replace(velocity_x=jnp.float32(200.0), velocity_y=jnp.float32(150.0))
    moved = physics(fast)
    assert np.hypot(moved.x - fast.x, moved.y - fast.y) <= 100 * dynamics.TIME_STEP * 1.001
    assert float(dynamics.hull_speed(fast)) == pytest.approx(100)


# the rules


def test_reset_touches_tile_0_and_the_first_step_pays_for_it(start, step, params):
    assert int(start.visited[0]) & 1
    assert int(start.tiles_visited) == 2
    _, state, reward, _, _ = step(start, COAST)
    assert float(reward) == pytest.approx(2 * 1000 / int(params.tracks.length[0]) - 0.1)
    assert float(step(state, COAST)[2]) == pytest.approx(-0.1)


def test_tyres_feel_a_contact_one_step_after_it_began(start, step):
    rolling = with_car(start, velocity_x=3.0)
    off = rolling.replace(touching=jnp.uint32(0))
    first, on_grass = step(off, COAST)[1], step(off.replace(on_road=jnp.uint32(0)), COAST)[1]
    # sideways at 3 m/s asks for 246 N of each wheel: road holds it, grass only 240
    assert float(first.car.velocity_x) == pytest.approx(float(step(rolling, COAST)[1].car.velocity_x))
    assert abs(float(on_grass.car.velocity_x)) > abs(float(first.car.velocity_x)) + 0.01
    assert int(first.on_road) == 0


def test_off_road_is_told_when_no_wheel_is_on_the_road(start, step, params):
    beside = with_car(start, y=start.car.y + 20)
    *_, info = step(beside, COAST)
    assert bool(info["off_road"])
    assert not bool(step(start, COAST)[-1]["off_road"])
    assert float(info["progress"]) == pytest.approx(2 / int(params.tracks.length[0]))
    assert int(info["tiles_visited"]) == 2


def test_leaving_the_playfield_costs_a_hundred_and_ends_the_episode(car, params, start, step):
    edge = with_car(start, x=PLAYFIELD - 0.1, velocity_x=40.0)
    _, state, reward, terminated, _ = step(edge, COAST)
    assert (float(reward), bool(terminated)) == (-100.0, True)
    assert bool(car.is_terminated(state, params))
    _, _, reward, terminated, _ = step(with_car(start, x=PLAYFIELD - 5, velocity_x=40.0), COAST)
    assert (float(reward) > -100, bool(terminated)) == (True, False)


def test_the_last_tile_ends_the_episode(car, params, start, step):
    # all but the tiles under the car, which are touched but not yet counted
    length = int(params.tracks.length[0])
    flags = np.arange(32 * 13) < length
    under = [int(start.nearest) + i - 2 for i in range(6) if int(start.touching) >> i & 0b1000001000001000001]
    flags[[i % length for i in under]] = False
    words = [sum(int(flag) << bit for bit, flag in enumerate(word)) for word in np.split(flags, 13)]
    almost = start.replace(
        time=jnp.int32(500), visited=jnp.array(words, jnp.uint32), tiles_visited=jnp.int32(flags.sum())
    )
    assert len(under) > 0
    assert not bool(car.is_terminated(almost, params))
    _, state, reward, terminated, info = step(almost, COAST)
    assert bool(terminated)
    assert bool(car.is_terminated(state, params))
    assert float(info["progress"]) == 1
    assert float(reward) == pytest.approx(len(under) * 1000 / length - 0.1)


def test_an_episode_is_truncated_not_terminated_after_its_steps(car, params, start):
    late = start.replace(time=jnp.int32(998))
    _, state, _, terminated, truncated, _ = car.step(KEY, late, COAST, params)
    assert (bool(terminated), bool(truncated), int(state.time)) == (False, False, 999)
    _, state, _, terminated, truncated, info = car.step(KEY, state, COAST, params)
    assert (bool(terminated), bool(truncated)) == (False, True)
    assert int(state.time) == 0, "the next episode has begun"
    assert info["final_observation"]["tiles"].shape == (12, 4)


def test_actions_are_clipped(start, step):
    wild, clipped = step(start, (-7, 30, -2)), step(start, (-1, 1, 0))
    jax.tree.map(np.testing.assert_array_equal, wild, clipped)


# what users of gymnax and jax expect


def test_make_gives_a_pool_apart_from_the_evaluations_seeds(car):
    env, params = envs.make("car_racing")
    assert type(env) is type(car)
    assert params.tracks.count == 64
    assert params.max_steps_in_episode == 1000
    _, state = jax.vmap(car.reset, (0, None))(jax.random.split(KEY, 256), params)
    assert len(np.unique(state.track)) > 50
    obs, _ = car.reset(KEY)
    assert obs["tiles"].shape == (12, 4)


def test_spaces_and_shapes_are_the_schemas(car, params, start, step):
    obs, state, reward, terminated, info = step(start, COAST)
    assert {key: value.shape for key, value in obs.items()} == car.schema.observation_shapes
    spaces = car.observation_space(params).spaces
    assert {key: space.shape for key, space in spaces.items()} == car.schema.observation_shapes
    assert car.num_actions == 3
    np.testing.assert_array_equal(car.action_space(params).low, [-1, 0, 0])
    assert car.action_space(params).contains(car.action_space(params).sample(KEY))
    assert obs["tiles"].dtype == obs["indicators"].dtype == reward.dtype == jnp.float32
    assert terminated.dtype == bool
    assert set(info) == {"tiles_visited", "progress", "off_road"}
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.shape, b.shape), state, start)
    again = car.observe(KEY, state, None, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), again, obs)


def test_what_cannot_be_started_or_stepped_is_told_with_what_to_do(car, params, start):
    for index in (len(SEEDS), -1):
        with pytest.raises(ValueError, match=rf"there is no track {index} in a pool of 4: give an index from 0 to 3"):
            car.reset_to(params, index)
    # a traced index cannot be refused: the nearest that exists is taken, whole
    wild = jax.jit(car.reset_to)(params, 7)
    jax.tree.map(np.testing.assert_array_equal, wild, car.reset_to(params, 3))
    with pytest.raises(ValueError, match=r"reset under a delay of 0 steps and params.delay is 2"):
        car.step_env(KEY, start, COAST, params.replace(delay=2))
    with pytest.raises(ValueError, match="whole number of steps, 0 or more"):
        car.reset_to(params.replace(delay=-1), 0)


def test_a_state_can_be_donated_straight_from_a_reset(car, params):
    _, states = jax.vmap(car.reset_to, (None, 0))(params, jnp.arange(4))
    step = jax.jit(jax.vmap(car.step_env, (None, 0, 0, None)), donate_argnums=1)
    assert np.isfinite(step(KEY, states, jnp.zeros((4, 3)), params)[2]).all()


def test_one_environments_nan_stays_with_it(car, params):
    _, states = jax.vmap(car.reset_to, (None, 0))(params, jnp.arange(4))
    step = jax.jit(jax.vmap(car.step_env, (None, 0, 0, None)))
    actions = jnp.tile(jnp.array([0.1, 0.5, 0.0]), (4, 1))
    sick, well = step(KEY, states, actions.at[2].set(jnp.nan), params), step(KEY, states, actions, params)
    for _ in range(5):
        sick, well = (step(KEY, out[1], actions, params) for out in (sick, well))
    others = np.array([0, 1, 3])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[others], b[others]), sick, well)
    assert np.isnan(sick[0]["indicators"][2]).any()


def test_strict_promotion_of_types_is_kept(car, params, start):
    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(car.step_env, KEY, start, COAST, params)


def test_the_page_for_users_lists_every_column_with_its_unit(car):
    page = (Path(__file__).parents[2] / "docs/car_racing.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for column in (*car.schema.observation, *car.schema.action):
        name = re.sub(r"^tile\d\d", "tileNN", column.name)
        (row,) = (row for row in rows if f"`{name}`" in row.split("|")[1])
        assert column.unit in row
    for field in ("friction", "engine_power", "pull", "delay", "observation_noise"):
        assert any(row.startswith(f"| `{field}` |") for row in rows)


def test_a_batch_steps_like_its_members(car, params, rollout, step):
    actions = jax.random.uniform(KEY, (len(SEEDS), 60, 3), minval=jnp.array([-1.0, 0, 0]))
    batched = rollout(actions)
    for episode in range(len(SEEDS)):
        state = car.reset_to(params, episode)[1]
        for t in range(60):
            single = step(state, actions[episode, t])
            state = single[1]
        last = jax.tree.map(lambda leaf, episode=episode: leaf[-1, episode], batched)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3), last, single)


def test_maps_of_maps_and_mapped_parameters_give_the_same(car, params, start):
    actions = jnp.array([[(0.1, 0.5, 0), (-0.4, 1, 0)], [(0, 0, 0.5), (1, 0.2, 0.1)]], jnp.float32)
    alone = [[car.step_env(KEY, start, action, params) for action in row] for row in actions]
    nested = jax.vmap(jax.vmap(car.step_env, (None, None, 0, None)), (None, None, 0, None))
    mapped = nested(KEY, start, actions, params)
    twice = jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * 2), params)
    by_params = jax.vmap(car.step_env, (None, None, 0, 0))(KEY, start, actions[0], twice)
    for j in range(2):
        same = jax.tree.map(lambda leaf, j=j: leaf[j], by_params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), same, alone[0][j])
        for i in range(2):
            same = jax.tree.map(lambda leaf, i=i, j=j: leaf[i, j], mapped)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), same, alone[i][j])


def test_gradients_through_a_step_are_finite_and_those_of_the_map(car, params, start):
    smooth = car.with_transition_gradients()
    rolling = start.replace(car=at_speed(start.car, 10.0).replace(wheel_speeds=jnp.full(4, 10 / dynamics.WHEEL_RADIUS)))

    def ahead(action):
        obs, state, *_ = smooth.step_env(KEY, rolling, action, params)
        return obs["tiles"].sum() + state.car.velocity_x + state.car.velocity_y

    actions = jnp.array([(0.1, 0.05, 0.0), (0.0, 0.02, 0.3)])
    one_by_one = jax.vmap(jax.grad(ahead))(actions)
    together = jax.grad(lambda a: jax.vmap(ahead)(a).sum())(actions)
    assert np.isfinite(one_by_one).all()
    assert np.abs(one_by_one[:, 1]).min() > 0, "gas does not reach the car"
    np.testing.assert_allclose(one_by_one, together, rtol=1e-4, atol=1e-6)
    assert np.abs(jax.grad(lambda a: car.step_env(KEY, start, a, params)[0]["tiles"].sum())(actions[0])).max() == 0


def test_float64_throughout_under_x64_and_close_to_float32(car, start, step):
    action = (0.3, 0.4, 0.0)
    single = step(start, action)[0]
    with jax.enable_x64(True):
        params = car.params_for_seeds(SEEDS[:1])
        obs, state = car.reset_to(params, 0)
        obs, state, reward, _, _ = car.step_env(KEY, state, jnp.array(action), params)
        reals = [leaf for leaf in jax.tree.leaves((obs, state, reward)) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        assert {leaf.dtype for leaf in reals} == {np.dtype("float64")}
        assert car.default_params.tracks.x.dtype == jnp.float64
    np.testing.assert_allclose(obs["tiles"], single["tiles"], atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), hold=st.sampled_from([1, 5, 20]), scale=st.sampled_from([0.3, 1.0, 5.0]))
def test_any_actions_keep_the_car_in_its_ranges(car, params, rollout, seed, hold, scale):
    random = np.random.default_rng(seed)
    actions = scale * random.uniform((-1, -0.5, -1), (1, 1, 0.6), (len(SEEDS), 60 // hold, 3))
    obs, state, reward, terminated, info = rollout(jnp.asarray(np.repeat(actions, hold, axis=1), jnp.float32))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((obs, state, reward)))
    assert (np.diff(info["tiles_visited"], axis=0) >= 0).all()
    counted = np.bitwise_count(np.asarray(state.visited)).sum(axis=-1)
    np.testing.assert_array_equal(counted, info["tiles_visited"])
    assert (np.asarray(info["progress"]) <= 1).all()
    speed, steering, _, *wheels = np.moveaxis(np.asarray(obs["indicators"]), -1, 0)
    assert ((speed >= 0) & (speed <= 1)).all()
    assert (np.abs(steering) < 0.147).all()
    assert (np.abs(wheels) < 3).all()
    assert (np.abs(obs["tiles"][..., 2]) <= 1).all()
    assert np.isin(obs["tiles"][..., 3], (0, 1)).all()
    paid = np.asarray(reward).sum(axis=0) + 0.1 * len(reward)
    due = 1000 * np.asarray(info["progress"][-1])
    inside = ~np.asarray(terminated).any(axis=0)
    np.testing.assert_allclose(paid[inside], due[inside], atol=1e-2)
