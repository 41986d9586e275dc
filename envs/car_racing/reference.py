"""Car Racing's reference: Gymnasium's CarRacing-v3 itself, seen and driven in this repository's convention.

Everything that speaks to the live Gymnasium is here, and Gymnasium is imported only when a function is called:
the environment in JAX needs none of it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from envs.car_racing.conditions import changes
from envs.car_racing.schema import LENGTH_SCALE, SCHEMA, TILES

NAME = "CarRacing-v3"
MAX_STEPS = 1000
SPEED_SCALE = 1 / 100
YAW_RATE_SCALE = 1 / 10
WHEEL_SPEED_SCALE = 1 / 200

Observation = Mapping[str, np.ndarray]
Policy = Callable[[dict[str, np.ndarray]], Any]

_CHANGEABLE = ("friction", "engine_power", "pull", "delay")

_LOW = np.array([column.low for column in SCHEMA.action], np.float32)
_HIGH = np.array([column.high for column in SCHEMA.action], np.float32)


@dataclass(frozen=True)
class Nodes:
    """The centre line of one track, as Gymnasium laid it.

    Attributes:
        position: metres, in the world's frame.
        heading: of the road, radians, counter-clockwise from the world's y axis as the hull's angle is.
        border: whether Gymnasium drew a kerb along the tile that ends at the node.
    """

    position: Float[np.ndarray, "nodes 2"]
    heading: Float[np.ndarray, " nodes"]
    border: Bool[np.ndarray, " nodes"]


@dataclass(frozen=True)
class Episode:
    """One episode in the reference; row t is what was seen before the action of step t, and its reward.

    Attributes:
        observations: ``tiles (steps, 12, 4)`` and ``indicators (steps, 7)``, float32.
        actions: as sent, that is, clipped.
        rewards: of each step; the first also pays for the tiles under the car at the start.
        terminated: all tiles were visited or the car left the playfield, rather than the time running out.
    """

    observations: dict[str, np.ndarray]
    actions: Float[np.ndarray, "steps 3"]
    rewards: Float[np.ndarray, " steps"]
    terminated: bool

    @property
    def total(self) -> float:
        """The return: the sum of the rewards."""
        return float(np.sum(self.rewards))

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return len(self.rewards)


def make_reference(render: bool = False, condition: str | Mapping[str, float | int] = "stock") -> Any:
    """Gymnasium's own environment, unwrapped: no time limit and no checks around it.

    Args:
        render: keep the drawing. Without it nothing is drawn, which makes a step some seventy times faster,
            and ``step`` and ``reset`` return ``None`` in place of the picture.
        condition: the name of a change of the car and its road (``envs.car_racing.conditions``), or the
            ``EnvParams`` fields that it changes. Only this environment has it; others go on as they were.

    Raises:
        ImportError: Gymnasium, Box2D or pygame is missing.
        ValueError: there is no such condition, or it changes what the reference has not.
    """
    changed = changes(condition) if isinstance(condition, str) else condition
    if unknown := set(changed).difference(_CHANGEABLE):
        raise ValueError(f"the reference cannot change {', '.join(sorted(unknown))}; it can: {', '.join(_CHANGEABLE)}")
    try:
        import gymnasium
        from gymnasium.error import DependencyNotInstalled
    except ImportError as error:
        raise _missing(error) from error
    try:
        env = gymnasium.make(NAME, render_mode="rgb_array" if render else None).unwrapped
    except (ImportError, DependencyNotInstalled) as error:
        raise _missing(error) from error
    if not render:
        env._render = lambda mode: None
    if changed:
        _change(env, changed)
    return env


def reference_versions() -> dict[str, str]:
    """The versions of Gymnasium and Box2D that are installed, and the name of the environment."""
    from importlib.metadata import version

    return {"name": NAME, "gymnasium": version("gymnasium"), "box2d": version("box2d")}


def track_nodes(env: Any) -> Nodes:
    """The track of the running episode; it does not change until the next ``reset``."""
    track = np.array(env.track, np.float64)
    # Gymnasium does not keep its kerb flags, but draws a kerb right after the tile it belongs to, and only
    # kerbs have a fixed colour, written as a tuple.
    border = np.zeros(len(track), bool)
    tile = -1
    for _, colour in env.road_poly:
        if isinstance(colour, tuple):
            border[tile] = True
        else:
            tile += 1
    return Nodes(position=track[:, 2:4], heading=track[:, 1], border=border)


def reference_observation(env: Any, nodes: Nodes | None = None) -> dict[str, np.ndarray]:
    """What a policy sees now; ``envs.car_racing.schema`` describes the numbers.

    Args:
        env: the running reference.
        nodes: its ``track_nodes``, to spare reading the track again at every step.

    Returns:
        ``{"tiles": (12, 4), "indicators": (7,)}``, float32.
    """
    nodes = track_nodes(env) if nodes is None else nodes
    hull, wheels = env.car.hull, env.car.wheels
    speed = np.hypot(*hull.linearVelocity) * SPEED_SCALE
    indicators = [speed, wheels[0].joint.angle / np.pi, hull.angularVelocity * YAW_RATE_SCALE]
    indicators += [wheel.omega * WHEEL_SPEED_SCALE for wheel in wheels]
    return {
        "tiles": tiles_ahead(nodes, np.array(hull.position), hull.angle),
        "indicators": np.array(indicators, np.float32),
    }


def tiles_ahead(nodes: Nodes, position: Float[np.ndarray, " 2"], angle: float) -> Float[np.ndarray, "12 4"]:
    """The twelve nodes from the car on, in the frame of a hull at ``position`` (m) turned by ``angle`` (rad)."""
    right = np.array([math.cos(angle), math.sin(angle)])
    forward = np.array([-right[1], right[0]])
    first = int(np.argmin(np.sum((nodes.position - position) ** 2, axis=1)))
    if (nodes.position[first] - position) @ forward < 0:
        first += 1
    chosen = (first + np.arange(TILES)) % len(nodes.position)
    offset = nodes.position[chosen] - position
    return np.stack(
        [
            offset @ right * LENGTH_SCALE,
            offset @ forward * LENGTH_SCALE,
            _wrapped(nodes.heading[chosen] - angle) / np.pi,
            nodes.border[chosen],
        ],
        axis=1,
    ).astype(np.float32)


def clip_action(action: Any) -> Float[np.ndarray, " 3"]:
    """Clip a raw (steer, gas, brake) to the schema's bounds, float32.

    Raises:
        ValueError: the action is not three finite numbers.
    """
    raw = np.asarray(action, np.float32)
    if raw.shape != _LOW.shape or not np.all(np.isfinite(raw)):
        raise ValueError(f"an action is three finite numbers (steer, gas, brake); the policy gave {raw.tolist()}")
    return np.clip(raw, _LOW, _HIGH)


def run_episode(policy: Policy, seed: int, max_steps: int = MAX_STEPS, env: Any = None) -> Episode:
    """Drive one track of the reference.

    Args:
        policy: observation -> raw action (steer -1 left to 1 right, gas, brake), clipped here.
        seed: of the track.
        max_steps: the time limit, in steps of 0.02 s.
        env: a ``make_reference()`` to use again; made for the purpose when absent.

    Raises:
        ValueError: the policy gave something other than three finite numbers.
        ImportError: Gymnasium, Box2D or pygame is missing.
    """
    env = make_reference() if env is None else env
    env.reset(seed=seed)
    nodes = track_nodes(env)
    observations: list[dict[str, np.ndarray]] = []
    actions: list[np.ndarray] = []
    rewards: list[float] = []
    terminated = False
    while not terminated and len(rewards) < max_steps:
        observation = reference_observation(env, nodes)
        action = clip_action(policy(observation))
        _, reward, terminated, _, _ = env.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(reward)
    return Episode(
        observations={key: np.stack([o[key] for o in observations]) for key in observations[0]},
        actions=np.stack(actions),
        rewards=np.array(rewards, np.float64),
        terminated=bool(terminated),
    )


def _change(env: Any, changed: Mapping[str, float | int]) -> None:
    """Give this one environment another car; ``EnvParams`` says what the numbers mean."""
    car_step = _car_step(changed.get("friction", 1.0), changed.get("engine_power", 1.0))
    pull, delay = np.array([changed.get("pull", 0.0), 0, 0]), int(changed.get("delay", 0))
    stock_reset, stock_step = env.reset, env.step
    waiting: deque[np.ndarray] = deque()

    def reset(**options: Any) -> Any:
        waiting.clear()
        waiting.extend([np.zeros(3)] * delay)
        return stock_reset(**options)

    def step(action: np.ndarray | None) -> Any:
        # Gymnasium builds a new car in its reset, which ends with a step that has no action
        env.car.step = MethodType(car_step, env.car)
        if action is not None:
            waiting.append(np.clip(action, _LOW, _HIGH).astype(np.float64))
            action = waiting.popleft() + pull
        return stock_step(action)

    env.reset, env.step = reset, step


def _car_step(friction: float, engine_power: float) -> Callable[..., None]:
    """Gymnasium's ``Car.step`` with other constants: its own code, over a copy of its module's globals."""
    from gymnasium.envs.box2d import car_dynamics

    constants = {
        "FRICTION_LIMIT": car_dynamics.FRICTION_LIMIT * friction,
        "ENGINE_POWER": car_dynamics.ENGINE_POWER * engine_power,
    }
    return FunctionType(car_dynamics.Car.step.__code__, {**vars(car_dynamics), **constants})


def _wrapped(angle: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Radians, wrapped to (-pi, pi]."""
    return np.pi - np.mod(np.pi - angle, 2 * np.pi)


def _missing(error: Exception) -> ImportError:
    return ImportError(
        f"the reference {NAME} needs Gymnasium, Box2D and pygame, which are not all installed ({error}); "
        "install them with `pip install 'jaxrefine[test]'`"
    )
