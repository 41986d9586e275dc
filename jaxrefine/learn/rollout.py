"""Instrumented rollouts: a ``scan`` over steps, each of them a ``vmap`` over episodes."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from jaxrefine.learn import gaussian
from jaxrefine.learn.types import Environment, Observation, Params, Policy, Rollouts, Transition


def advance(
    env: Environment,
    policy: Policy,
    env_params: Any,
    params: Params,
    sampled: Bool[Array, ""],
    key: Key[Array, ""],
    observation: Observation,
    state: Any,
    running: Bool[Array, ""],
) -> tuple[Observation, Any, Transition, dict[str, Array]]:
    """One step of policy and environment, with everything that both computed.

    Returns:
        The observation that follows, the environment's state, the transition, and the environment's own info.
    """
    action_key, env_key = jax.random.split(key)
    mean, scale_tril, info = policy(params, observation)
    action = jnp.where(sampled, gaussian.sample(action_key, mean, scale_tril), mean)
    following, state, reward, terminated, env_info = env.step_env(env_key, state, action, env_params)
    done = terminated | env.is_truncated(state, env_params)
    transition = Transition(
        observation=observation,
        action_mean=mean,
        action=action,
        info=info,
        reward=reward,
        done=done,
        terminated=terminated,
        valid=running,
    )
    return following, state, transition, env_info


@partial(jax.jit, static_argnames=("env", "policy", "steps"))
def rollout(
    env: Environment,
    policy: Policy,
    env_params: Any,
    params: Params,
    index: Int[Array, "episodes"],
    sampled: Bool[Array, "episodes"],
    keys: Key[Array, "episodes"],
    *,
    steps: int,
) -> Rollouts:
    """Log whole episodes, every observation, latent, weight and action of them.

    Args:
        env: static.
        policy: static; the pure function of a program.
        env_params: the episodes' shared parameters, not batched.
        params: one set of policy parameters.
        index: which episode of ``env_params`` each rollout starts.
        sampled: whether a rollout samples its actions or takes their mean.
        keys: one an episode, so that a chunk of a batch gives the batch's own numbers; see ``key_per_episode``.
        steps: static; the number of steps logged; the environment's time limit may end an episode sooner.

    Returns:
        Every step of every episode; rows after an episode's end are not ``valid``.
    """
    observation, state = jax.vmap(env.reset_to, (None, 0))(env_params, index)

    def step(carry: tuple[Observation, Any, Array], t: Array) -> tuple[tuple[Observation, Any, Array], Transition]:
        def episode(
            sampled: Array, key: Array, observation: Observation, state: Any, running: Array
        ) -> tuple[Observation, Any, Array, Transition]:
            following, state, transition, _ = advance(
                env, policy, env_params, params, sampled, jax.random.fold_in(key, t), observation, state, running
            )
            return following, state, running & ~transition.done, transition

        *following, transition = jax.vmap(episode, out_axes=(0, 0, 0, -1))(sampled, keys, *carry)
        return tuple(following), transition

    start = (observation, state, jnp.ones(len(index), bool))
    (observation, _, _), transitions = jax.lax.scan(step, start, jnp.arange(steps))
    return Rollouts(transitions, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), observation))


def key_per_episode(key: Key[Array, ""], episodes: int, start: int = 0) -> Key[Array, "episodes"]:
    """``fold_in(key, i)`` for i = start ... start + episodes - 1."""
    return jax.vmap(partial(jax.random.fold_in, key))(start + jnp.arange(episodes))
