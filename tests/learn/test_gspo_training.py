"""Windowed GSPO as a whole: batches from an environment, seeds and hyperparameters side by side, and what is learnt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxrefine.learn import gspo
from jaxrefine.learn.gspo import Batches, Curves, Hyperparameters, Training

LIMIT = 10
EDGE = 3.0


@struct.dataclass
class Field:
    """Where episodes start, and what they show and pay after their end."""

    starts: Any
    junk: Any


class Line:
    """An action moves a point; a step costs its squared distance from 0; beyond the edge or at the limit it ends."""

    def reset_to(self, params, index):
        position = params.starts[index]
        return {"x": position}, {"time": jnp.zeros((), int), "position": position, "over": jnp.zeros((), bool)}

    def step_env(self, key, state, action, params):
        time, position = state["time"] + 1, state["position"] + action[0]
        terminated = jnp.abs(position) > EDGE
        over = state["over"] | terminated | (time >= LIMIT)
        reward = jnp.where(state["over"], params.junk, -(position**2))
        shown = jnp.where(over, params.junk, position)
        return {"x": shown}, {"time": time, "position": position, "over": over}, reward, terminated, {}

    def is_truncated(self, state, params):
        return state["time"] >= LIMIT


def linear(params, observation):
    mean = params["gain"] * observation["x"] + params["bias"]
    return mean[None], jnp.exp(params["spread"])[None, None], {}


def rooted(params, observation):
    """Outside the field it has no value; at the edge it has one, 0, and the gradient 0 / 0."""
    mean = jnp.sqrt(params["gain"] ** 2 * (EDGE**2 - observation["x"] ** 2))
    return mean[None] + params["bias"], jnp.exp(params["spread"])[None, None], {}


ENV = Line()
STARTS = (-2.0, -1.2, 0.5, 1.5)
PARAMS = {"bias": 0.1, "gain": 0.2, "spread": -0.5}  # sorted, as they stand in the vector
BATCHES = Batches(groups=2, episodes=6, epochs=3, steps=LIMIT + 2)
HYPER = Hyperparameters(learning_rate=0.05, window=4, updates=4, discount=0.9)


def run(
    seeds: int = 1,
    updates: int = 2,
    *,
    hyper: Hyperparameters = HYPER,
    batches: Batches = BATCHES,
    policy=linear,
    junk: float = 0.0,
    starts: tuple[float, ...] = STARTS,
    vectors: np.ndarray | None = None,
    training: Training | None = None,
    same_key: bool = False,
    double: bool = True,
) -> tuple[Training, Curves]:
    """Train from ``PARAMS``, or from the vectors, or go on; a hyperparameter is each seed's own or all seeds'."""
    with jax.enable_x64(double):
        # from NumPy's numbers: JAX compiles once more for Python's, whose types are weak
        like = {name: jnp.asarray(np.asarray(value)) for name, value in PARAMS.items()}
        if training is None:
            one = gspo.start(like)
            training = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (seeds, *leaf.shape)), one)
            training = training if vectors is None else training.replace(params=jnp.asarray(vectors))
        keys = jax.random.split(jax.random.key(0), 1 if same_key else seeds)
        hyper = jax.tree.map(lambda leaf: jnp.asarray(np.broadcast_to(leaf, (seeds,))), hyper)
        field = Field(jnp.asarray(starts), jnp.asarray(np.asarray(junk)))
        return gspo.train(
            ENV,
            policy,
            field,
            like,
            training,
            jnp.broadcast_to(keys, (seeds,)),
            hyper,
            starts=len(starts),
            batches=batches,
            updates=updates,
        )


def leaves(*trees, seeds=slice(None)) -> list[np.ndarray]:
    return [np.asarray(leaf)[seeds] for leaf in jax.tree.leaves(trees)]


def assert_equal(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def assert_close(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    """In float64 a rounding grows to less than this in a few updates."""
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


def _alike(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    """In float32."""
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_batches_of_several_seeds_are_those_of_each() -> None:
    field, sizes = Field(jnp.asarray(STARTS), jnp.asarray(jnp.nan)), {"groups": 2, "episodes": 3, "steps": LIMIT}
    keys = jax.random.split(jax.random.key(0), 4)
    params = {name: jnp.asarray(value) * jnp.array([1.0, 0.5, 2.0, 1.0]) for name, value in PARAMS.items()}

    def one(params, key):
        return vars(gspo.sample(ENV, linear, field, params, key, 3, **sizes))

    together = jax.vmap(one)(params, keys)
    for i, key in enumerate(keys):
        alone = one({name: value[i] for name, value in params.items()}, key)
        _alike(leaves(jax.tree.map(lambda leaf, i=i: leaf[i], together)), leaves(alone))
    of_one = {name: value[0] for name, value in params.items()}
    several = jax.vmap(one, (None, 0))(of_one, keys)  # the same policy, other keys
    _alike(leaves(jax.tree.map(lambda leaf: leaf[0], several)), leaves(one(of_one, keys[0])))
    fields = Field(jnp.stack([field.starts, field.starts]), jnp.stack([field.junk, field.junk]))
    apart = jax.vmap(lambda f: vars(gspo.sample(ENV, linear, f, of_one, keys[0], 3, **sizes)))(fields)
    _alike(leaves(jax.tree.map(lambda leaf: leaf[1], apart)), leaves(one(of_one, keys[0])))


def test_a_batch_is_what_the_environment_and_the_policy_did() -> None:
    params = {name: jnp.asarray(value) for name, value in PARAMS.items()}
    field, sizes = Field(jnp.asarray(STARTS), jnp.asarray(jnp.nan)), {"groups": 20, "episodes": 3, "steps": LIMIT + 2}
    sampled = [gspo.sample(ENV, linear, field, params, jax.random.key(k), 3, **sizes) for k in range(2)]
    x, action, reward, valid = (np.asarray(a) for a in jax.tree.leaves(sampled[0]))
    first = x[0].reshape(20, 3)
    assert (first == first[:, :1]).all(), "a group shares its start"
    assert set(first.ravel()) == set(np.float32(STARTS[:3])), "every start that is allowed, and no other"
    assert len(np.unique(action[0])) == 60
    assert not np.array_equal(action, sampled[1].action)

    after = x + action[:, 0]
    goes_on = valid[:-1] & (np.abs(after[:-1]) <= EDGE)
    goes_on[LIMIT - 1] = False
    np.testing.assert_array_equal(valid[1:], goes_on)
    np.testing.assert_allclose(x[1:][goes_on], after[:-1][goes_on], rtol=1e-6)
    np.testing.assert_allclose(reward[valid], -(after[valid] ** 2), rtol=1e-6)
    assert len(set(valid.sum(0))) > 3, "episodes of different lengths"
    noise = (action[:, 0] - (PARAMS["gain"] * x + PARAMS["bias"]))[valid]
    assert noise.std() == pytest.approx(np.exp(PARAMS["spread"]), rel=0.1)


@pytest.mark.parametrize(
    ("policy", "batches", "junk"),
    [
        (linear, BATCHES, (np.nan, 1e300, -7.0)),
        (rooted, replace(BATCHES, anchors=3), (np.nan, 1e300, -7.0, EDGE)),
    ],
    ids=["by step", "by similar state, with a policy that has no gradient there"],
)
def test_nothing_after_an_episodes_end_has_any_effect(policy, batches: Batches, junk: tuple[float, ...]) -> None:
    """Whatever is shown and paid then, and whatever the policy makes of it, down to the last bit."""
    training, curves = clean = run(policy=policy, batches=batches)
    assert (np.asarray(curves.length) < LIMIT).all()
    assert (np.asarray(curves.epochs) == 3).all()
    assert np.isfinite(training.params).all()
    for value in junk:
        assert_equal(leaves(run(policy=policy, batches=batches, junk=value)), leaves(clean))


GRID = {
    "learning_rate": 0.01,
    "clip": 0.02,
    "window": 1,
    "entropy": 0.5,
    "discount": 0.3,
    "updates": 1,
    "log_ratio_limit": 0.01,
    "kl_stop": 1e-6,
    "clip_stop": 0.01,
    "survivors": BATCHES.episodes,
}
POINTS = [HYPER] + [HYPER.replace(**{name: value}) for name, value in GRID.items()]
ONE_BY_ONE = replace(BATCHES, one_by_one=True)


def run_grid(batches: Batches) -> tuple[Training, Curves]:
    with jax.enable_x64(True):
        hyper = jax.tree.map(lambda *values: jnp.array(values), *POINTS)
    return run(len(POINTS), hyper=hyper, same_key=True, batches=batches)


@pytest.fixture(scope="module")
def grid() -> tuple[Training, Curves]:
    return run_grid(BATCHES)


def test_a_grid_of_hyperparameters_is_one_more_batch(grid: tuple[Training, Curves]) -> None:
    """Each of them alone differs from the first point, and gives the grid's numbers when it is run by itself."""
    assert set(GRID) == set(vars(HYPER))
    for i, point in enumerate(POINTS):
        assert_close(leaves(run(hyper=point)), leaves(grid, seeds=slice(i, i + 1)))
    ends = np.asarray(grid[0].params)
    for i, name in enumerate(GRID, 1):
        assert not np.allclose(ends[i], ends[0], rtol=1e-6), f"{name} has no effect"


