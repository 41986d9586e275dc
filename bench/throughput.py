"""How many steps a second: this repository's Car Racing beside Gymnasium's and EnvPool's, in one run.

    python -m bench.throughput [--batches 4096] [--rounds 5] [--json bench/results/throughput_cpu.json]

A step is everything: physics, contacts, visited tiles, reward, termination and observation, on the path that a user
takes, ``jax.vmap(env.step_env)`` in a ``scan`` in one ``jit``. Every case is measured once a round, in turn, so that
whatever else the machine does meets all of them; the table shows medians over the rounds and ratios between them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import envs
from jaxrefine.learn.rollout import key_per_episode, rollout
from jaxrefine.policy.program import PolicySpec, load_program

POLICY = Path(__file__).with_name("racecar_policy.py")
STEPS = 100  # of a batch, per measurement
OTHERS_SECONDS = 2.0  # per measurement of the other environments


@dataclass(frozen=True)
class Case:
    """One line of the table: ``measure`` does some work and returns the steps a second of that work."""

    name: str
    measure: Callable[[], float]
    note: str = ""


def raw_case(batch: int) -> Case:
    """Batched steps under fixed actions."""
    env, params = envs.make("car_racing")
    step = jax.vmap(env.step_env, (None, 0, 0, None))
    key = jax.random.key(0)

    @jax.jit
    def run(obs: Any, state: Any, actions: jax.Array, params: Any) -> Any:
        def body(carry: Any, action: jax.Array) -> tuple[Any, None]:
            _, state, total = carry
            obs, state, reward, terminated, _ = step(key, state, action, params)
            return (obs, state, total + jnp.where(terminated, 0, reward)), None

        return jax.lax.scan(body, (obs, state, jnp.zeros(batch)), actions)[0]

    obs, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(key, batch), params)
    # curves at half gas: some cars stay on the road, some cross the grass
    phases = jnp.arange(batch)
    wave = jnp.sin(0.05 * jnp.arange(STEPS)[:, None] + phases)
    actions = jnp.stack([0.3 * wave, 0.4 + 0.2 * wave, jnp.full_like(wave, 0.02)], axis=-1)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves((obs, state))) / batch
    work = partial(run, obs, state, actions, params)
    return Case(f"jaxrefine, batch {batch:,}", partial(_rate, work, batch * STEPS), f"{size:.0f} bytes an environment")


def rollout_case(batch: int) -> Case:
    """Whole instrumented rollouts of a policy program, everything logged, by jaxrefine's own function."""
    env, _ = envs.make("car_racing")
    shapes = env.schema.observation_shapes
    program = load_program(POLICY.read_text(encoding="utf-8"), PolicySpec("RacecarPolicy", tuple(shapes.items()), 3))
    params = env.params_for_seeds(range(10_000, 10_064))
    index = jnp.arange(batch) % 64
    sampled = jnp.arange(batch) % 2 == 1
    keys = key_per_episode(jax.random.key(0), batch)
    work = partial(rollout, env, program.apply, params, program.initial, index, sampled, keys, steps=STEPS)
    logged = jax.eval_shape(work)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(logged)) / (batch * STEPS)
    note = f"{program.size} parameters, {size:.0f} bytes a step logged"
    return Case(f"instrumented rollouts, batch {batch:,}", partial(_rate, work, batch * STEPS), note)


def single_case() -> Case:
    """One environment, many steps in one jit."""
    env, params = envs.make("car_racing")
    action = jnp.array([0.05, 0.3, 0.0])

    @jax.jit
    def run(state: Any, params: Any) -> Any:
        step = lambda state, _: (env.step_env(jax.random.key(0), state, action, params)[1], None)  # noqa: E731
        return jax.lax.scan(step, state, None, length=1000)[0]

    state = env.reset_to(params, 0)[1]
    return Case("jaxrefine, one environment in a scan", partial(_rate, partial(run, state, params), 1000))


def stepwise_case() -> Case:
    """One environment, one call of a jitted step at a time."""
    env, params = envs.make("car_racing")
    action = jnp.array([0.05, 0.3, 0.0])
    step = jax.jit(lambda state: env.step_env(jax.random.key(0), state, action, params)[:4])

    def run(state: Any) -> Any:
        for _ in range(300):
            _, state, _, _ = step(state)
        return state

    return Case(
        "jaxrefine, one environment, a call a step", partial(_rate, partial(run, env.reset_to(params, 0)[1]), 300)
    )


