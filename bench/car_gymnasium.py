"""Car Racing's two sides under the same actions: the live Gymnasium, as it is or turned, and ours.

``Turned`` is the honest noise floor: the same physics in a world laid out at another angle, so that only float32's
rounding differs. Where Gymnasium and it part, nobody can be asked to follow either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.envs.box2d.car_racing import PLAYFIELD, CarRacing

from envs.car_racing import contact, dynamics
from envs.car_racing import env as ours
from envs.car_racing.reference import reference_observation, track_nodes

OUT_OF_FIELD_REWARD = -100
NO_TILE = 10_000
Policy = Callable[[Any, Any, Any], Any]  # tiles, indicators, numpy or jax.numpy -> action


class Live(CarRacing):
    """Gymnasium's environment without its pictures, which take 98 % of a step."""

    turn = 0.0  # of the world, rad

    def _render(self, mode: str) -> None:
        return None

    @property
    def pose(self) -> tuple[float, float, float]:
        """Position (m) and angle (rad) of the hull, as in the world that is not turned."""
        return *_rotate(-self.turn, self.car.hull.position), self.car.hull.angle - self.turn


class Turned(Live):
    """The same world, turned about its origin."""

    turn = 0.3

    def step(self, action: np.ndarray | None) -> tuple:
        """As Gymnasium's, with a playfield that is turned as well."""
        if action is None:  # the step inside reset, when everything has just been created
            self._turn()
        paid = self.prev_reward
        picture, _, _, truncated, info = super().step(action)
        x, y, _ = self.pose
        out = max(abs(x), abs(y)) > PLAYFIELD
        reward = OUT_OF_FIELD_REWARD if out else self.prev_reward - paid
        return picture, reward, out or self.tile_visited_count == len(self.track), truncated, info

    def _turn(self) -> None:
        for body in (*self.road, self.car.hull, *self.car.wheels):
            body.transform = (_rotate(self.turn, body.position), body.angle + self.turn)
        self.track = [(alpha, beta + self.turn, *_rotate(self.turn, node)) for alpha, beta, *node in self.track]


def _rotate(angle: float, vector: Sequence[float]) -> tuple[float, float]:
    sin, cos = float(np.sin(angle)), float(np.cos(angle))
    return cos * vector[0] - sin * vector[1], sin * vector[0] + cos * vector[1]


