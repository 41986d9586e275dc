"""A drive by hand: one car on one track, step by step, and the file that is made of it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Set
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import Float

from envs.car_racing.conditions import changes
from envs.car_racing.demonstrations.record import to_table
from envs.car_racing.env import CarRacing
from envs.car_racing.reference import Episode, clip_action
from envs.car_racing.render import pose_of, track_of
from envs.car_racing.schema import SCHEMA

SAME = 1e-2  # first observations that differ by more are of different tracks


class Course:
    """One track under one condition, compiled for one car.

    Attributes:
        seed, condition: which.
        track: its geometry.
        start: the first observation and state.
    """

    def __init__(self, seed: int, condition: str) -> None:
        self.seed, self.condition = seed, condition
        env = CarRacing(condition)
        params = env.params_for_seeds([seed])
        self.track = track_of(params.tracks, 0)
        self.start = jax.jit(lambda: env.reset_to(params, 0))()

        @jax.jit
        def step(state: Any, action: Any) -> tuple[Any, ...]:
            key = jax.random.fold_in(jax.random.key(seed), state.time)
            return env.step_env(key, state, action, params)

        self.step = step
        jax.block_until_ready(step(self.start[1], np.zeros(3, np.float32)))


class Recording:
    """A drive on a course, as far as it has gone.

    Attributes:
        course: where.
        terminated: all tiles are visited or the car has left the field.
        total: the return so far.
        tiles: visited so far.
        pose, speed: of the car now; m, rad and m/s.
    """

    def __init__(self, course: Course, max_steps: int) -> None:
        self.course, self._max_steps = course, max_steps
        self._path = np.empty((max_steps + 1, 2))
        self.restart()

    def restart(self) -> None:
        """Back to the start; what was driven is dropped."""
        observation, self._state = self.course.start
        self._rows: list[tuple[dict[str, np.ndarray], np.ndarray, float]] = []
        self.total, self.terminated = 0.0, False
        self._arrive(observation, self._state.car, self._state.tiles_visited)

    def step(self, controls: Float[np.ndarray, " 3"]) -> None:
        """Drive 1/50 s."""
        action = clip_action(controls)
        observation, state, reward, terminated, info = self.course.step(self._state, action)
        reward, self.terminated = float(reward), bool(terminated)
        # a whole row at once: an interrupt may come between any two lines
        self._rows.append((self._observation, action, reward))
        self._state = state
        self.total += reward
        self._arrive(observation, state.car, info["tiles_visited"])

    def _arrive(self, observation: Any, car: Any, tiles: Any) -> None:
        self._observation, car, tiles = jax.device_get((observation, car, tiles))
        self.pose = pose_of(car)
        self.speed = float(np.hypot(car.velocity_x, car.velocity_y))
        self.tiles = int(tiles)
        self._path[self.steps] = self.pose.x, self.pose.y

    @property
    def steps(self) -> int:
        """Driven so far."""
        return len(self._rows)

    @property
    def over(self) -> bool:
        """Whether the episode has ended, or its time."""
        return self.terminated or self.steps >= self._max_steps

    @property
    def path(self) -> Float[np.ndarray, "time 2"]:
        """Of the hull, m."""
        return self._path[: self.steps + 1]

    @property
    def episode(self) -> Episode:
        """What was driven; at least one step was."""
        observations, actions, rewards = zip(*self._rows, strict=True)
        stacked = {key: np.stack([o[key] for o in observations]) for key in observations[0]}
        return Episode(stacked, np.stack(actions), np.array(rewards, np.float64), self.terminated)


def provenance(recording: Recording, used: Set[str], assist: bool, fps: int) -> dict[str, Any]:
    """Where a demonstration comes from: what was driven, with what, how well and when."""
    course, episode = recording.course, recording.episode
    return {
        "driver": {"name": "person", "drove_with": sorted(used), "assist": assist and "keyboard" in used},
        "environment": "envs.car_racing",
        "condition": {"name": course.condition, "changes": dict(changes(course.condition))},
        "track_seed": course.seed,
        "track_nodes": len(course.track),
        "steps_per_second": fps,
        "return": round(episode.total, 3),
        "steps": episode.steps,
        "terminated": episode.terminated,
        "date": date.today().isoformat(),
    }


def save(recording: Recording, about: dict[str, Any], wanted: Path) -> Path:
    """Write the table and its provenance; returns where, which is never over another file.

    Where the folder refuses, the system's folder for temporary files takes it.

    Raises:
        OSError: that one refuses, too.
    """
    table = to_table(recording.episode)
    try:
        return _write(table, about, free(wanted))
    except OSError as error:
        print(f"{wanted} cannot be written: {error}", file=sys.stderr)
        return _write(table, about, free(Path(tempfile.gettempdir()) / wanted.name))


def free(path: Path) -> Path:
    """The path, or the first of its numbered variants, that would overwrite nothing."""
    candidate, number = path, 1
    while candidate.exists() or candidate.with_suffix(".json").exists():
        number += 1
        candidate = path.with_stem(f"{path.stem}_{number}")
    return candidate


@dataclass(frozen=True)
class Drive:
    """A demonstration to be watched.

    Attributes:
        first: the first observation.
        actions: in order.
        seed, condition: of its course, where the JSON beside it says so.
    """

    first: dict[str, np.ndarray]
    actions: Float[np.ndarray, "step 3"]
    seed: int | None
    condition: str | None


def read(path: Path) -> Drive:
    """Read a demonstration, Parquet or CSV, and the JSON beside it, if there is one.

    Raises:
        ValueError: one of the two cannot be read, or the table lacks columns or rows.
    """
    beside = path.with_suffix(".json")
    try:
        table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
        seen, done = (
            table[[prefix + column.name for column in columns]].to_numpy(np.float32)
            for prefix, columns in (("obs_", SCHEMA.observation), ("action_", SCHEMA.action))
        )
        about = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
        seed, condition = about.get("track_seed"), about.get("condition", {}).get("name")
        if condition is not None:
            changes(condition)
        return Drive(SCHEMA.unflatten(seen[0]), done, None if seed is None else int(seed), condition)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} or the .json beside it cannot be read as a demonstration: {error}") from error


def fits(drive: Drive, course: Course) -> bool:
    """Whether the drive can have been on the course, by its first observation."""
    return all(bool(np.abs(course.start[0][key] - seen).max() < SAME) for key, seen in drive.first.items())


def _write(table: pd.DataFrame, about: dict[str, Any], path: Path) -> Path:
    part = path.with_name(f".{path.name}.part")
    if path.suffix == ".csv":
        table.to_csv(part, index=False)
    else:
        table.to_parquet(part, index=False)
    part.replace(path)
    path.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    return path
