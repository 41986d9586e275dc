"""Gymnasium's CarRacing-v3 as a gymnax environment: its tracks, its car, its rewards, without its pixels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

from envs.base import Environment, Observation
from envs.batching import Leaf, batch_last
from envs.car_racing import contact, dynamics, nearest, observation, pool
from envs.car_racing.conditions import changes
from envs.car_racing.dynamics import GRASS_FRICTION, ROAD_FRICTION, Car
from envs.car_racing.nearest import Search
from envs.car_racing.schema import SCHEMA
from envs.car_racing.track import SCALE

PLAYFIELD = 2000 / SCALE  # the car may be this far from the origin in x and in y, m
LAP_REWARD = 1000.0  # shared out over the track's tiles
STEP_COST = 0.1
OUT_OF_FIELD_REWARD = -100.0
KERB = 3  # the column of ``tiles`` that is a flag
DEFAULT_SEEDS = range(10_000, 10_064)
ALL_TILES_OF_A_WHEEL = 2**contact.WINDOW - 1

Info = dict[str, Array]


@struct.dataclass
class EnvState(environment.EnvState):
    """One episode's state.

    Box2D looks for contacts when a step begins and the tyres feel them in the step after, so contacts appear
    twice: ``on_road`` are those that the next step's tyres feel, ``touching`` those that it will find.
    """

    time: Leaf  # steps taken
    track: Leaf  # index in the pool
    car: Car
    nearest: Leaf  # index of the track's node nearest to the hull's position
    search: Search
    on_road: Leaf  # bit per wheel
    touching: Leaf  # bit per wheel and tile of the window, see ``observation.touching``
    visited: Leaf  # (13,): bit i of word w: tile 32 w + i
    tiles_visited: Leaf
    pending: Leaf  # (delay, 3): clipped actions that the car has yet to obey, the oldest first


@struct.dataclass(kw_only=True)
class EnvParams(environment.EnvParams):
    """The episodes to choose from, the time limit, and the condition of car and road; one value serves a whole batch.

    The defaults are the stock environment, bit for bit. All but ``delay`` are traced and may vary without compiling
    anew; ``delay`` and whether there is noise at all shape the program.
    """

    tracks: pool.Tracks
    max_steps_in_episode: Leaf | int = 1000
    friction: Leaf | float = 1.0  # factor on what a tyre can put on the ground, road and grass alike
    engine_power: Leaf | float = 1.0  # factor on the engine's power
    pull: Leaf | float = 0.0  # added to the steering command; positive pulls to the right
    # standard deviation of Gaussian noise on every column of the observation but the kerb flags; None for none
    observation_noise: Leaf | float | None = None
    # steps from an action to its effect; until the first takes effect the car coasts
    delay: int = struct.field(pytree_node=False, default=0)


class CarRacing(Environment[EnvState, EnvParams]):
    """Gymnasium's CarRacing-v3, continuous actions, observed as numbers (``schema``).

    Reward: 1000 / N for each of the track's N tiles when a wheel first touches it, minus 0.1 each step; leaving
    the playfield ends the episode with -100 in place of that step's reward. An episode ends when every tile has
    been visited, and is truncated after ``params.max_steps_in_episode`` steps. The reference's other way to finish,
    to return to tile 0 with 95 % visited, cannot happen there: tile 0 is under the car at the start.
    """

    schema = SCHEMA
    _supports_transition_gradients = True

    def __init__(self, condition: str = "stock") -> None:
        """Make the environment under a condition of ``conditions.CONDITIONS``.

        Raises:
            ValueError: there is no such condition; the message lists those that exist.
        """
        super().__init__()
        self.condition = condition
        self._changes = changes(condition)

    @property
    def default_params(self) -> EnvParams:
        """A small pool of tracks, apart from the seeds that evaluations use; built once per process."""
        return EnvParams(tracks=_default_tracks(jnp.result_type(float).name)).replace(**self._changes)

    def params_for_seeds(self, seeds: Sequence[int]) -> EnvParams:
        """The tracks that Gymnasium builds after ``reset(seed=...)``, one per seed."""
        return EnvParams(tracks=pool.from_seeds(seeds)).replace(**self._changes)

    def reset_to(self, params: EnvParams, index: Int[Array | np.ndarray, ""] | int) -> tuple[Observation, EnvState]:
        """Start on the ``index``-th track of the pool, in the pose in which Gymnasium's ``reset`` returns.

        Raises:
            ValueError: there is no such track, or ``params.delay`` is not a number of steps. Where ``index`` is traced,
                as under ``jit`` and ``vmap``, the nearest index that exists is taken instead.
        """
        count = params.tracks.count
        if not isinstance(index, jax.core.Tracer) and not 0 <= int(index) < count:
            raise ValueError(
                f"there is no track {int(index)} in a pool of {count}: give an index from 0 to {count - 1}"
            )
        if not isinstance(params.delay, int) or params.delay < 0:
            raise ValueError(
                "delay must be a whole number of steps, 0 or more, and cannot be traced, for it shapes the state; "
                f"it is {params.delay!r}"
            )
        return _begin(params, jnp.clip(jnp.asarray(index, jnp.int32), 0, count - 1))

    def reset_env(self, key: Array, params: EnvParams) -> tuple[Observation, EnvState]:
        """Start on a track drawn uniformly from the pool."""
        return self.reset_to(params, jax.random.randint(key, (), 0, params.tracks.count))

    def step_env(
        self, key: Array, state: EnvState, action: Float[Array | np.ndarray, " 3"], params: EnvParams
    ) -> tuple[Observation, EnvState, Float[Array, ""], Bool[Array, ""], Info]:
        """Advance by 1/50 s; ``key`` serves the observation's noise alone, for nothing else here is random.

        Returns:
            observation, state, reward, whether the episode terminated (a time limit is not termination, see
            ``is_truncated``), and ``tiles_visited``, ``progress`` (share of the track's tiles visited) and
            ``off_road`` (no wheel touches the road).
        """
        action = jnp.asarray(action, state.car.x.dtype)
        if action.shape != (self.num_actions,):
            raise ValueError(f"an action has shape ({self.num_actions},), not {action.shape}; use jax.vmap for a batch")
        if len(state.pending) != params.delay:
            raise ValueError(
                f"this state was reset under a delay of {len(state.pending)} steps and params.delay is {params.delay}: "
                "reset under the parameters that you step with"
            )
        obs, state, reward, terminated, info = _advance(params, (state, action))
        obs = _noisy(key, obs, params)
        obs, state = self._apply_transition_gradient_policy(obs, state)
        return obs, state, reward, terminated, info

    def observe(
        self, key: Array, state: EnvState, action: Float[Array | np.ndarray, " 3"] | None, params: EnvParams
    ) -> Observation:
        """The observation of a state."""
        del action
        road = observation.window(params.tracks, state.track, state.nearest, state.car)
        return _noisy(key, observation.observe(road, state.car), params)

    def is_terminated(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether every tile has been visited or the car has left the playfield."""
        return (state.tiles_visited == params.tracks.length[state.track]) | _out_of_field(state.car)

    @property
    def num_actions(self) -> int:
        """Number of action components."""
        return SCHEMA.action_size

    def action_space(self, params: EnvParams | None = None) -> spaces.Box:
        """Steering, gas and brake."""
        low, high = ([getattr(column, bound) for column in SCHEMA.action] for bound in ("low", "high"))
        return spaces.Box(jnp.asarray(low, float), jnp.asarray(high, float), (self.num_actions,))

    def observation_space(self, params: EnvParams | None = None) -> spaces.Dict:
        """The observation's entries, unbounded."""
        shapes = SCHEMA.observation_shapes
        return spaces.Dict({key: spaces.Box(-jnp.inf, jnp.inf, shape) for key, shape in shapes.items()})

    def render(self, states: EnvState, params: EnvParams) -> UInt8[np.ndarray, "time height width 3"]:
        """Top view of an episode's states, stacked along their leading dimension, one frame each."""
        from envs.car_racing.render import render

        return render(states, params)

    def place(self, state: EnvState) -> dict[str, Array]:
        """Where the hull is (m), its heading (rad, counter-clockwise from the x axis) and its speed (m/s)."""
        x, y = dynamics.hull_position(state.car)
        speed = dynamics.hull_speed(state.car)
        return {"x": x, "y": y, "heading": state.car.angle + jnp.pi / 2, "speed": speed}

    def outline(self, params: EnvParams, index: int) -> dict[str, np.ndarray]:
        """The road's left and right border, closed, ``(nodes + 1, 2)``, m."""
        from envs.car_racing.render import track_of

        corners = track_of(params.tracks, index).tiles[:, :2]
        return {side: np.concatenate([corners[-1:, i], corners[:, i]]) for i, side in enumerate(("left", "right"))}


@cache
def _default_tracks(precision: str) -> pool.Tracks:
    del precision  # the cache's key: arrays are in JAX's default precision
    with jax.ensure_compile_time_eval():
        return pool.from_seeds(DEFAULT_SEEDS)


@jax.jit
def _begin(params: EnvParams, index: Int[Array, ""]) -> tuple[Observation, EnvState]:
    """The first observation and state on a track; compiled so that no two leaves share a buffer."""
    tracks = params.tracks
    start = jax.tree.map(lambda leaf: leaf[..., index], tracks.starts)
    zero = jnp.zeros_like(start.x)
    car = Car(
        x=start.x,
        y=start.y,
        angle=start.angle,
        turn=zero,
        velocity_x=zero,
        velocity_y=zero,
        yaw_rate=zero,
        front_angle=start.wheel_angle,
        front_spread=zero,
        rear_angle=start.wheel_angle,
        front_rate=zero,
        rear_rate=zero,
        front_rate_before=zero,
        motor_impulse=zero,
        gas=zero,
        wheel_speeds=jnp.zeros((4,), zero.dtype),
    )
    state = EnvState(
        time=jnp.zeros((), jnp.int32),
        track=index,
        car=car,
        nearest=start.nearest,
        search=nearest.begin(start.nearest, *dynamics.hull_position(car)),
        on_road=start.on_road,
        touching=start.touching,
        visited=start.visited,
        tiles_visited=_count(start.visited),
        pending=jnp.zeros((params.delay, SCHEMA.action_size), zero.dtype),
    )
    obs = observation.observe(observation.window(tracks, index, start.nearest, car), car)
    return _noisy(jax.random.key(index), obs, params), state


@batch_last
def _advance(
    params: EnvParams, each: tuple[EnvState, Float[Array, " 3 *batch"]]
) -> tuple[Observation, EnvState, Array, Array, Info]:
    """One step of the reference, in its order of events; the batch is in the trailing dimension."""
    state, action = each
    tracks = params.tracks
    pending = jnp.concatenate([state.pending, _clip(action)[None]])
    steer, gas, brake = pending[0]
    wheels = jnp.arange(4, dtype=jnp.uint32).reshape(-1, *(1,) * state.time.ndim)
    grips = (state.on_road >> wheels) & 1
    real = state.car.x.dtype
    car = dynamics.step(
        state.car,
        steer=-(steer + params.pull),
        gas=gas,
        brake=brake,
        friction=(jnp.where(grips == 1, ROAD_FRICTION, GRASS_FRICTION) * params.friction).astype(real),
        engine_power=params.engine_power,
    )

    length = tracks.length[state.track]
    by_wheel = (state.touching >> (wheels * contact.WINDOW)) & ALL_TILES_OF_A_WHEEL
    tiles = by_wheel[0] | by_wheel[1] | by_wheel[2] | by_wheel[3]
    visited = state.visited | _mark(tiles, state.nearest, length)
    tiles_visited = _count(visited)

    node, search = nearest.follow(tracks, state.track, state.search, *dynamics.hull_position(car))
    road = observation.window(tracks, state.track, node, car)
    touching = observation.touching(road, car)
    # the reference pays the tiles that reset visited with the first step
    unpaid = tiles_visited - jnp.where(state.time == 0, 0, state.tiles_visited)
    reward = LAP_REWARD / length.astype(real) * unpaid.astype(real) - STEP_COST
    out = _out_of_field(car)
    new_state = EnvState(
        time=state.time + 1,
        track=state.track,
        car=car,
        nearest=node,
        search=search,
        on_road=jnp.sum((by_wheel != 0).astype(jnp.uint32) << wheels, axis=0, dtype=jnp.uint32),
        touching=touching,
        visited=visited,
        tiles_visited=tiles_visited,
        pending=pending[1:],
    )
    info = {
        "tiles_visited": tiles_visited,
        "progress": tiles_visited.astype(real) / length.astype(real),
        "off_road": touching == 0,
    }
    return (
        observation.observe(road, car),
        new_state,
        jnp.where(out, OUT_OF_FIELD_REWARD, reward).astype(real),
        out | (tiles_visited == length),
        info,
    )


def _clip(action: Float[Array, " 3 *batch"]) -> Float[Array, " 3 *batch"]:
    """To the bounds of the schema."""
    steer, gas, brake = action
    return jnp.stack([jnp.clip(steer, -1.0, 1.0), jnp.clip(gas, 0.0, 1.0), jnp.clip(brake, 0.0, 1.0)])


def _noisy(key: Array, obs: Observation, params: EnvParams) -> Observation:
    """One environment's observation with the condition's noise."""
    if params.observation_noise is None:
        return obs
    tiles, indicators = obs["tiles"], obs["indicators"]
    tiles_key, indicators_key = jax.random.split(key)
    noise = params.observation_noise * jax.random.normal(tiles_key, tiles.shape, tiles.dtype)
    return {
        "tiles": tiles + noise.at[:, KERB].set(0),
        "indicators": indicators
        + params.observation_noise * jax.random.normal(indicators_key, indicators.shape, indicators.dtype),
    }


def _out_of_field(car: Car) -> Bool[Array, " *batch"]:
    x, y = dynamics.hull_position(car)
    return jnp.maximum(jnp.abs(x), jnp.abs(y)) > PLAYFIELD


def _mark(
    tiles: UInt32[Array, " *batch"], node: Int[Array, " *batch"], length: Int[Array, " *batch"]
) -> UInt32[Array, " 13 *batch"]:
    """Spread the window's tiles, one bit each, to their places round the loop."""
    first = node + contact.FIRST_TILE
    first = jnp.where(first < 0, first + length, first)
    before_end = jnp.minimum(length - first, contact.WINDOW).astype(jnp.uint32)
    past_end = tiles >> before_end
    tiles = tiles & ((jnp.uint32(1) << before_end) - 1)
    word, bit = first // pool.WORD, (first % pool.WORD).astype(jnp.uint32)
    words = jnp.arange(pool.WORDS, dtype=jnp.int32).reshape(-1, *(1,) * tiles.ndim)
    marks = jnp.where(words == word, tiles << bit, 0)
    marks |= jnp.where(words == word + 1, tiles >> (pool.WORD - bit), 0)  # a shift by a whole word leaves 0
    return marks | jnp.where(words == 0, past_end, 0)


def _count(visited: UInt32[Array, " 13 *batch"]) -> Int[Array, " *batch"]:
    return jnp.sum(jax.lax.population_count(visited), axis=0, dtype=jnp.uint32).astype(jnp.int32)
