"""Drivers of Car Racing with a human's shortcomings, each in the style he is given."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from envs.car_racing.reference import SPEED_SCALE, YAW_RATE_SCALE, Observation
from envs.car_racing.schema import LENGTH_SCALE

STEP = 0.02
WHEELBASE = 3.24
NODE_SPACING = 3.5
FULL_LOCK = 0.4
# share of the way to the yaw rate of rolling wheels that the car covers in one step; regressed on stock episodes
YAW_RESPONSE = 0.37


@dataclass(frozen=True)
class Style:
    """How a human-like driver drives.

    Attributes:
        lag: reaction time, steps of 0.02 s: he acts on the road as he saw it this long ago.
        felt_motion: share of the car's motion since then that he accounts for, by feeling; 1 is all of it.
        look_ahead: how far along the road he aims, seconds at the present speed.
        look_ahead_least: the same, metres, at low speed.
        steering_gain: stick deflection per radian of the front wheel angle that pure pursuit asks for.
        lateral_grip: sideways acceleration he trusts in the bends in sight, m/s^2 (the car can do about 200).
        arc_grip: the same for the arc he is steering at the moment.
        braking: deceleration he counts on when he decides how late to brake, m/s^2.
        top_speed: m/s; he never wants to go faster.
        gas_band: m/s below the wanted speed at which the throttle is full; small is bang-bang.
        gas_most: the most throttle he gives.
        brake_margin: m/s above the wanted speed that he tolerates before he brakes.
        brake_band: m/s beyond the margin at which the brake is at its most.
        brake_most: the hardest he brakes; the wheels lock from 0.9.
        easing: how much of the throttle he takes back per unit of steering.
        hand, foot: share of the way to the wanted stick and pedal positions covered in one step.
        trim: stick deflection he holds all the time, against a car that pulls to one side.
        anticipation: steps of 0.02 s by which he acts early, for a car that obeys late: he steers by where the road
            will be by then, judging what his last commands, this many, are about to do.
        inside: how far inside the centre line he aims, metres per 1/m of curvature of the road at that place.
        outside: how far to the other side for the curvature of the road ``swing`` nodes further on.
        swing: see ``outside``.
        widest: the furthest from the centre line that he aims, m.
        hand_noise, foot_noise: standard deviation of the slow (Ornstein-Uhlenbeck) motor noise.
        noise_time: its correlation time, s.
    """

    lag: int = 9
    felt_motion: float = 0.97
    look_ahead: float = 0.4
    look_ahead_least: float = 9.0
    steering_gain: float = 1.4
    lateral_grip: float = 90.0
    arc_grip: float = 120.0
    braking: float = 80.0
    top_speed: float = 68.0
    gas_band: float = 8.0
    gas_most: float = 1.0
    brake_margin: float = 3.0
    brake_band: float = 15.0
    brake_most: float = 0.8
    easing: float = 2.5
    hand: float = 0.25
    foot: float = 0.25
    hand_noise: float = 0.065
    foot_noise: float = 0.03
    noise_time: float = 0.16
    trim: float = 0.0
    anticipation: int = 0
    inside: float = 0.0
    outside: float = 0.0
    swing: int = 4
    widest: float = 4.5


class HumanLikeDriver:
    """Pure pursuit on the road as it was seen a moment ago, with an unsteady hand; see ``Style``.

    He steers by where the seen road must be by now, or by when the car will obey, judged from the speed and the
    turning felt since; he chooses his speed from the stale picture itself, so he brakes a little late. His actions
    therefore depend on what the observation shows, but are not a function of the present observation alone.
    """

    def __init__(self, style: Style, rng: np.random.Generator) -> None:
        self._style = style
        self._rng = rng
        self._memory: deque[Observation] = deque(maxlen=style.lag + 1)
        self._asked: deque[float] = deque(maxlen=style.anticipation)
        self._controls = np.zeros(3)
        self._noise = np.zeros(3)

    def __call__(self, observation: Observation) -> np.ndarray:
        """Observation -> raw (steer, gas, brake)."""
        style = self._style
        self._memory.append(observation)
        seen = self._memory[0]["tiles"].astype(np.float64)
        speed = float(observation["indicators"][0]) / SPEED_SCALE
        arc = self._pursuit(self._moved(self._line(seen)), speed)
        steer = float(np.clip(style.steering_gain * math.atan(WHEELBASE * arc) + style.trim, -1, 1))
        wanted = min(self._wanted_speed(seen), math.sqrt(style.arc_grip / max(abs(arc), 1e-3)))
        excess = speed - wanted
        eased = max(0.0, 1 - style.easing * abs(steer - style.trim))
        gas = np.clip(-excess / style.gas_band, 0, style.gas_most) * eased
        brake = np.clip((excess - style.brake_margin) / style.brake_band, 0, style.brake_most)

        forgetting = STEP / style.noise_time
        spread = np.array([style.hand_noise, style.foot_noise, style.foot_noise]) * math.sqrt(2 * forgetting)
        self._noise += spread * self._rng.normal(size=3) - forgetting * self._noise
        pace = np.array([style.hand, style.foot, style.foot])
        # a foot that is off the pedal does not shake it
        shaken = self._noise * np.array([1, gas > 0, brake > 0])
        self._controls += pace * (np.array([steer, gas, brake]) + shaken - self._controls)
        self._asked.append(float(np.clip(self._controls[0] - style.trim, -FULL_LOCK, FULL_LOCK)))
        return self._controls.copy()

    def _line(self, tiles: np.ndarray) -> np.ndarray:
        """Where he wants to be across each tile (nodes, 2), metres, in the frame in which he saw them."""
        style = self._style
        road = tiles[:, :2] / LENGTH_SCALE
        if style.inside == style.outside == 0:
            return road
        bend = np.pad(_curvature(tiles), (1, 2 + style.swing), "edge")
        here, next_ = bend[: len(road)], bend[style.swing : style.swing + len(road)]
        aside = np.clip(style.inside * here - style.outside * next_, -style.widest, style.widest)
        # a left-hand bend has positive curvature, and theta is counter-clockwise of the car's own axis
        angle = np.pi * tiles[:, 2]
        return road - aside[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)

    def _moved(self, road: np.ndarray) -> np.ndarray:
        """The remembered road (nodes, 2), metres, in the frame the car must have when it obeys him."""
        x = y = angle = 0.0
        # in the observation's units
        motion = [(float(felt["indicators"][2]), float(felt["indicators"][0])) for felt in self._memory]
        yaw_rate, speed = motion[-1]
        for steer in self._asked:
            rolling = -speed / SPEED_SCALE * math.tan(steer) / WHEELBASE * YAW_RATE_SCALE
            yaw_rate += YAW_RESPONSE * (rolling - yaw_rate)
            motion.append((yaw_rate, speed))
        for yaw_rate, speed in motion[1:]:
            angle += STEP * self._style.felt_motion * yaw_rate / YAW_RATE_SCALE
            advance = STEP * self._style.felt_motion * speed / SPEED_SCALE
            x -= advance * math.sin(angle)
            y += advance * math.cos(angle)
        right, forward = road[:, 0] - x, road[:, 1] - y
        cos, sin = math.cos(angle), math.sin(angle)
        moved = np.stack([right * cos + forward * sin, forward * cos - right * sin], axis=1)
        ahead = moved[moved[:, 1] > 0]
        return ahead if len(ahead) > 1 else road

    def _pursuit(self, road: np.ndarray, speed: float) -> float:
        """Pure pursuit (Coulter 1992): curvature of the arc through a point of the road ahead, 1/m, positive right."""
        aim = max(self._style.look_ahead_least, self._style.look_ahead * speed)
        # along the road, so that a car beside it joins it further on rather than at a right angle
        legs = np.hypot(*np.diff(road, axis=0).T)
        distance = max(road[0, 1], 0.0) + np.concatenate([[0.0], np.cumsum(legs)])
        x, y = (float(np.interp(aim, distance, road[:, axis])) for axis in (0, 1))
        return 2 * x / (x * x + y * y)

    def _wanted_speed(self, tiles: np.ndarray) -> float:
        """The speed from which every bend in sight can still be braked for, m/s."""
        curvature = np.abs(_curvature(tiles))
        away = NODE_SPACING * np.arange(len(curvature))
        in_bend = self._style.lateral_grip / np.maximum(curvature, 1e-3)
        return min(self._style.top_speed, float(np.sqrt(in_bend + 2 * self._style.braking * away).min()))


def _curvature(tiles: np.ndarray) -> np.ndarray:
    """Of the road between the tiles (nodes - 3,), 1/m, positive to the left, smoothed over three."""
    turn = np.diff(tiles[:, 2])
    turn = np.pi * (np.mod(turn + 1, 2) - 1)
    return np.convolve(turn, np.ones(3) / 3, "valid") / NODE_SPACING
