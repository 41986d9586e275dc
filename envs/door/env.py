"""Meta-World's door-open-v3 as a gymnax environment: its doors, its arm, its observation and reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, Int, UInt8

from envs.base import Environment, Observation
from envs.batching import Leaf, batch_last
from envs.door import model, observation, reward
from envs.door.dynamics import Motion, control_step
from envs.door.reference import TARGET_OFFSET, door_positions
from envs.door.schema import HAND, HANDLE, KEY, SCHEMA
from envs.door.smooth import ARM, pose
from envs.door.vectors import constant

DEFAULT_SEEDS = range(10_000, 10_064)
DOOR = 9  # the door's place among the joints
ASTRAY = 0.3  # a hand farther than this outside its box is lost, m
ANGLE_LOW, ANGLE_HIGH = -2.6, 0.6  # a door beyond is lost; its limits, softly held, are -2 and 0, rad

Info = dict[str, Array]


@struct.dataclass
class EnvState(environment.EnvState):
    """One episode's state."""

    time: Leaf  # steps taken
    door: Leaf  # (3,) position of the door, m
    motion: Motion
    mocap: Leaf  # (3,) where the hand is drawn to, m
    frame: Leaf  # (18,) what is observed now
    frame_before: Leaf  # (18,) one step earlier


@struct.dataclass(kw_only=True)
class EnvParams(environment.EnvParams):
    """The episodes to choose from and the time limit; one value serves a whole batch."""

    doors: Leaf  # (n, 3) positions, m
    max_steps_in_episode: Leaf | int = 500


