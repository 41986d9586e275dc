"""Instrumented rollouts: a ``scan`` over steps, each of them a ``vmap`` over episodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jaxrefine.learn import gaussian
from jaxrefine.learn.types import Environment, Info, Observation, Params, Policy, Rollouts, Transition

# (keys, observations), a batch of episodes in front -> mean, sampled or mean action, named scalars of each
Act: TypeAlias = Callable[[Key[Array, "episodes"], Observation], tuple[Array, Array, Info]]


def act(
    policy: Policy, params: Params, sampled: Bool[Array, ""], key: Key[Array, ""], observation: Observation
) -> tuple[Float[Array, "a"], Float[Array, "a"], Info]:
    """The mean action for one observation, the action taken, and what the policy reports."""
    mean, scale_tril, info = policy(params, observation)
    return mean, jnp.where(sampled, gaussian.sample(key, mean, scale_tril), mean), info


def advance(
    env: Environment,
    actions: Act,
    env_params: Any,
    keys: Key[Array, "episodes"],
    observation: Observation,
    state: Any,
    running: Bool[Array, "episodes"],
) -> tuple[Observation, Any, Transition, dict[str, Array]]:
    """One step of policy and environment in every episode, with everything that both computed.

    The environment sees one batch, however the policies are batched: it computes fastest with all of its episodes in
    one dimension.

    Returns:
        The observations that follow, the environment's states, the transitions, and the environment's own info, each
        with the episodes in front.
    """
    pairs = jax.vmap(jax.random.split)(keys)
    mean, action, info = actions(pairs[:, 0], observation)
    step = jax.vmap(env.step_env, (0, 0, 0, None))
    following, state, reward, terminated, env_info = step(pairs[:, 1], state, action, env_params)
    done = terminated | jax.vmap(env.is_truncated, (0, None))(state, env_params)
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

    def actions(keys: Key[Array, "episodes"], observation: Observation) -> tuple[Array, Array, Info]:
        return jax.vmap(act, (None, None, 0, 0, 0))(policy, params, sampled, keys, observation)

    def step(carry: tuple[Observation, Any, Array], t: Array) -> tuple[tuple[Observation, Any, Array], Transition]:
        observation, state, running = carry
        following, state, transition, _ = advance(
            env, actions, env_params, fold_in_each(keys, t), observation, state, running
        )
        logged = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), transition)
        return (following, state, running & ~transition.done), logged

    start = (observation, state, jnp.ones(len(index), bool))
    (observation, _, _), transitions = jax.lax.scan(step, start, jnp.arange(steps))
    return Rollouts(transitions, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), observation))


def fold_in_each(keys: Key[Array, "episodes"], t: Int[Array, ""]) -> Key[Array, "episodes"]:
    """Every episode's key of step ``t``."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, t)


def key_per_episode(key: Key[Array, ""], episodes: int, start: int = 0) -> Key[Array, "episodes"]:
    """``fold_in(key, i)`` for i = start ... start + episodes - 1."""
    return jax.vmap(partial(jax.random.fold_in, key))(start + jnp.arange(episodes))
