from __future__ import annotations

from functools import partial

import gspo_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxrefine.learn.advantage import by_similar_state, by_step, reward_to_go

STEPS, TOTAL = 9, 12
LENGTHS = st.lists(st.integers(1, STEPS), min_size=TOTAL, max_size=TOTAL)
SEEDS = st.integers(0, 2**31 - 1)
GROUPS = st.sampled_from([1, 3, TOTAL])  # the last: every trajectory is alone
FULL, ONE_SURVIVOR = [STEPS] * TOTAL, [2] * (TOTAL - 1) + [STEPS]

to_go = jax.jit(reward_to_go)
by_step_ = jax.jit(by_step, static_argnums=2)
by_similar_state_ = jax.jit(by_similar_state, static_argnums=(3, 4))


def validity(lengths: list[int]) -> np.ndarray:
    return np.arange(STEPS)[:, None] < np.array(lengths)


def spoiled(values: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """With NaN, which spreads to whatever it touches, wherever an episode has ended."""
    return np.where(valid, values, np.nan)


@given(LENGTHS, SEEDS, st.floats(0, 1))
@example(FULL, 0, 0.98)
@example(ONE_SURVIVOR, 0, 1.0)
@settings(max_examples=30)
def test_reward_to_go_is_the_discounted_sum(lengths: list[int], seed: int, discount: float) -> None:
    valid, reward = validity(lengths), np.random.default_rng(seed).normal(size=(STEPS, TOTAL))
    with jax.enable_x64(True):
        got = to_go(spoiled(reward, valid), valid, discount)
    np.testing.assert_allclose(got, reference.reward_to_go(reward, valid, discount), rtol=1e-12, atol=1e-12)


def test_reward_to_go_by_hand() -> None:
    reward, valid = np.array([[1.0, 5.0], [2.0, 7.0], [4.0, 9.0]]), np.array([[1, 1], [1, 0], [1, 0]], bool)
    np.testing.assert_array_equal(to_go(reward, valid, 0.5), [[3.0, 5.0], [4.0, 0.0], [4.0, 0.0]])


@given(LENGTHS, SEEDS, GROUPS)
@example(FULL, 0, 1)
@example(ONE_SURVIVOR, 0, 1)
@example(ONE_SURVIVOR, 0, 3)
@settings(max_examples=30)
def test_by_step_is_the_reference(lengths: list[int], seed: int, groups: int) -> None:
    valid, returns = validity(lengths), np.random.default_rng(seed).normal(size=(STEPS, TOTAL))
    returns = np.where(valid, returns, 0.0)
    expected, expected_count = reference.advantages_by_step(returns, valid, groups)
    with jax.enable_x64(True):
        advantage, count = by_step_(returns, valid, groups)
    np.testing.assert_allclose(advantage, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(np.where(valid, count, 0), expected_count)


def test_by_step_by_hand() -> None:
    returns, valid = np.array([[1.0, 3.0, 5.0], [4.0, 8.0, 0.0]]), np.array([[1, 1, 1], [1, 1, 0]], bool)
    advantage, count = by_step_(returns, valid, 1)
    high = np.sqrt(1.5)  # 2 over the population's deviation, sqrt(8 / 3)
    np.testing.assert_allclose(advantage, [[-high, 0, high], [-1, 1, 0]], rtol=1e-6)
    np.testing.assert_array_equal(count, [[3, 3, 3], [2, 2, 2]])


@given(LENGTHS, SEEDS, st.sampled_from([(1, 4), (3, 1), (3, STEPS + 6)]))
@example(FULL, 0, (1, 4))
@example(ONE_SURVIVOR, 0, (3, STEPS + 6))
@settings(max_examples=30)
def test_by_similar_state_is_the_reference(lengths: list[int], seed: int, split: tuple[int, int]) -> None:
    """Also with more anchors than the longest episode has steps: some stand at the same place, and one is used."""
    groups, anchors = split
    rng, valid = np.random.default_rng(seed), validity(lengths)
    returns = np.where(valid, rng.normal(size=(STEPS, TOTAL)), 0.0)
    place, images = rng.normal(size=(STEPS, 2, TOTAL)), 100 * rng.normal(size=(STEPS, 2, 3, TOTAL))
    features = np.concatenate([place, images.reshape(STEPS, 6, TOTAL)], 1)
    expected, expected_count = reference.advantages_by_similar_state(features, returns, valid, groups, anchors)
    observation = {"place": spoiled(place, valid[:, None]), "image": spoiled(images, valid[:, None, None])}
    with jax.enable_x64(True):
        advantage, count = by_similar_state_(observation, returns, valid, groups, anchors)
    np.testing.assert_allclose(advantage, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(count, expected_count)


def test_similar_states_are_compared_whenever_they_are_met() -> None:
    """Two drivers on one road, one twice as fast: each is held against the other at the same place."""
    road = np.array([0.0, 1.0, 2.0, 3.0])
    position = np.stack([np.repeat(road, 2), np.concatenate([road, np.zeros(4)])], 1)  # slow, fast
    valid = np.stack([np.ones(8, bool), np.arange(8) < 4], 1)
    returns = np.where(valid, position + np.array([0.0, 3.0]), 0.0)  # the fast one is worth 3 more everywhere
    advantage, count = by_similar_state_({"at": position[:, None]}, returns, valid, 1, 4)
    np.testing.assert_array_equal(count, np.where(valid, 3, 0))
    low, high = -1 / np.sqrt(2), np.sqrt(2)
    np.testing.assert_allclose(advantage, np.where(valid, [low, high], 0), rtol=1e-5, atol=1e-5)


def constant_returns(total: int, reward: float) -> tuple[jax.Array, jax.Array]:
    valid = jnp.ones((60, total), bool)
    return to_go(jnp.full(valid.shape, reward), valid, 0.98), valid


@pytest.mark.parametrize("total", [5, 6, 20])
@pytest.mark.parametrize("reward", [0.1, 1.0, -7.3])
def test_equal_returns_have_no_advantage(total: int, reward: float) -> None:
    """In float32 the mean of equal numbers is not always that number, and the deviation is then the rounding too."""
    returns, valid = constant_returns(total, reward)
    advantage, count = by_step_(returns, valid, 1)
    np.testing.assert_array_equal(advantage, np.zeros(valid.shape))
    assert (count == total).all()


def test_equal_returns_of_similar_states_have_no_advantage() -> None:
    returns, valid = constant_returns(6, 0.1)
    time = jnp.broadcast_to(jnp.arange(60.0)[:, None, None], (60, 1, 6))  # every cell holds one step of each episode
    advantage, count = by_similar_state_({"time": time}, returns, valid, 1, 60)
    np.testing.assert_array_equal(advantage, np.zeros(valid.shape))
    assert (count == 6).all()


@pytest.mark.parametrize("kind", ["step", "state"])
def test_float32_is_enough_for_small_differences_between_large_returns(kind: str) -> None:
    rng, valid = np.random.default_rng(1), validity(FULL)
    returns = (1000 + rng.normal(size=valid.shape)).astype(np.float32)
    features = rng.normal(size=(STEPS, 2, TOTAL)).astype(np.float32)
    if kind == "step":
        got, expected = by_step_(returns, valid, 1), reference.advantages_by_step(returns.astype(float), valid, 1)
    else:
        got = by_similar_state_({"x": features}, returns, valid, 1, 3)
        expected = reference.advantages_by_similar_state(features, returns.astype(float), valid, 1, 3)
    np.testing.assert_allclose(got[0], expected[0], atol=1e-5)


@pytest.mark.parametrize("compare", [by_step_, partial(by_similar_state_, {"x": np.ones((STEPS, 1, TOTAL))})])
def test_groups_are_strangers(compare) -> None:
    """Whatever happens in one group, NaN included, the others' advantages stay what they are."""
    valid, returns = validity(ONE_SURVIVOR), np.random.default_rng(2).normal(size=(STEPS, TOTAL)).astype(np.float32)
    sick = np.where(np.arange(TOTAL) < 4, np.nan, returns)
    cells = () if compare is by_step_ else (2,)
    ours, theirs = (np.asarray(compare(x, valid, 3, *cells)[0]) for x in (returns, sick))
    np.testing.assert_array_equal(ours[:, 4:], theirs[:, 4:])
    assert np.isnan(theirs[0, :4]).all()
