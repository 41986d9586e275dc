"""What holds the arm: MuJoCo's constraint rows for the weld, the limits and the contacts of a state.

The formulas are those of the chapter "Computation" of MuJoCo's documentation. Every array may carry trailing batch
dimensions.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from envs.door import contact, model
from envs.door.smooth import ARM, Pose
from envs.door.vectors import constant, cross, dot, keep

DOF = 10
RIGHT, LEFT, DOOR = 7, 8, 9
LIMITED = (1, 3, 4, RIGHT, LEFT, DOOR)
WELD_TARGET = (-(0.5**0.5), 0.0, -(0.5**0.5), 0.0)  # the mocap body's quaternion times the weld's
TORQUE_SCALE = 5.0
FRAME_SOLREF = np.array([0.01, 1.0])  # the model's own makes up for what MuJoCo now takes as depth, see `contact`


# how much of the door's motion is in a contact's: what the hand touches moves with the door or stands; the frame stands
DOOR_SHARE = np.array([*(float(b != "cabinet") for _ in contact.BOXES for b in contact.OBJECTS), -1.0, -1.0])


class Weld(NamedTuple):
    """Rows that draw the hand to the mocap body.

    Attributes:
        jacobian: (6, 10).
        reference: acceleration that a row strives for, MuJoCo's aref, (6,).
        stiffness: how hard, MuJoCo's D, (6,).
    """

    jacobian: Array
    reference: Array
    stiffness: Array


class Limits(NamedTuple):
    """Rows of the limits, each of one joint of `LIMITED`: sign (7,), reference and stiffness, 0 where none acts."""

    sign: Array
    reference: Array
    stiffness: Array


class Touches(NamedTuple):
    """Contacts, each with three rows along the world's axes.

    Attributes:
        jacobian: of the surfaces' relative velocity, (3, 10, contacts).
        normal: (3, contacts).
        reference: (3, contacts).
        stiffness: (contacts,), 0 where nothing touches.
        friction: coefficient, (contacts,).
    """

    jacobian: Array
    normal: Array
    reference: Array
    stiffness: Array
    friction: Array


class _Softness(NamedTuple):
    """MuJoCo's solref and solimp as numbers: stiffness K, damping B; impedance from low to high over a width."""

    spring: Any
    damper: Any
    low: Any
    high: Any
    width: Any

    def impedance(self, position: Array) -> Array:
        """Of a row violated by ``position``; midpoint 0.5 and power 2."""
        x = jnp.minimum(jnp.abs(position) / self.width, 1.0)
        return self.low + (self.high - self.low) * jnp.where(x < 0.5, 2 * x**2, 1 - 2 * (1 - x) ** 2)


def _softness(solref: np.ndarray, solimp: np.ndarray) -> _Softness:
    low, high, width = (float(x) for x in solimp[:3])
    first, second = (float(x) for x in solref)
    if first > 0:
        spring, damper = 1 / (high * first * second) ** 2, 2 / (high * first)
    else:
        spring, damper = -first / high**2, -second / high
    return _Softness(spring, damper, low, high, width)


class _Limit(NamedTuple):
    low: float
    high: float
    invweight: float
    softness: _Softness


@cache
def _limits() -> tuple[_Limit, ...]:
    m = model.load()
    return tuple(
        _Limit(
            m.jnt_range[j, 0],
            m.jnt_range[j, 1],
            float(m.dof_invweight0[j]),
            _softness(m.jnt_solref[j], m.jnt_solimp[j]),
        )
        for j in LIMITED
    )


class _Pairs(NamedTuple):
    """Of each contact, in the order of `contact.Contacts`."""

    friction: np.ndarray
    margin: np.ndarray
    invweight: np.ndarray
    softness: _Softness  # of arrays


@cache
def _pairs() -> _Pairs:
    m = model.load()
    named = {}
    for i in range(m.npair):
        named[m.geom(m.pair_geom1[i]).name, m.geom(m.pair_geom2[i]).name] = i
        named[m.geom(m.pair_geom2[i]).name, m.geom(m.pair_geom1[i]).name] = i
    frame = named["side", "panel"]
    order = [named[box, other] for box in contact.BOXES for other in contact.OBJECTS]
    soft = [_softness(m.pair_solref[i], m.pair_solimp[i]) for i in order]
    soft += [_softness(FRAME_SOLREF, m.pair_solimp[frame])] * 2
    order += [frame, frame]
    bodies = m.geom_bodyid[m.pair_geom1[order]], m.geom_bodyid[m.pair_geom2[order]]
    invweight = m.body_invweight0[bodies[0], 0] + m.body_invweight0[bodies[1], 0]
    invweight[-2:] /= 2  # each of the frame's contacts is two of the reference's
    return _Pairs(
        friction=m.pair_friction[order, 0].copy(),
        margin=m.pair_margin[order].copy(),
        invweight=invweight,
        softness=_Softness(*(np.array(x) for x in zip(*soft, strict=True))),
    )


