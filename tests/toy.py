"""A task small enough for tests of the whole loop: push a sliding block to the origin.

Its optimum is a linear controller, so fits and returns have known answers.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import struct
from gymnax.environments import environment

from envs.base import Column, Environment, Schema
from jaxrefine.task import EvaluationProtocol, Metric, Task

STEPS = 40
SCHEMA = Schema(
    observation=(
        Column("position", "m", "where the block is; positive: right of the origin", -2.0, 2.0, "block", (0,)),
        Column("velocity", "m/s", "how fast it moves to the right", -2.0, 2.0, "block", (1,)),
    ),
    action=(Column("force", "N", "pushes to the right", -1.0, 1.0, "", (0,)),),
)

PROGRAM = '''import jax
import jax.numpy as jnp
from flax import nnx


class BlockPolicy(nnx.Module):
    """Pushes against position and velocity."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.stiffness = nnx.Param(jnp.array(-0.3))
        self.damping = nnx.Param(jnp.array(-0.3))
        self.noise = nnx.Param(jnp.array(-1.0))

    def __call__(self, block):
        block = jnp.nan_to_num(block)
        pull = self.stiffness[...] * block[0]
        brake = self.damping[...] * block[1]
        force = jnp.clip(pull + brake, -1, 1)
        std = jax.nn.softplus(self.noise[...]) + 0.01
        info = {
            "weight_stiffness": self.stiffness[...],
            "weight_damping": self.damping[...],
            "weight_noise": self.noise[...],
            "latent_pull": pull,
            "latent_brake": brake,
        }
        return force[None], std[None, None], info
'''


@struct.dataclass
class State(environment.EnvState):
    time: jax.Array
    position: jax.Array
    velocity: jax.Array


@struct.dataclass(kw_only=True)
class Params(environment.EnvParams):
    starts: jax.Array
    max_steps_in_episode: int = STEPS


class Block(Environment[State, Params]):
    """Unit mass, 0.1 s a step; leaving +-3 m ends the episode."""

    schema = SCHEMA

    @property
    def default_params(self) -> Params:
        return self.params_for_seeds(range(4))

    def params_for_seeds(self, seeds):
        return Params(starts=jnp.asarray([np.random.default_rng(s).uniform(-2, 2) for s in seeds], jnp.float32))

    def reset_to(self, params, index):
        zero = jnp.zeros((), jnp.float32)
        state = State(time=jnp.zeros((), jnp.int32), position=params.starts[index], velocity=zero)
        return {"block": jnp.stack([state.position, state.velocity])}, state

    def step_env(self, key, state, action, params):
        force = jnp.clip(action[0], -1, 1)
        velocity = state.velocity + 0.1 * force
        position = state.position + 0.1 * velocity
        new = State(time=state.time + 1, position=position, velocity=velocity)
        out = jnp.abs(position) > 3
        info = {"distance": jnp.abs(position)}
        return {"block": jnp.stack([position, velocity])}, new, -(position**2), out, info


def expert(observation: np.ndarray) -> np.ndarray:
    """The demonstrator: force = -0.5 position - velocity, clipped."""
    return np.clip(-0.5 * observation[..., 0] - observation[..., 1], -1, 1)


def demonstration(path: Path, noise: float = 0.05, seed: int = 0) -> Path:
    """Writes one episode of the noisy expert."""
    rng = np.random.default_rng(seed)
    position, velocity, rows = 1.7, 0.0, []
    for t in range(200):
        force = float(np.clip(expert(np.array([position, velocity])) + noise * rng.normal(), -1, 1))
        if t % 40 == 39:  # a push, so that the demonstration visits more than the way to the origin
            velocity += rng.normal()
        row = {"t": t, "obs_position": position, "obs_velocity": velocity, "action_force": force}
        velocity += 0.1 * force
        position += 0.1 * velocity
        rows.append(row | {"reward": -(position**2)})
    pd.DataFrame(rows).astype("float32").to_parquet(path)
    return path


def make_task(folder: Path, metric: Metric | None = None, sampled: bool = False) -> Task:
    """The task, with a demonstration written into `folder`."""
    env = Block()
    return Task(
        name="block",
        class_name="BlockPolicy",
        text="# Task: push the block to the origin\n\n$inputs\n\n$outputs",
        make_env=lambda: (env, env.default_params),
        metric=metric or Metric("return"),
        protocol=EvaluationProtocol(tuple(range(10)), tuple(range(100, 106)), tuple(range(200, 208)), STEPS, sampled),
        demonstration_path=demonstration(folder / "demonstration.parquet"),
    )
