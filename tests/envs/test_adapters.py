"""The adapters against what those libraries ship: Gymnasium's checker and its vector environment, brax's wrappers."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList
from gymnax.environments import environment

import envs
from envs import adapters
from envs.base import Column, Environment, Schema
from envs.car_racing import dynamics

SEEDS = range(6)
LIMIT = 4  # steps in an episode
# what check_env says of every environment without bounds, and of one that `gymnasium.make` does not know
UNDERSTOOD = ("minimum value is -infinity", "maximum value is infinity", "not having a spec")


@struct.dataclass
class State(environment.EnvState):
    time: jax.Array
    place: jax.Array


@struct.dataclass(kw_only=True)
class Params(environment.EnvParams):
    starts: jax.Array
    max_steps_in_episode: int = LIMIT
    noise: float = 0.0


class Drift(Environment[State, Params]):
    """A point pushed about in the plane; more than 1 from the origin in x ends the episode."""

    # not in the order of the entries
    schema = Schema(
        observation=(
            Column("x", "m", "to the right", -1.0, 1.0, "place", (0, 0)),
            Column("age", "steps", "steps so far", 0.0, 4.0, "clock", (0,)),
            Column("y", "m", "ahead", -1.0, 1.0, "place", (0, 1)),
        ),
        action=(
            Column("right", "m", "push to the right", -1.0, 1.0, "", (0,)),
            Column("ahead", "m", "push ahead", 0.0, 0.5, "", (1,)),
        ),
    )

    def __init__(self):
        self.traced = 0

    @property
    def default_params(self):
        return self.params_for_seeds(range(50))

    def params_for_seeds(self, seeds):
        starts = [np.random.default_rng(seed).uniform(-1, 1, 2) for seed in seeds]
        return Params(starts=jnp.asarray(np.array(starts), jnp.float32))

    def look(self, state):
        return {"place": state.place[None], "clock": state.time[None].astype(jnp.float32)}

    def reset_to(self, params, index):
        state = State(time=jnp.zeros((), jnp.int32), place=params.starts[index])
        return self.look(state), state

    def reset_env(self, key, params):
        return self.reset_to(params, jax.random.randint(key, (), 0, len(params.starts)))

    def step_env(self, key, state, action, params):
        self.traced += 1
        place = state.place + action + params.noise * jax.random.normal(key, (2,))
        new = State(time=state.time + 1, place=place)
        distance = jnp.linalg.norm(place)
        return self.look(new), new, -distance, jnp.abs(place[0]) > 1, {"distance": distance, "left": place[0] < 0}


@pytest.fixture
def toy():
    return Drift()


@pytest.fixture(scope="module")
def car():
    return envs.make("car_racing")[0]


@pytest.fixture(scope="module")
def tracks(car):
    return car.params_for_seeds((1000, 36))


def same(a, b):
    """Both trees have the same structure and equal leaves."""
    jax.tree.map(np.testing.assert_array_equal, a, b)


def close(a, b):
    """The same up to the rounding of differently compiled programs."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), a, b)


def play(vector, steps, seed=0):
    """Everything that ``steps`` random actions show."""
    vector.action_space.seed(seed)
    return [vector.step(vector.action_space.sample()) for _ in range(steps)]


# Gymnasium


@pytest.mark.parametrize("flat", [False, True])
def test_gymnasiums_checker_finds_nothing_but_what_is_meant(toy, flat):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(adapters.GymnasiumEnv(toy, flat=flat))
    assert caught
    assert all(any(known in str(w.message) for known in UNDERSTOOD) for w in caught), [str(w.message) for w in caught]


def test_gymnasiums_checker_passes_car_racing_and_its_pictures(car, tracks):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(adapters.GymnasiumEnv(car, tracks, render_mode="rgb_array"))
    assert all(any(known in str(w.message) for known in UNDERSTOOD) for w in caught), [str(w.message) for w in caught]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("flat", [False, True])