def gymnasium_case(processes: int, render: bool) -> Case:
    """Gymnasium in as many processes, each driving one environment."""
    how = "as users run it" if render else "drawing stubbed"
    note = f"{processes} process" + ("es" if processes > 1 else "")
    return Case(f"Gymnasium, {how}", partial(_in_processes, processes, render), note)


def envpool_case(threads: int) -> Case | None:
    """EnvPool, where it is installed."""
    try:
        import envpool
    except ImportError:
        return None
    env = envpool.make_gymnasium("CarRacing-v3", num_envs=4 * threads, num_threads=threads)
    env.reset()
    actions = np.tile(np.array([0.05, 0.3, 0.0], np.float32), (4 * threads, 1))
    return Case("EnvPool", lambda: _until(lambda: env.step(actions), 4 * threads), f"{threads} threads")


def _rate(work: Callable[[], Any], steps: int) -> float:
    start = time.perf_counter()
    jax.block_until_ready(work())
    return steps / (time.perf_counter() - start)


def _until(step: Callable[[], Any], steps_each: int) -> float:
    start, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < OTHERS_SECONDS:
        step()
        count += steps_each
    return count / spent


def _in_processes(processes: int, render: bool) -> float:
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(processes), context.Queue()
    workers = [context.Process(target=_drive_gymnasium, args=(i, render, barrier, queue)) for i in range(processes)]
    for worker in workers:
        worker.start()
    rates = [queue.get() for _ in workers]
    for worker in workers:
        worker.join()
    return sum(rates)


def _drive_gymnasium(seed: int, render: bool, barrier: Any, queue: Any) -> None:
    from envs.car_racing.reference import make_reference

    env = make_reference(render=render)
    env.reset(seed=seed)
    action = np.array([0.05, 0.3, 0.0], np.float32)
    barrier.wait()
    queue.put(_until(lambda: env.step(action), 1))


def main() -> None:
    """Measure and print; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[4096], help="environments stepped at once")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each case")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--alone", action="store_true", help="leave the other environments out")
    options = parser.parse_args()
    console = Console()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    cases = [make(batch) for batch in options.batches for make in (raw_case, rollout_case)]
    if not options.alone:
        cases += [single_case(), stepwise_case()]
        cases += [gymnasium_case(1, True), gymnasium_case(1, False), gymnasium_case(2, False)]
        if pool := envpool_case(2):
            cases.append(pool)
        else:
            console.print("EnvPool is not installed and left out: pip install 'jaxrefine\\[bench]'")
    for case in cases:
        with console.status(f"compiling and warming up: {case.name}"):
            case.measure()
    rates: dict[str, list[float]] = {case.name + case.note: [] for case in cases}
    for done in range(options.rounds):
        with console.status(f"round {done + 1} of {options.rounds}"):
            for case in cases:
                rates[case.name + case.note].append(case.measure())

    device = jax.devices()[0]
    where = f"{device.device_kind} ({platform.processor() or platform.machine()}, {cores} cores)"
    table = Table("case", "", "steps/s (median)", "spread", "jaxrefine is times", title=f"Car Racing on {where}")
    medians = {name: statistics.median(values) for name, values in rates.items()}
    best = max(medians.values())
    for case in cases:
        values, median = rates[case.name + case.note], medians[case.name + case.note]
        spread = f"{min(values):,.0f} to {max(values):,.0f}"
        table.add_row(case.name, case.note, f"{median:,.0f}", spread, f"{best / median:,.1f}")
    console.print(table)
    if options.json:
        rows = [
            {"case": c.name, "note": c.note, "median": medians[c.name + c.note], "rates": rates[c.name + c.note]}
            for c in cases
        ]
        record = {
            "command": "python -m bench.throughput",
            "date": time.strftime("%Y-%m-%d"),
            "device": where,
            "versions": {"jax": jax.__version__, "python": platform.python_version()},
            "steps_per_measurement": STEPS,
            "results": rows,
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
