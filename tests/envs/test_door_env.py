"""Door Opening as an environment: its episodes against Meta-World's, and what every user expects of it."""

from __future__ import annotations

import json
import timeit
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.door.dynamics import Motion, step
from envs.door.model import HOMED_QPOS, HOMED_QVEL, HOMED_WARMSTART
from envs.door.schema import HANDLE, KEY, SCHEMA, TARGET
from envs.door.scripted import scripted

REFERENCE = Path(__file__).parent.parent / "reference" / "door"
MOTIONS = ("scripted", "noisy", "smooth", "mixed")
STEPS = 500
BATCH = 256
KEYED = jax.random.key(0)
CLOSED_LOOP = range(1000, 1200)


@pytest.fixture(scope="module")
def door():
    return envs.make("door")[0]


@pytest.fixture(scope="module")
def recorded():
    return {motion: dict(np.load(REFERENCE / f"{motion}.npz")) for motion in MOTIONS}


@pytest.fixture(scope="module")
def rollout(door):
    """Steps `BATCH` environments from states: by given actions (batch, steps, 4), or by the scripted policy."""

    params = door.default_params

    @jax.jit
    def run(state, observation, actions, by_script):
        def body(carry, action):
            state, observation = carry
            chosen = jnp.where(by_script, jax.vmap(scripted)(observation[KEY]), action)
            observation, state, *rest = jax.vmap(door.step_env, (None, 0, 0, None))(KEYED, state, chosen, params)
            return (state, observation), (observation[KEY], state.motion.qpos, *rest)

        _, logged = jax.lax.scan(body, (state, observation), jnp.swapaxes(actions, 0, 1))
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), logged)

    def roll(seeds, actions=None, spoil=lambda state: state):
        params = door.params_for_seeds(seeds)
        index = jnp.arange(BATCH) % len(seeds)
        observation, state = jax.vmap(door.reset_to, (None, 0))(params, index)
        given = jnp.zeros((BATCH, STEPS, 4)) if actions is None else jnp.asarray(np.resize(actions, (BATCH, STEPS, 4)))
        logged = run(spoil(state), observation, given, jnp.asarray(actions is None))
        return jax.tree.map(lambda x: np.asarray(x)[: len(seeds)], logged)

    return roll


@pytest.fixture(scope="module")
def open_loop(rollout, recorded):
    """The reference's actions from the reference's reset, forty episodes."""
    seeds = [int(seed) for motion in MOTIONS for seed in recorded[motion]["seeds"]]
    logged = rollout(seeds, np.concatenate([recorded[motion]["actions"] for motion in MOTIONS]))
    return {motion: jax.tree.map(lambda x, i=i: x[10 * i : 10 * i + 10], logged) for i, motion in enumerate(MOTIONS)}


def test_a_reset_observes_what_the_references_does(door, recorded):
    episodes = recorded["scripted"]
    params = door.params_for_seeds(episodes["seeds"].tolist())
    np.testing.assert_allclose(params.doors, episodes["doors"], atol=1e-7)
    for i, expected in enumerate(episodes["observations"][:, 0]):
        np.testing.assert_allclose(door.reset_to(params, i)[0][KEY], expected, atol=1e-6)


# mean error of the hand, mm, and of the door's angle, rad
@pytest.mark.parametrize(
    ("motion", "hand", "angle"),
    [("scripted", 6.0, 0.01), ("noisy", 20.0, 0.07), ("smooth", 20.0, 0.03), ("mixed", 40.0, 0.15)],
)
def test_the_references_actions_move_hand_and_door_as_there(open_loop, recorded, motion, hand, angle):
    observation, qpos, *_ = open_loop[motion]
    expected = recorded[motion]
    errors = np.linalg.norm(observation[..., :3] - expected["observations"][:, 1:, :3], axis=-1).mean(1)
    assert errors.mean() <= hand / 1000
    assert np.median(errors) <= 0.008  # one episode that takes another turn at a contact decides the mean
    assert np.abs(qpos[..., 9] - expected["qpos"][:, 1:, 9]).mean() <= angle


@pytest.fixture(scope="module")
def closed_loop(rollout):
    """The scripted policy on 200 doors."""
    return rollout(list(CLOSED_LOOP))


