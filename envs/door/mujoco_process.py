"""Draws Door Opening with MuJoCo's renderer, in a process of its own that ``offscreen.py`` starts and speaks to.

A line on the standard output says that a first picture has been drawn. A request on the standard input is a number of
states, 8 bytes, then a `STATE` for each; the answer is a picture for each, `SIZE` pixels high and wide, three bytes a
pixel.

The physics knows few shapes. `scene` colours them and adds what only a picture needs: the robot's links, the cabinet's
inside, the table, the target, light.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mujoco
import numpy as np

READY = b"ready\n"
SIZE = 480  # of a picture's sides, pixels
STATE = np.dtype([("joints", np.float64, 10), ("hinge", np.float64, 3), ("target", np.float64, 3)])

AZIMUTH, ELEVATION, DISTANCE, FIELD = 140.0, -36.0, 1.7, 45.0  # of the camera, degrees and m
LOOKS_AT = (-0.05, 0.53, 0.17)  # m

WHITE, STEEL, DARK, RED = (0.9, 0.91, 0.92, 1), (0.36, 0.39, 0.43, 1), (0.17, 0.18, 0.2, 1), (0.6, 0.13, 0.11, 1)
CABINET, PANEL, UNSEEN = (0.5, 0.55, 0.61, 1), (0.86, 0.88, 0.9, 1), (0, 0, 0, 0)
WOOD, FLOOR, GREEN = (0.78, 0.66, 0.5, 1), (0.88, 0.88, 0.87, 1), (0.05, 0.75, 0.2, 0.6)
SKY = (0.93, 0.94, 0.95)
COLOURS = {
    "palm": DARK,
    "right_claw": WHITE,
    "right_pad": WHITE,
    "left_claw": WHITE,
    "left_pad": WHITE,
    "cabinet": UNSEEN,  # full, for the contacts
    "side": UNSEEN,
    "panel": PANEL,
    "stem": STEEL,
    "bar": STEEL,
    "grip": STEEL,
}

BOX, BALL, ROD = mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CYLINDER
CAPSULE, PLANE = mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_PLANE
# body, shape, size, position in the body, m, and colour
SHAPES = (
    ("world", PLANE, (4, 4, 0.1), (0, 0, -0.913), FLOOR),
    ("world", BOX, (0.7, 0.4, 0.027), (0, 0.6, -0.027), WOOD),
    ("world", BOX, (0.66, 0.36, 0.43), (0, 0.6, -0.484), WHITE),
    ("world", ROD, (0.13, 0.455, 0), (0, 0, -0.455), DARK),
    ("world", ROD, (0.1, 0.04, 0), (0, 0, 0.04), DARK),
    ("right_l0", ROD, (0.085, 0.13, 0), (0, 0, 0.13), RED),
    ("right_l6", ROD, (0.055, 0.025, 0), (0, 0.015, -0.01), DARK),
    ("right_l6", ROD, (0.035, 0.022, 0), (0, 0, 0.034), STEEL),
    ("hand", BOX, (0.005, 0.055, 0.005), (-0.05, 0, 0), STEEL),
    ("cabinet", BOX, (0.016, 0.106, 0.15), (-0.019, 0.1, 0), CABINET),
    ("cabinet", BOX, (0.016, 0.106, 0.15), (0.389, 0.1, 0), CABINET),
    ("cabinet", BOX, (0.188, 0.106, 0.012), (0.185, 0.1, 0.138), CABINET),
    ("cabinet", BOX, (0.188, 0.106, 0.012), (0.185, 0.1, -0.138), CABINET),
    ("cabinet", BOX, (0.188, 0.012, 0.126), (0.185, 0.194, 0), CABINET),
    ("target", BALL, (0.025, 0, 0), (0, 0, 0), GREEN),
)
# bodies that a link of the arm joins, and how thick it is, m
LINKS = (
    ("right_l0", "right_l1", 0.075),
    ("right_l1", "right_l2", 0.065),
    ("right_l2", "right_l3", 0.06),
    ("right_l3", "right_l4", 0.055),
    ("right_l4", "right_l5", 0.048),
    ("right_l5", "right_l6", 0.045),
)


def scene() -> mujoco.MjModel:
    """The model of the physics with everything that is to be seen; its bodies' motion is the same."""
    spec = mujoco.MjSpec.from_file(str(Path(__file__).with_name("door.xml")))
    for geom in spec.geoms:
        geom.rgba = COLOURS[geom.name]
        geom.type = ROD if geom.type == CAPSULE else geom.type  # what the contacts take them for
    spec.worldbody.add_body(name="target")
    for body, shape, size, position, colour in SHAPES:
        spec.body(body).add_geom(type=shape, size=size, pos=position, rgba=colour)
    for body, end, thickness in LINKS:
        line = (0, 0, 0, *spec.body(end).pos)
        spec.body(body).add_geom(type=CAPSULE, fromto=line, size=(thickness, 0, 0), rgba=RED)
    spec.add_texture(
        name="sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_FLAT,
        rgb1=SKY,
        width=8,
        height=8,
    )
    spec.worldbody.add_light(
        pos=(0.6, -0.4, 2.2), dir=(-0.3, 0.45, -1), diffuse=(0.5, 0.5, 0.5), specular=(0.2, 0.2, 0.2)
    )
    spec.visual.headlight.ambient, spec.visual.headlight.diffuse = (0.38, 0.38, 0.38), (0.35, 0.35, 0.35)
    spec.visual.global_.fovy = FIELD
    spec.visual.quality.shadowsize = 1024  # MuJoCo's 4096 takes a processor twice as long
    spec.stat.extent, spec.stat.center = 1.5, LOOKS_AT
    return spec.compile()


def pose(world: mujoco.MjModel, data: mujoco.MjData, state: np.void) -> None:
    """Put everything where it is in a `STATE`."""
    for body, position in (("cabinet", "hinge"), ("door_link", "hinge"), ("target", "target")):
        world.body(body).pos = state[position]
    data.qpos[:] = state["joints"]
    mujoco.mj_kinematics(world, data)
    mujoco.mj_comPos(world, data)
    mujoco.mj_camlight(world, data)


def camera() -> mujoco.MjvCamera:
    """From the right, over the robot's shoulder: shut and open, the handle is seen."""
    eye = mujoco.MjvCamera()
    eye.lookat, eye.distance, eye.azimuth, eye.elevation = LOOKS_AT, DISTANCE, AZIMUTH, ELEVATION
    return eye


def main() -> None:
    """Answer requests until the input ends."""
    # whatever a library prints must not be taken for a picture
    answers, requests = os.fdopen(os.dup(sys.stdout.fileno()), "wb"), sys.stdin.buffer
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    world = scene()
    data, eye = mujoco.MjData(world), camera()
    with mujoco.Renderer(world, SIZE, SIZE) as renderer:

        def picture(state: np.void) -> np.ndarray:
            pose(world, data, state)
            renderer.update_scene(data, eye)
            return renderer.render()

        if np.ptp(picture(np.zeros(1, STATE)[0])) == 0:
            raise RuntimeError("the picture is blank")
        answers.write(READY)
        answers.flush()
        while count := requests.read(8):
            size = int.from_bytes(count, sys.byteorder) * STATE.itemsize
            for state in np.frombuffer(requests.read(size), STATE):
                answers.write(picture(state).tobytes())
            answers.flush()


if __name__ == "__main__":
    main()