def test_one_seed_after_the_other_is_all_at_once(grid: tuple[Training, Curves]) -> None:
    assert_close(leaves(run_grid(ONE_BY_ONE)), leaves(grid))


@pytest.mark.parametrize("batches", [BATCHES, ONE_BY_ONE], ids=["at once", "one by one"])
def test_one_seeds_nan_stays_with_it(batches: Batches) -> None:
    """A seed whose parameters are sick, and one that makes no finite gradient of healthy ones."""
    seeds, sick = len(POINTS), np.array([1, 2])
    start = np.tile(list(PARAMS.values()), (seeds, 1))
    sick_start, discount = start.copy(), np.full(seeds, HYPER.discount)
    sick_start[1, 0] = discount[2] = np.nan
    with jax.enable_x64(True):
        hyper = HYPER.replace(discount=jnp.asarray(discount))
    healthy = run(seeds, vectors=start, batches=batches)
    training, curves = spoilt = run(seeds, vectors=sick_start, hyper=hyper, batches=batches)
    others = np.setdiff1d(np.arange(seeds), sick)
    assert_equal(leaves(spoilt, seeds=others), leaves(healthy, seeds=others))
    assert (np.asarray(curves.epochs)[others] == BATCHES.epochs).all()
    assert not np.asarray(curves.epochs)[sick].any()
    np.testing.assert_array_equal(leaves(training.params, seeds=sick)[0], sick_start[sick])
    assert not leaves(training.optimizer.mu, seeds=sick)[0].any()
    assert (np.asarray(training.update) == 2).all()


