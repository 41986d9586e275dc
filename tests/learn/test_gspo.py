"""One update of windowed GSPO against the reference: its ratios, its objective, its gradient and its stops."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import gspo_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from jaxrefine.learn import gspo
from jaxrefine.learn.gspo import Batch, Batches, Hyperparameters

STEPS, TOTAL = 8, 6
LENGTHS = st.lists(st.integers(1, STEPS), min_size=TOTAL, max_size=TOTAL)
SEEDS = st.integers(0, 2**31 - 1)
ALL_THE_SAME, ONE_SURVIVOR, RAGGED = [STEPS] * TOTAL, [1] * (TOTAL - 1) + [STEPS], [8, 3, 5, 8, 1, 6]

window_log_ratio = jax.jit(gspo.window_log_ratio, static_argnums=3)
objective = jax.jit(gspo.objective)
improve = jax.jit(gspo.improve, static_argnames=("policy", "batches"))

PARAMS = {
    "bias": np.array([0.1, -0.2]),
    "cross": np.array(0.3),
    "gain": np.array([[0.5, -0.4], [0.2, 0.7]]),
    "spread": np.array([-0.5, 0.2]),
}
VECTOR = np.concatenate([value.ravel() for value in PARAMS.values()])


def policy(params, observation):
    """Two actions, correlated, linear in two observations."""
    mean = params["gain"] @ observation["x"] + params["bias"]
    factor = jnp.diag(jnp.exp(params["spread"])).at[1, 0].set(params["cross"])
    return mean, factor, {}


def reference_policy(vector: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bias, cross, gain, spread = vector[:2], vector[2], vector[3:7].reshape(2, 2), vector[7:]
    factor = np.diag(np.exp(spread))
    factor[1, 0] = cross
    return gain @ x + bias, factor


def validity(lengths: list[int]) -> np.ndarray:
    return np.arange(STEPS)[:, None] < np.array(lengths)


@dataclass(frozen=True)
class Trajectories:
    """A ``Batch`` in NumPy."""

    x: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    valid: np.ndarray

    def batch(self) -> Batch:
        return Batch({"x": jnp.asarray(self.x)}, *map(jnp.asarray, (self.action, self.reward, self.valid)))


def make_trajectories(lengths: list[int], seed: int = 0) -> Trajectories:
    """Actions that the policy could have taken, and rewards that depend on them."""
    rng = np.random.default_rng(seed)
    x, action = rng.normal(size=(STEPS, 2, TOTAL)), np.zeros((STEPS, 2, TOTAL))
    for t, i in np.ndindex(STEPS, TOTAL):
        mean, factor = reference_policy(VECTOR, x[t, :, i])
        action[t, :, i] = mean + factor @ rng.normal(size=2)
    return Trajectories(x, action, action[:, 0] + rng.normal(size=(STEPS, TOTAL)), validity(lengths))


@dataclass
class ReferenceUpdate:
    """The loss of one batch as a function of the parameters, and its gradient by central differences."""

    batch: Trajectories
    hyper: Hyperparameters
    batches: Batches
    update: int
    before: np.ndarray = field(init=False)
    advantage: np.ndarray = field(init=False)
    counts: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        valid, groups = self.batch.valid, self.batches.groups
        returns = reference.reward_to_go(self.batch.reward, valid, self.hyper.discount)
        if self.batches.anchors:
            features, anchors = self.batch.x, self.batches.anchors
            found = reference.advantages_by_similar_state(features, returns, valid, groups, anchors)
        else:
            found = reference.advantages_by_step(returns, valid, groups)
        self.advantage, size = found
        self.counts = valid & (size >= self.hyper.survivors)
        self.before = self.log_likelihood(VECTOR)

    def log_likelihood(self, vector: np.ndarray) -> np.ndarray:
        result = np.zeros((STEPS, TOTAL))
        for t, i in np.ndindex(STEPS, TOTAL):
            distribution = reference_policy(vector, self.batch.x[t, :, i])
            result[t, i] = reference.log_density(self.batch.action[t, :, i], *distribution)
        return result

    def curves(self, vector: np.ndarray) -> dict[str, float]:
        after, valid, limit = self.log_likelihood(vector), self.batch.valid, self.hyper.log_ratio_limit
        normalised = self.batches.length_normalised
        unclamped = reference.window_log_ratio(after - self.before, valid, self.hyper.window, normalised)
        log_ratio = np.clip(unclamped, -limit, limit)
        entropy = reference.gaussian_entropy(reference_policy(vector, np.zeros(2))[1])  # the same everywhere
        bonus = self.hyper.entropy * (1 - self.update / self.hyper.updates) * entropy
        step = np.exp(after - self.before)
        return {
            "loss": -reference.objective(log_ratio, self.advantage, self.counts, self.hyper.clip) - bonus,
            "kl": float(np.mean((step - 1 - np.log(step))[valid])),
            "clip_fraction": float(np.mean(np.abs(np.exp(unclamped) - 1)[self.counts] > self.hyper.clip)),
            "entropy": entropy,
            "largest_log_ratio": float(np.abs(unclamped)[valid].max()),
        }

    def gradient(self, vector: np.ndarray, width: float = 1e-6) -> np.ndarray:
        shifts = width * np.eye(len(vector))
        return np.array([self.curves(vector + s)["loss"] - self.curves(vector - s)["loss"] for s in shifts]) / (
            2 * width
        )


def improved(
    trajectories: Trajectories, hyper: Hyperparameters, batches: Batches, update: int = 0
) -> tuple[SimpleNamespace, SimpleNamespace]:
    """The fields of the state after ``improve`` and of its curves, in float64."""
    with jax.enable_x64(True):
        like = jax.tree.map(jnp.asarray, PARAMS)
        training = gspo.start(like).replace(update=jnp.array(update, jnp.int32))
        found = improve(policy, like, training, trajectories.batch(), hyper, batches)
        training, curves = (SimpleNamespace(**jax.tree.map(np.asarray, vars(part))) for part in found)
    return training, curves


def test_the_parameters_are_cut_up_in_the_order_that_the_reference_supposes() -> None:
    np.testing.assert_allclose(ravel_pytree(PARAMS)[0], VECTOR, rtol=1e-6)


@given(LENGTHS, SEEDS, st.integers(1, STEPS + 5), st.booleans())
@example(ALL_THE_SAME, 0, 1, False)
@example(ALL_THE_SAME, 0, 10**6, False)
@example(ONE_SURVIVOR, 0, 3, True)
@settings(max_examples=40)
def test_a_window_spans_its_valid_steps(lengths: list[int], seed: int, window: int, normalised: bool) -> None:
    """Also where fewer are left; what stands after an episode's end does not count."""
    valid, difference = validity(lengths), np.random.default_rng(seed).normal(size=(STEPS, TOTAL))
    with jax.enable_x64(True):
        got = window_log_ratio(np.where(valid, difference, np.nan), valid, jnp.asarray(window), normalised)
    expected = reference.window_log_ratio(difference, valid, window, normalised)
    np.testing.assert_allclose(np.where(valid, got, 0), expected, rtol=1e-10, atol=1e-10)


