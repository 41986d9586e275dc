"""The environments as Gymnasium's: a batch of them stepped as one, and a single one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnax.environments.environment import EnvParams, EnvState
from jaxtyping import Array, Bool, Float, Int, Key, UInt8

from envs.adapters.flat import flatten
from envs.base import Environment, Observation

FlatOrDict = np.ndarray | dict[str, np.ndarray]


class _Batch(NamedTuple):
    """What one step hands to the next."""

    state: EnvState  # every leaf has the sub-environments in front
    key: Key[Array, ""]
    episode: Int[Array, " envs"]  # place in the list of episodes, where there is one
    over: Bool[Array, " envs"]  # whether the last step ended the episode


class _Transition(NamedTuple):
    """What a step shows; every leaf has the sub-environments in front."""

    observation: Observation | Array
    reward: Float[Array, " envs"]
    terminated: Bool[Array, " envs"]
    truncated: Bool[Array, " envs"]
    info: dict[str, Array]
    restarted: Bool[Array, " envs"]  # whether the observation is the first of a new episode
    final: Observation | Array | None  # the observation before that restart, where both fall in the same step


class GymnasiumVectorEnv(VectorEnv):
    """``num_envs`` copies of an environment as one ``gymnasium.vector.VectorEnv``, stepped by one compiled call.

    Observations are the environment's own entries, or with ``flat`` one vector of the schema's columns in their order.
    Their space is unbounded, for the schema's ranges are those of ordinary operation and not limits. Actions have the
    schema's bounds. What is returned are NumPy arrays of the caller's own.

    Episodes are drawn at random from ``params``; or, where ``seeds`` are listed, they are the reference's own episodes
    for these seeds: sub-environment i plays the i-th, then the (i + num_envs)-th and so on, from the front again after
    the last. An episode is truncated after ``params.max_steps_in_episode`` steps.

    ``reset(seed=...)`` makes all that follows repeatable; listed episodes then begin with the first. ``reset()`` goes
    on: to other episodes, the next ones in the list.

    Autoreset, in ``metadata["autoreset_mode"]``, is Gymnasium's: with ``NEXT_STEP`` the step after an episode's end
    ignores its action and returns a new episode's first observation, with reward 0; with ``SAME_STEP`` the ending step
    itself returns it, and ``info`` has ``final_obs`` and ``final_info``. ``DISABLED`` is not offered.
    """

    def __init__(
        self,
        env: Environment,
        num_envs: int,
        params: EnvParams | None = None,
        *,
        seeds: Sequence[int] | None = None,
        flat: bool = False,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        render_fps: int = 50,
    ) -> None:
        """Compile nothing yet; the first ``reset`` and ``step`` do.

        Args:
            env: an environment of this package.
            num_envs: number of copies.
            params: the environment's parameters; by default its own, or those of ``seeds``. Given together with
                ``seeds`` they must hold exactly these episodes, e.g. under a condition or another time limit.
            seeds: the reference's episodes to play in this order.
            flat: whether observations are one vector each.
            autoreset_mode: ``NEXT_STEP`` or ``SAME_STEP``.
            render_mode: ``None`` or ``"rgb_array"``.
            render_fps: frames per second, for those who record videos.

        Raises:
            ValueError: the mode of autoreset or of rendering is not offered, or ``seeds`` is empty.
        """
        mode = AutoresetMode(autoreset_mode)
        if mode is AutoresetMode.DISABLED:
            raise ValueError("autoreset cannot be disabled: choose AutoresetMode.NEXT_STEP or SAME_STEP")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is 'rgb_array' or None, not {render_mode!r}")
        if seeds is not None and not len(seeds):
            raise ValueError("seeds must list at least one episode; leave it out to draw them from params")
        if params is None:
            params = env.default_params if seeds is None else env.params_for_seeds(seeds)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": render_fps, "autoreset_mode": mode}
        self._env, self._params = env, params
        self._batch: _Batch | None = None

        begin, step = _programs(env, num_envs, None if seeds is None else len(seeds), flat, mode)
        self._begin = jax.jit(begin)
        self._step = jax.jit(step, donate_argnums=0)

        self.single_observation_space = _observation_space(env, params, flat)
        self.single_action_space = _action_space(env)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[FlatOrDict, dict[str, Any]]:
        """Start an episode in every sub-environment; ``info`` is empty.

        Raises:
            ValueError: there are options, for none is understood; a partial reset is not offered either.
        """
        super().reset(seed=seed)
        if options:
            raise ValueError(f"no option of reset is understood here: {sorted(options)}")
        if seed is not None or self._batch is None:
            key, episode = jax.random.key(int(self.np_random.integers(2**31))), jnp.arange(self.num_envs)
        else:
            key, episode = self._batch.key, self._batch.episode + self.num_envs
        self._batch, observation = self._begin(key, episode, self._params)
        return _to_numpy(observation), {}

    def step(
        self, actions: Float[np.ndarray, "envs action"]
    ) -> tuple[
        FlatOrDict,
        Float[np.ndarray, " envs"],
        Bool[np.ndarray, " envs"],
        Bool[np.ndarray, " envs"],
        dict[str, Any],
    ]:
        """Advance every sub-environment by one step.

        Returns:
            observations, rewards, whether each episode terminated, whether it was truncated, and ``info``: the
            environment's own entries, each with a mask ``_<entry>`` of the sub-environments that it applies to, and
            with ``SAME_STEP``, where an episode ended, ``final_obs`` (an object for each sub-environment) and
            ``final_info``.

        Raises:
            gymnasium.error.ResetNeeded: ``reset`` has not been called, or ``close`` has.
            ValueError: the actions' shape is not the action space's.
        """
        if self._batch is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        actions = np.asarray(actions, self.action_space.dtype)
        if actions.shape != self.action_space.shape:
            raise ValueError(f"actions have the shape {actions.shape}, not {self.action_space.shape}")
        self._batch, transition = self._step(self._batch, actions, self._params)
        final, seen = transition.final, _to_numpy(transition._replace(final=None))
        info = _masked(seen.info, ~seen.restarted)
        if final is not None and seen.restarted.any():
            info["final_info"], info["_final_info"] = _masked(seen.info, seen.restarted), seen.restarted
            info["final_obs"], info["_final_obs"] = _objects(_to_numpy(final), seen.restarted), seen.restarted.copy()
        return seen.observation, seen.reward, seen.terminated, seen.truncated, info

    def render(self) -> tuple[UInt8[np.ndarray, "height width 3"], ...] | None:
        """A picture of the first sub-environment alone, or ``None`` without a render mode.

        Raises:
            gymnasium.error.ResetNeeded: ``reset`` has not been called, or ``close`` has.
        """
        if self.render_mode is None:
            return None
        if self._batch is None:
            raise gymnasium.error.ResetNeeded("call reset before render")
        first = jax.tree.map(lambda leaf: leaf[:1], self._batch.state)
        return (self._env.render(first, self._params)[0],)

    def close_extras(self, **kwargs: Any) -> None:
        """Let go of the state on the device."""
        self._batch = None


class GymnasiumEnv(gymnasium.Env):
    """One environment as a ``gymnasium.Env``; what the arguments mean is said of ``GymnasiumVectorEnv``."""

    def __init__(
        self,
        env: Environment,
        params: EnvParams | None = None,
        *,
        seeds: Sequence[int] | None = None,
        flat: bool = False,
        render_mode: str | None = None,
        render_fps: int = 50,
    ) -> None:
        """See ``GymnasiumVectorEnv``."""
        self._batch_of_one = GymnasiumVectorEnv(
            env, 1, params, seeds=seeds, flat=flat, render_mode=render_mode, render_fps=render_fps
        )
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": render_fps}
        self.render_mode = render_mode
        self.observation_space = self._batch_of_one.single_observation_space
        self.action_space = self._batch_of_one.single_action_space

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[FlatOrDict, dict[str, Any]]:
        """Start an episode: with a seed repeatably, without one the next."""
        super().reset(seed=seed)
        observation, info = self._batch_of_one.reset(seed=seed, options=options)
        return _first(observation), info

    def step(self, action: Float[np.ndarray, " action"]) -> tuple[FlatOrDict, float, bool, bool, dict[str, Any]]:
        """Advance by one step; after an episode's end, call ``reset`` first."""
        observation, reward, terminated, truncated, info = self._batch_of_one.step(np.asarray(action)[None])
        own = {name: value[0] for name, value in info.items() if not name.startswith("_")}
        return _first(observation), float(reward[0]), bool(terminated[0]), bool(truncated[0]), own

    def render(self) -> UInt8[np.ndarray, "height width 3"] | None:
        """A picture, or ``None`` without a render mode."""
        frames = self._batch_of_one.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Let go of the state on the device."""
        self._batch_of_one.close()


def _programs(
    env: Environment, num_envs: int, listed: int | None, flat: bool, mode: AutoresetMode
) -> tuple[Callable[..., tuple[_Batch, Any]], Callable[..., tuple[_Batch, _Transition]]]:
    """The pure functions behind ``reset`` and ``step``; ``listed`` is the number of listed episodes."""

    def show(observation: Observation) -> Observation | Array:
        return flatten(env.schema, observation) if flat else observation

    def start(key: Array, episode: Array, params: EnvParams) -> tuple[Observation | Array, EnvState]:
        if listed is None:
            observation, state = env.reset_env(key, params)
        else:
            observation, state = env.reset_to(params, episode)
        return show(observation), state

    def start_all(key: Array, episode: Array, params: EnvParams) -> tuple[Observation | Array, EnvState]:
        return jax.vmap(start, (0, 0, None))(jax.random.split(key, num_envs), episode, params)

    def in_list(episode: Array) -> Array:
        return episode if listed is None else episode % listed

    def begin(key: Array, episode: Array, params: EnvParams) -> tuple[_Batch, Observation | Array]:
        key, to_start = jax.random.split(key)
        episode = in_list(episode)
        observation, state = start_all(to_start, episode, params)
        return _Batch(state=state, key=key, episode=episode, over=jnp.zeros(num_envs, bool)), observation

    def advance(key: Array, state: EnvState, action: Array, params: EnvParams) -> Any:
        observation, state, reward, terminated, info = env.step_env(key, state, action, params)
        return show(observation), state, reward, terminated, env.is_truncated(state, params), info

    def step(batch: _Batch, actions: Array, params: EnvParams) -> tuple[_Batch, _Transition]:
        key, to_step, to_start = jax.random.split(batch.key, 3)
        keys = jax.random.split(to_step, num_envs)
        stepped, state, reward, terminated, truncated, info = jax.vmap(advance, (0, 0, 0, None))(
            keys, batch.state, actions, params
        )
        if mode is AutoresetMode.NEXT_STEP:
            restarting = batch.over
            reward = jnp.where(restarting, 0, reward)
            terminated, truncated = terminated & ~restarting, truncated & ~restarting
            over = terminated | truncated
        else:
            restarting, over = terminated | truncated, jnp.zeros(num_envs, bool)

        def restart() -> Any:
            episode = in_list(batch.episode + num_envs)
            started = (*start_all(to_start, episode, params), episode)
            return jax.vmap(lambda flag, new, old: jax.tree.map(lambda a, b: jnp.where(flag, a, b), new, old))(
                restarting, started, going_on
            )

        going_on = (stepped, state, batch.episode)
        observation, state, episode = jax.lax.cond(restarting.any(), restart, lambda: going_on)
        transition = _Transition(
            observation=observation,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            info=info,
            restarted=restarting,
            final=stepped if mode is AutoresetMode.SAME_STEP else None,
        )
        return _Batch(state=state, key=key, episode=episode, over=over), transition

    return begin, step


def _observation_space(env: Environment, params: EnvParams, flat: bool) -> spaces.Space:
    entries = jax.eval_shape(lambda: env.reset_to(params, jnp.zeros((), int))[0])
    if flat:
        entries = jax.eval_shape(lambda observation: flatten(env.schema, observation), entries)
        return _unbounded(entries)
    return spaces.Dict({key: _unbounded(entry) for key, entry in entries.items()})


def _unbounded(entry: jax.ShapeDtypeStruct) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, entry.shape, entry.dtype)


def _action_space(env: Environment) -> spaces.Box:
    low, high = (np.array([getattr(c, bound) for c in env.schema.action], np.float32) for bound in ("low", "high"))
    return spaces.Box(low, high, dtype=np.float32)


def _to_numpy(tree: Any) -> Any:
    """Copies, for what NumPy sees of a JAX array cannot be written to and PyTorch warns of that."""
    return jax.tree.map(np.array, jax.device_get(tree))


def _masked(info: Mapping[str, np.ndarray], mask: np.ndarray) -> dict[str, Any]:
    """Gymnasium's form of ``info``: zero where it does not apply, and a mask beside each entry."""
    masked: dict[str, Any] = {}
    for name, values in info.items():
        applies = mask.reshape(-1, *(1,) * (values.ndim - 1))
        masked[name], masked[f"_{name}"] = np.where(applies, values, np.zeros_like(values)), mask.copy()
    return masked


def _objects(observation: FlatOrDict, mask: np.ndarray) -> np.ndarray:
    """One observation for each sub-environment in ``mask``, ``None`` for the others."""
    objects = np.full(len(mask), None, object)
    for i in np.flatnonzero(mask):
        objects[i] = jax.tree.map(lambda leaf, i=i: leaf[i], observation)
    return objects


def _first(observation: FlatOrDict) -> FlatOrDict:
    return jax.tree.map(lambda leaf: leaf[0], observation)
