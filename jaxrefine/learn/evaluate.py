"""Evaluation: measures of every (seed, episode) pair without keeping their trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from jaxrefine.learn.rollout import advance
from jaxrefine.learn.types import Environment, Observation, Params, Policy


@dataclass(frozen=True)
class Measure:
    """How an episode becomes one number.

    Attributes:
        of: ``"reward"``, or the name of an entry of the environment's info.
        reduce: over the episode's steps.
    """

    of: str = "reward"
    reduce: Literal["sum", "min", "max", "last"] = "sum"

    def start(self, dtype: Any) -> Array:
        """The value before the first step."""
        return jnp.asarray({"sum": 0.0, "min": jnp.inf, "max": -jnp.inf, "last": jnp.nan}[self.reduce], dtype)

    def add(self, so_far: Array, value: Array) -> Array:
        """The value with one more step."""
        match self.reduce:
            case "sum":
                return so_far + value
            case "min":
                return jnp.minimum(so_far, value)
            case "max":
                return jnp.maximum(so_far, value)
            case "last":
                return value


@struct.dataclass
class Evaluation:
    """``values`` are the measures; ``steps`` the episode's length; ``terminated`` whether it ended before its limit."""

    values: tuple[Float[Array, "*batch"], ...]
    steps: Int[Array, "*batch"]
    terminated: Bool[Array, "*batch"]


@partial(jax.jit, static_argnames=("env", "policy", "measures", "steps", "sampled"))
def evaluate(
    env: Environment,
    policy: Policy,
    env_params: Any,
    params: Params,
    index: Int[Array, "episodes"],
    keys: Key[Array, "episodes"],
    *,
    measures: tuple[Measure, ...],
    steps: int,
    sampled: bool,
) -> Evaluation:
    """Evaluate every set of parameters on every episode.

    Args:
        env: static.
        policy: static; the pure function of a program.
        env_params: the episodes' shared parameters, not batched.
        params: stacked sets of parameters, ``(seeds, ...)`` a leaf.
        index: which episode of ``env_params`` each evaluation starts.
        keys: one an episode, the same for every set of parameters, which so meet the same noise.
        measures: static; of each episode.
        steps: static; the most steps of an episode.
        sampled: static; actions are sampled, or are the mean.

    Returns:
        Evaluations of shape ``(seeds, episodes)``.
    """
    sampling = jnp.asarray(sampled)

    def episode(params: Params, index: Array, key: Array) -> Evaluation:
        observation, state = env.reset_to(env_params, index)

        def step(carry: tuple[Observation, Any, Array, Evaluation], t: Array) -> tuple[Any, None]:
            observation, state, running, result = carry
            following, state, transition, env_info = advance(
                env, policy, env_params, params, sampling, jax.random.fold_in(key, t), observation, state, running
            )
            known = {**env_info, "reward": transition.reward}
            result = Evaluation(
                values=tuple(
                    jnp.where(running, measure.add(value, known[measure.of].astype(value.dtype)), value)
                    for measure, value in zip(measures, result.values, strict=True)
                ),
                steps=result.steps + running,
                terminated=result.terminated | (running & transition.terminated),
            )
            return (following, state, running & ~transition.done, result), None

        values = tuple(measure.start(jnp.result_type(float)) for measure in measures)
        start = Evaluation(values, jnp.zeros((), jnp.int32), jnp.asarray(False))
        (_, _, _, result), _ = jax.lax.scan(step, (observation, state, jnp.asarray(True), start), jnp.arange(steps))
        return result

    over_episodes = jax.vmap(episode, (None, 0, 0))
    return jax.vmap(over_episodes, (0, None, None))(params, index, keys)