def test_a_window_by_hand() -> None:
    difference = np.array([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0], [8.0, 8.0]])
    valid = np.array([[1, 1], [1, 1], [1, 0], [1, 0]], bool)
    product = window_log_ratio(difference, valid, 3, False)
    np.testing.assert_array_equal(np.where(valid, product, 0), [[7, 3], [14, 2], [12, 0], [8, 0]])
    mean = window_log_ratio(difference, valid, 3, True)
    np.testing.assert_allclose(np.where(valid, mean, 0), [[7 / 3, 1.5], [14 / 3, 2], [6, 0], [8, 0]], rtol=1e-6)


def test_a_long_episodes_windows_in_float32() -> None:
    difference = np.random.default_rng(0).normal(0.05, 0.05, size=(1000, 2)).astype(np.float32)
    valid = np.ones(difference.shape, bool)
    expected = reference.window_log_ratio(difference.astype(float), valid, 150, False)
    np.testing.assert_allclose(window_log_ratio(difference, valid, 150, False), expected, atol=1e-4)


@given(LENGTHS, SEEDS, st.floats(0.01, 1.5), st.floats(0.01, 3))
@settings(max_examples=30)
def test_the_objective_is_the_reference(lengths: list[int], seed: int, clip: float, spread: float) -> None:
    log_ratio, advantage = np.random.default_rng(seed).normal(size=(2, STEPS, TOTAL)) * [[[spread]], [[1.0]]]
    counts = validity(lengths)
    with jax.enable_x64(True):
        got = objective(log_ratio, advantage, counts, clip)
    assert float(got) == pytest.approx(reference.objective(log_ratio, advantage, counts, clip), rel=1e-10, abs=1e-12)


