"""What a person's keys and sticks ask of the car: (steer, gas, brake), as the environment takes them."""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Literal

import numpy as np
from jaxtyping import Float

from envs.car_racing.dynamics import STEER_LIMIT

Control = Literal["left", "right", "gas", "brake"]

KEY_BRAKE = 0.8  # as in Gymnasium's own keyboard; the wheels lock from 0.9
WHEELBASE = 3.24  # m
GRIP = 110.0  # sideways acceleration that a held key asks for at most, m/s^2; the stock car can do about 200
EASING = 1.5  # how much of the throttle is taken back per radian of the front wheels
# by how much steer, gas and brake move in a step of 0.02 s towards a held key, and back from a released one
PRESS = np.array([0.025, 0.08, 0.1])
RELEASE = np.array([0.05, 0.2, 0.25])
DEAD_STICK, DEAD_TRIGGER = 0.08, 0.03  # worn sticks do not rest at 0
STICK_EXPONENT = 1.5  # finer near the middle


def from_keys(held: Set[Control]) -> Float[np.ndarray, " 3"]:
    """Keys as they are: all or nothing."""
    return np.array([float("right" in held) - float("left" in held), "gas" in held, KEY_BRAKE * ("brake" in held)])


def assisted(now: Float[np.ndarray, " 3"], held: Set[Control], speed: float, wheels: float) -> Float[np.ndarray, " 3"]:
    """Move the controls by one step towards what the keys ask for, as hands and feet would.

    A held key turns the front wheels no further than the tyres can use at this speed, and the throttle gives way to
    steering: neither can be said by pressing a key halfway. The limit is on the wheels as they stand, not on the
    command, so that a car which pulls to one side can be held straight.

    Args:
        now: steer, gas and brake of the step before.
        held: the keys.
        speed: of the car, m/s.
        wheels: angle of the front wheels, rad, positive to the right as the command is.
    """
    wanted = from_keys(held)
    if wanted[0]:
        useful = min(STEER_LIMIT, math.atan(WHEELBASE * GRIP / max(speed, 1.0) ** 2))
        wanted[0] = np.clip(now[0] + wanted[0] * useful - wheels, -1.0, 1.0)
    wanted[1] *= max(0.0, 1.0 - EASING * abs(wheels))
    pace = np.where(np.abs(wanted) > np.abs(now), PRESS, RELEASE)
    return now + np.clip(wanted - now, -pace, pace)


def from_gamepad(stick: float, gas: float, brake: float) -> Float[np.ndarray, " 3"]:
    """A gamepad's stick and its triggers.

    Args:
        stick: -1 left to 1 right. A little over half of it asks for the stock car's full lock; the rest is for a car
            that pulls to one side.
        gas: a trigger, 0 to 1.
        brake: a trigger, 0 to 1.
    """
    steer = math.copysign(_beyond(abs(stick), DEAD_STICK) ** STICK_EXPONENT, stick)
    return np.array([steer, _beyond(gas, DEAD_TRIGGER), _beyond(brake, DEAD_TRIGGER)])


def _beyond(value: float, dead: float) -> float:
    """0 up to ``dead``, then in proportion up to 1."""
    return min(max((value - dead) / (1 - dead), 0.0), 1.0)
