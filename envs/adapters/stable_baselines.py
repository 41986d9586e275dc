"""The environments as Stable-Baselines3's ``VecEnv``, which is not Gymnasium's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from jaxtyping import Bool, Float
from stable_baselines3.common.vec_env import VecEnv

from envs.adapters.gymnasium import FlatOrDict, GymnasiumVectorEnv


class StableBaselinesVecEnv(VecEnv):
    """A ``GymnasiumVectorEnv`` that resets in the same step, handed on; ``close`` closes it.

    ``infos`` are empty but where an episode ends: ``terminal_observation`` and ``TimeLimit.truncated`` stand there.
    """

    def __init__(self, envs: GymnasiumVectorEnv) -> None:
        """Wrap ``envs``.

        Raises:
            ValueError: they do not reset in the step that ends an episode.
        """
        if envs.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise ValueError("Stable-Baselines3 needs GymnasiumVectorEnv(..., autoreset_mode='SameStep')")
        self._envs = envs
        self._actions = np.zeros(envs.action_space.shape, envs.action_space.dtype)
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> FlatOrDict:
        """Start an episode in every sub-environment, repeatably after ``seed``."""
        observation, _ = self._envs.reset(seed=self._seeds[0])
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: Float[np.ndarray, "envs action"]) -> None:
        """Take the actions; ``step_wait`` does the work."""
        self._actions = actions

    def step_wait(
        self,
    ) -> tuple[FlatOrDict, Float[np.ndarray, " envs"], Bool[np.ndarray, " envs"], list[dict[str, Any]]]:
        """Observations, rewards, whether each episode ended, and ``infos``."""
        observation, reward, terminated, truncated, info = self._envs.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(terminated | truncated):
            infos[i] = {
                "terminal_observation": info["final_obs"][i],
                "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
            }
        return observation, reward, terminated | truncated, infos

    def close(self) -> None:
        """Close what is wrapped."""
        self._envs.close()

    def get_images(self) -> list[np.ndarray | None]:
        """The first sub-environment's picture, the only one that is drawn."""
        return list(self._envs.render() or ())

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """An attribute of what is wrapped, once for each sub-environment."""
        return [getattr(self._envs, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        """Sub-environments have no attributes of their own to set."""
        raise AttributeError("the sub-environments are one batch and have no attributes of their own")

    def env_method(
        self, method_name: str, *args: Any, indices: int | Iterable[int] | None = None, **kwargs: Any
    ) -> list[Any]:
        """Sub-environments have no methods of their own to call."""
        raise AttributeError("the sub-environments are one batch and have no methods of their own")

    def env_is_wrapped(self, wrapper_class: type, indices: int | Iterable[int] | None = None) -> list[bool]:
        """No sub-environment is wrapped."""
        return [False] * len(list(self._get_indices(indices)))
