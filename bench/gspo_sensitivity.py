"""How much windowed GSPO's own choices matter: learning rate, clipping, window, entropy, and how steps are grouped.

    python -m bench.gspo_sensitivity RUN [--round K] [--resets 400] [--seeds 4] [--json PATH] [--figure PATH.svg]

Every hyperparameter is varied by itself around the paper's values, and window and learning rate together. All settings
of one static shape are one ``vmap`` over settings and seeds: hyperparameters are traced. The policy and its parameters
are those of a round of a finished run; the return is that of the mean action on the task's validation episodes, which
choose, and never on its test episodes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from jax.flatten_util import ravel_pytree
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from bench.bridge import load_program_of, read_summary
from jaxrefine import task as tasks
from jaxrefine.errors import UserError
from jaxrefine.learn.evaluate import Measure, evaluate
from jaxrefine.learn.gspo import Batches, Hyperparameters, start, train
from jaxrefine.learn.rollout import key_per_episode
from jaxrefine.learn.types import Params
from jaxrefine.policy.program import Program
from jaxrefine.stats import bootstrap_interval

PAPER = Hyperparameters()
QUICK_EPISODES = 4
GRID: dict[str, tuple[float, ...]] = {
    "learning_rate": (0.0007, 0.002, 0.007, 0.02, 0.07),
    "clip": (0.05, 0.1, 0.2, 0.4),
    "window": (1, 10, 50, 150, 1000),
    "entropy": (0.0, 0.003, 0.01, 0.03),
    "discount": (0.9, 0.95, 0.98, 0.995),
}
SHAPES: dict[str, dict[str, Any]] = {
    "ratio: length-normalised": {"length_normalised": True},
    "grouping: similar states": {"anchors": 100},
    "2 starts x 10 episodes": {"groups": 2, "episodes": 10},
    "4 starts x 5 episodes": {"groups": 4, "episodes": 5},
}


@dataclass(frozen=True)
class Result:
    """One setting: its validation means after training, one a seed, and the share of clipped windows on average."""

    name: str
    value: str
    means: np.ndarray
    clipped: float


def measure(
    task: tasks.Task, program: Program, params: Params, resets: int, seeds: int, quick: bool = False
) -> tuple[float, list[Result]]:
    """The return before training, and after it for every setting.

    Args:
        task: whose episodes are driven.
        program: the policy.
        params: where every training starts.
        resets: episodes of each training.
        seeds: of each setting; the same for all of them.
        quick: two settings only.
    """
    drive = task.env.params_for_seeds(task.protocol.training_seeds)
    held_out = task.env.params_for_seeds(task.protocol.validation_seeds)
    plain = Batches(steps=task.protocol.steps, one_by_one=jax.default_backend() == "cpu")
    if quick:
        plain = replace(plain, episodes=QUICK_EPISODES)
    restore = jax.vmap(ravel_pytree(params)[1])

    def returns(vectors: jax.Array) -> np.ndarray:
        episodes = len(task.protocol.validation_seeds)
        found = evaluate(
            task.env, program.apply, held_out, restore(vectors), jnp.arange(episodes),
            key_per_episode(jax.random.key(1), episodes), measures=(Measure(),), steps=task.protocol.steps,
            sampled=task.protocol.sampled,
        )  # fmt: skip
        return np.asarray(found.values[0]).mean(1)

    def settings(hyper: Sequence[Hyperparameters], batches: Batches) -> tuple[np.ndarray, np.ndarray]:
        """Means and clipped shares, ``(settings, seeds)``."""
        updates = resets // (batches.groups * batches.episodes)
        leaves = jax.tree.map(lambda *x: jnp.repeat(jnp.stack([jnp.asarray(v, float) for v in x]), seeds), *hyper)
        leaves = replace(
            leaves,
            updates=jnp.full(len(hyper) * seeds, updates),
            window=leaves.window.astype(int),
            survivors=leaves.survivors.astype(int),
        )
        each = len(hyper) * seeds
        training = jax.tree.map(lambda x: jnp.broadcast_to(x, (each, *x.shape)).copy(), start(params))
        keys = jnp.tile(jax.random.split(jax.random.key(0), seeds), len(hyper))
        training, curves = train(
            task.env, program.apply, drive, params, training, keys, leaves,
            starts=len(task.protocol.training_seeds), batches=batches, updates=updates,
        )  # fmt: skip
        shape = (len(hyper), seeds)
        return returns(training.params).reshape(shape), np.asarray(curves.clip_fraction).mean(1).reshape(shape)

    before = float(returns(ravel_pytree(params)[0][None])[0])
    named: list[tuple[str, str, Hyperparameters]] = [("paper", "", PAPER)]
    for name, values in GRID.items():
        named += [(name, f"{v:g}", replace(PAPER, **{name: v})) for v in values if v != getattr(PAPER, name)]
    windows = [(w, r) for w in GRID["window"] for r in (0.002, 0.02)]
    named += [("window, rate", f"{w:g}, {r:g}", replace(PAPER, window=int(w), learning_rate=r)) for w, r in windows]
    if quick:
        named = named[:2]
    means, clipped = settings([hyper for _, _, hyper in named], plain)
    found = [Result(n, v, m, float(c.mean())) for (n, v, _), m, c in zip(named, means, clipped, strict=True)]
    for name, changes in {} if quick else SHAPES.items():
        means, clipped = settings([PAPER], replace(plain, **changes))
        found.append(Result(name, "", means[0], float(clipped.mean())))
    return before, found


def _named(arguments: Sequence[str]) -> list[str]:
    """The arguments with a path's last part only: where a run lay is of no use to others."""
    return [Path(argument).name if "/" in argument else argument for argument in arguments]


