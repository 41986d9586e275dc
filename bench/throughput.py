"""How many steps a second: an environment of this repository beside other implementations of it, in one run.

    python -m bench.throughput [--batches 4096] [--rounds 5] [--json bench/results/throughput_cpu.json]
    python -m bench.throughput --env door --compile

A step is everything: physics, contacts, reward, termination and observation, on the path that a user takes,
``jax.vmap(env.step_env)`` in a ``scan`` in one ``jit``. Every case is measured once a round, in turn, so that whatever
else the machine does meets all of them; the table shows medians over the rounds and ratios between them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import envs
from bench.throughput_case import Case, Effort, Subject, rate_of
from jaxrefine import task as tasks
from jaxrefine.learn.rollout import key_per_episode, rollout
from jaxrefine.policy.program import PolicySpec, load_program

# environment -> the module of what is its own; imported on demand, as its yardsticks are
SUBJECTS = {"car_racing": "bench.throughput_car", "door": "bench.throughput_door"}


def load_subject(name: str) -> Subject:
    """What is an environment's own."""
    subject: Subject = import_module(SUBJECTS[name]).SUBJECT
    return subject


def raw_work(subject: Subject, batch: int, effort: Effort) -> tuple[jax.stages.Wrapped, tuple[Any, ...]]:
    """A jitted function, and its arguments, that steps a batch under fixed actions."""
    env, params = envs.make(subject.name)
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
    return run, (obs, state, jnp.asarray(subject.actions(effort.steps, batch)), params)


def raw_case(subject: Subject, batch: int, effort: Effort) -> Case:
    """Batched steps under fixed actions."""
    run, arguments = raw_work(subject, batch, effort)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(arguments[:2])) / batch
    measure = partial(rate_of, partial(run, *arguments), batch * effort.steps)
    return Case(f"jaxrefine, batch {batch:,}", measure, f"{size:.0f} bytes an environment")


def rollout_case(subject: Subject, batch: int, effort: Effort) -> Case:
    """Whole instrumented rollouts of a policy program, everything logged, by jaxrefine's own function."""
    env, _ = envs.make(subject.name)
    shapes = tuple(env.schema.observation_shapes.items())
    spec = PolicySpec(tasks.get(subject.name).class_name, shapes, env.schema.action_size)
    program = load_program(subject.policy.read_text(encoding="utf-8"), spec)
    params = env.params_for_seeds(range(10_000, 10_064))
    index = jnp.arange(batch) % 64
    sampled = jnp.arange(batch) % 2 == 1
    keys = key_per_episode(jax.random.key(0), batch)
    work = partial(rollout, env, program.apply, params, program.initial, index, sampled, keys, steps=effort.steps)
    logged = jax.make_jaxpr(work)().out_avals
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in logged) / (batch * effort.steps)
    note = f"{program.size} parameters, {size:.0f} bytes a step logged"
    return Case(f"instrumented rollouts, batch {batch:,}", partial(rate_of, work, batch * effort.steps), note)


def single_case(subject: Subject, effort: Effort) -> Case:
    """One environment, many steps in one jit."""
    env, params = envs.make(subject.name)
    action = jnp.array(subject.action)
    steps = 10 * effort.steps

    @jax.jit
    def run(state: Any, params: Any) -> Any:
        step = lambda state, _: (env.step_env(jax.random.key(0), state, action, params)[1], None)  # noqa: E731
        return jax.lax.scan(step, state, None, length=steps)[0]

    state = env.reset_to(params, jnp.array(0))[1]
    return Case("jaxrefine, one environment in a scan", partial(rate_of, partial(run, state, params), steps))


def stepwise_case(subject: Subject, effort: Effort) -> Case:
    """One environment, one call of a jitted step at a time."""
    env, params = envs.make(subject.name)
    action = jnp.array(subject.action)
    step = jax.jit(lambda state: env.step_env(jax.random.key(0), state, action, params)[:4])
    steps = 3 * effort.steps

    def run(state: Any) -> Any:
        for _ in range(steps):
            _, state, _, _ = step(state)
        return state

    work = partial(run, env.reset_to(params, jnp.array(0))[1])
    return Case("jaxrefine, one environment, a call a step", partial(rate_of, work, steps))


