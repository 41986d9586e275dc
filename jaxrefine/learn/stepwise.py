"""Episodes driven one step at a time, with every state kept.

Policy and environment are compiled apart. The environment takes far longer to compile, and its step, which knows
nothing of any policy, is compiled once for all of them and found in the compilation cache ever after.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int, Key

from jaxrefine.learn.rollout import fold_in_each
from jaxrefine.learn.types import Environment, Observation, Params, Policy

Look = Callable[[Any], dict[str, Array]]
LOOK_EVERY = 50  # steps between two looks at whether all episodes have ended; each waits for the device


@struct.dataclass
class Step:
    """One step of E episodes; everything belongs to the same step, ``state`` is that before it.

    Its arrays may be taken to the host, and stacked with time in front.

    Attributes:
        state: of the environments, episodes in front.
        action: the policy's mean, ``(E, a)``.
        info: what the policy reports, ``(names, E)``, in the names' alphabetical order.
        reward: of the step, ``(E,)``.
        value: the entry of the environment's info that was asked for, ``(E,)``.
        seen: what ``look`` made of the state, ``(E,)`` each.
        valid: false after an episode's end, ``(E,)``.
    """

    state: Any
    action: Any
    info: Any
    reward: Any
    value: Any
    seen: dict[str, Any]
    valid: Any


def drive(
    env: Environment,
    policy: Policy,
    env_params: Any,
    params: Params,
    index: Int[Array, "episodes"],
    keys: Key[Array, "episodes"],
    *,
    steps: int,
    of: str,
    look: Look | None = None,
) -> list[Step]:
    """Drive episodes by the mean action.

    Args:
        env: whose episodes.
        policy: the pure function of a program.
        env_params: the episodes' shared parameters.
        params: one set of policy parameters.
        index: which episode of ``env_params`` each is.
        keys: one an episode; ``rollout`` drives the same episode from the same key.
        steps: the most of an episode.
        of: ``"reward"``, or the entry of the environment's info that is kept.
        look: a hashable function of one state.

    Returns:
        The steps, on the device; the last ones may be of no episode any more.
    """
    observation, state = _begin(env, env_params, index)
    running = jnp.ones(len(index), bool)
    taken = []
    for t in range(steps):
        action, info = mean_action(policy, params, observation)
        observation, following, reward, value, seen, still = _advance(
            env, of, look, env_params, keys, np.int32(t), state, action, running
        )
        taken.append(Step(state, action, info, reward, value, seen, running))
        state, running = following, still
        if t % LOOK_EVERY == LOOK_EVERY - 1 and not running.any():
            break
    return taken


@partial(jax.jit, static_argnames="env")
def _begin(env: Environment, env_params: Any, index: Array) -> tuple[Observation, Any]:
    return jax.vmap(env.reset_to, (None, 0))(env_params, index)


@partial(jax.jit, static_argnames="policy")
def mean_action(policy: Policy, params: Params, observation: Observation) -> tuple[Array, Array]:
    """The mean action for each of a batch of observations, and what the policy reports, ``(names, episodes)``."""
    mean, _, info = jax.vmap(policy, (None, 0))(params, observation)
    rows = [info[name] for name in sorted(info)]
    return mean, jnp.stack(rows) if rows else jnp.zeros((0, len(mean)))


@partial(jax.jit, static_argnames=("env", "of", "look"))
def _advance(
    env: Environment,
    of: str,
    look: Look | None,
    env_params: Any,
    keys: Array,
    t: Array,
    state: Any,
    action: Array,
    running: Array,
) -> tuple[Observation, Any, Array, Array, dict[str, Array], Array]:
    # the part of the key that `rollout` gives the environment
    step_keys = jax.vmap(jax.random.split)(fold_in_each(keys, t))[:, 1]
    step = jax.vmap(env.step_env, (0, 0, 0, None))
    observation, following, reward, terminated, info = step(step_keys, state, action, env_params)
    done = terminated | jax.vmap(env.is_truncated, (0, None))(following, env_params)
    value = {**info, "reward": reward}[of].astype(jnp.result_type(float))
    seen = {} if look is None else jax.vmap(look)(state)
    return observation, following, reward, value, seen, running & ~done
