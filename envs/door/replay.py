"""Replay a demonstration of Door Opening in this environment, and say how alike the two are.

    python -m envs.door.replay envs/door/demonstrations/planner.parquet --out film.gif

The recorded actions are taken one after the other, whatever comes of them. What was recorded stands beside what came,
and with --out an animation shows it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Float
from PIL import Image, ImageDraw
from rich.console import Console
from rich.progress import track

from envs.door import model
from envs.door.env import Door, EnvParams, EnvState
from envs.door.reference import TARGET_OFFSET
from envs.door.render import How
from envs.door.reward import SUCCESS_DISTANCE
from envs.door.schema import HAND, HANDLE, KEY, SCHEMA, TARGET

SAME = 1e-3  # first observations that differ by more are of different doors
LEAST_STEPS = 2  # of a demonstration
STEP = 12.5  # ms
FORMATS = {".gif": "GIF", ".webp": "WEBP", ".png": "PNG"}
FILM = 360  # of a film's sides, pixels
FRAMES = 125  # of a film at most; 500 steps at 20 a second
BAR, TRACK = (46, 150, 72), (205, 205, 205)


@dataclass(frozen=True)
class Recording:
    """A demonstration; observation and reward t are before and of step t.

    Attributes:
        observations: as the schema orders them.
        actions: four numbers each.
        rewards: where the table holds them.
        seed: of the episode.
    """

    observations: Float[np.ndarray, "step 39"]
    actions: Float[np.ndarray, "step 4"]
    rewards: Float[np.ndarray, " step"] | None
    seed: int


@dataclass(frozen=True)
class Replay:
    """What came of a recording's actions.

    Attributes:
        observations, states: before each step.
        rewards: of each step.
        params: of the episode.
    """

    observations: Float[np.ndarray, "step 39"]
    states: EnvState
    rewards: Float[np.ndarray, " step"]
    params: EnvParams


@dataclass(frozen=True)
class Outcome:
    """How an episode went.

    Attributes:
        smallest, final: distance from handle to target, m, over the steps and before the last of them.
        steps_to_success: until the handle was first within 8 cm of the target along x, if ever.
        success_at_the_end: whether it was before the last step.
        total: the return, where the rewards are known.
    """

    smallest: float
    final: float
    steps_to_success: int | None
    success_at_the_end: bool
    total: float | None


def read(path: Path, seed: int | None = None) -> Recording:
    """Read a demonstration, Parquet or CSV; ``seed`` goes before that of the JSON beside it.

    Raises:
        ValueError: one of the two cannot be read, the table is not one episode with the schema's columns, or nothing
            names its seed.
    """
    if (ending := path.suffix.lower()) not in {".parquet", ".csv"}:
        raise ValueError(f"{path} must be a .parquet or .csv file, not {path.suffix or 'one without an ending'}")
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    beside = path.with_suffix(".json")
    try:
        table = pd.read_csv(path) if ending == ".csv" else pd.read_parquet(path)
        about: Any = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
        named = about.get("seed") if seed is None else seed
        seed = None if named is None else int(named)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} or the .json beside it cannot be read as a demonstration: {error}") from error
    if len(table) < LEAST_STEPS:
        raise ValueError(f"{path} has {len(table)} row(s); it needs at least {LEAST_STEPS}")
    if "t" in table and not np.array_equal(table["t"], np.arange(len(table))):
        raise ValueError(f"the column `t` of {path} is not 0, 1, 2, ...: give one episode, its steps in order")
    seen = _numbers(table, [f"obs_{c.name}" for c in SCHEMA.observation], path)
    acted = _numbers(table, [f"action_{c.name}" for c in SCHEMA.action], path)
    rewards = _numbers(table, ["reward"], path)[:, 0] if "reward" in table else None
    # last, for a table that is no demonstration of the door has no seed to be asked for
    if seed is None:
        raise ValueError(f"nothing beside {path} says which episode it is; give --seed")
    if seed < 0:
        raise ValueError(f"seed {seed}: an episode's seed is 0 or more")
    return Recording(seen, acted, rewards, seed)


def _numbers(table: pd.DataFrame, names: Sequence[str], path: Path) -> Float[np.ndarray, "step column"]:
    if missing := [name for name in names if name not in table]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"{path} has no column `{missing[0]}`{more}; is it a demonstration of Door Opening?")
    for name in names:
        if not (pd.api.types.is_numeric_dtype(table[name]) and np.isfinite(table[name]).all()):
            raise ValueError(f"the column `{name}` of {path} holds something that is not a finite number")
    return table[list(names)].to_numpy(np.float32)


def replay(recording: Recording) -> Replay:
    """Take the recording's actions in its episode here.

    Raises:
        ValueError: the recording starts otherwise than the episode of its seed.
    """
    env = Door()
    params = env.params_for_seeds([recording.seed])
    first, start = env.reset_to(params, 0)
    if np.abs(first[KEY] - recording.observations[0]).max() > SAME:
        raise ValueError(f"it does not start as the episode of seed {recording.seed} does; give the --seed it is of")

    @jax.jit
    def run(actions: jax.Array) -> tuple[jax.Array, EnvState, jax.Array]:
        def body(carry: tuple[jax.Array, EnvState], action: jax.Array) -> tuple[Any, Any]:
            seen, state = carry
            after, following, reward, *_ = env.step_env(jax.random.key(0), state, action, params)
            return (after[KEY], following), (seen, state, reward)

        return jax.lax.scan(body, (first[KEY], start), actions)[1]

    observations, states, rewards = jax.device_get(run(jnp.asarray(recording.actions)))
    return Replay(observations, states, rewards, params)


def outcome(observations: Float[np.ndarray, "step 39"], rewards: Float[np.ndarray, " step"] | None) -> Outcome:
    """How an episode went, by what was observed before each step."""
    away = observations[:, HANDLE] - observations[:, TARGET]
    distances = np.linalg.norm(away, axis=1)
    successes = np.abs(away[:, 0]) <= SUCCESS_DISTANCE
    return Outcome(
        smallest=float(distances.min()),
        final=float(distances[-1]),
        steps_to_success=int(successes.argmax()) if successes.any() else None,
        success_at_the_end=bool(successes[-1]),
        total=None if rewards is None else float(rewards.sum(dtype=np.float64)),
    )


def door_angles(observations: Float[np.ndarray, "step 39"]) -> Float[np.ndarray, " step"]:
    """How the door stood, rad, by where its handle and the target are; 0 is shut, negative open."""
    hinge = observations[:, TARGET] + np.subtract(model.HINGE_OFFSET, TARGET_OFFSET).astype(np.float32)
    x, y, _ = (observations[:, HANDLE] - hinge).T
    shut = model.load().site("handle").pos
    return np.arctan2(y, x) - np.float32(math.atan2(shut[1], shut[0]))


def report(recording: Recording, replayed: Replay) -> str:
    """Recorded beside replayed, and how far apart they are."""
    episodes = (recording, replayed)
    ends = [outcome(e.observations, e.rewards) for e in episodes]
    rows = {
        "smallest distance from handle to target, mm": [f"{1000 * e.smallest:.1f}" for e in ends],
        "final distance, mm": [f"{1000 * e.final:.1f}" for e in ends],
        "steps to success": ["never" if e.steps_to_success is None else str(e.steps_to_success) for e in ends],
        "success at the end": ["yes" if e.success_at_the_end else "no" for e in ends],
        "return": ["unknown" if e.total is None else f"{e.total:.1f}" for e in ends],
    }
    lines = [f"{'':45}{'recorded':>10}{'replayed':>10}"]
    lines += [f"{name:45}{recorded:>10}{came:>10}" for name, (recorded, came) in rows.items()]
    apart = {"hand": HAND, "handle": HANDLE}
    errors = [
        np.linalg.norm(recording.observations[:, at] - replayed.observations[:, at], axis=1) for at in apart.values()
    ]
    turned = np.abs(door_angles(recording.observations) - door_angles(replayed.observations))
    said = [f"{name} {1000 * e.mean():.2f} mm ({1000 * e.max():.1f})" for name, e in zip(apart, errors, strict=True)]
    said.append(f"door {turned.mean():.4f} rad ({turned.max():.3f})")
    return "\n".join([*lines, f"mean difference (largest): {', '.join(said)}"])


def film(replayed: Replay, path: Path, how: How = "auto") -> int:
    """Write an animation in real time with a bar for the time; at most `FRAMES` frames, and returns how many.

    Args:
        replayed: what is shown.
        path: .gif, .webp or .png.
        how: as in `render.render`.

    Raises:
        RuntimeError: MuJoCo was asked for and cannot draw.
        OSError: the file cannot be written; nothing is left of it.
    """
    steps = len(replayed.rewards)
    stride = max(4, math.ceil(steps / FRAMES))  # 4 steps are 50 ms, which a GIF can time
    shown = np.arange(steps - 1, -1, -stride)[::-1]  # the last one is
    frames = list(_frames(replayed, shown, how))
    part, ending = path.with_name(f".{path.name}.part"), path.suffix.lower()
    options = {"quality": 80} if ending == ".webp" else {}
    try:
        frames[0].save(
            part,
            format=FORMATS[ending],
            save_all=True,
            append_images=frames[1:],
            duration=round(stride * STEP / 10) * 10,
            loop=0,
            **options,
        )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return len(frames)


def _frames(replayed: Replay, shown: np.ndarray, how: How) -> Iterator[Image.Image]:
    env, steps = Door(), len(replayed.rewards)
    for step in track(shown, "drawing", console=Console(stderr=True)):
        states = jax.tree.map(lambda leaf, at=step: leaf[at : at + 1], replayed.states)
        (picture,) = env.render(states, replayed.params, how)
        frame = Image.fromarray(picture).resize((FILM, FILM), Image.Resampling.LANCZOS)
        pen = ImageDraw.Draw(frame)
        pen.rectangle((0, FILM - 6, FILM, FILM), fill=TRACK)
        pen.rectangle((0, FILM - 6, FILM * (step + 1) / steps, FILM), fill=BAR)
        yield frame


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay, report, and write the film; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m envs.door.replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="a .parquet or .csv table with the columns obs_* and action_*")
    parser.add_argument("--seed", type=int, help="of its episode (default: what the .json beside it says)")
    parser.add_argument("--out", type=Path, help="an animation, .gif, .webp or .png; one of that name is replaced")
    parser.add_argument("--how", choices=get_args(How), default="auto", help="to draw: with MuJoCo's renderer or plain")
    options = parser.parse_args(arguments)
    out = options.out
    if out and out.suffix.lower() not in FORMATS:
        parser.error(f"--out {out}: give it the ending {', '.join(FORMATS)}")
    if out and out.is_dir():
        parser.error(f"--out {out} is a folder; name a file in it")
    if out and not (out.parent.is_dir() and os.access(out.parent, os.W_OK)):
        parser.error(f"--out {out}: the folder {out.parent} is missing or cannot be written; give another")
    try:
        recording = read(options.file, options.seed)
    except ValueError as error:
        parser.error(str(error))
    print(f"{options.file}: seed {recording.seed}, {len(recording.actions)} steps", flush=True)
    try:
        replayed = replay(recording)
        print(report(recording, replayed))
        if out:
            count = film(replayed, out, options.how)
            print(f"{out}: {count} frames, {out.stat().st_size / 1e6:.1f} MB")
    except (ValueError, RuntimeError, OSError) as error:
        print(f"{options.file}: {error}" if isinstance(error, ValueError) else error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    # one episode's step waits for the device longer than it computes
    jax.config.update("jax_platforms", "cpu")
    sys.exit(main())
