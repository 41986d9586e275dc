"""Meta-World's own policy for door-open-v3, in JAX: it hooks the gripper behind the handle and pulls."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from envs.door.schema import HAND, HANDLE
from envs.door.vectors import constant

GAIN = 25.0  # of the hand's way to where it should be, 1/m
GRASP = (-0.05, 0.0, 0.0)  # where to take hold of the handle, from what is observed of it, m
BESIDE, FAR = (0.06, 0.02, 0.2), 0.12  # from there, in the air, while the hand is farther off than this across, m
ABOVE, HIGH = (0.06, 0.02, 0.0), 0.04  # from there, lowered, while the hand is farther off than this in height, m


def scripted(observation: Float[Array, "39"]) -> Float[Array, "4"]:
    """The action of SawyerDoorOpenV3Policy, clipped to [-1, 1]."""
    hand = observation[HAND]
    grasp = observation[HANDLE] + constant(GRASP, hand)
    offset = jnp.where(jnp.abs(hand[2] - grasp[2]) > HIGH, constant(ABOVE, hand), 0.0)
    offset = jnp.where(jnp.linalg.norm(hand[:2] - grasp[:2]) > FAR, constant(BESIDE, hand), offset)
    return jnp.append(jnp.clip(GAIN * (grasp + offset - hand), -1, 1), 1.0)
