"""Meta-World's door-open-v3 behind a pipe, for a process that cannot import Meta-World.

It runs in the reference's own virtual environment, as a script, and imports nothing of this repository; use it through
``envs.door.reference``. Every line of its input is a request and every line of its output the answer, both JSON:

    {"do": "about"}                          versions of what the reference consists of
    {"do": "model"}                          the compiled model's numbers and the homed hand
    {"do": "reset", "seed": 3}               the first moment of Meta-World's episode of this seed
    {"do": "step", "action": [1, 0, 0, 1]}   the moment after one control step

A reset may also hold ``mocap_offset``, metres by which the hand's target is displaced at the start.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from importlib.metadata import version
from typing import Any

import mujoco
import numpy as np
from metaworld.envs.sawyer_door_v3 import SawyerDoorEnvV3
from metaworld.policies.sawyer_door_open_v3_policy import SawyerDoorOpenV3Policy

HINGE, SLIDE = int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)


def make_env() -> Any:
    """The environment with the target in sight and a new door position at every reset."""
    env = SawyerDoorEnvV3()
    env._partially_observable = False
    # cached while the target was hidden, the space would clip the target to zero in every step
    vars(env).pop("sawyer_observation_space", None)
    env.observation_space = env.sawyer_observation_space
    env._set_task_called = True
    env._freeze_rand_vec = False
    env.seeded_rand_vec = True
    return env


class Session:
    """One environment and what is asked of it."""

    def __init__(self) -> None:
        self.env = make_env()
        self.policy = SawyerDoorOpenV3Policy()

    def about(self, request: dict[str, Any]) -> dict[str, Any]:
        """Versions."""
        names = ("metaworld", "mujoco", "gymnasium", "numpy")
        return {"name": "door-open-v3", **{name: version(name) for name in names}}

    def model(self, request: dict[str, Any]) -> dict[str, Any]:
        """The compiled model."""
        return model_numbers(self.env) | {"homed": self.homed()}

    def homed(self) -> dict[str, Any]:
        """The state after a reset, which does not depend on the seed except for the door's position."""
        self.reset({"seed": 0})
        data = self.env.data
        names = ("qpos", "qvel", "ctrl", "mocap_pos", "mocap_quat", "qacc_warmstart")
        return {name: getattr(data, name).tolist() for name in names}

    def reset(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seed and reset."""
        self.env.seed(int(request["seed"]))
        observation, _ = self.env.reset()
        self.env.data.mocap_pos[0] += np.asarray(request.get("mocap_offset", (0.0, 0.0, 0.0)))
        return self._moment(observation, 0.0, False)

    def step(self, request: dict[str, Any]) -> dict[str, Any]:
        """One control step."""
        action = np.asarray(request["action"], np.float32)
        observation, reward, _, _, info = self.env.step(action)
        return self._moment(observation, reward, info["success"])

    def _moment(self, observation: np.ndarray, reward: float, success: float) -> dict[str, Any]:
        env = self.env
        with warnings.catch_warnings():
            # that its actions will be clipped, at nearly every step
            warnings.filterwarnings("ignore", "Constant")
            # a copy, because the policy moves the handle inside the observation it is given
            scripted = np.clip(self.policy.get_action(observation.copy()), -1, 1)
        return {
            "observation": observation.tolist(),
            "reward": float(reward),
            "success": bool(success),
            "door": env.model.body("door").pos.tolist(),
            "qpos": env.data.qpos.tolist(),
            "qvel": env.data.qvel.tolist(),
            "mocap": env.data.mocap_pos[0].tolist(),
            "scripted": scripted.tolist(),
        }


def model_numbers(env: Any) -> dict[str, Any]:
    """Every number of the compiled model that its motion depends on, by name, in SI units and radians."""
    m = env.model
    body_name = [m.body(i).name for i in range(m.nbody)]
    joint_type = {HINGE: "hinge", SLIDE: "slide"}

    def numbers(prefix: str, i: int, names: str) -> dict[str, Any]:
        return {name: np.asarray(getattr(m, f"{prefix}_{name}")[i]).tolist() for name in names.split()}

    bodies = [
        {"name": body_name[i], "parent": body_name[m.body_parentid[i]]}
        | numbers("body", i, "pos quat mass inertia ipos iquat invweight0 gravcomp mocapid")
        for i in range(m.nbody)
    ]
    joints = [
        {"name": m.joint(i).name, "type": joint_type[int(m.jnt_type[i])], "body": body_name[m.jnt_bodyid[i]]}
        | numbers("jnt", i, "axis pos limited range margin stiffness solref solimp")
        | numbers("dof", m.jnt_dofadr[i], "damping armature frictionloss invweight0")
        | {"qpos0": float(m.qpos0[m.jnt_qposadr[i]]), "qpos_spring": float(m.qpos_spring[m.jnt_qposadr[i]])}
        for i in range(m.njnt)
    ]
    geoms = [
        {"index": i, "name": m.geom(i).name, "body": body_name[m.geom_bodyid[i]], **_shape(m, i)}
        | numbers("geom", i, "size pos quat aabb rbound rgba group contype conaffinity condim friction")
        | numbers("geom", i, "solref solimp solmix priority margin gap")
        for i in range(m.ngeom)
    ]
    sites = [
        {"name": m.site(i).name, "body": body_name[m.site_bodyid[i]]} | numbers("site", i, "pos quat size rgba")
        for i in range(m.nsite)
    ]
    actuators = [
        {"name": m.actuator(i).name, "joint": m.joint(m.actuator_trnid[i, 0]).name}
        | numbers("actuator", i, "gaintype biastype dyntype gainprm biasprm gear ctrllimited ctrlrange")
        | numbers("actuator", i, "forcelimited forcerange")
        for i in range(m.nu)
    ]
    equalities = [
        {
            "type": mujoco.mjtEq(m.eq_type[i]).name,
            "body1": body_name[m.eq_obj1id[i]],
            "body2": body_name[m.eq_obj2id[i]],
        }
        | numbers("eq", i, "data solref solimp active0")
        for i in range(m.neq)
    ]
    cameras = [
        {"name": m.camera(i).name, "body": body_name[m.cam_bodyid[i]]} | numbers("cam", i, "pos quat fovy")
        for i in range(m.ncam)
    ]
    opt = m.opt
    names = (
        "timestep iterations tolerance ls_iterations ls_tolerance impratio ccd_iterations ccd_tolerance disableflags"
    )
    option = {name: getattr(opt, name) for name in names.split()}
    option |= {
        "gravity": opt.gravity.tolist(),
        "solver": mujoco.mjtSolver(opt.solver).name,
        "cone": mujoco.mjtCone(opt.cone).name,
        "integrator": mujoco.mjtIntegrator(opt.integrator).name,
        "frame_skip": env.frame_skip,
        "mocap_low": env.mocap_low.tolist(),
        "mocap_high": env.mocap_high.tolist(),
        "action_scale": env.action_scale,
        "max_path_length": env.max_path_length,
        "meaninertia": m.stat.meaninertia,
    }
    return {
        "option": option,
        "bodies": bodies,
        "joints": joints,
        "actuators": actuators,
        "equalities": equalities,
        "sites": sites,
        "cameras": cameras,
        "geoms": geoms,
    }


def _shape(m: Any, i: int) -> dict[str, Any]:
    """The geom's type, and of a mesh its name; its size is then that of the box with the mesh's inertia."""
    kind = mujoco.mjtGeom(m.geom_type[i])
    shape = {"type": kind.name.removeprefix("mjGEOM_").lower()}
    return shape | {"mesh": m.mesh(m.geom_dataid[i]).name} if kind == mujoco.mjtGeom.mjGEOM_MESH else shape


def main() -> None:
    """Answer requests until the input ends."""
    # whatever a library prints must not be taken for an answer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    session = Session()
    requests = {name: getattr(session, name) for name in ("about", "model", "reset", "step")}
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(requests[request["do"]](request)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
