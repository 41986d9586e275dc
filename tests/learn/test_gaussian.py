from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from jaxrefine.learn.gaussian import log_prob, sample


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31 - 1), st.integers(1, 5))
def test_log_density_is_scipys(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    mean, action = rng.normal(size=(2, size))
    factor = np.tril(rng.normal(size=(size, size)), -1) + np.diag(rng.uniform(0.1, 2, size))
    expected = multivariate_normal(mean, factor @ factor.T).logpdf(action)
    got = log_prob(*(jnp.asarray(x, jnp.float32) for x in (action, mean, factor)))
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-3)


def test_samples_have_the_mean_and_covariance() -> None:
    mean, factor = jnp.array([1.0, -2.0]), jnp.array([[0.5, 0.0], [0.3, 0.2]])
    keys = jax.random.split(jax.random.key(0), 200_000)
    draws = np.asarray(jax.vmap(sample, (0, None, None))(keys, mean, factor))
    np.testing.assert_allclose(draws.mean(0), mean, atol=5e-3)
    np.testing.assert_allclose(np.cov(draws.T), factor @ factor.T, atol=5e-3)
