"""The reference's mechanics: what each number of ``door.xml`` is, and the state that a reset leaves.

The reference is Meta-World 3.1.1's ``sawyer_door_pull.xml`` as MuJoCo 3.3.0 compiles it. From its compiled numbers:

- joints, their axes, ranges, damping and armature; the fingers' position servos (gain 400); the weld of hand and mocap
  body with the constants that Meta-World writes into ``eq_data`` (torque scale 5), not those that MuJoCo derives;
- bodies without joints (head, screen, cameras, wrist, ...) merged into those that carry them: mass, centre and inertia
  of the sum. Massless ones stay where a constraint's stiffness depends on them: ``hand``, with the centre 12 cm away
  that MuJoCo gives it, both pads, and ``palm`` for the body ``right_hand``;
- the site ``handle``: the compiled frame of the reference's handle *mesh*, which the observation reports;
- what touches: claws, pads, the handle's cylinders and the door's panel as they are. ``palm`` is a box about the
  gripper's hull, which ``contact`` takes with round edges; the cabinet's five walls are one box. A pair carries what
  MuJoCo mixes from the reference's geoms: the larger friction and margin, the mean of ``solref`` and ``solimp``. The
  file calls the cylinders capsules, since MJX knows no contact of box and cylinder; ``contact`` knows better;
- the wall beside the hinge, which brakes the wide open door. The pair's damping ratio of 1.4142 makes up for MuJoCo
  3.17's taking the whole depth of two boxes in each other where 3.3.0 takes half; ``contact`` takes half.

Limits that no motion of the hand within its box reaches (joints 0, 2, 5 and 6 of the arm) are left out. So are contacts
with table and retaining wall, and friction against turning about a contact's normal.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files

import mujoco
import numpy as np

FRAME_SKIP = 5  # steps of the physics in a control step
ACTION_SCALE = 0.01  # of the target's motion, m for an action of 1
MOCAP_LOW, MOCAP_HIGH = (-0.5, 0.40, 0.05), (0.5, 1.0, 0.5)  # the target stays in this box, m
HAND_LOW, HAND_HIGH = (-0.525, 0.348, -0.0525), (0.525, 1.025, 0.7)  # the hand is observed in this box, m
HINGE_OFFSET = (-0.185, -0.1, 0.0)  # from the door's position, m

# What Meta-World's reset leaves, the same for every seed: 250 steps of the physics towards HOMED_MOCAP with the gripper
# driven open, then the door shut. The arm is still moving.
HOMED_MOCAP = (0.0, 0.6, 0.2)
HOMED_HAND = (0.004584200424389423, 0.6013881136259892, 0.19514345491770416)
HOMED_QPOS = (
    1.8892881812939122, -0.5757689061948446, -0.9766593499473477, 1.6419914938132965, 0.9428596255713366,
    1.0436962396375824, 2.2928333115361506, -0.00017190619515364343, 0.00017174542246661768, 0.0,
)  # fmt: skip
HOMED_QVEL = (
    0.2610021407549015, 0.428912586581551, -0.4857704976975249, 0.24403763935382178, 0.8291097873010829,
    0.0987622677770626, 1.589471764795506, 5.842799054342991e-07, 5.910160138758297e-07, 0.0,
)  # fmt: skip
HOMED_WARMSTART = (
    0.9136283656072584, 1.7771398338123903, -1.0832416905317017, -4.2864506381087155, -5.044471939981492,
    7.755633724794334, -114.17713167042656, 0.00014536277034249718, 0.00014442436090494385, 0.0,
)  # fmt: skip


@cache
def load() -> mujoco.MjModel:
    """Compile ``door.xml``."""
    with as_file(files("envs.door") / "door.xml") as path:
        return mujoco.MjModel.from_xml_path(str(path))


def rotation(quaternion: np.ndarray) -> np.ndarray:
    """Matrix whose columns are the turned axes; ``quaternion`` is w, x, y, z."""
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quaternion)
    return matrix.reshape(3, 3)
