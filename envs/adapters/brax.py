"""The environments as brax's, for what trains and wraps those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from brax.envs.base import Env, State
from gymnax.environments.environment import EnvParams, EnvState
from jaxtyping import Array, Float, UInt8

from envs.adapters.flat import flatten
from envs.base import Environment


class BraxEnv(Env):
    """One environment as a pure ``brax.envs.base.Env``; brax's wrappers batch, limit and reset it.

    ``obs`` is one vector, the schema's columns in their order. ``pipeline_state`` is the environment's own state.
    ``done`` is termination alone: in brax the time limit belongs to ``EpisodeWrapper``, which ``episode_length`` is
    for. ``metrics`` are the environment's ``info`` as real numbers; ``EpisodeWrapper`` adds them up over an episode.
    ``AutoResetWrapper`` begins every episode of a batch's member in that member's first state, here as with all of
    brax's environments, so a batch has as many different episodes as ``reset`` drew.

    brax's agents act in [-1, 1], and an ``Env`` does not say its actions' bounds. Actions are therefore mapped linearly
    from [-1, 1] to the bounds in the schema; with ``scaled=False`` they are the environment's own.
    """

    def __init__(self, env: Environment, params: EnvParams | None = None, *, scaled: bool = True) -> None:
        """Wrap ``env``.

        Args:
            env: an environment of this package.
            params: the environment's parameters, from whose episodes ``reset`` draws; by default its own.
            scaled: whether actions are mapped from [-1, 1] to the schema's bounds.
        """
        self._env = env
        self._params = env.default_params if params is None else params
        self._scaled = scaled
        low, high = (np.array([getattr(c, bound) for c in env.schema.action]) for bound in ("low", "high"))
        self._centre, self._reach = (high + low) / 2, (high - low) / 2

    def reset(self, rng: Array) -> State:
        """Start one episode, drawn with ``rng``: a key of either of JAX's kinds; brax's wrappers want the raw one."""
        rng, to_start = jax.random.split(rng)
        observation, state = self._env.reset_env(to_start, self._params)
        flat = flatten(self._env.schema, observation)
        action = jnp.zeros(self.action_size, flat.dtype)
        info = jax.eval_shape(self._env.step_env, rng, state, action, self._params)[4]
        zero = jnp.zeros((), flat.dtype)
        return State(
            pipeline_state=state,
            obs=flat,
            reward=zero,
            done=zero,
            metrics={name: jnp.zeros(value.shape, flat.dtype) for name, value in info.items()},
            info={"rng": rng},
        )

    def step(self, state: State, action: Float[Array, " action"]) -> State:
        """Advance by one step; what wrappers keep in ``info`` and ``metrics`` stays."""
        rng, to_step = jax.random.split(state.info["rng"])
        if self._scaled:
            action = (self._centre + self._reach * action).astype(state.obs.dtype)
        observation, pipeline_state, reward, terminated, info = self._env.step_env(
            to_step, state.pipeline_state, action, self._params
        )
        metrics = {name: value.astype(state.obs.dtype) for name, value in info.items()}
        return state.replace(
            pipeline_state=pipeline_state,
            obs=flatten(self._env.schema, observation),
            reward=reward,
            done=terminated.astype(reward.dtype),
            metrics={**state.metrics, **metrics},
            info={**state.info, "rng": rng},
        )

    @property
    def observation_size(self) -> int:
        """Number of the schema's observation columns."""
        return len(self._env.schema.observation)

    @property
    def action_size(self) -> int:
        """Number of action components."""
        return self._env.schema.action_size

    @property
    def backend(self) -> str:
        """What steps the environment: none of brax's physics pipelines."""
        return "gymnax"

    @property
    def episode_length(self) -> int:
        """The time limit in steps, for ``EpisodeWrapper``."""
        return int(self._params.max_steps_in_episode)

    def render(self, trajectory: Sequence[EnvState]) -> UInt8[np.ndarray, "time height width 3"]:
        """Draw an episode's ``pipeline_state``s, one frame each."""
        states: Any = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trajectory)
        return self._env.render(states, self._params)