@dataclass(frozen=True)
class Trace:
    """Episodes as numbers, after each step; every field is (episode, step, ...) and goes on beyond an episode's end."""

    x: np.ndarray  # of the hull's position, m
    y: np.ndarray
    angle: np.ndarray  # of the hull, rad
    speed: np.ndarray  # m/s
    front_angle: np.ndarray  # rad
    wheel_speeds: np.ndarray  # (..., 4), rad/s
    tiles: np.ndarray  # (..., 4, 6): those on which the step found each wheel, ascending, then NO_TILE
    reward: np.ndarray
    terminated: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Steps until the end of each episode."""
        return np.where(self.terminated.any(axis=1), self.terminated.argmax(axis=1) + 1, self.terminated.shape[1])

    @property
    def returns(self) -> np.ndarray:
        """Sum of the rewards until the end of each episode."""
        running = np.arange(self.reward.shape[1]) < self.lengths[:, None]
        return np.where(running, self.reward, 0.0).sum(axis=1, dtype=np.float64)


def distance(one: Trace, other: Trace) -> np.ndarray:
    """Between the positions of the same episodes, m (episode, step)."""
    return np.hypot(one.x - other.x, one.y - other.y)


# the live side


def in_gymnasium(world: Live, seeds: Sequence[int], scripts: np.ndarray) -> Trace:
    """Replays actions (episode, step, 3) on the tracks of as many seeds."""
    episodes = []
    for seed, script in zip(seeds, scripts, strict=True):
        world.reset(seed=seed)
        episodes.append([_row(world, world.step(action)) for action in script])
    return _stacked(episodes)


def driven_in_gymnasium(
    world: Live, seeds: Sequence[int], policy: Policy, steps: int, noise: np.ndarray | None = None
) -> tuple[Trace, np.ndarray]:
    """Lets a policy drive; also gives the actions (episode, step, 3), which are not yet clipped.

    Args:
        world: the live world.
        seeds: its tracks.
        policy: what drives.
        steps: of each episode, which may end earlier.
        noise: added to the actions (episode, step, 3).
    """
    episodes, actions = [], np.zeros((len(seeds), steps, 3), np.float32)
    for i, seed in enumerate(seeds):
        world.reset(seed=seed)
        nodes, rows = track_nodes(world), []
        for t in range(steps):
            seen = reference_observation(world, nodes)
            actions[i, t] = policy(seen["tiles"], seen["indicators"], np) + (0 if noise is None else noise[i, t])
            rows.append(_row(world, world.step(np.clip(actions[i, t], (-1, 0, 0), (1, 1, 1)))))
        episodes.append(rows)
    return _stacked(episodes), actions


def _row(world: Live, outcome: tuple) -> tuple:
    hull, wheels = world.car.hull, world.car.wheels
    tiles = np.full((4, contact.WINDOW), NO_TILE, np.int16)
    for row, wheel in zip(tiles, wheels, strict=True):
        touched = sorted(tile.idx for tile in wheel.tiles)
        row[: len(touched)] = touched
    omegas = [wheel.omega for wheel in wheels]
    return *world.pose, hull.linearVelocity.length, wheels[0].joint.angle, omegas, tiles, *outcome[1:3]


def _stacked(episodes: Iterable[list[tuple]]) -> Trace:
    columns = zip(*([np.array(column) for column in zip(*rows, strict=True)] for rows in episodes), strict=True)
    return Trace(*(np.stack(column) for column in columns))


# ours


def in_jax(env: ours.CarRacing, params: ours.EnvParams, scripts: np.ndarray) -> Trace:
    """Replays actions (episode, step, 3) on as many tracks, which are those of ``params``."""
    return _collected(_replay(env, params, jnp.asarray(scripts)), params)


def driven_in_jax(env: ours.CarRacing, params: ours.EnvParams, policy: Policy, steps: int) -> Trace:
    """Lets a policy drive on each track of ``params``."""
    return _collected(_drive(env, params, policy, steps), params)


@jax.jit(static_argnums=0)
def _replay(env, params, scripts):
    def body(state, action):
        state, _, seen = _step(env, params, state, action)
        return state, seen

    _, state = jax.vmap(env.reset_to, (None, 0))(params, jnp.arange(len(scripts)))
    return jax.lax.scan(body, state, scripts.swapaxes(0, 1))[1]


@jax.jit(static_argnums=(0, 2, 3))
def _drive(env, params, policy, steps):
    def body(carry, _):
        state, obs = carry
        action = jax.vmap(lambda o: policy(o["tiles"], o["indicators"], jnp))(obs)
        state, obs, seen = _step(env, params, state, action)
        return (state, obs), seen

    obs, state = jax.vmap(env.reset_to, (None, 0))(params, jnp.arange(params.tracks.count))
    return jax.lax.scan(body, (state, obs), None, steps)[1]


def _step(env, params, before, action):
    step = jax.vmap(env.step_env, (None, 0, 0, None))
    obs, state, reward, terminated, _ = step(jax.random.key(0), before, action, params)
    car = state.car
    x, y = jax.vmap(dynamics.hull_position)(car)
    speed = jax.vmap(dynamics.hull_speed)(car)
    seen = (x, y, car.angle, speed, car.front_angle, car.wheel_speeds, (before.touching, before.nearest))
    return state, obs, (*seen, reward, terminated)


def _collected(seen, params: ours.EnvParams) -> Trace:
    *numbers, (touching, nearest), reward, terminated = jax.tree.map(lambda leaf: np.asarray(leaf).swapaxes(0, 1), seen)
    flags = touching[..., None] >> np.arange(4 * contact.WINDOW, dtype=np.uint32) & 1
    window = nearest[..., None, None] + contact.FIRST_TILE + np.arange(contact.WINDOW)
    window = window % np.asarray(params.tracks.length)[:, None, None, None]
    tiles = np.where(flags.reshape(*flags.shape[:2], 4, contact.WINDOW) == 1, window, NO_TILE)
    return Trace(*numbers, np.sort(tiles).astype(np.int16), reward, terminated)
