"""Car Racing's part of the throughput bench: its actions, and Gymnasium and EnvPool as yardsticks."""

from __future__ import annotations

import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.throughput_case import Case, Effort, Subject, envpool_case, rate_for
from envs.car_racing.reference import make_reference

ACTION = (0.05, 0.3, 0.0)


def curves(steps: int, batch: int) -> jax.Array:
    """Curves at half gas: some cars stay on the road, some cross the grass."""
    wave = jnp.sin(0.05 * jnp.arange(steps)[:, None] + jnp.arange(batch))
    return jnp.stack([0.3 * wave, 0.4 + 0.2 * wave, jnp.full_like(wave, 0.02)], axis=-1)


def gymnasium_case(processes: int, render: bool, effort: Effort) -> Case:
    """Gymnasium in as many processes, each driving one environment.

    Raises:
        ImportError: Gymnasium, Box2D or pygame is missing.
    """
    make_reference(render=render).close()
    how = "as users run it" if render else "drawing stubbed"
    note = f"{processes} process" + ("es" if processes > 1 else "")
    return Case(f"Gymnasium, {how}", partial(_in_processes, processes, render, effort.seconds), note)


def pool_case(effort: Effort, threads: int = 2) -> Case:
    """EnvPool, four environments a thread."""
    actions = np.tile(np.array(ACTION, np.float32), (1, 4 * threads, 1))
    return envpool_case("CarRacing-v3", actions, threads, effort)


def _in_processes(processes: int, render: bool, seconds: float) -> float:
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(processes), context.Queue()
    workers = [context.Process(target=_drive, args=(i, render, seconds, barrier, queue)) for i in range(processes)]
    for worker in workers:
        worker.start()
    rates = [queue.get() for _ in workers]
    for worker in workers:
        worker.join()
    return sum(rates)


def _drive(seed: int, render: bool, seconds: float, barrier: Any, queue: Any) -> None:
    env = make_reference(render=render)
    env.reset(seed=seed)
    action = np.array(ACTION, np.float32)
    barrier.wait()
    queue.put(rate_for(seconds, lambda _: env.step(action), 1))


SUBJECT = Subject(
    name="car_racing",
    title="Car Racing",
    batches=(4096,),
    policy=Path(__file__).with_name("racecar_policy.py"),
    actions=curves,
    action=ACTION,
    yardsticks=(
        partial(gymnasium_case, 1, True),
        partial(gymnasium_case, 1, False),
        partial(gymnasium_case, 2, False),
        pool_case,
    ),
)
