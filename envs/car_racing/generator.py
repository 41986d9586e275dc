"""New tracks on the device, so that training needs no host for them.

The algorithm is ``track``'s, step by step, for many tracks at once: every drive takes the most steps that one may
take, and its lap is cut out of it. Fed the host's uniform numbers it makes the host's tracks. In float64 they agree
to a picometre. In float32 nodes are mostly within a millimetre; where a comparison of the algorithm is decided by
rounding, which happens in one track of a thousand, a node more or less is cut out, a kerb comes or goes, or a bend
lies a metre aside. It is as good a track as the other.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from envs.car_racing.pool import MAX_NODES, Tracks, lay_out
from envs.car_racing.track import (
    CHECKPOINTS,
    DRIVE_LAPS,
    MAX_DRIVE,
    NODE_SPACING,
    SCALE,
    START_ALPHA,
    TRACK_RADIUS,
    TURN_RATE,
    kerbs,
)

UNIFORMS = 2 * CHECKPOINTS  # that one attempt draws
BATCH = 1024  # attempts at a time; their drives take 30 kB each
SPARE_ATTEMPTS = 64


class Checkpoints(NamedTuple):
    """Where drives go, in order; leaves are ``(12, attempt)``, in rad and m."""

    alpha: Array
    x: Array
    y: Array


class Drive(NamedTuple):
    """Drives under way; leaves are ``(attempt,)``."""

    x: Array
    y: Array
    beta: Array
    alpha: Array  # of the step before
    target: Array  # checkpoint
    laps: Array
    on_far_side: Array
    crossing: Array  # step at which the start's alpha was last crossed; -1: never
    crossing_before: Array


class Laps(NamedTuple):
    """What attempts gave."""

    x: Array  # (attempt, MAX_NODES), m
    y: Array
    beta: Array  # rad
    length: Array  # (attempt,), nodes
    closed: Array  # (attempt,), whether it is a track


@partial(jax.jit, static_argnames=("count", "max_attempts"))
def generate_tracks(key: Key[Array, ""], count: int, max_attempts: int | None = None) -> Tracks:
    """``count`` random tracks, distributed as CarRacing-v3's.

    One attempt in fifteen does not close and is passed over. The tracks are those of the first ``count`` attempts
    that close, and the i-th attempt draws its numbers from ``fold_in(key, i)``: with the same key, a smaller pool
    is the beginning of a larger one.

    Args:
        key: a typed key.
        count: tracks to make, at least 1.
        max_attempts: attempts to make at most; by default ``2 * count + 64``, which fall short with a probability
            below 1e-70. Where they do, the tracks made are repeated; where none is made, lengths are 0.

    Raises:
        ValueError: ``count`` is below 1.
    """
    if count < 1:
        raise ValueError(f"a pool needs at least one track; {count} were asked for")
    limit = 2 * count + SPARE_ATTEMPTS if max_attempts is None else max_attempts
    batch = min(BATCH, count + count // 8 + 8, limit)

    def unfinished(state: tuple[Int[Array, ""], Int[Array, ""], Laps]) -> Bool[Array, ""]:
        attempts, made, _ = state
        return (made < count) & (attempts < limit)

    def fill(state: tuple[Int[Array, ""], Int[Array, ""], Laps]) -> tuple[Int[Array, ""], Int[Array, ""], Laps]:
        attempts, made, pool = state
        numbers = attempts + jnp.arange(batch, dtype=jnp.int32)
        laps = _laps(jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i), (UNIFORMS,)))(numbers))
        closed = laps.closed & (numbers < limit)
        place = made + jnp.cumsum(closed, dtype=jnp.int32) - 1
        place = jnp.where(closed, place, count)  # out of range, as is what comes after the last: dropped
        pool = jax.tree.map(lambda old, new: old.at[place].set(new, mode="drop"), pool, laps)
        return attempts + batch, made + jnp.sum(closed, dtype=jnp.int32), pool

    empty = jax.tree.map(
        lambda leaf: jnp.zeros((count, *leaf.shape[1:]), leaf.dtype),
        jax.eval_shape(_laps, jax.ShapeDtypeStruct((1, UNIFORMS), jnp.result_type(float))),
    )
    _, made, pool = jax.lax.while_loop(unfinished, fill, (jnp.int32(0), jnp.int32(0), empty))
    again = jnp.arange(count, dtype=jnp.int32) % jnp.clip(made, 1, count)
    return _tracks(jax.tree.map(lambda leaf: leaf[again], pool))


@jax.jit
def tracks_from_uniforms(
    uniforms: Float[Array, "attempt 24"],
) -> tuple[Tracks, Bool[Array, " attempt"]]:
    """One attempt for each row of numbers from [0, 1), in the order in which ``track.attempt`` draws them.

    Returns:
        tracks, and whether each closes; one that does not is to be thrown away.
    """
    laps = _laps(uniforms)
    return _tracks(laps), laps.closed


def _tracks(laps: Laps) -> Tracks:
    return lay_out(laps.length, laps.x, laps.y, laps.beta, kerbs(laps.beta, laps.length))


def _laps(uniforms: Float[Array, "attempt 24"]) -> Laps:
    """The last full lap of each drive."""
    checkpoints = _checkpoints(uniforms)
    zero = jnp.zeros(uniforms.shape[0], uniforms.dtype)
    none = jnp.full(zero.shape, -1, jnp.int32)
    start = Drive(
        x=zero + 1.5 * TRACK_RADIUS,
        y=zero,
        beta=zero,
        alpha=zero + jnp.inf,  # the first step crosses nothing
        target=none + 1,
        laps=none + 1,
        on_far_side=none == 0,
        crossing=none,
        crossing_before=none,
    )
    end, (x, y, beta) = jax.lax.scan(partial(_step, checkpoints), start, jnp.arange(MAX_DRIVE, dtype=jnp.int32))
    length = end.crossing - 1 - end.crossing_before
    inside = (end.crossing_before >= 0) & (length > 0) & (length <= MAX_NODES)
    length = jnp.where(inside, length, 1)
    nodes = jnp.maximum(end.crossing_before, 0) + jnp.arange(MAX_NODES, dtype=jnp.int32)[:, None]
    x, y, beta = (values.at[nodes, jnp.arange(len(zero))].get(mode="clip").T for values in (x, y, beta))
    gap_x, gap_y = (values[:, 0] - jnp.take_along_axis(values, length[:, None] - 1, axis=1)[:, 0] for values in (x, y))
    gap = jnp.hypot(jnp.cos(beta[:, 0]) * gap_x, jnp.sin(beta[:, 0]) * gap_y)
    return Laps(x, y, beta, length, inside & (gap <= NODE_SPACING))


def _checkpoints(uniforms: Float[Array, "attempt 24"]) -> Checkpoints:
    noise, share = uniforms.reshape(-1, CHECKPOINTS, 2).transpose(2, 1, 0)
    number = jnp.arange(CHECKPOINTS)[:, None]
    even = 2 * math.pi * number.astype(uniforms.dtype) / CHECKPOINTS
    # the stretch between the last and the first is where the cars start
    fixed = (number == 0) | (number == CHECKPOINTS - 1)
    alpha = even + jnp.where(fixed, 0.0, 2 * math.pi / CHECKPOINTS * noise)
    radius = jnp.where(fixed, 1.5 * TRACK_RADIUS, TRACK_RADIUS / 3 + (TRACK_RADIUS - TRACK_RADIUS / 3) * share)
    return Checkpoints(alpha, radius * jnp.cos(alpha), radius * jnp.sin(alpha))


def _step(
    checkpoints: Checkpoints, drive: Drive, number: Int[Array, ""]
) -> tuple[Drive, tuple[Float[Array, " attempt"], Float[Array, " attempt"], Float[Array, " attempt"]]]:
    """The next node of each drive, whose steps count until its fifth lap has ended."""
    counts = drive.laps < DRIVE_LAPS
    alpha = jnp.arctan2(drive.y, drive.x)
    lap_ends = drive.on_far_side & (alpha > 0)
    on_far_side = (drive.on_far_side & ~lap_ends) | (alpha < 0)
    alpha = jnp.where(alpha < 0, alpha + 2 * math.pi, alpha)

    # the first checkpoint not yet passed; past the last of a lap, alpha starts again one turn lower, below the first
    index = jnp.arange(CHECKPOINTS, dtype=jnp.int32)[:, None]
    target = jnp.min(jnp.where((index >= drive.target) & (alpha <= checkpoints.alpha), index, CHECKPOINTS), axis=0)
    alpha = jnp.where(target == CHECKPOINTS, alpha - 2 * math.pi, alpha)
    target = jnp.where(target == CHECKPOINTS, 0, target)
    target_x, target_y = (
        jnp.sum(jnp.where(index == target, values, 0), axis=0) for values in (checkpoints.x, checkpoints.y)
    )

    right_x, right_y = jnp.cos(drive.beta), jnp.sin(drive.beta)
    aside = SCALE * (right_x * (target_x - drive.x) + right_y * (target_y - drive.y))
    # alpha jumps by one turn at most
    before = jnp.where(drive.beta - alpha > 1.5 * math.pi, drive.beta - 2 * math.pi, drive.beta)
    before = jnp.where(before - alpha < -1.5 * math.pi, before + 2 * math.pi, before)
    turn = jnp.sign(aside) * jnp.minimum(TURN_RATE, 0.001 * jnp.abs(aside))
    beta = before - jnp.where(jnp.abs(aside) > 0.3, turn, 0.0)
    x, y = drive.x - right_y * NODE_SPACING, drive.y + right_x * NODE_SPACING

    crosses = counts & (drive.alpha <= START_ALPHA) & (alpha > START_ALPHA)
    moved = Drive(
        x=x,
        y=y,
        beta=beta,
        alpha=alpha,
        target=target,
        laps=drive.laps + lap_ends,
        on_far_side=on_far_side,
        crossing=jnp.where(crosses, number, drive.crossing),
        crossing_before=jnp.where(crosses, drive.crossing, drive.crossing_before),
    )
    return moved, (x, y, before * 0.5 + beta * 0.5)
