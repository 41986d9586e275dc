"""Record a demonstration of Car Racing in its reference, Gymnasium.

    python -m envs.car_racing.demonstrations.record --driver human_like --seed 6 --out demonstration.parquet

drives one episode, writes its table (``.parquet`` or ``.csv``) and, beside it, its provenance as JSON. The
same command gives the same table again.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from envs.car_racing.reference import (
    SPEED_SCALE,
    YAW_RATE_SCALE,
    Episode,
    Observation,
    make_reference,
    reference_versions,
    run_episode,
)
from envs.car_racing.schema import LENGTH_SCALE, SCHEMA

TEST_SEEDS = range(1000, 1010)
STEP = 0.02
WHEELBASE = 3.24
NODE_SPACING = 3.5
NOISE_STREAM = 1


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
        brake_margin: m/s above the wanted speed that he tolerates before he brakes.
        brake_band: m/s beyond the margin at which the brake is at its most.
        brake_most: the hardest he brakes; the wheels lock from 0.9.
        easing: how much of the throttle he takes back per unit of steering.
        hand, foot: share of the way to the wanted stick and pedal positions covered in one step.
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
    brake_margin: float = 3.0
    brake_band: float = 15.0
    brake_most: float = 0.8
    easing: float = 2.5
    hand: float = 0.25
    foot: float = 0.25
    hand_noise: float = 0.065
    foot_noise: float = 0.03
    noise_time: float = 0.16


class HumanLikeDriver:
    """Pure pursuit on the road as it was seen a moment ago, with an unsteady hand; see ``Style``.

    He steers by where the seen road must be by now, judged from the speed and the turning felt since; he
    chooses his speed from the stale picture itself, so he brakes a little late. His actions therefore depend
    on what the observation shows, but are not a function of the present observation alone.
    """

    def __init__(self, style: Style, rng: np.random.Generator) -> None:
        self._style = style
        self._rng = rng
        self._memory: deque[Observation] = deque(maxlen=style.lag + 1)
        self._controls = np.zeros(3)
        self._noise = np.zeros(3)

    def __call__(self, observation: Observation) -> np.ndarray:
        """Observation -> raw (steer, gas, brake)."""
        style = self._style
        self._memory.append(observation)
        seen = self._memory[0]["tiles"].astype(np.float64)
        speed = float(observation["indicators"][0]) / SPEED_SCALE
        arc = self._pursuit(self._moved(seen[:, :2] / LENGTH_SCALE), speed)
        steer = float(np.clip(style.steering_gain * math.atan(WHEELBASE * arc), -1, 1))
        wanted = min(self._wanted_speed(seen), math.sqrt(style.arc_grip / max(abs(arc), 1e-3)))
        excess = speed - wanted
        gas = np.clip(-excess / style.gas_band, 0, 1) * max(0.0, 1 - style.easing * abs(steer))
        brake = np.clip((excess - style.brake_margin) / style.brake_band, 0, style.brake_most)

        forgetting = STEP / style.noise_time
        spread = np.array([style.hand_noise, style.foot_noise, style.foot_noise]) * math.sqrt(2 * forgetting)
        self._noise += spread * self._rng.normal(size=3) - forgetting * self._noise
        pace = np.array([style.hand, style.foot, style.foot])
        # a foot that is off the pedal does not shake it
        shaken = self._noise * np.array([1, gas > 0, brake > 0])
        self._controls += pace * (np.array([steer, gas, brake]) + shaken - self._controls)
        return self._controls.copy()

    def _moved(self, road: np.ndarray) -> np.ndarray:
        """The remembered road (nodes, 2), metres, in the frame the car must have by now."""
        x = y = angle = 0.0
        for felt in list(self._memory)[1:]:
            angle += STEP * self._style.felt_motion * float(felt["indicators"][2]) / YAW_RATE_SCALE
            advance = STEP * self._style.felt_motion * float(felt["indicators"][0]) / SPEED_SCALE
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
        turn = np.diff(tiles[:, 2])
        turn = np.pi * (np.mod(turn + 1, 2) - 1)
        curvature = np.abs(np.convolve(turn, np.ones(3) / 3, "valid")) / NODE_SPACING
        away = NODE_SPACING * np.arange(len(curvature))
        in_bend = self._style.lateral_grip / np.maximum(curvature, 1e-3)
        return min(self._style.top_speed, float(np.sqrt(in_bend + 2 * self._style.braking * away).min()))


_HUMAN_LIKE = """\
Pure pursuit of the centre line on a picture of the road that is one reaction time old, moved by the motion felt \
since. Speed by the bends in sight, judged on the stale picture, hence late braking. Pedals nearly on or off, gas \
eased while steering. Low-passed stick and pedals with slow motor noise."""

# name -> style and, for the provenance, what it amounts to
DRIVERS: dict[str, tuple[Style, str]] = {"human_like": (Style(), _HUMAN_LIKE)}


def drive(name: str, seed: int, env: Any = None) -> Episode:
    """One episode of a driver, by name, on a track; his noise is drawn from the same seed."""
    style, _ = DRIVERS[name]
    return run_episode(HumanLikeDriver(style, np.random.default_rng([seed, NOISE_STREAM])), seed, env=env)


def to_table(episode: Episode) -> pd.DataFrame:
    """Columns ``t, obs_*, action_*, reward``, float32; all of the same step."""
    columns: dict[str, np.ndarray] = {"t": np.arange(episode.steps)}
    seen = SCHEMA.flatten(episode.observations)
    columns |= {f"obs_{c.name}": seen[:, i] for i, c in enumerate(SCHEMA.observation)}
    columns |= {f"action_{c.name}": episode.actions[:, i] for i, c in enumerate(SCHEMA.action)}
    columns["reward"] = episode.rewards
    return pd.DataFrame(columns).astype(np.float32)


def linear_r_squared(episode: Episode) -> dict[str, float]:
    """Share of each action's variance that a linear regression on the 48 tile columns explains."""
    tiles = episode.observations["tiles"].reshape(episode.steps, -1).astype(np.float64)
    inputs = np.column_stack([tiles, np.ones(episode.steps)])
    actions = episode.actions.astype(np.float64)
    coefficients, *_ = np.linalg.lstsq(inputs, actions, rcond=None)
    residual = np.var(actions - inputs @ coefficients, axis=0)
    share = 1 - residual / np.var(actions, axis=0)
    return {column.name: round(float(share[i]), 3) for i, column in enumerate(SCHEMA.action)}