class Door(Environment[EnvState, EnvParams]):
    """Meta-World's door-open-v3 with the target shown (``schema``), as the paper's Door Opening has it.

    The hand follows a point that an action moves by at most 1 cm along each axis; the fourth component closes the
    gripper. Reward in [0, 10] is Meta-World's version 2. Success does not end an episode; it is truncated after
    ``params.max_steps_in_episode`` steps. An episode whose physics fails, that is whose numbers are not finite or whose
    hand or door is far from where it can be, terminates where it last was, with reward 0 and ``info["failed"]``.
    """

    schema = SCHEMA
    _supports_transition_gradients = True

    @property
    def default_params(self) -> EnvParams:
        """Some doors, apart from the seeds that evaluations use."""
        return self.params_for_seeds(DEFAULT_SEEDS)

    def params_for_seeds(self, seeds: Sequence[int]) -> EnvParams:
        """The doors that Meta-World places after ``env.seed(seed)``, one per seed."""
        return EnvParams(doors=jnp.asarray(door_positions(seeds), float))

    def reset_to(self, params: EnvParams, index: Int[Array | np.ndarray, ""] | int) -> tuple[Observation, EnvState]:
        """Start the ``index``-th episode in the state in which Meta-World's ``reset`` returns; nothing is simulated."""
        door = params.doors[jnp.asarray(index, jnp.int32)]
        motion = Motion(
            *(jnp.asarray(x, door.dtype) for x in (model.HOMED_QPOS, model.HOMED_QVEL, model.HOMED_WARMSTART))
        )
        hand = jnp.asarray(model.HOMED_HAND, door.dtype)
        frame = observation.frame(hand, motion.qpos[ARM:DOOR], observation.handle(door, motion.qpos[DOOR]))
        state = EnvState(
            time=jnp.zeros((), jnp.int32),
            door=door,
            motion=motion,
            mocap=jnp.asarray(model.HOMED_MOCAP, door.dtype),
            frame=frame,
            frame_before=frame,
        )
        return _observation(state), state

    def reset_env(self, key: Array, params: EnvParams) -> tuple[Observation, EnvState]:
        """Start with a door drawn uniformly from those of ``params``."""
        return self.reset_to(params, jax.random.randint(key, (), 0, params.doors.shape[0]))

    def step_env(
        self, key: Array, state: EnvState, action: Float[Array | np.ndarray, " 4"], params: EnvParams
    ) -> tuple[Observation, EnvState, Float[Array, ""], Bool[Array, ""], Info]:
        """Advance by 12.5 ms; nothing is random.

        Returns:
            observation, state, reward, whether the episode terminated (only a failure does, see the class), and
            ``success`` (the handle is within 8 cm of its target along x), ``handle_distance`` (from handle to target,
            m), ``door_angle`` (rad, 0 when shut, negative when open) and ``failed``.
        """
        del key, params
        obs, state, reward, failed, info = _advance(None, (state, jnp.asarray(action, state.door.dtype)))
        obs, state = self._apply_transition_gradient_policy(obs, state)
        return obs, state, reward, failed, info

    def observe(
        self, key: Array, state: EnvState, action: Float[Array | np.ndarray, " 4"] | None, params: EnvParams
    ) -> Observation:
        """The observation of a state."""
        del key, action, params
        return _observation(state)

    def is_terminated(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Never by the state alone: a failed step returns the last sound state, and says so itself."""
        return jnp.zeros((), bool)

    @property
    def num_actions(self) -> int:
        """Number of action components."""
        return SCHEMA.action_size

    def action_space(self, params: EnvParams | None = None) -> spaces.Box:
        """Motion along x, y and z, and grip."""
        return spaces.Box(-1.0, 1.0, (self.num_actions,))

    def observation_space(self, params: EnvParams | None = None) -> spaces.Dict:
        """The observation's entry, unbounded."""
        return spaces.Dict(
            {key: spaces.Box(-jnp.inf, jnp.inf, shape) for key, shape in SCHEMA.observation_shapes.items()}
        )

    def render(
        self, states: EnvState, params: EnvParams, how: Literal["auto", "mujoco", "plain"] = "auto"
    ) -> UInt8[np.ndarray, "time height width 3"]:
        """An episode's states, stacked along their leading dimension, one frame each; ``how`` as in `render.render`."""
        from envs.door.render import render

        return render(states, params, how)

    def place(self, state: EnvState) -> dict[str, Array]:
        """Where the hand and the handle are observed, m."""
        things = (("hand", state.frame[HAND]), ("handle", state.frame[HANDLE]))
        return {f"{thing}_{axis}": at[i] for thing, at in things for i, axis in enumerate("xyz")}

    def outline(self, params: EnvParams, index: int) -> dict[str, np.ndarray]:
        """The cabinet and the shut door from above, the hinge, and the handle's target, ``(points, 3)``, m."""
        door = np.asarray(params.doors[index], float)
        hinge = door + model.HINGE_OFFSET
        lines = {}
        for name in ("cabinet", "panel"):
            geom = model.load().geom(name)
            corners = np.array([(-1, -1, 0), (1, -1, 0), (1, 1, 0), (-1, 1, 0), (-1, -1, 0)])
            lines[name] = hinge + geom.pos + corners * geom.size
        return lines | {"hinge": hinge[None], "target": (door + TARGET_OFFSET)[None]}


@batch_last
def _advance(
    _: None, each: tuple[EnvState, Float[Array, " 4 *batch"]]
) -> tuple[Observation, EnvState, Array, Array, Info]:
    """One control step; the batch is in the trailing dimension."""
    state, action = each
    clipped = jnp.clip(action, -1.0, 1.0)
    door, before = state.door, state.frame
    mocap = jnp.clip(
        state.mocap + model.ACTION_SCALE * clipped[:3],
        constant(model.MOCAP_LOW, door),
        constant(model.MOCAP_HIGH, door),
    )
    control = jnp.stack([clipped[3], -clipped[3]])
    motion = control_step(state.motion, mocap, control, door + constant(model.HINGE_OFFSET, door))
    hand = pose(motion.qpos[:ARM]).hand
    angle = motion.qpos[DOOR]

    failed = ~_sound(hand, motion)
    motion, mocap = jax.tree.map(
        lambda new, old: jnp.where(failed, old, new), (motion, mocap), (state.motion, state.mocap)
    )
    angle = jnp.where(failed, state.motion.qpos[DOOR], angle)
    frame = observation.frame(hand, motion.qpos[ARM:DOOR], observation.handle(door, angle))
    frame = jnp.where(failed, before, frame)
    target = _target(door)
    gained = reward.reward(frame[HAND], frame[HANDLE], target, angle, clipped[3])
    info = {
        "success": reward.success(frame[HANDLE], target) & ~failed,
        "handle_distance": jnp.sqrt(jnp.sum((frame[HANDLE] - target) ** 2, 0)),
        "door_angle": angle,
        "failed": failed,
    }
    new_state = EnvState(time=state.time + 1, door=door, motion=motion, mocap=mocap, frame=frame, frame_before=before)
    return _observation(new_state), new_state, jnp.where(failed, 0.0, gained), failed, info


def _observation(state: EnvState) -> Observation:
    return {KEY: jnp.concatenate([state.frame, state.frame_before, _target(state.door)])}


def _sound(hand: Float[Array, "3 *batch"], motion: Motion) -> Bool[Array, "*batch"]:
    """Whether the numbers are finite, and hand and door about where they can be."""
    finite = [jnp.all(jnp.isfinite(x), 0) for x in motion]
    near = (hand > constant(model.MOCAP_LOW, hand) - ASTRAY) & (hand < constant(model.MOCAP_HIGH, hand) + ASTRAY)
    angle = motion.qpos[DOOR]
    return finite[0] & finite[1] & finite[2] & jnp.all(near, 0) & (angle > ANGLE_LOW) & (angle < ANGLE_HIGH)


def _target(door: Float[Array, "3 *batch"]) -> Float[Array, "3 *batch"]:
    return door + constant(TARGET_OFFSET, door)
