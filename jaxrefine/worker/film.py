"""Three episodes of a round for people to look at: where everything was at each step, and a short film.

Driven are the first rollout seeds of the protocol, by the mean action, whatever the round's table holds; so every
round of every method is shown alike, with the same episodes before and after a revision. They are the table's episodes
of the same numbers, to rounding, which contacts amplify. Shown are the one that does best by the task's metric, the
median and the worst.
"""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from envs.base import Scenic, draws
from jaxrefine.learn.rollout import key_per_episode
from jaxrefine.learn.stepwise import Step, drive
from jaxrefine.policy.program import Program
from jaxrefine.run.files import whole_file
from jaxrefine.tables import write_parquet
from jaxrefine.task import Metric, Task
from jaxrefine.worker.arrays import save_arrays
from jaxrefine.worker.samples import plain

SCENE, OUTLINES, FILM = "scene.parquet", "scene.npz", "film.webp"
MOST_BYTES = 1_500_000
FRAMES = 64
FRAME_MS = 125
SIDE = 240  # of an episode's picture at most, pixels
CAPTION = 18  # height of the text above it, pixels
TRIES = ((1, 60), (2, 40), (4, 20))  # one frame of every so many, and the quality, until the film is small enough
PAPER, INK = (250, 250, 250), (40, 44, 50)


def film(
    task: Task,
    program: Program,
    env_params: Any,
    params: dict[str, jax.Array],
    key: jax.Array,
    episodes: int,
    folder: Path,
) -> dict[str, Any]:
    """Drive episodes, and write ``scene.parquet``, ``scene.npz`` and ``film.webp`` of three of them.

    ``scene.parquet`` has a row for each step of the best, the median and the worst episode, in this order:
    ``episode, t, place_*`` (of the environment's ``place``), ``value_*`` (what the metric is of), ``reward, action_*,
    latent_*``, all of the same step. ``scene.npz`` holds their numbers, ``episodes``, the metric of each, ``values``,
    and ``outline_<0, 1 or 2>_<name>`` (of the environment's ``outline``). The film shows the best beside the worst.

    Args:
        task: whose environment it is. Without a ``render`` of its own there is no film; without ``place`` and
            ``outline`` nothing is known of places; without either, nothing is done.
        program: the round's.
        env_params: of the protocol's rollout seeds.
        params: one set of the program's parameters.
        key: of the rollouts.
        episodes: that are driven: the first so many rollout seeds, or all.
        folder: where the files go.

    Returns:
        ``{"driven": int, "chosen": [episode], "values": [metric], "frames": int, "env_steps": int}``.
    """
    env, metric, protocol = task.env, task.metric, task.protocol
    if not isinstance(env, Scenic) and not draws(env):
        return {"driven": 0, "chosen": [], "values": [], "frames": 0, "env_steps": 0}
    count = len(protocol.rollout_seeds[:episodes])
    steps = drive(
        env,
        program.apply,
        env_params,
        params,
        jnp.arange(count),
        key_per_episode(key, count),
        steps=protocol.steps,
        of=metric.of,
        look=env.place if isinstance(env, Scenic) else None,
    )
    log: Step = _together([replace(step, state=None) for step in steps])
    valid = np.asarray(log.valid)
    values = _reduced(metric, np.asarray(log.value), valid)
    chosen = _chosen(values, metric)
    write_parquet(folder / SCENE, [_columns(task, program, log, episode) for episode in chosen])
    outlines: dict[str, np.ndarray] = {}
    if isinstance(env, Scenic):
        for place, episode in enumerate(chosen):
            outlines |= {f"outline_{place}_{name}": line for name, line in env.outline(env_params, episode).items()}
    save_arrays(folder / OUTLINES, {"episodes": np.array(chosen), "values": values[chosen], **outlines})
    frames = 0
    if draws(env):
        ends = [chosen[0], chosen[-1]] if len(chosen) > 1 else chosen
        captions = [f"{role}: {metric.name} {values[i]:.4g}" for role, i in zip(("best", "worst"), ends, strict=False)]
        pictures = [_pictures(env, env_params, steps, valid, episode) for episode in ends]
        frames = _write(folder / FILM, pictures, captions)
    return {
        "driven": count,
        "chosen": chosen,
        "values": plain(values[chosen]),
        "frames": frames,
        "env_steps": int(valid.sum()),
    }