def weld(where: Pose, mocap: Float[Array, "3 *batch"], qvel: Float[Array, "10 *batch"]) -> Weld:
    """The weld of the hand and the mocap body at ``mocap``, m."""
    m = model.load()
    position = cross(where.hand[:, None] - where.anchor, where.axis)
    target = constant(WELD_TARGET, where.hand) + 0 * where.hand[:1]
    w, x, y, z = _quaternion(where.axes)
    inverse = jnp.stack([w, -x, -y, -z])
    twist = jnp.concatenate([jnp.zeros_like(where.axis[:1]), -TORQUE_SCALE * where.axis])
    turn = 0.5 * _multiply(_multiply(inverse[:, None], twist), target[:, None])[1:]
    jacobian = jnp.concatenate([position, turn])
    jacobian = jnp.concatenate([jacobian, jnp.zeros((6, DOF - ARM, *qvel.shape[1:]), qvel.dtype)], 1)
    error = jnp.concatenate([mocap - where.hand, TORQUE_SCALE * _multiply(inverse, target)[1:]])
    soft = _softness(m.eq_solref[0], m.eq_solimp[0])
    impedance = soft.impedance(jnp.sqrt(dot(error, error)))
    invweight = constant(np.repeat(m.body_invweight0[m.body("hand").id], 3), error)
    rate = dot(jnp.swapaxes(jacobian, 0, 1), qvel[:, None])
    reference = -soft.damper * rate - soft.spring * impedance * error
    return Weld(jacobian, reference, impedance / (invweight * (1 - impedance)))


def limits(qpos: Float[Array, "10 *batch"], qvel: Float[Array, "10 *batch"]) -> Limits:
    """The limits of joints 1, 3 and 4 of the arm, of the fingers and of the door."""
    rows = []
    for dof, limit in zip(LIMITED, _limits(), strict=True):
        below, above = qpos[dof] - limit.low, limit.high - qpos[dof]
        position = jnp.minimum(below, above)
        sign = jnp.where(below < above, 1.0, -1.0)
        soft, impedance = limit.softness, limit.softness.impedance(position)
        reference = -soft.damper * sign * qvel[dof] - soft.spring * impedance * position
        rows.append((sign, reference, jnp.where(position < 0, impedance / (limit.invweight * (1 - impedance)), 0.0)))
    return Limits(*(jnp.stack(column) for column in zip(*rows, strict=True)))


def touches(
    where: Pose, found: contact.Contacts, hinge: Float[Array, "3 *batch"], qvel: Float[Array, "10 *batch"]
) -> Touches:
    """The contacts ``found`` of a hand that is ``where``, with a door hinged at ``hinge``, m."""
    pairs = _pairs()
    arm = cross(where.axis[:, :, None], found.point[:, None] - where.anchor[:, :, None])
    slide = where.axes[:, 1, None]  # both fingers slide along the hand's y
    fingers = [slide * constant(_column(box), qvel) for box in ("right", "left")]
    lever = found.point - hinge[:, None]
    door = jnp.stack([lever[1], -lever[0], jnp.zeros_like(lever[0])])  # less the door's own motion
    door = door * constant(DOOR_SHARE, qvel)
    hands = constant(np.abs(_column("")), qvel)
    jacobian = jnp.concatenate([arm * hands, *(column[:, None] for column in (*fingers, door))], 1)
    position = found.distance - constant(pairs.margin, qvel)
    soft = _Softness(*(constant(x, qvel) for x in pairs.softness))
    impedance = soft.impedance(position)
    stiffness = jnp.where(position < 0, impedance / (constant(pairs.invweight, qvel) * (1 - impedance)), 0.0)
    jacobian, spring = keep((jacobian, soft.spring * impedance * position), qvel)
    rate = dot(jnp.swapaxes(jacobian, 0, 1), qvel[:, None, None])
    reference = -soft.damper * rate - found.normal * spring
    friction = constant(pairs.friction, qvel) + 0 * position
    return Touches(jacobian, found.normal, reference, stiffness, friction)


def _column(box: str) -> np.ndarray:
    """1 for contacts of boxes whose name begins with ``box``, else 0."""
    return np.array([*(float(a.startswith(box)) for a in contact.BOXES for _ in contact.OBJECTS), 0.0, 0.0])


def _quaternion(axes: Array) -> tuple[Array, Array, Array, Array]:
    """Of a rotation near that of the mocap body, whose w is far from 0."""
    w = jnp.sqrt(jnp.maximum(1 + axes[0, 0] + axes[1, 1] + axes[2, 2], 1e-12)) / 2
    x, y, z = axes[2, 1] - axes[1, 2], axes[0, 2] - axes[2, 0], axes[1, 0] - axes[0, 1]
    return w, x / (4 * w), y / (4 * w), z / (4 * w)


def _multiply(a: Array, b: Array) -> Array:
    """Product of quaternions w, x, y, z."""
    return jnp.stack(
        [
            a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
            a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
            a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
            a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0],
        ]
    )
