"""Evaluation: measures of every (seed, episode) pair without keeping their trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from jaxrefine.learn.rollout import act, advance, fold_in_each
from jaxrefine.learn.types import Environment, Info, Observation, Params, Policy


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
    seeds, episodes = len(jax.tree.leaves(params)[0]), len(index)
    every = jnp.tile(index, seeds)
    observation, state = jax.vmap(env.reset_to, (None, 0))(env_params, every)
    over_episodes = jax.vmap(act, (None, None, None, 0, 0))
    over_seeds = jax.vmap(over_episodes, (None, 0, None, 0, 0))

    def actions(keys: Key[Array, "pairs"], observation: Observation) -> tuple[Array, Array, Info]:
        keys, observation = jax.tree.map(
            lambda leaf: leaf.reshape(seeds, episodes, *leaf.shape[1:]), (keys, observation)
        )
        acted = over_seeds(policy, params, jnp.asarray(sampled), keys, observation)
        return jax.tree.map(lambda leaf: leaf.reshape(seeds * episodes, *leaf.shape[2:]), acted)

    def step(carry: tuple[Observation, Any, Array, Evaluation], t: Array) -> tuple[Any, None]:
        observation, state, running, result = carry
        step_keys = jnp.tile(fold_in_each(keys, t), seeds)
        following, state, transition, env_info = advance(
            env, actions, env_params, step_keys, observation, state, running
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

    pairs = seeds * episodes
    start = Evaluation(
        tuple(jnp.broadcast_to(measure.start(jnp.result_type(float)), pairs) for measure in measures),
        jnp.zeros(pairs, jnp.int32),
        jnp.zeros(pairs, bool),
    )
    (_, _, _, result), _ = jax.lax.scan(step, (observation, state, jnp.ones(pairs, bool), start), jnp.arange(steps))
    return jax.tree.map(lambda leaf: leaf.reshape(seeds, episodes), result)