def test_the_scripted_policy_fares_as_in_the_reference(closed_loop):
    """Success, return and steps, and how near each of the first ten comes."""
    expected = json.loads((REFERENCE / "closed_loop.json").read_text())
    observation, _, reward, terminated, info = closed_loop
    assert not terminated.any()
    successes = info["success"]
    reached = successes.any(1)
    assert abs(reached.mean() - expected["success"]) <= 0.015
    assert abs(reward.sum(1).mean() / expected["return_mean"] - 1) <= 0.01
    steps = successes.argmax(1) + 1
    assert abs(steps[reached].mean() - expected["steps_to_success_mean"]) <= 2
    least = [episode["least_distance"] for episode in expected["per_episode"][:10]]
    np.testing.assert_allclose(info["handle_distance"].min(1)[:10], least, atol=0.002)
    distance = np.linalg.norm(observation[..., HANDLE] - observation[..., TARGET], axis=-1)
    np.testing.assert_allclose(info["handle_distance"], distance, atol=1e-6)


def test_bang_bang_actions_break_nothing(rollout):
    actions = np.random.default_rng(0).choice([-1.0, 1.0], (BATCH, STEPS, 4)).astype(np.float32)
    observation, qpos, reward, _, info = rollout(list(range(100, 100 + BATCH)), actions)
    assert np.isfinite(observation).all()
    assert ((reward >= 0) & (reward <= 10)).all()
    assert not info["failed"].any()
    assert ((qpos[..., 9] > -2.2) & (qpos[..., 9] < 0.3)).all()


def test_a_broken_or_lost_state_ends_its_own_episode_and_touches_no_other(rollout, closed_loop):
    def spoil(state):
        qvel = state.motion.qvel.at[3, 2].set(jnp.nan).at[5, 0].set(1e4)
        return state.replace(motion=state.motion._replace(qvel=qvel))

    broken = rollout(list(CLOSED_LOOP), spoil=spoil)
    observation, _, reward, terminated, info = broken
    for lost in (3, 5):
        assert terminated[lost, 0] & info["failed"][lost, 0]
        assert reward[lost, 0] == 0
    assert np.isfinite(observation).all()
    others = ~np.isin(np.arange(len(CLOSED_LOOP)), (3, 5))
    for one, other in zip(jax.tree.leaves(closed_loop), jax.tree.leaves(broken), strict=True):
        np.testing.assert_array_equal(one[others], other[others])


def test_the_schema_names_every_number(door):
    assert SCHEMA.observation_shapes == {KEY: (39,)}
    names = [column.name for column in SCHEMA.observation]
    assert names[:5] == ["hand_x", "hand_y", "hand_z", "gripper_opening", "handle_x"]
    assert names[18:36] == [f"prev_{name}" for name in names[:18]]
    assert names[36:] == ["target_x", "target_y", "target_z"]
    assert [column.name for column in SCHEMA.action] == ["dx", "dy", "dz", "grip"]
    observation, state = door.reset_to(door.default_params, 0)
    np.testing.assert_array_equal(door.observe(KEYED, state, None, door.default_params)[KEY], observation[KEY])


def test_observations_stay_within_the_schemas_bounds(open_loop):
    columns = SCHEMA.observation
    low, high = (np.array([getattr(column, bound) for column in columns]) for bound in ("low", "high"))
    for observation, *_ in open_loop.values():
        assert (observation >= low - 0.02).all()
        assert (observation <= high + 0.02).all()


def test_an_episode_is_cut_after_500_steps(door):
    params = door.default_params
    _, state = door.reset_to(params, 0)
    assert not door.is_truncated(state.replace(time=jnp.int32(STEPS - 1)), params)
    assert door.is_truncated(state.replace(time=jnp.int32(STEPS)), params)


def test_no_chain_of_the_physics_is_computed_anew_for_each_reader():
    """XLA's code generator for fusions on a CPU does so, up to a thousandfold; here beside the older one."""
    motion = Motion(*(jnp.tile(jnp.asarray(x)[:, None], 64) for x in (HOMED_QPOS, HOMED_QVEL, HOMED_WARMSTART)))
    still = motion, jnp.zeros((3, 64)), jnp.zeros((2, 64)), jnp.ones((3, 64))
    lowered = jax.jit(step).lower(*still)
    ways = [lowered.compile(), lowered.compile(compiler_options={"xla_cpu_use_fusion_emitters": False})]
    seconds = [min(timeit.repeat(lambda way=way: jax.block_until_ready(way(*still)), number=3)) for way in ways]
    assert seconds[0] < 4 * seconds[1]