def test_it_resets_and_reports_as_gymnasiums_own_vector_environment_does(toy, mode, flat):
    count = 3
    ours = adapters.GymnasiumVectorEnv(toy, count, seeds=SEEDS, flat=flat, autoreset_mode=mode)
    theirs = SyncVectorEnv(
        [lambda i=i: adapters.GymnasiumEnv(toy, seeds=SEEDS[i::count], flat=flat) for i in range(count)],
        autoreset_mode=mode,
    )
    assert ours.metadata["autoreset_mode"] is theirs.metadata["autoreset_mode"] is mode
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    ours, theirs = DictInfoToList(ours), DictInfoToList(theirs)
    same(ours.reset(seed=0), theirs.reset(seed=0))
    ended = np.zeros(2, int)
    for mine, reference in zip(play(ours, 40), play(theirs, 40), strict=True):
        close(mine[:4], reference[:4])
        for told, expected in zip(mine[4], reference[4], strict=True):
            assert told.keys() == expected.keys()
            close(told, expected)
        ended += mine[2].sum(), mine[3].sum()
    assert all(ended > 5)


def test_car_racing_steps_as_step_env_does_with_the_batch_last(car, tracks, monkeypatch):
    seen, real = set(), dynamics.step

    def spy(state, **inputs):
        seen.add(state.wheel_speeds.shape)
        return real(state, **inputs)

    monkeypatch.setattr(dynamics, "step", spy)
    vector = adapters.GymnasiumVectorEnv(car, 2, tracks, seeds=(1000, 36))
    step = jax.jit(jax.vmap(car.step_env, (None, 0, 0, None)))
    observation, state = jax.vmap(car.reset_to, (None, 0))(tracks, jnp.arange(2))
    close(vector.reset()[0], observation)
    vector.action_space.seed(0)
    for _ in range(30):
        actions = vector.action_space.sample()
        mine = vector.step(actions)
        observation, state, reward, terminated, info = step(jax.random.key(0), state, actions, tracks)
        close(mine[:3], (observation, reward, terminated))
        np.testing.assert_array_equal(mine[4]["tiles_visited"], info["tiles_visited"])
    assert mine[0]["indicators"][0, 0] > 0.01
    assert seen == {(4, 2)}


def test_a_seed_repeats_everything_and_nothing_else_does(toy):
    def run(seed):
        params = toy.default_params.replace(noise=0.1)
        vector = adapters.GymnasiumVectorEnv(toy, 5, params)
        return [vector.reset(seed=seed), *play(vector, 20), vector.reset(), *play(vector, 5)]

    once = run(3)
    same(once, run(3))
    assert not np.array_equal(once[0][0]["place"], run(4)[0][0]["place"])
    # another episode after a reset without a seed
    assert not np.array_equal(once[0][0]["place"], once[21][0]["place"])


def test_noise_is_other_at_every_step_and_in_every_sub_environment(toy):
    vector = adapters.GymnasiumVectorEnv(toy, 4, toy.params_for_seeds((0,)).replace(noise=0.1))
    places = [vector.reset()[0]["place"], *(vector.step(np.zeros((4, 2)))[0]["place"] for _ in range(3))]
    moves = np.diff(np.stack(places), axis=0)
    assert len(np.unique(moves)) == moves.size


def test_listed_episodes_come_in_order_and_again_from_the_front(toy):
    seeds = (3, 1, 4, 0, 5)
    vector = adapters.GymnasiumVectorEnv(toy, 2, seeds=seeds)
    starts = np.asarray(toy.params_for_seeds(seeds).starts)

    def first_places(**options):
        return vector.reset(**options)[0]["place"][:, 0]

    for expected in ((0, 1), (2, 3), (4, 0), (1, 2)):
        np.testing.assert_array_equal(first_places(), starts[list(expected)])
    np.testing.assert_array_equal(first_places(seed=9), starts[[0, 1]])
    for _ in range(LIMIT + 1):
        observation = vector.step(np.zeros((2, 2), np.float32))[0]
    np.testing.assert_array_equal(observation["place"][:, 0], starts[[2, 3]])