def test_a_ratio_too_large_for_float32_has_no_gradient_where_it_is_clipped() -> None:
    """Nor where the advantage is 0, as a lone survivor's is."""
    log_ratio, counts = jnp.array([[0.0, 100.0]]), jnp.ones((1, 2), bool)
    for advantage, finite in ((1.0, True), (0.0, True), (-1.0, False)):
        gradient = jax.grad(gspo.objective)(log_ratio, jnp.array([[1.0, advantage]]), counts, 0.2)
        assert gradient[0, 0] == 0.5
        assert gradient[0, 1] == 0 if finite else not np.isfinite(gradient[0, 1])


def test_log_densities_and_entropy_are_the_gaussians() -> None:
    batch = make_trajectories(ALL_THE_SAME)
    with jax.enable_x64(True):
        density, entropy = gspo.log_likelihood(policy, jax.tree.map(jnp.asarray, PARAMS), batch.batch())
    for t, i in np.ndindex(STEPS, TOTAL):
        mean, factor = reference_policy(VECTOR, batch.x[t, :, i])
        assert density[t, i] == pytest.approx(reference.log_density(batch.action[t, :, i], mean, factor), rel=1e-10)
        assert entropy[t, i] == pytest.approx(reference.gaussian_entropy(factor), rel=1e-10)


HYPER = Hyperparameters(learning_rate=0.03, clip=0.1, window=3, entropy=0.3, discount=0.9)
ONE_EPOCH, TWO_EPOCHS, THREE_EPOCHS = (Batches(groups=2, epochs=n) for n in (1, 2, 3))
CASES = {
    "paper": (HYPER, TWO_EPOCHS),
    "one step": (HYPER.replace(window=1, clip=0.05), TWO_EPOCHS),
    "window longer than any episode": (HYPER.replace(window=STEPS + 3), TWO_EPOCHS),
    "clamped": (HYPER.replace(log_ratio_limit=0.15), TWO_EPOCHS),
    "at least three": (HYPER.replace(survivors=3), TWO_EPOCHS),
    "length-normalised": (HYPER.replace(clip=0.03), replace(TWO_EPOCHS, length_normalised=True)),
    "similar states": (HYPER, replace(TWO_EPOCHS, anchors=3)),
}


@pytest.mark.parametrize("case", CASES)
def test_two_epochs_follow_the_references_gradients(case: str) -> None:
    """In the first the ratio is 1; in the second, some are clipped. Central differences, float64."""
    hyper, batches = CASES[case]
    batch, update = make_trajectories(RAGGED), 5
    expected = ReferenceUpdate(batch, hyper, batches, update)
    first = expected.gradient(VECTOR)
    moved = VECTOR - hyper.learning_rate * first / (np.abs(first) + 1e-8)  # Adam's first step
    second = expected.gradient(moved)

    training, curves = improved(batch, hyper, batches, update)
    np.testing.assert_allclose(training.optimizer.mu, 0.1 * (0.9 * first + second), rtol=1e-5, atol=1e-8)
    assert curves.gradient_norm == pytest.approx(np.linalg.norm(second), rel=1e-5)
    assert (curves.epochs, training.update) == (2, update + 1)
    for name, value in expected.curves(moved).items():
        if name != "loss":
            assert getattr(curves, name) == pytest.approx(value, rel=1e-5), name
    assert 0 < curves.clip_fraction < 1
    if case == "clamped":
        assert curves.largest_log_ratio > hyper.log_ratio_limit, "the curve shows what was clamped"
    assert curves.length == pytest.approx(np.mean(RAGGED))
    assert curves.episode_return == pytest.approx(np.where(batch.valid, batch.reward, 0).sum() / TOTAL)


