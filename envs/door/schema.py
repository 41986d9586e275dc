"""The columns of Door Opening's observation and action.

World axes: x to the right as seen from the robot, y from the robot towards the door, z up; metres. The first 18
numbers are one frame, the next 18 the frame one step earlier, the last three the goal.
"""

from __future__ import annotations

from typing import cast

from envs.base import Column, Schema

KEY = "features"
FRAME = 18  # numbers in a frame
HAND = slice(0, 3)
OPENING = 3
HANDLE = slice(4, 7)
TARGET = slice(2 * FRAME, 2 * FRAME + 3)

# name, unit, meaning, low, high of a frame's numbers
_FRAME = (
    ("hand_x", "m", "the gripper's position to the right", -0.525, 0.525),
    ("hand_y", "m", "the gripper's position away from the robot, towards the door", 0.348, 1.025),
    ("hand_z", "m", "the gripper's height above the table", -0.0525, 0.7),
    ("gripper_opening", "m / 0.1", "gap between the fingers; 1: open, 0: closed", 0.0, 1.0),
    ("handle_x", "m", "the door handle's position to the right; opening the door moves it left", -0.7, 0.35),
    ("handle_y", "m", "the door handle's position away from the robot", 0.3, 0.8),
    ("handle_z", "m", "the door handle's height", 0.1, 0.2),
    ("handle_qx", "1", "x of the handle's orientation, a unit quaternion", -1.0, 1.0),
    ("handle_qy", "1", "y of the handle's orientation", -1.0, 1.0),
    ("handle_qz", "1", "z of the handle's orientation", -1.0, 1.0),
    ("handle_qw", "1", "w, the real part, of the handle's orientation; never negative", 0.0, 1.0),
    *((f"unused_{i}", "1", "always 0", 0.0, 0.0) for i in range(7)),
)
_TARGET = (
    ("target_x", "m", "where the handle should go, to the right; reached within 0.08", -0.3, -0.2),
    ("target_y", "m", "where the handle should go, away from the robot", 0.4, 0.5),
    ("target_z", "m", "where the handle should go, height", 0.15, 0.15),
)
_ACTION = (
    ("dx", "m / 0.01", "moves the point that the gripper follows to the right"),
    ("dy", "m / 0.01", "moves the point that the gripper follows towards the door"),
    ("dz", "m / 0.01", "moves the point that the gripper follows up"),
    ("grip", "1", "closes the gripper; 1: closed, -1: open"),
)


def _observation() -> tuple[Column, ...]:
    before = [(f"prev_{name}", unit, f"{meaning}; one step earlier", *rest) for name, unit, meaning, *rest in _FRAME]
    columns = cast("list[tuple[str, str, str, float, float]]", [*_FRAME, *before, *_TARGET])
    return tuple(Column(*column, key=KEY, index=(i,)) for i, column in enumerate(columns))


SCHEMA = Schema(
    observation=_observation(),
    action=tuple(Column(name, unit, meaning, -1.0, 1.0, "", (i,)) for i, (name, unit, meaning) in enumerate(_ACTION)),
)
