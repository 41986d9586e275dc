"""Group-relative advantages: how much better a trajectory went on than the others of its group."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrefine.learn.types import Observation

EPSILON = 1e-8


def reward_to_go(
    reward: Float[Array, "T E"], valid: Bool[Array, "T E"], discount: float | Array
) -> Float[Array, "T E"]:
    """Discounted sum of an episode's rewards from each step on (equation 4, left)."""

    def back(following: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, valid = now
        total = jnp.where(valid, reward + discount * following, 0.0)
        return total, total

    return jax.lax.scan(back, jnp.zeros_like(reward[0]), (reward, valid), reverse=True)[1]


def by_step(
    returns: Float[Array, "T E"], valid: Bool[Array, "T E"], groups: int
) -> tuple[Float[Array, "T E"], Int[Array, "T E"]]:
    """Standardise among the trajectories of a group that are still running at the step (equation 4, right).

    Mean and deviation are the population's; a lone survivor's advantage is 0.

    Returns:
        Advantages, 0 where a trajectory has ended; and how many trajectories each was compared among.
    """
    grouped, running = (x.reshape(len(x), groups, -1) for x in (returns, valid))
    count = running.sum(-1, keepdims=True)
    safe = jnp.clip(count, 1)
    # Measured from one of them: equal returns differ from their own mean by its rounding, which would be the deviation
    # too, and every advantage 1.
    apart = grouped - jnp.max(jnp.where(running, grouped, -jnp.inf), -1, keepdims=True)
    mean = jnp.sum(jnp.where(running, apart, 0.0), -1, keepdims=True) / safe
    centred = jnp.where(running, apart - mean, 0.0)
    deviation = jnp.sqrt(jnp.sum(centred**2, -1, keepdims=True) / safe)
    return (centred / (deviation + EPSILON)).reshape(returns.shape), jnp.broadcast_to(count, grouped.shape).reshape(
        returns.shape
    )


def by_similar_state(
    observation: Observation, returns: Float[Array, "T E"], valid: Bool[Array, "T E"], groups: int, anchors: int
) -> tuple[Float[Array, "T E"], Int[Array, "T E"]]:
    """Standardise among all steps of a group whose observations lie nearest to the same anchor.

    The anchors are observations of the group's longest episode, evenly spaced in time; distances are Euclidean, each
    component divided by its deviation over the group. Compared with grouping by step, a fast trajectory is held
    against the others where it is, not when it is (the idea of GiGPO's anchor states, Feng et al. 2025, with nearest
    ones in place of equal ones).

    Returns:
        As `by_step`.
    """
    steps, total = valid.shape
    flat = jnp.concatenate([leaf.reshape(steps, -1, total) for leaf in observation.values()], 1)
    shape = (steps, groups, total // groups)
    exact = partial(jnp.einsum, precision="highest")  # a GPU would round the factors to ten bits otherwise

    def one(features: Array, returns: Array, valid: Array) -> tuple[Array, Array]:
        count = jnp.clip(valid.sum(), 1)
        mean = jnp.sum(jnp.where(valid, features, 0.0), (1, 2), keepdims=True) / count
        centred = jnp.where(valid, features - mean, 0.0)
        scaled = centred / (jnp.sqrt(jnp.sum(centred**2, (1, 2), keepdims=True) / count) + EPSILON)
        lengths = valid.sum(0)
        longest = jnp.argmax(lengths)
        at = (jnp.arange(anchors) * lengths[longest]) // anchors
        places = scaled[:, at, longest]
        # |x - a|^2 less |x|^2, which is the same for every anchor
        distance = jnp.sum(places**2, 0)[:, None, None] - 2 * exact("fa,fte->ate", places, scaled)
        cell = jnp.argmin(distance, 0)
        member = jax.nn.one_hot(cell, anchors, dtype=bool) & valid[..., None]
        size = member.sum((0, 1))
        apart = returns - jnp.max(jnp.where(member, returns[..., None], -jnp.inf), (0, 1))[cell]  # as in `by_step`
        average = exact("tea,te->a", member.astype(returns.dtype), jnp.where(valid, apart, 0.0)) / jnp.clip(size, 1)
        centred = jnp.where(valid, apart - average[cell], 0.0)
        variance = exact("tea,te->a", member.astype(returns.dtype), centred**2) / jnp.clip(size, 1)
        return centred / (jnp.sqrt(variance)[cell] + EPSILON), jnp.where(valid, size[cell], 0)

    by_group = jax.vmap(one, (2, 1, 1), (1, 1))
    advantage, count = by_group(
        jnp.moveaxis(flat, 1, 0).reshape(-1, *shape), returns.reshape(shape), valid.reshape(shape)
    )
    return advantage.reshape(valid.shape), count.reshape(valid.shape)
