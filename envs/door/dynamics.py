"""The physics of a control step: five times smooth dynamics, contacts, constraint forces, and Euler's step.

The model and its formulas are MuJoCo's; the code is this environment's own, with the batch in the trailing dimensions.
MJX computes the same with arrays a few numbers wide behind the batch, which on a CPU takes several times as long, and
unless XLA is told otherwise by an environment variable, a thousand times.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from envs.door import constraints, contact, model
from envs.door.constraints import DOF, DOOR, RIGHT
from envs.door.smooth import ARM, inertia_and_bias, pose
from envs.door.solver import Problem, cholesky_solve, solve
from envs.door.vectors import constant, keep


class Motion(NamedTuple):
    """What the physics carries from step to step.

    Attributes:
        qpos: seven arm joints, rad; right and left finger, m; door, rad.
        qvel: their rates.
        qacc_warmstart: their accelerations as last solved for.
    """

    qpos: Array
    qvel: Array
    qacc_warmstart: Array


def control_step(
    motion: Motion,
    mocap: Float[Array, "3 *batch"],
    control: Float[Array, "2 *batch"],
    hinge: Float[Array, "3 *batch"],
) -> Motion:
    """Advance by 12.5 ms.

    Args:
        motion: of the joints.
        mocap: where the hand is drawn to, m.
        control: of the right and the left finger, in [-1, 1].
        hinge: position of the door's hinge, m.
    """

    def physics_step(motion: Motion, _: None) -> tuple[Motion, None]:
        return step(motion, mocap, control, hinge), None

    return jax.lax.scan(physics_step, motion, None, length=model.FRAME_SKIP)[0]


def step(
    motion: Motion,
    mocap: Float[Array, "3 *batch"],
    control: Float[Array, "2 *batch"],
    hinge: Float[Array, "3 *batch"],
) -> Motion:
    """Advance by one step of the physics, 2.5 ms; arguments as of `control_step`."""
    m = model.load()
    timestep = float(m.opt.timestep)
    qpos, qvel = motion.qpos, motion.qvel
    fingers = qpos[RIGHT:DOOR]
    where = pose(qpos[:ARM])
    mass, bias = inertia_and_bias(where, fingers, qvel)
    damping = constant(m.dof_damping, qvel)
    servo = float(m.actuator_gainprm[0, 0]) * (control - fingers)
    actuator = jnp.concatenate([jnp.zeros_like(qpos[:ARM]), servo, jnp.zeros_like(qpos[DOOR:])])
    found = contact.find(where.hand, where.axes, fingers, hinge, qpos[DOOR])
    problem = Problem(
        mass=mass,
        force=actuator - bias - damping * qvel,
        weld=constraints.weld(where, mocap, qvel),
        limits=constraints.limits(qpos, qvel),
        touches=constraints.touches(where, found, hinge, qvel),
    )
    problem = keep(problem, qpos)
    acceleration, push = solve(problem, motion.qacc_warmstart)
    # damping is integrated implicitly, as MuJoCo's Euler does
    columns = [problem.mass[j:, j] for j in range(DOF)]
    columns = [jnp.concatenate([c[:1] + timestep * damping[j], c[1:]]) for j, c in enumerate(columns)]
    qvel = qvel + timestep * cholesky_solve(columns, keep(problem.force + push, qpos))
    return Motion(qpos + timestep * qvel, qvel, acceleration)
