from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrefine.learn.imitation import FitSettings, fit, fit_seeds, negative_log_likelihood, split_blocks

FEATURES = {"x": jnp.asarray(np.random.default_rng(0).normal(size=(400, 3)), jnp.float32)}
TRUE = np.array([[0.5, -1.0, 2.0], [0.0, 0.7, -0.3]], np.float32)
NOISE = 0.1
ACTIONS = FEATURES["x"] @ TRUE.T + NOISE * jnp.asarray(np.random.default_rng(1).normal(size=(400, 2)), jnp.float32)
START = {"w": jnp.zeros((2, 3)), "s": jnp.zeros(2)}


def linear(params, observation):
    return params["w"] @ observation["x"], jnp.diag(jax.nn.softplus(params["s"]) + 1e-3), {}


def test_linear_gaussian_fit_is_least_squares() -> None:
    """Maximum likelihood of a linear Gaussian policy is ordinary least squares, its deviation that of the residuals."""
    found = fit(linear, START, FEATURES, ACTIONS, jax.random.key(0), FitSettings(updates=3000, patience=3000))
    x, y = np.asarray(FEATURES["x"], np.float64), np.asarray(ACTIONS, np.float64)
    solution = np.linalg.lstsq(x, y, rcond=None)[0].T
    np.testing.assert_allclose(found.params["w"], solution, atol=0.02)
    train, _ = split_blocks(jax.random.split(jax.random.key(0))[0], 400, FitSettings())
    residual = (y - x @ solution.T)[np.asarray(train)]
    best = np.sum(np.log(residual.std(0)) + 0.5 * np.log(2 * np.pi) + 0.5)  # the likelihood's own optimum
    assert best - 0.01 < float(found.best_train_nll) < best + 0.05


def test_reported_losses_are_those_of_the_returned_parameters() -> None:
    setting, key = FitSettings(updates=100), jax.random.key(3)
    found = fit(linear, START, FEATURES, ACTIONS, key, setting)
    train, held_out = split_blocks(jax.random.split(key)[0], 400, setting)
    nll = negative_log_likelihood(linear, found.params, FEATURES, ACTIONS)
    np.testing.assert_allclose(found.best_train_nll, nll[train].mean(), rtol=1e-5)
    np.testing.assert_allclose(found.best_validation_nll, nll[held_out].mean(), rtol=1e-5)
    assert float(jnp.nanmin(found.train_nll)) == pytest.approx(float(found.best_train_nll))


def test_seeds_at_once_are_the_seeds_one_by_one() -> None:
    keys = jax.random.split(jax.random.key(1), 3)
    starts = {name: jnp.stack([value, 2 * value, value]) for name, value in START.items()}
    together = fit_seeds(linear, starts, FEATURES, ACTIONS, keys, FitSettings(updates=60))
    for i, key in enumerate(keys):
        own = {name: value[i] for name, value in starts.items()}
        alone = fit(linear, own, FEATURES, ACTIONS, key, FitSettings(updates=60))
        np.testing.assert_allclose(together.params["w"][i], alone.params["w"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(together.validation_nll[i], alone.validation_nll, rtol=1e-4)
    assert len({float(v) for v in together.best_validation_nll}) == 3


def test_it_stops_when_nothing_improves() -> None:
    found = fit(linear, START, FEATURES, ACTIONS, jax.random.key(0), FitSettings(updates=5000, patience=200))
    assert int(found.updates) < 5000
    looks = np.asarray(found.train_nll)
    done = int(found.updates) // FitSettings().check_every
    assert np.isfinite(looks[:done]).all()
    assert np.isnan(looks[done:]).all()


def test_updates_without_a_finite_gradient_are_skipped_and_counted() -> None:
    def breaks(params, observation):
        mean, scale, info = linear(params, observation)
        return jnp.where(params["w"][0, 0] > 0.45, jnp.nan, 1.0) * mean, scale, info

    found = fit(breaks, START, FEATURES, ACTIONS, jax.random.key(0), FitSettings(updates=200, check_every=5))
    assert int(found.skipped) > 0
    assert np.isfinite(np.asarray(found.params["w"])).all()
    assert np.isfinite(float(found.best_validation_nll))


def test_a_policy_that_is_never_finite_says_so() -> None:
    def hopeless(params, observation):
        mean, scale, info = linear(params, observation)
        return mean * jnp.nan, scale, info

    found = fit(hopeless, START, FEATURES, ACTIONS, jax.random.key(0), FitSettings(updates=40))
    assert np.isinf(float(found.best_train_nll))
    assert int(found.skipped) == 40


@pytest.mark.parametrize(
    ("n", "block", "share"), [(2, 20, 0.1), (3, 1, 0.5), (39, 20, 0.1), (40, 20, 0.1), (57, 20, 0.6), (300, 7, 0.01)]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_held_out_rows_are_whole_blocks_apart_from_the_training_rows(
    n: int, block: int, share: float, seed: int
) -> None:
    train, held_out = split_blocks(jax.random.key(seed), n, FitSettings(block=block, validation_fraction=share))
    rows = sorted([*np.asarray(train).tolist(), *np.asarray(held_out).tolist()])
    assert rows == list(range(n))
    assert len(train) >= 1
    assert len(held_out) >= 1
    size = block if n >= 2 * block else 1
    held = set(np.asarray(held_out).tolist())
    for row in held:
        start = row // size * size
        assert set(range(start, start + size)) <= held