def own_cases(subject: Subject, batches: Sequence[int], effort: Effort, *, single: bool = True) -> list[Case]:
    """The cases of this repository's environment, batched ones first."""
    cases = [make(subject, batch, effort) for batch in batches for make in (raw_case, rollout_case)]
    return cases + [make(subject, effort) for make in (single_case, stepwise_case) if single]


def other_cases(subject: Subject, effort: Effort) -> tuple[list[Case], list[str]]:
    """The cases of other implementations, and why some are left out."""
    cases, missing = [], []
    for make in subject.yardsticks:
        try:
            cases.append(make(effort))
        except ImportError as error:
            missing.append(str(error))
    return cases, missing


def compile_seconds(name: str, batch: int, cache: str, effort: Effort) -> float:
    """Seconds until the raw case could run: tracing, and compilation or what the cache has instead of it."""
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    run, arguments = raw_work(load_subject(name), batch, effort)
    start = time.perf_counter()
    run.lower(*arguments).compile()
    return time.perf_counter() - start


def compile_times(name: str, batch: int, effort: Effort) -> dict[str, float]:
    """`compile_seconds` with an empty cache and with the one that this leaves, each in a fresh process."""
    seconds = {}
    with tempfile.TemporaryDirectory() as cache:
        for how in ("cold", "cached"):
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                seconds[how] = process.submit(compile_seconds, name, batch, cache, effort).result()
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.throughput", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", choices=SUBJECTS, default="car_racing", help="what is measured")
    parser.add_argument("--batches", type=int, nargs="+", help="environments stepped at once")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each case")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--alone", action="store_true", help="leave out other implementations and single environments")
    parser.add_argument("--compile", action="store_true", help="also time the compilation of the largest raw batch")
    options = parser.parse_args(arguments)
    console = Console()
    subject, effort = load_subject(options.env), Effort()
    batches = options.batches or subject.batches

    own = own_cases(subject, batches, effort, single=not options.alone)
    others, missing = ([], []) if options.alone else other_cases(subject, effort)
    for message in missing:
        console.print(f"left out: {escape(message)}")
    cases = own + others
    for case in cases:
        with console.status(f"compiling and warming up: {case.name}"):
            case.measure()
    rates: dict[Case, list[float]] = {case: [] for case in cases}
    for done in range(options.rounds):
        with console.status(f"round {done + 1} of {options.rounds}"):
            for case in cases:
                rates[case].append(case.measure())

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    device = f"{jax.devices()[0].device_kind} ({platform.processor() or platform.machine()}, {cores} cores)"
    medians = {case: statistics.median(values) for case, values in rates.items()}
    best = max(medians[case] for case in own)
    table = Table("case", "", "steps/s (median)", "spread", "jaxrefine is times", title=f"{subject.title} on {device}")
    for case, values in rates.items():
        spread = f"{min(values):,.0f} to {max(values):,.0f}"
        table.add_row(case.name, case.note, f"{medians[case]:,.0f}", spread, f"{best / medians[case]:,.1f}")
    console.print(table)
    record: dict[str, Any] = {
        "command": f"python -m bench.throughput --env {subject.name}",
        "environment": subject.name,
        "date": time.strftime("%Y-%m-%d"),
        "device": device,
        "versions": {"jax": jax.__version__, "python": platform.python_version()},
        "steps_per_measurement": effort.steps,
        "results": [
            {"case": case.name, "note": case.note, "median": medians[case], "rates": values}
            for case, values in rates.items()
        ],
    }
    if options.compile:
        with console.status("compiling in fresh processes"):
            seconds = compile_times(subject.name, max(batches), effort)
        console.print(
            f"jaxrefine, batch {max(batches):,}: traced and compiled in {seconds['cold']:.1f} s, "
            f"from the compilation cache in {seconds['cached']:.1f} s"
        )
        record["compile_seconds"] = {"batch": max(batches), **seconds}
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