def test_spaces_are_the_schemas_and_hold_what_is_seen(toy):
    vector = adapters.GymnasiumVectorEnv(toy, 3, seeds=SEEDS)
    flat = adapters.GymnasiumVectorEnv(toy, 3, seeds=SEEDS, flat=True)
    np.testing.assert_array_equal(vector.single_action_space.low, [-1, 0])
    np.testing.assert_array_equal(vector.single_action_space.high, [1, 0.5])
    assert vector.observation_space["place"].shape == (3, 1, 2)
    assert flat.single_observation_space.shape == (3,)
    pairs = [(vector.reset(seed=0), flat.reset(seed=0)), *zip(play(vector, 9), play(flat, 9), strict=True)]
    for (entries, *_), (columns, *_) in pairs:
        assert entries in vector.observation_space
        assert columns in flat.observation_space
        np.testing.assert_array_equal(columns, toy.schema.flatten(entries))


def test_what_is_returned_is_the_callers_own(toy):
    vector, twin = (adapters.GymnasiumVectorEnv(toy, 2, seeds=SEEDS) for _ in range(2))
    for array in (vector.reset()[0]["place"], *vector.step(np.zeros((2, 2), np.float32))[1:4]):
        array[...] = 1
    twin.reset()
    twin.step(np.zeros((2, 2), np.float32))
    same(play(vector, 3), play(twin, 3))


def test_a_step_is_compiled_once_and_its_state_is_not_kept_twice(toy):
    vector = adapters.GymnasiumVectorEnv(toy, 2)
    vector.reset(seed=0)
    play(vector, 3)
    vector.reset()
    before = jax.tree.leaves(vector._batch.state)
    play(vector, 2 * LIMIT)
    assert toy.traced == 1
    assert all(leaf.is_deleted() for leaf in before)


def test_a_picture_shows_the_first_sub_environment(car, tracks):
    vector = adapters.GymnasiumVectorEnv(car, 2, tracks, seeds=(1000, 36), render_mode="rgb_array")
    vector.reset()
    (frame,) = vector.render()
    _, state = car.reset_to(tracks, 0)
    np.testing.assert_array_equal(frame, car.render(jax.tree.map(lambda leaf: leaf[None], state), tracks)[0])
    assert adapters.GymnasiumVectorEnv(car, 2, tracks).render() is None


def test_what_cannot_be_done_is_said(toy):
    vector = adapters.GymnasiumVectorEnv(toy, 2)
    actions = np.zeros((2, 2), np.float32)
    with pytest.raises(gymnasium.error.ResetNeeded):
        vector.step(actions)
    vector.reset()
    with pytest.raises(ValueError, match=r"shape \(3, 2\), not \(2, 2\)"):
        vector.step(np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match="reset_mask"):
        vector.reset(options={"reset_mask": np.array([True, False])})
    vector.step(actions)
    vector.close()
    vector.close()
    with pytest.raises(gymnasium.error.ResetNeeded):
        vector.step(actions)
    with pytest.raises(ValueError, match="autoreset"):
        adapters.GymnasiumVectorEnv(toy, 2, autoreset_mode="Disabled")
    with pytest.raises(ValueError, match="rgb_array"):
        adapters.GymnasiumVectorEnv(toy, 2, render_mode="human")
    with pytest.raises(ValueError, match="at least one"):
        adapters.GymnasiumVectorEnv(toy, 2, seeds=())


# brax


def test_brax_steps_as_step_env_does_and_scales_actions_to_their_bounds(toy):
    params = toy.params_for_seeds(SEEDS)
    for scaled, action, pushed in (
        (True, (-1.0, -1.0), (-1.0, 0.0)),
        (True, (0.0, 0.0), (0.0, 0.25)),
        (True, (1.0, 1.0), (1.0, 0.5)),
        (False, (0.3, 0.4), (0.3, 0.4)),
    ):
        brax = adapters.BraxEnv(toy, params, scaled=scaled)
        before = jax.jit(brax.reset)(jax.random.key(1))
        assert before.obs.shape == (brax.observation_size,)
        after = jax.jit(brax.step)(before, jnp.asarray(action))
        observation, state, reward, terminated, info = toy.step_env(
            jax.random.key(0), before.pipeline_state, jnp.asarray(pushed), params
        )
        same(after.pipeline_state, state)
        np.testing.assert_array_equal(after.obs, toy.schema.flatten(observation))
        np.testing.assert_allclose(after.reward, reward, rtol=1e-6)
        assert after.done == terminated
        np.testing.assert_allclose(after.metrics["distance"], info["distance"], rtol=1e-6)
        assert jax.tree.structure(after) == jax.tree.structure(before)


