"""The control without structure: a perceptron of two hidden layers, as a program like any other."""

from __future__ import annotations

import itertools
import math
import re

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxrefine.learn.types import Info, Observation, Params
from jaxrefine.policy.program import PolicySpec, Program

# in the place of a program's source: the sizes of the hidden layers
_SOURCE = re.compile(r"mlp:(\d+(?:,\d+)*)")
# of the last layer, so that actions start near zero; and of the deviations, in logarithms
_SMALL, _LOG_STD = 0.01, -1.0


def mlp(spec: PolicySpec, hidden: tuple[int, ...] = (64, 64)) -> Program:
    """Build the program: tanh layers over the flattened observation, a linear mean, deviations that are parameters.

    Args:
        spec: what the task asks of a program.
        hidden: sizes of the hidden layers.
    """
    inputs = sum(math.prod(shape) for _, shape in spec.observation)
    sizes = [inputs, *hidden, spec.action_size]

    def initialise(key: Key[Array, ""]) -> Params:
        params = {"log_std": jnp.full(spec.action_size, _LOG_STD)}
        for i, (before, after) in enumerate(itertools.pairwise(sizes)):
            scale = _SMALL if i == len(hidden) else math.sqrt(2)
            orthogonal = jax.nn.initializers.orthogonal(scale)
            params[f"layer_{i}/kernel"] = orthogonal(jax.random.fold_in(key, i), (before, after))
            params[f"layer_{i}/bias"] = jnp.zeros(after)
        return params

    def apply(params: Params, observation: Observation) -> tuple[Float[Array, "a"], Float[Array, "a a"], Info]:
        values = jnp.concatenate([observation[key].ravel() for key in spec.arguments])
        for i in range(len(hidden)):
            values = jnp.tanh(values @ params[f"layer_{i}/kernel"] + params[f"layer_{i}/bias"])
        last = len(hidden)
        mean = values @ params[f"layer_{last}/kernel"] + params[f"layer_{last}/bias"]
        return mean, jnp.diag(jnp.exp(params["log_std"])), {}

    return Program("", initialise(jax.random.key(0)), apply, (), initialise)


def mlp_of(source: str, spec: PolicySpec) -> Program | None:
    """The perceptron that is named in a program's place, such as ``mlp:64,64``; None for any other text."""
    match = _SOURCE.fullmatch(source)
    return mlp(spec, tuple(int(size) for size in match[1].split(","))) if match else None