def test_the_ratio_is_one_in_the_first_epoch() -> None:
    _, curves = improved(make_trajectories(RAGGED), HYPER, ONE_EPOCH)
    # but for the rounding of two programs that compute the same likelihood
    assert curves.largest_log_ratio < 1e-13
    assert curves.kl < 1e-13
    assert curves.clip_fraction == 0


@pytest.mark.parametrize(("update", "share"), [(0, 1), (5, 0.75), (10, 0.5), (19, 0.05), (20, 0), (25, 0)])
def test_the_entropy_bonus_falls_linearly_to_zero(update: int, share: float) -> None:
    """Without rewards the bonus alone has a gradient: the entropy's is 1 for the logarithm of each deviation."""
    batch = make_trajectories(RAGGED)
    training, curves = improved(replace(batch, reward=0 * batch.reward), HYPER, ONE_EPOCH, update)
    expected = np.where(np.arange(len(VECTOR)) < 7, 0, -HYPER.entropy * share)
    np.testing.assert_allclose(training.optimizer.mu / 0.1, expected, rtol=1e-6, atol=1e-12)
    assert curves.entropy == pytest.approx(math.log(2 * math.pi * math.e) + PARAMS["spread"].sum())


@pytest.mark.parametrize(("stop", "curve"), [("kl_stop", "kl"), ("clip_stop", "clip_fraction")])
def test_a_stop_ends_an_updates_epochs(stop: str, curve: str) -> None:
    batch = make_trajectories(RAGGED)
    one, two, three = (improved(batch, HYPER, batches) for batches in (ONE_EPOCH, TWO_EPOCHS, THREE_EPOCHS))
    before_second = getattr(two[1], curve)
    assert 0 < before_second < getattr(three[1], curve)

    def stopped(limit: float) -> tuple[SimpleNamespace, SimpleNamespace]:
        return improved(batch, HYPER.replace(**{stop: limit}), THREE_EPOCHS)

    training, curves = stopped(0.999 * before_second)
    assert curves.epochs == 1
    assert getattr(curves, curve) == pytest.approx(before_second)  # what was found too large is what is reported
    jax.tree.map(np.testing.assert_array_equal, training.optimizer, one[0].optimizer)
    np.testing.assert_array_equal(training.params, one[0].params)

    training, curves = stopped(1.001 * before_second)
    assert curves.epochs == 2
    np.testing.assert_allclose(training.params, two[0].params, rtol=1e-12)


def test_steps_with_too_few_survivors_are_left_out() -> None:
    """Without discount a reward tells of its own step alone; from the fourth step on two of a group are running."""
    batch = make_trajectories([8, 8, 3, 3, 8, 8])
    late = np.arange(STEPS)[:, None] >= 3
    other = replace(batch, reward=np.where(late, -batch.reward, batch.reward))
    for survivors, same in ((1, False), (2, False), (3, True)):
        hyper = HYPER.replace(discount=0.0, survivors=survivors)
        ours, theirs = (improved(b, hyper, THREE_EPOCHS)[0].params for b in (batch, other))
        assert np.array_equal(ours, theirs) == same
        assert not np.array_equal(ours, VECTOR)


@pytest.mark.parametrize("reward", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_not_applied(reward: float) -> None:
    batch = make_trajectories(RAGGED)
    batch.reward[2, 0] = reward
    training, curves = improved(batch, HYPER, THREE_EPOCHS)
    np.testing.assert_array_equal(training.params, VECTOR)
    assert (curves.epochs, training.optimizer.count, training.update) == (0, 0, 1)
    assert not training.optimizer.mu.any()


def test_a_window_that_does_not_count_may_overflow() -> None:
    counts = jnp.array([[True, False]])
    advantage = jnp.array([[-1.0, 0.0]])  # as `improve` hands over what does not count
    gradient = jax.grad(lambda x: objective(x, advantage, counts, 0.2))(jnp.array([[0.0, 200.0]]))
    np.testing.assert_allclose(gradient, [[-1.0, 0.0]])