def draw(before: float, found: Sequence[Result], path: Path) -> None:
    """One panel a hyperparameter: the seeds as dots, their mean as a line, the return before training dashed."""
    paper = found[0]
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "jaxrefine"
    figure = Figure(figsize=(11, 2.6), layout="constrained")
    panels = figure.subplots(1, len(GRID), sharey=True)
    for panel, name in zip(panels, GRID, strict=True):
        mine = {float(r.value): r.means for r in found if r.name == name} | {float(getattr(PAPER, name)): paper.means}
        order = sorted(mine)
        panel.plot(range(len(order)), [mine[v].mean() for v in order], color="tab:blue")
        for i, value in enumerate(order):
            chosen = "tab:orange" if value == getattr(PAPER, name) else "tab:blue"
            panel.scatter([i] * len(mine[value]), mine[value], s=10, color=chosen, alpha=0.7)
        panel.axhline(before, color="grey", linestyle="--", linewidth=0.8)
        panel.set_xticks(range(len(order)), [f"{v:g}" for v in order])
        panel.set_title(name.replace("_", " "), fontsize=9)
        panel.tick_params(labelsize=7)
    panels[0].set_ylabel("validation return", fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.gspo_sensitivity", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a finished run")
    parser.add_argument("--round", type=int, help="its best when absent")
    parser.add_argument("--resets", type=int, default=400, help="episodes of each training")
    parser.add_argument("--seeds", type=int, default=4, help="of each setting")
    parser.add_argument("--json", type=Path, help="where the numbers are written")
    parser.add_argument("--figure", type=Path, help="where the figure is written")
    parser.add_argument("--quick", action="store_true", help="two settings and tiny batches: a smoke test")
    chosen = parser.parse_args(arguments)
    try:
        summary = read_summary(chosen.run)
        number = summary["best_round"] if chosen.round is None else chosen.round
        task = tasks.get(summary["task"], None, summary["condition"])
        played = summary["provenance"]["transcript"]  # None of a perceptron
        program, params = load_program_of(chosen.run / f"round_{number}", task.class_name, task.schema)
    except UserError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    began = time.perf_counter()
    resets = 2 * QUICK_EPISODES if chosen.quick else chosen.resets
    before, found = measure(task, program, params, resets, chosen.seeds, chosen.quick)
    seconds = time.perf_counter() - began
    table = Table(title=f"{task.name}, {task.condition}: {before:.1f} before training", caption=f"{seconds:.0f} s")
    for column in ("setting", "value", f"validation return after {resets} resets [95 %]", "windows clipped"):
        table.add_column(column)
    for result in found:
        spread = bootstrap_interval(result.means) if len(result.means) > 1 else None
        between = f" [{spread.low:.1f}, {spread.high:.1f}]" if spread else ""
        table.add_row(result.name, result.value, f"{result.means.mean():.1f}{between}", f"{result.clipped:.0%}")
    Console().print(table)
    if chosen.json:
        written = {
            "command": " ".join(["python -m bench.gspo_sensitivity", *_named(arguments or sys.argv[1:])]),
            "task": task.name,
            "condition": task.condition,
            "round": number,
            "resets": resets,
            "seeds": chosen.seeds,
            "run": summary["method"] + (f", conversation {played['chain']}" if played else ""),
            "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
            "seconds": seconds,
            "before": before,
            "settings": [
                {"name": r.name, "value": r.value, "means": r.means.tolist(), "clipped": r.clipped} for r in found
            ],
        }
        chosen.json.write_text(json.dumps(written, indent=1) + "\n")
    if chosen.figure:
        draw(before, found, chosen.figure)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
