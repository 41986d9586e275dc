from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import PROGRAM, STEPS, Block

from jaxrefine.learn.evaluate import Measure, evaluate
from jaxrefine.learn.rollout import key_per_episode, rollout
from jaxrefine.policy.program import PolicySpec, load_program

ENV = Block()
PARAMS = ENV.params_for_seeds(range(6))
PROGRAM_ = load_program(PROGRAM, PolicySpec("BlockPolicy", (("block", (2,)),), 1))
GAINS = {"stiffness": jnp.array(-0.5), "damping": jnp.array(-1.0), "noise": jnp.array(-1.0)}
KEYS = key_per_episode(jax.random.key(0), 6)


def run(sampled: bool, gains=GAINS, steps: int = STEPS, keys=KEYS, index=None):
    index = jnp.arange(6) if index is None else index
    log = rollout(ENV, PROGRAM_.apply, PARAMS, gains, index, jnp.full(len(index), sampled), keys, steps=steps)
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), log.transitions)


def simulate(start: float, forces: list[float]) -> tuple[list[float], list[float]]:
    """The toy's physics again, in Python floats: positions before each step, and rewards."""
    position, velocity, positions, rewards = start, 0.0, [], []
    for force in forces:
        positions.append(position)
        velocity += 0.1 * max(-1.0, min(1.0, force))
        position += 0.1 * velocity
        rewards.append(-(position**2))
    return positions, rewards


def test_every_value_of_a_row_belongs_to_the_same_step() -> None:
    """A recorder that was one step off would fail each of these."""
    log = run(sampled=True)
    block = np.asarray(log.observation["block"])
    pull = -0.5 * block[..., 0]
    np.testing.assert_allclose(log.info["latent_pull"], pull, rtol=1e-5, atol=1e-6)
    mean = np.clip(pull - block[..., 1], -1, 1)
    np.testing.assert_allclose(log.action_mean[..., 0], mean, rtol=1e-5, atol=1e-6)
    for episode in range(6):
        actions = np.asarray(log.action[episode, :, 0], float).tolist()
        positions, rewards = simulate(float(PARAMS.starts[episode]), actions)
        np.testing.assert_allclose(block[episode, :, 0], positions, atol=1e-4)
        np.testing.assert_allclose(log.reward[episode], rewards, atol=1e-3)


def test_the_last_observation_follows_the_last_step() -> None:
    index = jnp.arange(6)
    short, whole = (
        rollout(ENV, PROGRAM_.apply, PARAMS, GAINS, index, jnp.full(6, True), KEYS, steps=n) for n in (7, STEPS)
    )
    assert whole.transitions.observation["block"].shape == (STEPS, 2, 6)
    assert short.last_observation["block"].shape == (2, 6)
    np.testing.assert_allclose(short.last_observation["block"], whole.transitions.observation["block"][7], rtol=1e-6)


def test_the_mean_action_is_taken_unless_sampling_is_asked_for() -> None:
    still, shaken = run(sampled=False), run(sampled=True)
    np.testing.assert_array_equal(still.action, still.action_mean)
    noise = np.asarray(shaken.action - shaken.action_mean)
    assert noise.std() == pytest.approx(float(jax.nn.softplus(-1.0)) + 0.01, rel=0.15)


def test_an_episode_ends_at_its_end() -> None:
    away = {**GAINS, "stiffness": jnp.array(5.0), "damping": jnp.array(5.0)}  # pushes the block out of the field
    log = run(sampled=False, gains=away)
    valid, terminated = np.asarray(log.valid), np.asarray(log.terminated)
    assert (valid.sum(1) < STEPS).any()
    for episode in range(6):
        length = valid[episode].sum()
        assert valid[episode, :length].all()
        assert not terminated[episode, : length - 1].any()
        assert bool(log.done[episode, length - 1]) == (length < STEPS or terminated[episode, -1])


def test_the_time_limit_ends_an_episode_without_terminating_it() -> None:
    log = run(sampled=False, steps=STEPS + 10)
    assert (np.asarray(log.valid).sum(1) == STEPS).all()
    assert np.asarray(log.done)[:, STEPS - 1].all()
    assert not np.asarray(log.terminated)[:, STEPS - 1].any()


def test_a_chunk_of_a_batch_gives_the_batchs_numbers() -> None:
    whole = run(sampled=True)
    part = run(sampled=True, keys=key_per_episode(jax.random.key(0), 2, 3), index=jnp.array([3, 4]))
    np.testing.assert_allclose(part.action, whole.action[3:5], rtol=1e-6)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(
    ("measure", "reference"),
    [
        (Measure(), lambda log: np.where(log.valid, log.reward, 0).sum(1)),
        (Measure("distance", "min"), lambda log: np.where(log.valid, np.abs(_position(log)), np.inf).min(1)),
        (Measure("distance", "max"), lambda log: np.where(log.valid, np.abs(_position(log)), -np.inf).max(1)),
        (
            Measure("distance", "last"),
            lambda log: np.abs(_position(log))[np.arange(6), np.asarray(log.valid).sum(1) - 1],
        ),
    ],
)
def test_evaluation_measures_what_the_rollout_logs(measure: Measure, reference, sampled: bool) -> None:
    stacked = {k: jnp.stack([v, 1.5 * v]) for k, v in GAINS.items()}
    found = evaluate(
        ENV, PROGRAM_.apply, PARAMS, stacked, jnp.arange(6), KEYS, measures=(measure,), steps=STEPS, sampled=sampled
    )
    assert found.values[0].shape == (2, 6)
    for i in range(2):
        log = run(sampled, {k: v[i] for k, v in stacked.items()})
        np.testing.assert_allclose(found.values[0][i], reference(log), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found.steps[i], np.asarray(log.valid).sum(1))


def _position(log) -> np.ndarray:
    """Where the block was after each step: the toy's reward is minus its square."""
    return np.sqrt(-np.asarray(log.reward))


def test_one_seeds_nan_stays_with_it() -> None:
    stacked = {k: jnp.stack([v, v]) for k, v in GAINS.items()}
    stacked["stiffness"] = jnp.array([jnp.nan, -0.5])
    found = evaluate(
        ENV, PROGRAM_.apply, PARAMS, stacked, jnp.arange(6), KEYS, measures=(Measure(),), steps=STEPS, sampled=False
    )
    assert np.isnan(found.values[0][0]).all()
    assert np.isfinite(found.values[0][1]).all()
