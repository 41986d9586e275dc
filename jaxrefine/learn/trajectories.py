"""The trajectories of an update: every step of every episode, as the gradient needs them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float, Int, Key

from jaxrefine.learn.rollout import act, advance, fold_in_each
from jaxrefine.learn.types import Environment, Info, Observation, Params, Policy

Arrays = dict[str, Any]


@struct.dataclass
class Batch:
    """One update's trajectories, T steps of E episodes.

    What stands in steps that are not ``valid`` means nothing and has no effect.
    """

    observation: Observation  # (T, ..., E)
    action: Float[Array, "T a E"]
    reward: Float[Array, "T E"]
    valid: Bool[Array, "T E"]


def sample(
    env: Environment,
    policy: Policy,
    env_params: Any,
    params: Params,
    key: Key[Array, ""],
    starts: int | Int[Array, ""],
    *,
    groups: int,
    episodes: int,
    steps: int,
) -> Batch:
    """Drive ``episodes`` trajectories from each of ``groups`` initial conditions, drawn with replacement.

    Under ``vmap`` over parameters and keys, the environment still sees one flat batch, and every array of it is
    contiguous in the episodes; JAX's own rule would step as many narrow batches, several times slower on a CPU.

    Args:
        env: static.
        policy: static; the pure function of a program.
        env_params: the episodes' shared parameters.
        params: one set of policy parameters.
        key: of this batch.
        starts: the initial conditions are the first so many episodes of ``env_params``.
        groups: static.
        episodes: static.
        steps: static; the most steps of an episode, T.
    """

    def drive(env_params: Any, params: Params, keys: Array, starts: Array) -> Arrays:
        return _drive(env, policy, env_params, params, keys, starts, groups, episodes, steps)

    @custom_vmap
    def one(env_params: Any, params: Params, key: Array, starts: Array) -> Arrays:
        alone = drive(env_params, jax.tree.map(lambda leaf: leaf[None], params), key[None], starts)
        return jax.tree.map(lambda leaf: leaf[0], alone)

    @one.def_vmap
    def several(size: int, mapped: Any, env_params: Any, params: Params, key: Array, starts: Array) -> Any:
        mapped_env, mapped_params, mapped_key, mapped_starts = mapped
        if mapped_starts or any(jax.tree.leaves(mapped_env)):
            axes = jax.tree.map(lambda flag: 0 if flag else None, tuple(mapped))
            result = jax.vmap(one.fun, axes, axis_size=size)(env_params, params, key, starts)
        else:
            params, keys = jax.tree.map(
                lambda flag, leaf: leaf if flag else jnp.broadcast_to(leaf, (size, *leaf.shape)),
                (mapped_params, mapped_key),
                (params, key),
            )
            result = drive(env_params, params, keys, starts)
        return result, jax.tree.map(lambda _: True, result)

    return Batch(**one(env_params, params, key, jnp.asarray(starts)))


def _drive(
    env: Environment,
    policy: Policy,
    env_params: Any,
    params: Params,
    keys: Key[Array, "seeds"],
    starts: Int[Array, ""],
    groups: int,
    episodes: int,
    steps: int,
) -> Arrays:
    """The batches of several seeds, ``(seeds, T, ..., E)``, as a dictionary of `Batch`'s fields.

    In a dictionary because JAX builds what a mapped function returns anew with a bool for every array.
    """
    seeds, each = len(keys), groups * episodes

    def draw(key: Array) -> tuple[Array, Array]:
        start_key, drive_key = jax.random.split(key)
        index = jnp.repeat(jax.random.randint(start_key, (groups,), 0, starts), episodes)
        return index, jax.random.split(drive_key, each)

    index, episode_keys = jax.tree.map(lambda leaf: leaf.reshape(seeds * each), jax.vmap(draw)(keys))
    observation, state = jax.vmap(env.reset_to, (None, 0))(env_params, index)
    over_episodes = jax.vmap(act, (None, None, None, 0, 0))
    over_seeds = jax.vmap(over_episodes, (None, 0, None, 0, 0))

    def actions(keys: Key[Array, "E"], observation: Observation) -> tuple[Array, Array, Info]:
        apart = jax.tree.map(lambda leaf: leaf.reshape(seeds, each, *leaf.shape[1:]), (keys, observation))
        acted = over_seeds(policy, params, jnp.asarray(True), *apart)
        return jax.tree.map(lambda leaf: leaf.reshape(seeds * each, *leaf.shape[2:]), acted)

    def step(carry: tuple[Observation, Any, Array], t: Array) -> tuple[tuple[Observation, Any, Array], Arrays]:
        observation, state, running = carry
        step_keys = fold_in_each(episode_keys, t)
        following, state, seen, _ = advance(env, actions, env_params, step_keys, observation, state, running)
        kept = {"observation": seen.observation, "action": seen.action, "reward": seen.reward, "valid": seen.valid}
        return (following, state, running & ~seen.done), jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), kept)

    start = (observation, state, jnp.ones(seeds * each, bool))
    _, logged = jax.lax.scan(step, start, jnp.arange(steps))
    valid, first = logged["valid"], jax.tree.map(lambda leaf: leaf[:1], logged)
    first["reward"] = jnp.zeros_like(first["reward"])
    first["valid"] = jnp.zeros_like(first["valid"])

    def sound(leaf: Array, instead: Array) -> Array:
        """With the first step in the place of what follows an episode's end.

        A policy may have no finite value or gradient at what a finished episode shows, and 0 * inf is NaN.
        """
        kept = jnp.where(valid.reshape(steps, *(1,) * (leaf.ndim - 2), -1), leaf, instead)
        return jnp.moveaxis(kept.reshape(*kept.shape[:-1], seeds, each), -2, 0)

    return jax.tree.map(sound, logged, first)
