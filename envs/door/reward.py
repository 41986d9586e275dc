"""Meta-World's reward (version 2) and success of door-open-v3, as functions of what is observed.

Source: ``SawyerDoorEnvV3.compute_reward`` and ``reward_utils`` of Meta-World 3.1.1. Every array may carry trailing
batch dimensions.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

SUCCESS_REWARD = 10.0
SUCCESS_DISTANCE = 0.08  # of the handle from its target along x, m
FUNNEL_RADIUS = 0.12  # round the handle; farther off, the hand should stay above a floor, m
VALUE_AT_MARGIN = 0.1


def reward(
    hand: Float[Array, "3 *batch"],
    handle: Float[Array, "3 *batch"],
    target: Float[Array, "3 *batch"],
    angle: Float[Array, "*batch"],
    grip: Float[Array, "*batch"],
) -> Float[Array, "*batch"]:
    """Reward of a step, in [0, 10].

    Args:
        hand: position after the step, m.
        handle: position after the step, m.
        target: of the handle, m.
        angle: of the door's hinge after the step, rad; 0 when shut, negative when open.
        grip: the action's last component, as it was given.
    """
    grab = (jnp.clip(grip, -1.0, 1.0) + 1.0) / 2.0
    shaped = 2.0 * _hamacher(_ready(hand, handle), grab) + 8.0 * _opened(angle)
    return jnp.where(success(handle, target), SUCCESS_REWARD, shaped)


def success(handle: Float[Array, "3 *batch"], target: Float[Array, "3 *batch"]) -> Bool[Array, "*batch"]:
    """Whether the handle is near its target along x."""
    return jnp.abs(handle[0] - target[0]) <= SUCCESS_DISTANCE


def _ready(hand: Float[Array, "3 *batch"], handle: Float[Array, "3 *batch"]) -> Float[Array, "*batch"]:
    """How near the hand is to where pulling begins, in [0, 1]; below the floor of the approach it is held back."""
    x, y, z = hand - handle
    radius = _norm(x + 0.05, y)
    outside = radius > FUNNEL_RADIUS
    floor = jnp.where(outside, 0.04 * jnp.log(jnp.where(outside, radius - FUNNEL_RADIUS, 1.0)) + 0.4, 0.0)
    below = floor > hand[2]
    margin = jnp.where(below, floor / 2.0, 1.0)  # the floor is above the hand, so above 0
    above_floor = jnp.where(below, _tolerance(floor - hand[2], 0.01, margin), 1.0)
    in_place = _tolerance(_norm(x, y - 0.03, z + 0.01), FUNNEL_RADIUS / 2.0, 0.5)
    return _hamacher(above_floor, in_place)


def _opened(angle: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """How far the door is open, in [0, 1]: a fifth for moving it at all, the rest for 120 degrees."""
    started = (angle < -math.pi / 90.0).astype(angle.dtype)
    return 0.2 * started + 0.8 * _tolerance(2.0 * math.pi / 3.0 + angle, 0.5, math.pi / 3.0)


def _tolerance(
    x: Float[Array, "*batch"], upper: float, margin: Float[Array, "*batch"] | float
) -> Float[Array, "*batch"]:
    """1 for x in [0, upper]; beyond, a long-tailed fall to `VALUE_AT_MARGIN` at ``margin`` from the interval."""
    distance = jnp.maximum(jnp.maximum(-x, x - upper), 0.0) / margin
    return 1.0 / (distance**2 * (1.0 / VALUE_AT_MARGIN - 1.0) + 1.0)


def _hamacher(a: Float[Array, "*batch"], b: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Hamacher product, a soft "and" of two numbers in [0, 1]."""
    denominator = a + b - a * b
    positive = denominator > 0
    return jnp.where(positive, a * b / jnp.where(positive, denominator, 1.0), 0.0)


def _norm(*components: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Euclidean length, with gradient 0 at 0."""
    square = sum(component**2 for component in components)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
