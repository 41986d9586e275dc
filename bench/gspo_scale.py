"""How fast windowed GSPO trains: steps inside training, seconds per update, seeds per second, beside a plain loop.

    python -m bench.gspo_scale RUN [--seeds 1 10 32] [--json PATH]        on a CPU
    python -m bench.gspo_scale RUN --seeds 1 32 1024 --json PATH          on an accelerator
    srun python -m bench.joined bench.gspo_scale RUN --seeds 4096         on those of all processes of a job

The policy is that of a round of a finished run. The plain loop drives the reference environment itself (Gymnasium's
CarRacing-v3, as users run it) with the same policy, one step after the other, in the same run; what a budget would take
there counts its environment steps alone, not the gradient.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.bridge import load_policy, load_program_of, read_summary
from jaxrefine import task as tasks
from jaxrefine.errors import UserError
from jaxrefine.learn.gspo import Batches, Hyperparameters, start, train
from jaxrefine.learn.mesh import gather, seed_mesh
from jaxrefine.learn.types import Params
from jaxrefine.policy.program import Program

LOW, HIGH = 400, 2000
PLAIN_STEPS = 400


@dataclass(frozen=True)
class Scale:
    """One number of seeds: compile time, and medians over rounds."""

    seeds: int
    compile_s: float
    update_s: float
    steps_per_s: float
    steps_per_episode: float
    low_budgets_per_s: float


def measure(task: tasks.Task, program: Program, params: Params, seeds: int, rounds: int) -> Scale:
    """Train ``seeds`` seeds for a few updates, timed one by one."""
    batches = Batches(steps=task.protocol.steps, one_by_one=jax.default_backend() == "cpu")
    drive = task.env.params_for_seeds(task.protocol.training_seeds)
    hyper = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), seeds), Hyperparameters())
    training = jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds, *x.shape)).copy(), start(params))
    keys = jax.random.split(jax.random.key(0), seeds)
    mesh = seed_mesh() if jax.device_count() > 1 else None
    times, rates, lengths = [], [], []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        training, curves = train(
            task.env, program.apply, drive, params, training, keys, hyper,
            starts=len(task.protocol.training_seeds), batches=batches, updates=1, mesh=mesh,
        )  # fmt: skip
        jax.block_until_ready(training)
        times.append(time.perf_counter() - began)
        lengths.append(gather(curves.length))
        rates.append(float(lengths[-1].sum()) * batches.groups * batches.episodes / times[-1])
    update = statistics.median(times[1:])
    whole = LOW // (batches.groups * batches.episodes) * update
    return Scale(seeds, times[0] - update, update, statistics.median(rates[1:]), float(np.mean(lengths)), seeds / whole)


def plain_loop(folder: Path, task: tasks.Task) -> float:
    """Steps per second of the reference under the same policy, actions sampled, one after the other."""
    import gymnasium

    from envs.car_racing.reference import reference_observation, track_nodes

    act = load_policy(folder, task.class_name, task.schema)
    environment = gymnasium.make("CarRacing-v3")
    environment.reset(seed=int(task.protocol.training_seeds[0]))
    nodes = track_nodes(environment.unwrapped)
    act(reference_observation(environment.unwrapped, nodes), jax.random.key(0))
    began = time.perf_counter()
    for t in range(PLAIN_STEPS):
        seen = reference_observation(environment.unwrapped, nodes)
        environment.step(np.asarray(act(seen, jax.random.key(t)), np.float64))
    return PLAIN_STEPS / (time.perf_counter() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.gspo_scale", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a finished run")
    parser.add_argument("--round", type=int, help="its best when absent")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 10, 32], help="numbers of seeds")
    parser.add_argument("--rounds", type=int, default=3, help="updates that are timed, after one that compiles")
    parser.add_argument("--alone", action="store_true", help="without the plain loop")
    parser.add_argument("--json", type=Path, help="where the numbers are written")
    chosen = parser.parse_args(arguments)
    try:
        summary = read_summary(chosen.run)
        number = summary["best_round"] if chosen.round is None else chosen.round
        task = tasks.get(summary["task"], None, summary["condition"])
        folder = chosen.run / f"round_{number}"
        program, params = load_program_of(folder, task.class_name, task.schema)
    except UserError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    found = [measure(task, program, params, seeds, chosen.rounds) for seeds in chosen.seeds]
    alone = chosen.alone or task.name != "car_racing" or jax.process_index()
    loop = None if alone else plain_loop(folder, task)
    device = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    table = Table(title=f"windowed GSPO, {task.name}, {task.condition}, {device}")
    for column in ("seeds", "compile s", "s an update", "env steps/s", "low budgets/s", "times the plain loop"):
        table.add_column(column, justify="right")
    for row in found:
        ratio = "-" if loop is None else f"{row.steps_per_s / loop:,.0f}"
        rates = (f"{row.steps_per_s:,.0f}", f"{row.low_budgets_per_s:.3f}")
        numbers = (f"{row.compile_s:.1f}", f"{row.update_s:.3f}", *rates)
        table.add_row(str(row.seeds), *numbers, ratio)
    if jax.process_index():  # process 0 tells
        return 0
    console = Console()
    console.print(table)
    if loop is not None:
        hours = HIGH * found[0].steps_per_episode / loop / 3600
        console.print(
            f"plain loop: {loop:.0f} steps/s; {HIGH:,} resets of a seed take it {hours:.1f} h of driving alone"
        )
    if chosen.json:
        written = {
            "command": " ".join([parser.prog, *(Path(a).name if "/" in a else a for a in arguments or sys.argv[1:])]),
            "device": device,
            "task": task.name,
            "condition": task.condition,
            "parameters": program.size,
            "plain_loop_steps_per_s": loop,
            "scales": [asdict(row) for row in found],
        }
        chosen.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