def provenance(name: str, seed: int, note: str, episode: Episode, out: Path, env: Any) -> dict[str, Any]:
    """Where the demonstration comes from and how good its driver is; drives the ten test tracks for it."""
    style, description = DRIVERS[name]
    module = "envs.car_racing.demonstrations.record"
    command = ["python", "-m", module, "--driver", name, "--seed", str(seed), "--out", out.name]
    command += ["--note", note] if note else []
    env.reset(seed=seed)
    nodes = len(env.track)
    own = [drive(name, test_seed, env) for test_seed in TEST_SEEDS]
    returns = np.array([e.total for e in own])
    return {
        "driver": {"name": name, "description": description, "style": asdict(style)},
        "reference": reference_versions(),
        "track_seed": seed,
        "track_nodes": nodes,
        "note": note,
        "noise_seed": [seed, NOISE_STREAM],
        "return": round(episode.total, 3),
        "steps": episode.steps,
        "terminated": episode.terminated,
        "linear_r_squared_on_tiles": linear_r_squared(episode),
        "own_results": {
            "over": "test track seeds, one episode each, in the reference",
            "per_episode": [
                {"seed": s, "value": round(e.total, 3), "steps": e.steps} for s, e in zip(TEST_SEEDS, own, strict=True)
            ],
            "mean": round(float(returns.mean()), 3),
            "std": round(float(returns.std()), 3),
            "std_sample": round(float(returns.std(ddof=1)), 3),
            "n": len(returns),
        },
        "date": date.today().isoformat(),
        "command": shlex.join(command),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Record one episode and write its table and provenance; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", choices=sorted(DRIVERS), default="human_like")
    parser.add_argument("--seed", type=int, required=True, help="track seed")
    parser.add_argument("--out", type=Path, required=True, help="the table, .parquet or .csv; .json goes beside it")
    parser.add_argument("--note", default="", help="kept in the provenance, e.g. how the track was chosen")
    options = parser.parse_args(arguments)
    if options.out.suffix not in {".parquet", ".csv"}:
        parser.error(f"--out {options.out}: give it the ending .parquet or .csv")
    if not options.out.parent.is_dir():
        parser.error(f"--out {options.out}: there is no folder {options.out.parent}; make it first")
    try:
        env = make_reference()
        episode = drive(options.driver, options.seed, env)
        about = provenance(options.driver, options.seed, options.note, episode, options.out, env)
        table = to_table(episode)
        if options.out.suffix == ".csv":
            table.to_csv(options.out, index=False)
        else:
            table.to_parquet(options.out, index=False)
        options.out.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    except (ImportError, OSError) as error:
        print(f"nothing was recorded: {error}", file=sys.stderr)
        return 2
    own = about["own_results"]
    print(f"{options.out}: track {options.seed}, return {episode.total:.1f} in {episode.steps} steps")
    print(f"the driver on tracks 1000..1009: {own['mean']:.1f} +- {own['std']:.1f} (population), n = {own['n']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
