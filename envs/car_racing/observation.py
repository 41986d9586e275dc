"""What the car sees: the twelve tiles ahead of it in its own frame, and its indicators.

The columns, their units and signs are in ``schema``. Batch in the trailing dimensions (see ``dynamics``).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Int, UInt32

from envs.base import Observation
from envs.batching import Leaf
from envs.car_racing import contact
from envs.car_racing.dynamics import WHEEL_POSITIONS, Car, hull_position, hull_speed
from envs.car_racing.nearest import take
from envs.car_racing.pool import COLUMNS, LEAD, Tracks
from envs.car_racing.schema import LENGTH_SCALE, TILES
from envs.car_racing.trigonometry import sin_cos

NODES = LEAD + TILES + 1


class Window(struct.PyTreeNode):
    """The road round the car: nodes ``nearest + FIRST_NODE`` onwards, in the car's frame."""

    x: Leaf  # (16,), rightward of the hull's position, m
    y: Leaf  # (16,), forward, m
    heading: Leaf  # (16,), direction of the road relative to the hull, rad
    kerbs: Leaf  # bit k: node nearest + k carries a kerb


def window(tracks: Tracks, track: Int[jax.Array, " *batch"], nearest: Int[jax.Array, " *batch"], car: Car) -> Window:
    """The road round a node, seen from the car."""
    x, y = hull_position(car)
    first = track * COLUMNS + nearest
    columns = first + jnp.arange(NODES, dtype=first.dtype).reshape(-1, *(1,) * first.ndim)
    away_x = take(tracks.x, columns) - x
    away_y = take(tracks.y, columns) - y
    sin, cos = sin_cos(car.angle)
    return Window(
        x=cos * away_x + sin * away_y,
        y=cos * away_y - sin * away_x,
        heading=take(tracks.beta, columns) - car.angle,
        kerbs=take(tracks.kerbs, first + LEAD),
    )


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
        jnp.stack([car.front_angle, car.front_angle - car.front_spread, car.rear_angle, car.rear_angle]),
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
