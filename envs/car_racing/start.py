"""Where an episode starts: slightly twisted.

CarRacing-v3 creates the wheels turned with the hull but not moved with its rotation, and runs one step inside
``reset``. In that step nothing moves; the wheels touch their first tiles where they were created, and Box2D's
position solver then pulls the parts together, which turns the hull by a few milliradians. This runs once per
track, on the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from envs.car_racing import contact
from envs.car_racing.dynamics import (
    ARMS,
    BODY_MASSES,
    HULL_CENTRE,
    HULL_INERTIA,
    HULL_MASS,
    MASS,
    WHEEL_MASS,
    WHEEL_POSITIONS,
)
from envs.car_racing.track import Track

LINEAR_SLOP = 0.005  # Box2D's tolerance of a joint's gap, m
POSITION_ITERATIONS = 60


@dataclass(frozen=True)
class Start:
    """State of an episode at its first observation.

    Attributes:
        x: centre of mass of the car (m).
        y: centre of mass of the car (m).
        angle: of the hull (rad).
        wheel_angle: of all four wheels relative to the hull (rad).
        nearest: index of the node nearest to the hull's position.
        on_road: wheels that touched a tile where they were created.
        visited: tiles touched by then.
        touching: wheel/tile contacts of the pose in which the first step begins, as ``contact.touching``.
    """

    x: float
    y: float
    angle: float
    wheel_angle: float
    nearest: int
    on_road: Bool[np.ndarray, " 4"]
    visited: Int[np.ndarray, " touched"]
    touching: Bool[np.ndarray, " 4 6"]


def start_of(track: Track) -> Start:
    """The pose and contacts with which CarRacing-v3's ``reset`` returns on this track."""
    _, heading, x, y = track.nodes[0].tolist()
    wheels = np.array([x, y]) + WHEEL_POSITIONS
    hull = np.array([x, y]) + _rotate(heading, np.array([0.0, HULL_CENTRE]))
    centre = BODY_MASSES @ np.vstack([wheels, hull]) / MASS  # the position solver moves bodies, not their mean

    created = _contacts(track, np.array([x, y]), heading, wheels, 0.0)
    tiles = (_nearest(track, np.array([x, y])) + contact.FIRST_TILE + np.arange(contact.WINDOW)) % len(track)
    angle = _settle(wheels, hull, heading)
    centred = centre + _rotate(angle, ARMS[4] - np.array([0.0, HULL_CENTRE]))
    settled = centred + (_rotate(angle, WHEEL_POSITIONS.T)).T
    return Start(
        x=float(centre[0]),
        y=float(centre[1]),
        angle=angle,
        wheel_angle=heading - angle,
        nearest=_nearest(track, centred),
        on_road=np.asarray(created.any(axis=1)),
        visited=np.unique(tiles[created.any(axis=0)]),
        touching=_contacts(track, centred, angle, settled, heading - angle),
    )


def _settle(wheels: np.ndarray, hull: np.ndarray, angle: float) -> float:
    """Hull angle after Box2D's position iterations over the joints, the last created first."""
    wheels, hull = wheels.copy(), hull.copy()
    for _ in range(POSITION_ITERATIONS):
        worst = 0.0
        for i in (3, 2, 1, 0):
            arm = _rotate(angle, WHEEL_POSITIONS[i] - np.array([0.0, HULL_CENTRE]))
            gap = wheels[i] - hull - arm
            worst = max(worst, math.hypot(*gap))
            across = np.array([-arm[1], arm[0]])
            mobility = (1 / HULL_MASS + 1 / WHEEL_MASS) * np.eye(2) + np.outer(across, across) / HULL_INERTIA
            impulse = -np.linalg.solve(mobility, gap)
            hull -= impulse / HULL_MASS
            angle -= float(across @ impulse) / HULL_INERTIA
            wheels[i] += impulse / WHEEL_MASS
        if worst <= LINEAR_SLOP:
            break
    return angle


def _rotate(angle: float, vector: np.ndarray) -> np.ndarray:
    sin, cos = math.sin(angle), math.cos(angle)
    return np.array([cos * vector[0] - sin * vector[1], sin * vector[0] + cos * vector[1]])


def _nearest(track: Track, position: np.ndarray) -> int:
    return int(np.argmin(((track.nodes[:, 2:] - position) ** 2).sum(axis=1)))


def _contacts(track: Track, position: np.ndarray, angle: float, wheels: np.ndarray, wheel_angle: float) -> np.ndarray:
    window = _nearest(track, position) + contact.FIRST_NODE + np.arange(contact.WINDOW + 1)
    nodes = track.nodes[window % len(track)]
    x, y = _rotate(-angle, (nodes[:, 2:] - position).T)
    wheel_x, wheel_y = _rotate(-angle, (wheels - position).T)
    return np.asarray(contact.touching(x, y, nodes[:, 1] - angle, wheel_x, wheel_y, np.full(4, wheel_angle)))