def test_training_goes_on_where_it_stopped() -> None:
    whole, curves = run(updates=4)
    half, first = run(updates=2)
    rest, second = run(updates=2, training=half)
    assert_close(leaves(rest), leaves(whole))
    assert_close([np.concatenate(pair, 1) for pair in zip(leaves(first), leaves(second), strict=True)], leaves(curves))
    assert leaves(whole.update) == [[4]]


def test_the_gradient_of_a_bandit_is_the_closed_form() -> None:
    """One step from 1 with a ~ N(m, s^2) pays -(1 + a)^2: with d = 1 + m, the expected reward is -(d^2 + s^2), and the
    reward's deviation, by which the advantage is divided, sqrt(4 d^2 s^2 + 2 s^4)."""
    batches = Batches(groups=1, episodes=200_000, epochs=1, steps=1)
    training, curves = run(updates=1, starts=(1.0,), batches=batches, hyper=HYPER.replace(entropy=0.0), double=False)
    d, s = 1 + PARAMS["gain"] + PARAMS["bias"], np.exp(PARAMS["spread"])
    deviation = np.sqrt(4 * d**2 * s**2 + 2 * s**4)
    uphill = -training.optimizer.mu[0] / 0.1
    np.testing.assert_allclose(uphill, np.array([-2 * d, -2 * d, -2 * s**2]) / deviation, atol=0.02)
    assert curves.episode_return[0, 0] == pytest.approx(-(d**2 + s**2), rel=0.02)
    assert curves.largest_log_ratio < 1e-5
    expected = np.array(list(PARAMS.values())) - HYPER.learning_rate  # Adam's first step: downhill in each of them
    np.testing.assert_allclose(training.params[0], expected, rtol=1e-4)


@pytest.mark.parametrize("change", [{}, {"anchors": 20, "length_normalised": True}], ids=["paper", "options"])
def test_training_finds_the_optimum(change: dict[str, Any]) -> None:
    """It is to go to 0 at once, the gain -1 and the bias 0, with little noise. Half of the seeds stand still."""
    seeds, updates = 8, 120
    rate = jnp.repeat(jnp.array([0.02, 0.0]), seeds // 2)
    hyper = Hyperparameters(rate, window=5, entropy=0.3, discount=0.5, updates=updates)
    batches = Batches(**{"groups": 4, "episodes": 16, "epochs": 3, "steps": 5} | change)
    training, curves = run(seeds, updates, hyper=hyper, batches=batches, double=False)
    learnt, stood = np.split(np.asarray(curves.episode_return), 2)
    assert len(np.unique(stood)) == stood.size, "every update and every seed has episodes of its own"
    assert (learnt[:, -10:].mean(1) > stood.mean() + 10 * stood[:, -10:].mean(1).std()).all()
    bias, gain, spread = np.asarray(training.params).T[:, : seeds // 2]
    assert (learnt[:, -10:] > -0.1).all(), "what the optimum pays is 0"
    np.testing.assert_allclose(gain, -1, atol=0.1)
    np.testing.assert_allclose(bias, 0, atol=0.1)
    assert (spread < PARAMS["spread"] - 2).all()
    assert (np.asarray(curves.epochs) == 3).all()
