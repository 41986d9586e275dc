"""Where an episode starts: slightly twisted.

CarRacing-v3 creates the wheels turned with the hull but not moved with its rotation, and runs one step inside
``reset``. In that step nothing moves; the wheels touch their first tiles where they were created, and Box2D's
position solver then pulls the parts together, which turns the hull by a few hundredths of a radian.

The functions take NumPy or JAX arrays; tracks are in the last dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from envs.car_racing import contact
from envs.car_racing.contact import Array
from envs.car_racing.dynamics import (
    BODY_MASSES,
    CENTRE,
    HULL_CENTRE,
    HULL_INERTIA,
    HULL_MASS,
    MASS,
    WHEEL_MASS,
    WHEEL_POSITIONS,
)

NODE_0 = -contact.FIRST_NODE  # its place in the window
TILE_0 = -contact.FIRST_TILE
LINEAR_SLOP = 0.005  # Box2D's tolerance of a joint's gap, m
POSITION_ITERATIONS = 60
JOINT_ORDER = (3, 2, 1, 0)  # Box2D solves the joint created last first


@dataclass(frozen=True)
class Starts:
    """Episodes at their first observation, one per track.

    The node nearest to the hull is then always node 0, from which the hull has moved by millimetres.

    Attributes:
        x: centre of mass of the car (m).
        y: centre of mass of the car (m).
        angle: of the hull (rad).
        wheel_angle: of all four wheels relative to the hull (rad).
        on_road: wheels that touched a tile where they were created.
        visited: tiles of the window round node 0 that were touched by then.
        touching: wheel/tile contacts of the pose in which the first step begins, as ``contact.touching``.
    """

    x: Float[Array, " track"]
    y: Float[Array, " track"]
    angle: Float[Array, " track"]
    wheel_angle: Float[Array, " track"]
    on_road: Bool[Array, "4 track"]
    visited: Bool[Array, "6 track"]
    touching: Bool[Array, "4 6 track"]


def starts_on(x: Float[Array, "7 track"], y: Float[Array, "7 track"], beta: Float[Array, "7 track"]) -> Starts:
    """The poses and contacts with which CarRacing-v3's ``reset`` returns.

    Args:
        x: nodes of the contact window round each track's node 0 (m).
        y: likewise.
        beta: headings of the road at these nodes (rad).
    """
    xp: Any = x.__array_namespace__()
    heading = beta[NODE_0]
    zero = xp.zeros_like(heading)
    # everything is placed from node 0, which costs float32 no digits
    away_x, away_y = x - x[NODE_0], y - y[NODE_0]
    wheels = xp.stack([xp.stack([zero + right, zero + ahead]) for right, ahead in WHEEL_POSITIONS.tolist()])
    hull = _rotate(heading, xp.stack([zero, zero + HULL_CENTRE]))
    centre = xp.tensordot(BODY_MASSES[:4] / MASS, wheels, axes=1) + (HULL_MASS / MASS) * hull

    created = _contacts(away_x, away_y, beta, heading, _rotate(-heading, wheels.swapaxes(0, 1)), zero)
    # Where the loop closes backwards the tile's quad is turned over, and the test of contacts, which supposes its
    # winding, does not see it; Box2D, which takes the corners' hull, does.
    under_car = (xp.arange(contact.WINDOW) == TILE_0)[:, None]

    angle = _settle(wheels, hull, heading)
    x_moved, y_moved = centre - _rotate(angle, xp.stack([zero, zero + CENTRE]))  # bodies moved, not their mean
    nominal = WHEEL_POSITIONS.T[:, :, None] + zero
    settled = _contacts(away_x - x_moved, away_y - y_moved, beta, angle, nominal, heading - angle)
    return Starts(
        x=x[NODE_0] + centre[0],
        y=y[NODE_0] + centre[1],
        angle=angle,
        wheel_angle=heading - angle,
        on_road=created.any(axis=1),
        visited=created.any(axis=0) | under_car,
        touching=settled,
    )


def _settle(wheels: Array, hull: Array, angle: Array) -> Array:
    """Hull angle after Box2D's position iterations over the joints, which stop when every gap is small.

    Args:
        wheels: positions (4, 2, track) of the wheels (m).
        hull: position (2, track) of the hull's centre of mass (m).
        angle: of the hull (rad).
    """
    xp: Any = angle.__array_namespace__()
    inverse_mass = 1 / HULL_MASS + 1 / WHEEL_MASS

    def iterate(state: Any) -> Any:
        count, wheels, hull, angle, done = state
        placed, new_hull, new_angle, worst = [*wheels], hull, angle, xp.zeros_like(angle)
        for i in JOINT_ORDER:
            right, ahead = WHEEL_POSITIONS[i].tolist()
            anchor = xp.stack([xp.full_like(angle, right), xp.full_like(angle, ahead - HULL_CENTRE)])
            arm = _rotate(new_angle, anchor)
            gap = placed[i] - new_hull - arm
            worst = xp.maximum(worst, xp.hypot(gap[0], gap[1]))
            across = xp.stack([-arm[1], arm[0]])
            # the inverse of inverse_mass * identity + across across^T / HULL_INERTIA
            along = (across * gap).sum(axis=0) / (inverse_mass * HULL_INERTIA + (across**2).sum(axis=0))
            impulse = (across * along - gap) / inverse_mass
            new_hull = new_hull - impulse / HULL_MASS
            new_angle = new_angle - (across * impulse).sum(axis=0) / HULL_INERTIA
            placed[i] = placed[i] + impulse / WHEEL_MASS
        return (
            count + 1,
            xp.where(done, wheels, xp.stack(placed)),
            xp.where(done, hull, new_hull),
            xp.where(done, angle, new_angle),
            done | (worst <= LINEAR_SLOP),
        )

    def unfinished(state: Any) -> Any:
        return (state[0] < POSITION_ITERATIONS) & ~state[-1].all()

    state: Any = (0, wheels, hull, angle, xp.zeros(angle.shape, bool))
    if xp is jnp:
        return jax.lax.while_loop(unfinished, iterate, state)[3]
    while unfinished(state):
        state = iterate(state)
    return np.asarray(state[3])


def _rotate(angle: Array, vector: Array) -> Any:
    xp: Any = angle.__array_namespace__()
    sin, cos = xp.sin(angle), xp.cos(angle)
    return xp.stack([cos * vector[0] - sin * vector[1], sin * vector[0] + cos * vector[1]])


def _contacts(x: Array, y: Array, beta: Array, angle: Array, wheels: Array, wheel_angle: Array) -> Any:
    """Contacts of wheels (2, 4, track) given in the car's frame; nodes are given from its position."""
    xp: Any = angle.__array_namespace__()
    x, y = _rotate(-angle, xp.stack([x, y]))
    steering = xp.broadcast_to(wheel_angle, wheels[0].shape)
    return contact.touching(x, y, beta - angle, wheels[0], wheels[1], steering)
