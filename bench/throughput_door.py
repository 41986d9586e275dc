"""Door Opening's part of the throughput bench: its actions, and EnvPool and MuJoCo's own rollout as yardsticks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mujoco
import mujoco.rollout
import numpy as np

from bench.throughput_case import Case, Effort, Subject, envpool_case, rate_of
from envs.door import model
from envs.door.env import DEFAULT_SEEDS
from envs.door.reference import door_positions

HOLD = 10  # steps for which an action is held: long enough for the hand to get to the handle and the door
EPISODE = 500  # steps
MUJOCO_BATCH = 256


def wandering(steps: int, batch: int) -> np.ndarray:
    """Uniformly random actions, each held for some steps, so that hands meet handles and doors."""
    drawn = np.random.default_rng(0).uniform(-1.0, 1.0, (-(-steps // HOLD), batch, 4))
    return np.repeat(drawn.astype(np.float32), HOLD, axis=0)[:steps]


def pool_case(effort: Effort, threads: int = 2) -> Case:
    """EnvPool's Meta-World, four environments a thread."""
    return envpool_case("MetaWorld/DoorOpen-v3", wandering(EPISODE, 4 * threads), threads, effort)


def mujoco_case(effort: Effort, threads: int = 2, batch: int = MUJOCO_BATCH) -> Case:
    """MuJoCo's own threaded rollout, in C, of this environment's model: what the processor could do at best.

    The actions are those of raw batched steps. It moves the bodies and no more.
    """
    work = mujoco_work(batch, effort.steps, threads)
    note = f"{threads} threads, batch {batch}; physics only, no observation or reward"
    return Case("MuJoCo's C rollout of door.xml", partial(rate_of, work, batch * effort.steps), note)


def mujoco_work(batch: int, steps: int, threads: int) -> Callable[[], np.ndarray]:
    """A function that moves a batch by so many control steps and returns MuJoCo's full physics states.

    They are ``(batch, FRAME_SKIP * steps, 1 + 10 + 10)``: time, ``qpos`` and ``qvel``.
    """
    models = _models()
    start = mujoco.MjData(models[0])
    start.qpos[:], start.qvel[:] = model.HOMED_QPOS, model.HOMED_QVEL
    state = np.zeros(mujoco.mj_stateSize(models[0], mujoco.mjtState.mjSTATE_FULLPHYSICS))
    mujoco.mj_getState(models[0], start, state, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    control = np.repeat(_controls(wandering(steps, batch)), model.FRAME_SKIP, axis=1)
    given = int(mujoco.mjtState.mjSTATE_CTRL | mujoco.mjtState.mjSTATE_MOCAP_POS)
    data = [mujoco.MjData(models[0]) for _ in range(threads)]
    pool = mujoco.rollout.Rollout(nthread=threads)
    each = [models[i % len(models)] for i in range(batch)]
    warmstart = np.array(model.HOMED_WARMSTART)
    return lambda: pool.rollout(each, data, state, control, control_spec=given, initial_warmstart=warmstart)[0]


def _models() -> list[mujoco.MjModel]:
    """One a door."""
    models = []
    for door in door_positions(DEFAULT_SEEDS):
        moved = copy.copy(model.load())
        for body in ("cabinet", "door_link"):
            moved.body(body).pos[:] = door + model.HINGE_OFFSET
        models.append(moved)
    return models


def _controls(actions: np.ndarray) -> np.ndarray:
    """Controls of the fingers and the mocap body's positions that ``actions`` lead to, (batch, steps, 5)."""
    mocap = np.tile(model.HOMED_MOCAP, (actions.shape[1], 1))
    controls = []
    for action in actions:
        mocap = np.clip(mocap + model.ACTION_SCALE * action[:, :3], model.MOCAP_LOW, model.MOCAP_HIGH)
        controls.append(np.concatenate([action[:, 3:], -action[:, 3:], mocap], axis=1))
    return np.stack(controls, axis=1)


SUBJECT = Subject(
    name="door",
    title="Door Opening",
    batches=(64, 256, 1024),
    policy=Path(__file__).with_name("door_policy.py"),
    actions=wandering,
    action=(0.2, 0.5, -0.1, 0.5),
    yardsticks=(pool_case, mujoco_case),
)
