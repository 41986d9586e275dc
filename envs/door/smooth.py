"""The arm's kinematics, inertia and bias forces, with the batch in the trailing dimensions.

Recursive Newton-Euler and composite rigid bodies (Featherstone, Rigid Body Dynamics Algorithms, 2008) for the one chain
there is: seven hinges, the hand, two fingers sliding along the hand's y. All motions, momenta and inertias are taken
about the point where the hand is, so that the wrist's small inertias are not drowned by the arm's length in float32.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from envs.door import model
from envs.door.vectors import constant, cross, dot, keep, rotate

ARM = 7
FINGERS = 2


class Pose(NamedTuple):
    """Where the arm is.

    Attributes:
        hand: position of the hand, m; shape (3,).
        axes: its axes as columns; shape (3, 3).
        axis: the joints' axes; shape (3, 7).
        anchor: points on them, m; shape (3, 7).
        turns: the links' axes as columns; shape (3, 3, 7).
    """

    hand: Array
    axes: Array
    axis: Array
    anchor: Array
    turns: Array


class _Links(NamedTuple):
    position: np.ndarray  # of link in its parent, and of the hand in the last link (8, 3)
    turn: np.ndarray  # (8, 3, 3)
    mass: np.ndarray  # (7,)
    centre: np.ndarray  # in the link (7, 3)
    inertia: np.ndarray  # about the centre, in the link's axes (7, 3, 3)
    finger_mass: np.ndarray  # (2,)
    finger_place: np.ndarray  # in the hand, slides at 0 (2, 3)
    finger_inertia: np.ndarray  # in the hand's axes (2, 3, 3)
    door_inertia: float  # about the hinge


@cache
def _links() -> _Links:
    m = model.load()

    def inertia(body: int) -> np.ndarray:
        axes = model.rotation(m.body_iquat[body])
        return axes @ np.diag(m.body_inertia[body]) @ axes.T

    arm = [m.body(f"right_l{i}").id for i in range(ARM)]
    chain = [*arm, m.body("hand").id]
    fingers = [m.body("rightclaw").id, m.body("leftclaw").id]
    door = m.body("door_link").id
    x, y, _ = m.body_ipos[door]
    return _Links(
        position=m.body_pos[chain].copy(),
        turn=np.stack([model.rotation(m.body_quat[b]) for b in chain]),
        mass=m.body_mass[arm].copy(),
        centre=m.body_ipos[arm].copy(),
        inertia=np.stack([inertia(b) for b in arm]),
        finger_mass=m.body_mass[fingers].copy(),
        finger_place=m.body_pos[fingers].copy(),
        finger_inertia=np.stack([inertia(b) for b in fingers]),
        door_inertia=float(inertia(door)[2, 2] + m.body_mass[door] * (x**2 + y**2)),
    )


def pose(joints: Float[Array, "7 *batch"]) -> Pose:
    """Forward kinematics; angles in rad."""
    links = _links()
    zero, one = jnp.zeros_like(joints[0]), jnp.ones_like(joints[0])
    axes = jnp.stack([jnp.stack([one, zero, zero]), jnp.stack([zero, one, zero]), jnp.stack([zero, zero, one])])
    position = jnp.stack([zero, zero, zero])
    sine, cosine = keep((jnp.sin(joints), jnp.cos(joints)), joints)
    turns, anchors = [], []
    for i in range(ARM):
        position = position + _apply(axes, links.position[i])
        x, y, z = (_apply(axes, links.turn[i][:, k]) for k in range(3))
        axes = jnp.stack([x * cosine[i] + y * sine[i], y * cosine[i] - x * sine[i], z], 1)
        axes, position = keep((axes, position), joints)
        turns.append(axes)
        anchors.append(position)
    hand = position + _apply(axes, links.position[ARM])
    hand_axes = jnp.stack([_apply(axes, links.turn[ARM][:, k]) for k in range(3)], 1)
    all_turns = jnp.stack(turns, 2)
    return keep(Pose(hand, hand_axes, all_turns[:, 2], jnp.stack(anchors, 1), all_turns), joints)


def inertia_and_bias(
    where: Pose, fingers: Float[Array, "2 *batch"], qvel: Float[Array, "10 *batch"]
) -> tuple[Float[Array, "10 10 *batch"], Float[Array, "10 *batch"]]:
    """Joint-space inertia M (armature included), and the Coriolis, centrifugal and gravity forces.

    Args:
        where: the arm is.
        fingers: positions of their slides, m.
        qvel: rates of seven hinges, two slides and the door.
    """
    links, m = _links(), model.load()
    angular = where.axis
    linear = cross(angular, where.hand[:, None] - where.anchor)
    slide = where.axes[:, 1]
    # inertia of links and fingers about the hand: mass, first moment, second moment
    arm = _about(
        links.mass,
        where.anchor - where.hand[:, None] + rotate(where.turns, constant(links.centre.T, qvel)),
        _turned(where.turns, links.inertia),
    )
    place = constant(links.finger_place.T, qvel) + jnp.stack([0 * fingers, fingers, 0 * fingers])
    hand_axes = jnp.repeat(where.axes[:, :, None], FINGERS, 2)
    tips = _about(
        links.finger_mass,
        rotate(hand_axes, place),
        _turned(hand_axes, links.finger_inertia),
    )
    angular, linear, arm, tips = keep((angular, linear, arm, tips), qvel)

    rate = qvel[:ARM]
    omega, velocity = _running(angular * rate), _running(linear * rate)
    alpha = _running(cross(omega, angular) * rate)
    gravity = constant(-m.opt.gravity, qvel)[:, None]
    acceleration = gravity + _running((cross(omega, linear) + cross(velocity, angular)) * rate)
    omega, velocity, alpha, acceleration = keep((omega, velocity, alpha, acceleration), qvel)
    force, torque = _newton_euler(arm, omega, velocity, alpha, acceleration)
    tip_rate = qvel[ARM : ARM + FINGERS]
    last = (x[:, -1:] for x in (omega, velocity, alpha, acceleration))
    tip_omega, tip_velocity, tip_alpha, tip_acceleration = last
    tip_force, tip_torque = _newton_euler(
        tips,
        tip_omega,
        tip_velocity + slide[:, None] * tip_rate,
        tip_alpha,
        tip_acceleration + cross(tip_omega, slide[:, None]) * tip_rate,
    )
    tip_force, tip_torque, force, torque = keep((tip_force, tip_torque, force, torque), qvel)
    force = _from_the_end(force, tip_force)
    torque = _from_the_end(torque, tip_torque)
    bias = jnp.concatenate(
        [dot(angular, torque) + dot(linear, force), dot(slide[:, None], tip_force), jnp.zeros_like(qvel[:1])]
    )

    whole = tuple(_from_the_end(a, b) for a, b in zip(arm, tips, strict=True))
    whole = keep(whole, qvel)
    momentum, spin = _momentum(whole, angular, linear)
    tip_momentum = tips[0] * slide[:, None]
    tip_spin = cross(tips[1], jnp.broadcast_to(slide[:, None], tips[1].shape))
    momentum, spin = keep((jnp.concatenate([momentum, tip_momentum], 1), jnp.concatenate([spin, tip_spin], 1)), qvel)
    zero = jnp.zeros_like(qvel[0])
    rows = []
    for i in range(10):
        row = []
        for j in range(10):
            low, high = min(i, j), max(i, j)
            if high < ARM + FINGERS and low < ARM:
                entry = dot(angular[:, low], spin[:, high]) + dot(linear[:, low], momentum[:, high])
            elif low == high and high < ARM + FINGERS:
                entry = tips[0][high - ARM] + zero
            elif low == high:
                entry = links.door_inertia + zero
            else:
                entry = zero
            row.append(entry + float(m.dof_armature[i]) if i == j else entry)
        rows.append(jnp.stack(row))
    return jnp.stack(rows), bias


Inertia = tuple[Array, Array, Array]


def _about(mass: np.ndarray, centre: Array, second: Array) -> Inertia:
    """Mass (n,), first (3, n) and second (6, n) moments about the origin of ``centre``."""
    m = constant(mass, centre[0]) + 0 * centre[0]
    x, y, z = centre
    moved = jnp.stack([y * y + z * z, x * x + z * z, x * x + y * y, -x * y, -x * z, -y * z])
    return m, m * centre, second + m * moved


def _turned(axes: Array, inertia: np.ndarray) -> Array:
    """Constant inertias (n, 3, 3) in turned frames, as xx, yy, zz, xy, xz, yz."""
    values = constant(np.moveaxis(inertia, 0, -1), axes, 3)  # (3, 3, n)
    half = [[sum(axes[i, k] * values[k, j] for k in range(3)) for j in range(3)] for i in range(3)]
    pairs = ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))
    return jnp.stack([sum(half[i][k] * axes[j, k] for k in range(3)) for i, j in pairs])


def _momentum(inertia: Inertia, angular: Array, linear: Array) -> tuple[Array, Array]:
    m, first, (xx, yy, zz, xy, xz, yz) = inertia
    x, y, z = angular
    spin = jnp.stack([xx * x + xy * y + xz * z, xy * x + yy * y + yz * z, xz * x + yz * y + zz * z])
    return m * linear + cross(angular, first), spin + cross(first, linear)


def _newton_euler(
    inertia: Inertia, omega: Array, velocity: Array, alpha: Array, acceleration: Array
) -> tuple[Array, Array]:
    momentum, spin = _momentum(inertia, omega, velocity)
    force, torque = _momentum(inertia, alpha, acceleration)
    return force + cross(omega, momentum), torque + cross(omega, spin) + cross(velocity, momentum)


def _running(values: Array) -> Array:
    """Running sum along the chain, (3, 7)."""
    total, sums = values[:, 0], [values[:, 0]]
    for i in range(1, values.shape[1]):
        total = total + values[:, i]
        sums.append(total)
    return jnp.stack(sums, 1)


def _from_the_end(links: Array, tips: Array) -> Array:
    """Sums of what each joint of the arm carries; the link's dimension is the last before the batch's."""
    axis = links.ndim - tips.ndim + (0 if links.shape[0] == ARM else 1)
    take = (lambda a, i: a[i]) if axis == 0 else (lambda a, i: a[:, i])
    total = take(tips, 0) + take(tips, 1)
    sums = []
    for i in reversed(range(ARM)):
        total = total + take(links, i)
        sums.append(total)
    return jnp.stack(sums[::-1], axis)


def _apply(axes: Array, vector: np.ndarray) -> Array:
    """A constant vector in the frame whose axes are the columns."""
    terms = [float(v) * axes[:, k] for k, v in enumerate(vector) if abs(v) > 1e-12]
    return sum(terms[1:], terms[0]) if terms else jnp.zeros_like(axes[:, 0])
