"""What the car sees: the twelve tiles ahead of it in its own frame, and its indicators.

The columns, their units and signs are in ``schema``. Batch in the trailing dimensions (see ``dynamics``).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Float, Int, UInt32

from envs.base import Observation
from envs.car_racing import contact
from envs.car_racing.batching import Leaf
from envs.car_racing.dynamics import WHEEL_POSITIONS, Car, hull_position, hull_speed
from envs.car_racing.pool import COLUMNS, LEAD, MAX_NODES, Tracks
from envs.car_racing.schema import LENGTH_SCALE, TILES
from envs.car_racing.trigonometry import sin_cos

NODES = LEAD + TILES + 1
NODE_BITS = 511  # enough for MAX_NODES
CHUNK = 32


class Window(struct.PyTreeNode):
    """The road round the car: nodes ``nearest + FIRST_NODE`` onwards, in the car's frame."""

    nearest: Leaf  # index of the node nearest to the hull's position
    x: Leaf  # (16,), rightward of the hull's position, m
    y: Leaf  # (16,), forward, m
    heading: Leaf  # (16,), direction of the road relative to the hull, rad
    kerbs: Leaf  # bit k: node nearest + k carries a kerb


def look(tracks: Tracks, track: Int[jax.Array, " *batch"], car: Car) -> Window:
    """Find the node nearest to the car and the road round it."""
    return window(tracks, track, nearest_node(tracks, track, *hull_position(car)), car)


def window(tracks: Tracks, track: Int[jax.Array, " *batch"], nearest: Int[jax.Array, " *batch"], car: Car) -> Window:
    """The road round a node, seen from the car."""
    x, y = hull_position(car)
    first = track * COLUMNS + nearest
    columns = first + jnp.arange(NODES, dtype=first.dtype).reshape(-1, *(1,) * first.ndim)
    away_x = _take(tracks.x, columns) - x
    away_y = _take(tracks.y, columns) - y
    sin, cos = sin_cos(car.angle)
    return Window(
        nearest=nearest,
        x=cos * away_x + sin * away_y,
        y=cos * away_y - sin * away_x,
        heading=_take(tracks.beta, columns) - car.angle,
        kerbs=_take(tracks.kerbs, first + LEAD),
    )


def nearest_node(
    tracks: Tracks, track: Int[jax.Array, "*batch"], x: Float[jax.Array, "*batch"], y: Float[jax.Array, "*batch"]
) -> Int[jax.Array, "*batch"]:
    """Index of the node nearest to a position, among all of the track's.

    A minimum over integers that hold a squared distance in their upper bits and the node in their lower ones is
    a plain reduction, several times as fast as ``argmin``; what the rounded distance leaves open, the exact
    distances of the node found and of its neighbours decide. Chunks keep those integers in the cache, and a loop
    makes XLA's CPU compiler compute the position once rather than inline it into every distance.
    """
    chunk = jnp.arange(CHUNK, dtype=jnp.int32).reshape(-1, *(1,) * x.ndim)

    def search(i: Int[jax.Array, ""], best: Int[jax.Array, "*batch"]) -> Int[jax.Array, "*batch"]:
        nodes = i * CHUNK + chunk
        squared = _squared_distance(tracks, track, nodes, x, y).astype(jnp.float32)
        keys = (jax.lax.bitcast_convert_type(squared, jnp.int32) & ~NODE_BITS) | nodes
        return jnp.minimum(best, jnp.min(keys, axis=0))

    far = jnp.full(x.shape, jnp.iinfo(jnp.int32).max)
    found = jax.lax.fori_loop(0, MAX_NODES // CHUNK, search, far) & NODE_BITS
    neighbours = found + jnp.arange(-1, 2, dtype=jnp.int32).reshape(-1, *(1,) * x.ndim)
    before, here, after = _squared_distance(tracks, track, neighbours, x, y)
    step = jnp.where((before < here) & (before <= after), -1, jnp.where(after < here, 1, 0))
    nearest, length = found + step, tracks.length[track]
    return jnp.where(nearest < 0, nearest + length, jnp.where(nearest >= length, nearest - length, nearest))


def _squared_distance(
    tracks: Tracks, track: Int[jax.Array, "*batch"], nodes: Int[jax.Array, "node *#batch"], x: jax.Array, y: jax.Array
) -> Float[jax.Array, "node *batch"]:
    columns = track * COLUMNS + LEAD + nodes
    return (_take(tracks.x, columns) - x) ** 2 + (_take(tracks.y, columns) - y) ** 2


def _take(values: jax.Array, places: Int[jax.Array, "*shape"]) -> jax.Array:
    """Elements by their place in row-major order, which the caller knows to exist."""
    return values.reshape(-1).at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)


def touching(road: Window, car: Car) -> UInt32[jax.Array, " *batch"]:
    """Contacts of the four wheels with the window's six tiles, one bit each: ``6 * wheel + tile``."""
    nodes = slice(0, contact.WINDOW + 1)
    shape = (4, *(1,) * car.x.ndim)
    wheels = jnp.asarray(WHEEL_POSITIONS, car.x.dtype)
    flags = contact.touching(
        road.x[nodes],
        road.y[nodes],
        road.heading[nodes],
        wheels[:, 0].reshape(shape),
        wheels[:, 1].reshape(shape),
        jnp.stack([car.front_angle, car.front_angle, car.rear_angle, car.rear_angle]),
    )
    # as a dot product XLA computes the flags once; as shifts it would inline them into every use
    flags = flags.reshape(-1, *car.x.shape).astype(jnp.float32)
    weights = 2.0 ** jnp.arange(len(flags), dtype=jnp.float32)
    return jnp.tensordot(weights, flags, axes=1, precision="highest").astype(jnp.uint32)


def observe(road: Window, car: Car) -> Observation:
    """The observation: ``tiles`` of shape ``(12, 4, *batch)`` and ``indicators`` of shape ``(7, *batch)``."""
    behind = road.y[LEAD] < 0
    ahead = [
        jnp.where(behind, values[LEAD + 1 : LEAD + 1 + TILES], values[LEAD : LEAD + TILES])
        for values in (road.x, road.y, road.heading)
    ]
    half_turns = ahead[2] / jnp.pi
    theta = half_turns - 2 * jnp.ceil((half_turns - 1) / 2)
    bits = jnp.arange(TILES, dtype=jnp.uint32).reshape(-1, *(1,) * car.x.ndim)
    kerbs = (road.kerbs >> behind.astype(jnp.uint32) >> bits) & 1
    tiles = [LENGTH_SCALE * ahead[0], LENGTH_SCALE * ahead[1], theta, kerbs.astype(car.x.dtype)]
    indicators = [
        hull_speed(car) / 100,
        car.front_angle / jnp.pi,
        car.yaw_rate / 10,
        *(car.wheel_speeds[wheel] / 200 for wheel in range(4)),
    ]
    return {"tiles": jnp.stack(tiles, axis=1), "indicators": jnp.stack(indicators)}
