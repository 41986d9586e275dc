"""A task of one's own: hold a room at 20 degrees while it is colder or warmer outside from episode to episode."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment

from envs.base import Column, Environment, Schema
from jaxrefine.task import EvaluationProtocol, Metric, Task

SCHEMA = Schema(
    observation=(
        Column("inside", "degC", "temperature of the room", 0.0, 30.0, "air", (0,)),
        Column("outside", "degC", "temperature outside", -10.0, 15.0, "air", (1,)),
    ),
    action=(Column("heat", "1", "share of the heater's power", 0.0, 1.0, "", (0,)),),
)
TEXT = "# Task: hold a room at 20 degC\n\n$inputs\n\n$outputs\n\nAn episode is 120 steps of a minute."


@struct.dataclass
class State(environment.EnvState):
    air: jax.Array  # inside, outside, degC


@struct.dataclass(kw_only=True)
class Params(environment.EnvParams):
    starts: jax.Array  # (episodes, 2)
    max_steps_in_episode: int = 120


class Room(Environment[State, Params]):
    schema = SCHEMA

    def params_for_seeds(self, seeds):
        return Params(starts=jnp.asarray([np.random.default_rng(s).uniform((5, -10), (25, 15)) for s in seeds], float))

    default_params = property(lambda self: self.params_for_seeds(range(8)))

    def reset_to(self, params, index):
        air = params.starts[index]
        return {"air": air}, State(time=jnp.zeros((), jnp.int32), air=air)

    def step_env(self, key, state, action, params):
        inside, outside = state.air
        inside = inside + 0.8 * jnp.clip(action[0], 0, 1) - 0.02 * (inside - outside)
        air = jnp.stack([inside, outside])
        info = {"error": jnp.abs(inside - 20)}
        return {"air": air}, State(time=state.time + 1, air=air), -info["error"], jnp.zeros((), bool), info


def demonstrate(path: Path) -> Path:
    """One episode of a person who turns a knob by feeling, as arrays; a table will do as well."""
    rng, air, airs, actions = np.random.default_rng(0), np.array([12.0, -3.0]), [], []
    for _ in range(240):
        heat = np.clip(0.2 * (20 - air[0]) + 0.025 * (20 - air[1]) + 0.05 * rng.normal(), 0, 1)
        airs, actions = [*airs, air], [*actions, [heat]]
        air = air + np.array([0.8 * heat - 0.02 * (air[0] - air[1]), 0.3 * rng.normal()])
    np.savez(path, air=airs, actions=actions)
    return path


def room(condition: str, text: str) -> Task:
    """The task; it has one condition and one text."""
    return Task(
        name="room",
        class_name="HeaterPolicy",
        text=TEXT,
        make_env=lambda: (Room(), Room().default_params),
        metric=Metric("discomfort", "K min", "lower", of="error", reduce="sum"),
        protocol=EvaluationProtocol(
            test_seeds=tuple(range(10)),  # reported, never used to choose
            validation_seeds=tuple(range(100, 116)),
            rollout_seeds=tuple(range(1000, 1032)),
            steps=120,
            sampled=False,
        ),
        demonstration_path=Path("room.npz"),
        episodes_differ_in="weathers",
    )


if __name__ == "__main__":
    demonstrate(Path("room.npz"))
