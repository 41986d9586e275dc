"""What conditions change, what they leave alone, and that the stock car is untouched by their existence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.car_racing.conditions import CONDITIONS

KEY = jax.random.key(0)
BATCH, STEPS = 8, 50


@pytest.fixture(scope="module")
def car():
    return envs.make("car_racing")[0]


@pytest.fixture(scope="module")
def stock(car):
    return car.params_for_seeds((1000, 36))


@pytest.fixture(scope="module")
def actions():
    return jax.random.uniform(KEY, (STEPS, BATCH, 3), minval=jnp.array([-1.0, 0.2, 0]), maxval=jnp.array([1, 1, 0.1]))


@pytest.fixture(scope="module")
def drive(car):
    @jax.jit
    def run(params, actions):
        def body(state, inputs):
            key, action = inputs
            keys = jax.random.split(key, BATCH)
            obs, state, reward, *_ = jax.vmap(car.step_env, (0, 0, 0, None))(keys, state, action, params)
            return state, (obs, state.car, reward)

        obs, state = jax.vmap(car.reset_to, (None, 0))(params, jnp.arange(BATCH) % 2)
        return obs, jax.lax.scan(body, state, (jax.random.split(KEY, len(actions)), actions))[1]

    return run


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_the_defaults_are_the_stock_car_to_the_bit(drive, stock, actions):
    explicit = stock.replace(friction=jnp.float32(1), engine_power=jnp.float32(1), pull=jnp.float32(0))
    same(drive(stock, actions), drive(explicit, actions))


def test_one_compiled_program_serves_every_friction_power_and_pull(drive, stock, actions):
    drive(stock, actions)
    compiled = drive._cache_size()
    usual = drive(stock, actions)[1][1]
    for change in ({"friction": 0.5}, {"engine_power": 0.5}, {"pull": 0.25}):
        changed = drive(stock.replace(**change), actions)[1][1]
        assert np.abs(np.asarray(changed.x - usual.x)).max() > 0.1, f"{change} changes nothing"
    assert drive._cache_size() == compiled


def test_pull_is_added_after_the_command_is_clipped(drive, stock, actions):
    pulled = drive(stock.replace(pull=0.25), actions)
    gentle = actions.at[..., 0].multiply(0.5)
    same(drive(stock.replace(pull=0.25), gentle)[1], drive(stock, gentle.at[..., 0].add(0.25))[1])
    # beyond full lock the command stays what it is, and the pull still counts
    wild = actions.at[..., 0].set(1.0)
    same(drive(stock.replace(pull=0.25), 7 * wild)[1], drive(stock.replace(pull=0.25), wild.at[..., 1:].multiply(7))[1])
    assert np.isfinite(pulled[1][1].x).all()


def test_a_delayed_car_coasts_and_then_does_what_it_was_told(drive, stock, actions):
    delay = 6
    late = drive(stock.replace(delay=delay), actions)[1]
    coasting = jnp.zeros((delay, BATCH, 3))
    same(late, drive(stock, jnp.concatenate([coasting, actions[:-delay]]))[1])


def test_noise_has_its_deviation_and_spares_the_kerb_flags_the_car_and_the_reward(drive, stock, actions):
    start, (obs, car, reward) = drive(stock, actions)
    noisy_start, (noisy, noisy_car, noisy_reward) = drive(stock.replace(observation_noise=0.02), actions)
    same((car, reward), (noisy_car, noisy_reward))
    np.testing.assert_array_equal(noisy["tiles"][..., 3], obs["tiles"][..., 3])
    for a, b in ((noisy["tiles"][..., :3], obs["tiles"][..., :3]), (noisy["indicators"], obs["indicators"])):
        noise = np.asarray(a - b)
        assert noise.std() == pytest.approx(0.02, rel=0.05)
        assert abs(noise.mean()) < 1e-3
        assert len(np.unique(noise[:, 0].reshape(STEPS, -1)[:, 0].round(7))) > STEPS // 2, "each step has its own noise"
    assert np.abs(np.asarray(noisy_start["tiles"] - start["tiles"])).max() > 0


@pytest.mark.parametrize("name", CONDITIONS)
def test_presets_reach_both_kinds_of_parameters(name):
    env, params = envs.make("car_racing", condition=name)
    for found in (params, env.params_for_seeds([1000])):
        assert {field: getattr(found, field) for field in CONDITIONS[name]} == dict(CONDITIONS[name])
    _, state = env.reset_to(params, 0)
    assert state.pending.shape == (params.delay, 3)
    _, state, *_ = env.step(KEY, state, jnp.array([0.1, 0.5, 0.0]), params)
    assert state.pending.shape == (params.delay, 3)


def test_a_condition_that_does_not_exist_is_told_with_those_that_do():
    with pytest.raises(ValueError, match="no condition of car_racing is called 'wet'; there are: stock, slick, pull"):
        envs.make("car_racing", condition="wet")
