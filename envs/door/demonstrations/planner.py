"""A motion planner that opens the door: way-points about the handle, minimum-jerk timing, a controller that tracks it.

The whole motion of the hand is planned from what is seen at the start: the shut door's handle, and its target. In the
horizontal plane the hinge stands at a fixed place relative to a shut handle, and from then on the closed fingers are
a post behind the handle's bar, drawn about the hinge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from envs.door.schema import HAND, HANDLE, TARGET

# a control step moves the target of the hand by this much at most along each axis, metres
REACH = 0.01
# from the handle's reading, when the door is shut, to the hinge, metres
HINGE = (-0.3757, 0.1071)


@dataclass(frozen=True)
class Style:
    """How the door is opened; lengths in metres, angles in radians, speeds as shares of the hand's largest.

    Attributes:
        behind: of the way-points behind the handle, from the handle's reading, along the bar and away from the hand.
        clearance: height above the handle at which the hand comes.
        depth: height relative to the handle at which the fingers hook.
        hook: how far the hand is drawn back against the bar before it pulls.
        past: how far beyond the target the door is opened.
        nearest: the hand comes no nearer to the robot than this, for its target may not.
        free: largest speed in the air.
        careful: largest speed downwards and against the bar.
        pull: largest speed along the arc.
        rest: steps between two movements.
        gain: action per metre of error.
    """

    behind: tuple[float, float] = (0.01, 0.03)
    clearance: float = 0.12
    depth: float = 0.0
    hook: float = 0.02
    past: float = 0.1
    nearest: float = 0.405
    free: float = 0.95
    careful: float = 0.8
    pull: float = 0.95
    rest: int = 2
    gain: float = 10.0


class Planner:
    """Plans at the first observation it sees, then tracks. One of these opens one door."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self._plan: Float[np.ndarray, "steps 4"] | None = None
        self._step = 0

    def __call__(self, observation: Float[np.ndarray, " 39"]) -> Float[np.ndarray, " 4"]:
        """What is seen -> the action, each of its four numbers in [-1, 1]."""
        if self._plan is None:
            self._plan = plan(observation, self.style)
        last = len(self._plan) - 1
        now, then = self._plan[min(self._step, last)], self._plan[min(self._step + 1, last)]
        self._step += 1
        motion = (then[:3] - now[:3]) / REACH + self.style.gain * (now[:3] - observation[HAND])
        return np.clip(np.append(motion, then[3]), -1, 1)


def plan(observation: Float[np.ndarray, " 39"], style: Style) -> Float[np.ndarray, "steps 4"]:
    """Position of the hand, metres, and grip, at every step from the first observation on."""
    hand, handle = observation[HAND], observation[HANDLE]
    hook = handle + np.array([*style.behind, style.depth])
    above = hook + np.array([0.0, 0.0, style.clearance - style.depth])
    lifted = np.array([hand[0], hand[1], above[2]])
    drawn = hook - np.array([0.0, style.hook, 0.0])
    hinge = handle[:2] + HINGE
    opening = target_angle(observation) + style.past
    pieces = [
        _straight(hand, lifted, style.free, -1.0),
        _straight(lifted, above, style.free, -1.0),
        _straight(above, above, style.free, 1.0),
        _straight(above, hook, style.careful, 1.0),
        _straight(hook, drawn, style.careful, 1.0),
        _arc(drawn, hinge, opening, style),
    ]
    rested = [np.concatenate([piece, np.repeat(piece[-1:], style.rest, axis=0)]) for piece in pieces]
    return np.concatenate(rested)


def target_angle(observation: Float[np.ndarray, " 39"]) -> float:
    """How far open the door is when its handle is nearest the target, radians, from an observation of it shut."""
    handle, target = observation[HANDLE][:2], observation[TARGET][:2]
    hinge = handle + HINGE
    return _clockwise(target - hinge) - _clockwise(handle - hinge)


def _straight(
    start: Float[np.ndarray, " 3"], end: Float[np.ndarray, " 3"], speed: float, grip: float
) -> Float[np.ndarray, "steps 4"]:
    along = _minimum_jerk(float(np.abs(end - start).max()), speed)
    positions = start + along[:, None] * (end - start)
    return np.column_stack([positions, np.full(len(along), grip)])


def _arc(
    start: Float[np.ndarray, " 3"], hinge: Float[np.ndarray, " 2"], opening: float, style: Style
) -> Float[np.ndarray, "steps 4"]:
    radius = start[:2] - hinge
    turned = -opening * _minimum_jerk(opening * float(np.linalg.norm(radius)), style.pull)
    x = hinge[0] + np.cos(turned) * radius[0] - np.sin(turned) * radius[1]
    y = hinge[1] + np.sin(turned) * radius[0] + np.cos(turned) * radius[1]
    return np.column_stack([x, np.maximum(y, style.nearest), np.full_like(x, start[2]), np.ones_like(x)])


def _minimum_jerk(length: float, speed: float) -> Float[np.ndarray, " steps"]:
    """From 0 to 1 in the time in which the largest of the velocities over a length is a share of the hand's largest."""
    steps = max(1, math.ceil(1.875 * length / (speed * REACH)))
    s = np.arange(1, steps + 1) / steps
    return s**3 * (10 - 15 * s + 6 * s**2)


def _clockwise(direction: Float[np.ndarray, " 2"]) -> float:
    """From the x axis, the way the door turns, in [0, 2 pi)."""
    return float(np.mod(-math.atan2(direction[1], direction[0]), 2 * math.pi))
