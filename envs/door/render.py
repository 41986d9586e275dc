"""Pictures of an episode: MuJoCo's own, or plain ones from above and from the side; no display is needed."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import mujoco
import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw
from scipy.spatial import ConvexHull

from envs.door import contact, model, offscreen
from envs.door.mujoco_process import SIZE
from envs.door.reference import TARGET_OFFSET

if TYPE_CHECKING:
    from envs.door.env import EnvParams, EnvState

How = Literal["auto", "mujoco", "plain"]

SPAN = 1.9  # of the table shown along x, m
FINE = 2  # pictures are drawn this much larger, then reduced, which smooths their edges
TOP, SIDE = 300, 180  # heights of the two views, pixels
PAPER, TABLE, LINE = (244, 243, 240), (214, 196, 170), (120, 112, 104)
CABINET, PANEL, HANDLE = (176, 182, 190), (232, 236, 240), (84, 90, 98)
LINK, HAND, TARGET = (66, 74, 92), (196, 58, 48), (46, 150, 72)
CHAIN = (*(f"right_l{i}" for i in range(7)), "hand")


def render(states: EnvState, params: EnvParams, how: How = "auto") -> UInt8[np.ndarray, "time height width 3"]:
    """Draw an episode's states, stacked along their leading dimension, one frame each, all of one size.

    Args:
        states: of the episode.
        params: its parameters.
        how: ``mujoco`` is MuJoCo's renderer, which needs EGL or OSMesa; ``plain`` needs neither; ``auto`` is the first
            of them that works.

    Raises:
        ValueError: there is no such way, or the states are not those of one episode.
        RuntimeError: MuJoCo was asked for, and cannot draw on this machine; the message says why, and what helps.
    """
    del params
    if how not in get_args(How):
        raise ValueError(f"how={how!r} is no way to draw; there are: {', '.join(get_args(How))}")
    joints, doors = np.asarray(states.motion.qpos, float), np.asarray(states.door, float)
    if joints.ndim != 2 or not len(joints):
        raise ValueError("give the states of one episode, stacked along one leading dimension")
    if how != "plain":
        try:
            return offscreen.draw(joints, doors)
        except RuntimeError:
            if how == "mujoco":
                raise
    return _plain(joints, doors)


def _plain(
    joints: Float[np.ndarray, "time 10"], doors: Float[np.ndarray, "time 3"]
) -> UInt8[np.ndarray, "time height width 3"]:
    scene = copy(model.load())  # its doors are moved
    data = mujoco.MjData(scene)
    frames = []
    for qpos, door in zip(joints, doors, strict=True):
        for body in ("cabinet", "door_link"):
            scene.body(body).pos = door + model.HINGE_OFFSET
        data.qpos[:] = qpos
        mujoco.mj_kinematics(scene, data)
        frames.append(_draw(scene, data, door + TARGET_OFFSET))
    return np.stack(frames)


def _draw(scene: mujoco.MjModel, data: mujoco.MjData, target: np.ndarray) -> UInt8[np.ndarray, "height width 3"]:
    image = Image.new("RGB", (SIZE * FINE, SIZE * FINE), PAPER)
    pen = ImageDraw.Draw(image)
    scale = SIZE * FINE / SPAN
    # x runs to the right in the upper picture, y up; in the lower one y runs to the right and z up
    views = (
        ((0, 1), np.array([0.5 * SIZE * FINE, (TOP - 10) * FINE])),
        ((1, 2), np.array([0.2 * SIZE * FINE, (TOP + SIDE - 24) * FINE])),
    )
    for axes, origin in views:
        place = partial(_place, axes, origin, scale)
        lower = axes == (1, 2)
        pen.rectangle((0, TOP * FINE if lower else 0, SIZE * FINE, SIZE * FINE if lower else TOP * FINE), fill=PAPER)
        table = np.array([(-0.7, 0.2, -0.054), (0.7, 0.2, -0.054), (0.7, 1.0, 0.0), (-0.7, 1.0, 0.0)])
        outline = place(table[[0, 2]])
        pen.rectangle(_ordered(outline), fill=TABLE)
        for name, colour in (("cabinet", CABINET), ("panel", PANEL)):
            pen.polygon(_hull(place(_corners(scene, data, name))), fill=colour, outline=LINE)
        for name in contact.CYLINDERS:
            geom = data.geom(name)
            half = geom.xmat.reshape(3, 3)[:, 2] * scene.geom(name).size[1]
            ends = place(np.stack([geom.xpos - half, geom.xpos + half]))
            pen.line(ends, fill=HANDLE, width=round(2 * scale * scene.geom(name).size[0]))
        joints = place(np.stack([data.body(name).xpos for name in CHAIN]))
        pen.line(joints, fill=LINK, width=round(0.05 * scale), joint="curve")
        for name in contact.BOXES:
            pen.polygon(_hull(place(_corners(scene, data, name))), fill=HAND)
        (x, y), radius = place(target[None])[0], 0.02 * scale
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=TARGET, width=2 * FINE)
    pen.line((0, TOP * FINE, SIZE * FINE, TOP * FINE), fill=LINE, width=FINE)
    return np.asarray(image.reduce(FINE))


def _place(axes: tuple[int, int], origin: np.ndarray, scale: float, points: np.ndarray) -> list[tuple[float, float]]:
    """Pixels of points (n, 3), m."""
    return [(float(x), float(y)) for x, y in origin + scale * points[:, axes] * (1, -1)]


def _corners(scene: mujoco.MjModel, data: mujoco.MjData, box: str) -> Float[np.ndarray, "8 3"]:
    signs = np.array(np.meshgrid((-1, 1), (-1, 1), (-1, 1))).reshape(3, -1).T
    geom = data.geom(box)
    return geom.xpos + (signs * scene.geom(box).size) @ geom.xmat.reshape(3, 3).T


def _ordered(corners: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    (a, b), (c, d) = corners
    return min(a, c), min(b, d), max(a, c), max(b, d)


def _hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Convex outline of a box's corners."""
    corners = np.array(points)
    return [points[int(i)] for i in ConvexHull(corners, qhull_options="QJ").vertices]