def test_braxs_own_wrappers_limit_batch_and_reset_it(toy):
    from brax.envs.wrappers.training import EvalWrapper, wrap

    inner = adapters.BraxEnv(toy, toy.params_for_seeds(SEEDS))
    wrapped = EvalWrapper(wrap(inner, episode_length=inner.episode_length))
    count, steps = 64, 30

    @jax.jit
    def run(key):
        key, to_actions = jax.random.split(key)
        first = wrapped.reset(jax.random.split(key, count))
        actions = jax.random.uniform(to_actions, (steps, count, 2), minval=-1)

        def body(state, action):
            state = wrapped.step(state, action)
            return state, (state.obs, state.done, state.info["truncation"], state.info["steps"])

        return first, *jax.lax.scan(body, first, actions)

    first, last, (obs, done, truncation, age) = run(jax.random.PRNGKey(0))
    done, truncation = done.astype(bool), truncation.astype(bool)
    # an episode ends by the toy's own rule, or by brax's at the limit
    assert (done & truncation).any()
    assert (done & ~truncation).any()
    np.testing.assert_array_equal(truncation & done, truncation)
    np.testing.assert_array_equal(age[truncation], LIMIT)
    np.testing.assert_array_equal(obs[done], np.broadcast_to(first.obs, obs.shape)[done])
    assert last.info["eval_metrics"].episode_metrics["reward"].shape == (count,)
    # what each member drew, not one start for all
    assert len(np.unique(first.obs, axis=0)) > 3


def test_brax_draws_other_noise_at_every_step_and_in_every_member(toy):
    params = toy.params_for_seeds((0,)).replace(noise=0.1)
    brax = adapters.BraxEnv(toy, params)
    state = jax.vmap(brax.reset)(jax.random.split(jax.random.key(0), 4))
    places = [state.obs]
    for _ in range(3):
        state = jax.vmap(brax.step)(state, jnp.zeros((4, 2)))
        places.append(state.obs)
    moves = np.diff(np.stack(places), axis=0)[..., 0]
    assert len(np.unique(moves)) == moves.size


def test_brax_steps_car_racing_with_the_batch_last_and_draws_it(car, tracks, monkeypatch):
    seen, real = set(), dynamics.step

    def spy(state, **inputs):
        seen.add(state.wheel_speeds.shape)
        return real(state, **inputs)

    monkeypatch.setattr(dynamics, "step", spy)
    brax = adapters.BraxEnv(car, tracks)
    states = jax.vmap(brax.reset)(jax.random.split(jax.random.PRNGKey(0), 3))
    seen.clear()  # reset asks for the shapes of a single step
    stepped = jax.eval_shape(jax.vmap(brax.step), states, jnp.zeros((3, 3)))
    assert seen == {(4, 3)}
    assert stepped.obs.shape == (3, brax.observation_size) == (3, 55)
    episode = [jax.tree.map(lambda leaf: leaf[0], states.pipeline_state)] * 2
    assert brax.render(episode).shape[0] == 2


# what is not installed


def test_a_missing_library_is_named_with_what_brings_it():
    code = "import sys; sys.modules['brax'] = None; from envs.adapters import BraxEnv"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: BraxEnv needs brax, which is not installed: pip install 'jaxrefine[brax]'" in done.stderr
    assert not hasattr(adapters, "PettingZooEnv")


def test_one_librarys_user_imports_no_other():
    code = (
        "import sys; from envs.adapters import GymnasiumVectorEnv; print({'brax', 'mujoco', 'torch'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
