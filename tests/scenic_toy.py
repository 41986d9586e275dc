"""The toy task with something to look at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from toy import Block, make_task

from jaxrefine.task import Metric, Task

SIDE = 40


class Seen(Block):
    def place(self, state):
        return {"x": state.position, "y": jnp.zeros_like(state.position), "speed": jnp.abs(state.velocity)}

    def outline(self, params, index):
        return {"rail": np.array([(-3.0, 0.0), (3.0, 0.0)]), "origin": np.zeros((1, 2))}

    def render(self, states, params):
        frames = np.full((len(states.position), SIDE, SIDE, 3), 255, np.uint8)
        at = np.clip((states.position + 3) / 6 * SIDE, 0, SIDE - 1).astype(int)
        frames[np.arange(len(at)), SIDE // 2, at] = 0
        return frames


def seen(folder: Path, metric: Metric | None = None) -> Task:
    env = Seen()
    return replace(make_task(folder, metric), make_env=lambda: (env, env.default_params))