def _together(steps: list[Any]) -> Any:
    """The same trees of arrays, one a step, as one tree with time in front, on the host."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(steps))


def _reduced(metric: Metric, value: Float[np.ndarray, "T E"], valid: Bool[np.ndarray, "T E"]) -> Float[np.ndarray, "E"]:
    """The metric of every episode."""
    match metric.reduce:
        case "sum":
            return np.where(valid, value, 0).sum(axis=0)
        case "min":
            return np.where(valid, value, np.inf).min(axis=0)
        case "max":
            return np.where(valid, value, -np.inf).max(axis=0)
        case "last":
            return value[valid.sum(axis=0) - 1, np.arange(value.shape[1])]


def _chosen(values: Float[np.ndarray, "E"], metric: Metric) -> list[int]:
    """The best, the median and the worst episode; fewer where there are fewer."""
    sign = -1 if metric.better == "higher" else 1
    order = np.argsort(np.where(np.isfinite(values), sign * values, np.inf), kind="stable")
    return [int(order[place]) for place in sorted({0, len(order) // 2, len(order) - 1})]


def _columns(task: Task, program: Program, log: Step, episode: int) -> dict[str, np.ndarray]:
    length = int(log.valid[:, episode].sum())

    def rows(values: Any) -> np.ndarray:
        return np.asarray(values)[:length, ..., episode].astype(np.float32)

    action = np.moveaxis(np.asarray(log.action), 1, -1)
    names = sorted(program.info_keys)
    return {
        "episode": np.full(length, episode, np.int32),
        "t": np.arange(length, dtype=np.int32),
        **{f"place_{name}": rows(values) for name, values in log.seen.items()},
        f"value_{task.metric.of}": rows(log.value),
        "reward": rows(log.reward),
        **{f"action_{c.name}": rows(np.clip(action[:, i], c.low, c.high)) for i, c in enumerate(task.schema.action)},
        **{name: rows(log.info[:, i]) for i, name in enumerate(names) if name.startswith("latent_")},
    }


def _pictures(
    env: Any, env_params: Any, steps: list[Step], valid: Bool[np.ndarray, "T E"], episode: int
) -> list[Image.Image]:
    """Small pictures of one episode, one of every so many steps, as far apart as the longest episode allows."""
    every = -(-int(valid.sum(axis=0).max()) // FRAMES)
    shown = [steps[t].state for t in range(0, int(valid[:, episode].sum()), every)]
    states = jax.tree.map(lambda leaf: leaf[:, episode], _together(shown))
    frames: UInt8[np.ndarray, "time height width 3"] = np.asarray(env.render(states, env_params))
    pictures = [Image.fromarray(frame) for frame in frames]
    for picture in pictures:
        picture.thumbnail((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=None)
    return pictures


def _write(path: Path, pictures: list[list[Image.Image]], captions: list[str]) -> int:
    """Write episodes beside one another as a film, within ``MOST_BYTES``; one that ends first stays as it ended.

    Returns:
        The number of frames; 0 where it could not be made so small, and there is no film.
    """
    font = ImageFont.load_default()
    width, height = (max(size) for size in zip(*(episode[0].size for episode in pictures), strict=True))
    frames = []
    for t in range(max(map(len, pictures))):
        frame = Image.new("RGB", (len(pictures) * width, height + CAPTION), PAPER)
        pen = ImageDraw.Draw(frame)
        for i, (episode, caption) in enumerate(zip(pictures, captions, strict=True)):
            frame.paste(episode[min(t, len(episode) - 1)], (i * width, CAPTION))
            pen.text((i * width + 4, 3), caption, fill=INK, font=font)
        frames.append(frame)
    for every, quality in TRIES:
        kept, encoded = frames[::every], BytesIO()
        options = {"quality": quality, "method": 2, "duration": FRAME_MS * every, "loop": 0}
        kept[0].save(encoded, "WEBP", save_all=True, append_images=kept[1:], **options)
        if encoded.tell() <= MOST_BYTES:
            with whole_file(path) as temporary:
                temporary.write_bytes(encoded.getvalue())
            return len(kept)
    return 0
