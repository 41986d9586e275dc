"""The multivariate normal distribution that a policy gives over actions."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key


def log_prob(action: Float[Array, "a"], mean: Float[Array, "a"], scale_tril: Float[Array, "a a"]) -> Float[Array, ""]:
    """Log density of N(mean, L L^T) at ``action``, with L the lower Cholesky factor.

    -1/2 |L^-1 (action - mean)|^2 - sum log diag L - A/2 log 2 pi.
    """
    # forward substitution, unrolled: A is a handful, and a LAPACK call per example would cost more than the rest
    whitened: list[Array] = []
    for i in range(action.shape[-1]):
        known = sum((scale_tril[i, j] * whitened[j] for j in range(i)), start=jnp.zeros((), action.dtype))
        whitened.append((action[i] - mean[i] - known) / scale_tril[i, i])
    return (
        -0.5 * sum(z**2 for z in whitened)
        - jnp.sum(jnp.log(jnp.diagonal(scale_tril)))
        - 0.5 * action.shape[-1] * math.log(2 * math.pi)
    )


def sample(key: Key[Array, ""], mean: Float[Array, "a"], scale_tril: Float[Array, "a a"]) -> Float[Array, "a"]:
    """One draw from N(mean, L L^T)."""
    return mean + scale_tril @ jax.random.normal(key, mean.shape, mean.dtype)
