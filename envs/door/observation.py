"""What Meta-World reports of a state: 18 numbers a frame, as ``schema`` names them.

Every array may carry trailing batch dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from envs.door import model
from envs.door.schema import FRAME

OPEN = 0.1  # gap of the fingers that counts as 1, m


class Handle(NamedTuple):
    """Where the door's handle is: position, m, and orientation as x, y, z, w."""

    position: Float[Array, "3 *batch"]
    quaternion: Float[Array, "4 *batch"]


def handle(door: Float[Array, "3 *batch"], angle: Float[Array, "*batch"]) -> Handle:
    """The handle of a door that stands at ``door`` and is turned by ``angle``, rad, about its hinge."""
    site = model.load().site("handle")
    x, y, z = (float(v) for v in site.pos)
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    hinge = [door[i] + model.HINGE_OFFSET[i] for i in range(3)]
    position = jnp.stack([hinge[0] + cosine * x - sine * y, hinge[1] + sine * x + cosine * y, hinge[2] + z + 0 * angle])
    qw, qx, qy, qz = (float(v) for v in site.quat)
    sine, cosine = jnp.sin(angle / 2), jnp.cos(angle / 2)
    quaternion = jnp.stack(
        [cosine * qx - sine * qy, cosine * qy + sine * qx, cosine * qz + sine * qw, cosine * qw - sine * qz]
    )
    return Handle(position, quaternion)


def frame(hand: Float[Array, "3 *batch"], fingers: Float[Array, "2 *batch"], seen: Handle) -> Float[Array, "18 *batch"]:
    """One frame.

    Args:
        hand: position, m; reported no farther out than Meta-World's bounds.
        fingers: positions of the right and the left finger's slides, m.
        seen: the handle.
    """
    low, high = (
        jnp.asarray(bound, hand.dtype).reshape(3, *(1,) * (hand.ndim - 1))
        for bound in (model.HAND_LOW, model.HAND_HIGH)
    )
    gap = jnp.abs(OPEN + fingers[1] - fingers[0])
    opening = jnp.clip(gap / OPEN, 0.0, 1.0)
    unused = jnp.zeros((FRAME - 11, *hand.shape[1:]), hand.dtype)
    return jnp.concatenate([jnp.clip(hand, low, high), opening[None], seen.position, seen.quaternion, unused])
