"""Does a program that was fitted and scored in our Door Opening do the same in Meta-World itself?

    python -m envs.door.reference                          # once: Meta-World's own virtual environment
    python -m bench.metaworld_bridge runs/some-run
    python -m bench.metaworld_bridge runs/some-run --round 0 --repeats 5 --json parity.json

drives a round's policy through Meta-World's door-open-v3 on the seeds of the run's ``evaluation.parquet`` and prints
the smallest distance from handle to target beside the recorded one. Actions are sampled as the task's protocol says;
no two samplings are the same, so ``--repeats`` episodes of a seed are averaged. Exit status: 0 when the two means agree
within the tolerance, 1 when they do not, 2 when the comparison could not be made.

Like the run itself it executes the model-written program, so use it on runs you made.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from envs.door.reference import Reference, default_environment, run_episode
from envs.door.schema import SCHEMA
from jaxrefine import task as tasks
from jaxrefine.errors import UserError
from jaxrefine.policy.program import PolicySpec, load_program
from jaxrefine.policy.source import ProgramError
from jaxrefine.worker.arrays import load_arrays

Act = Callable[[np.ndarray, jax.Array], np.ndarray]


@dataclass(frozen=True)
class Row:
    """One seed: what the run recorded, and what Meta-World says, over its repeats.

    Distances are the smallest of an episode, metres; ``success`` and ``final`` are Meta-World's, shares and metres.
    """

    seed: int
    recorded: float
    metaworld: float
    success: float
    final: float


@dataclass(frozen=True)
class Comparison:
    """A round's policy in both environments."""

    run: str
    round: int
    sampled: bool
    repeats: int
    rows: tuple[Row, ...]
    reference: dict[str, str]

    @property
    def recorded_mean(self) -> float:
        """Mean smallest distance over the seeds, as the run recorded it, metres."""
        return float(np.mean([row.recorded for row in self.rows]))

    @property
    def metaworld_mean(self) -> float:
        """Mean smallest distance over the same seeds in Meta-World, metres."""
        return float(np.mean([row.metaworld for row in self.rows]))

    @property
    def success(self) -> float:
        """Share of Meta-World's episodes that end the task."""
        return float(np.mean([row.success for row in self.rows]))

    @property
    def difference(self) -> float:
        """Of the means, Meta-World's less the recorded one, metres."""
        return self.metaworld_mean - self.recorded_mean


def compare(run: Path, number: int | None = None, repeats: int = 1, environment: Path | None = None) -> Comparison:
    """Drive a round of a run in Meta-World over the seeds on which the run evaluated it.

    Args:
        run: the run directory.
        number: the round; the run's best when absent.
        repeats: episodes of each seed.
        environment: of Meta-World; the default one when absent.

    Raises:
        UserError: the run is not one of Door Opening or lacks what is needed; the message says what.
        ImportError: Meta-World is not installed.
    """
    summary = _summary(run)
    if summary.get("task") != "door":
        raise UserError(f"{run} is a run of {summary.get('task')!r}; this bench is for door")
    if number is None:
        number = summary.get("best_round")
        if number is None:
            raise UserError(f"{run / 'summary.json'} names no best round; choose one with --round")
    folder = run / f"round_{number}"
    recorded = _recorded(folder, _chosen_fit(summary, number, run))
    task = tasks.get("door")
    act = load_policy(folder, task.class_name, task.protocol.sampled)
    rows = []
    with Reference(environment) as reference:
        versions = reference.versions()
        for seed, value in recorded:
            episodes = []
            for repeat in range(repeats):
                keys = iter(jax.random.split(jax.random.fold_in(jax.random.key(seed), repeat), task.protocol.steps))
                episodes.append(
                    run_episode(
                        lambda moment, keys=keys: act(moment.observation, next(keys)),
                        seed,
                        reference,
                        task.protocol.steps,
                    )
                )
            least = float(np.mean([e.distances[1:].min() for e in episodes]))
            success = float(np.mean([e.successes.any() for e in episodes]))
            rows.append(Row(seed, value, least, success, float(np.mean([e.distances[-1] for e in episodes]))))
    return Comparison(str(run), int(number), task.protocol.sampled, repeats, tuple(rows), versions)


def load_policy(folder: Path, class_name: str, sampled: bool) -> Act:
    """The action, sampled or the mean, of the policy in ``folder``: ``policy.py`` with the weights of ``weights.npz``.

    Raises:
        UserError: a file is missing or unreadable, or the two do not belong together.
    """
    spec = PolicySpec(class_name, tuple(SCHEMA.observation_shapes.items()), SCHEMA.action_size)
    try:
        program = load_program(_read_text(folder / "policy.py"), spec)
    except ProgramError as error:
        raise UserError(f"{folder / 'policy.py'} is no policy program: {error}") from error
    try:
        params = {name: jnp.asarray(value) for name, value in load_arrays(folder / "weights.npz").items()}
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'weights.npz'} cannot be read: {error}") from error
    for name in sorted(set(program.initial) ^ set(params)):
        where = "policy.py has" if name in program.initial else "weights.npz has"
        raise UserError(f"in {folder}, only {where} the parameter {name!r}: the two are not of the same fit")

    @jax.jit
    def act(observation: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        mean, scale_tril, _ = program.apply(params, observation)
        return mean + scale_tril @ jax.random.normal(key, mean.shape) if sampled else mean

    return lambda columns, key: np.asarray(act(SCHEMA.unflatten(np.asarray(columns, np.float32)), key))


def _summary(run: Path) -> dict[str, Any]:
    path = run / "summary.json"
    try:
        summary = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(summary, dict):
        raise UserError(f"{path} is not a run's summary")
    return summary


def _chosen_fit(summary: dict[str, Any], number: int, run: Path) -> int:
    """Which of the round's fits became its ``weights.npz``."""
    for entry in summary.get("rounds", []):
        if entry["round"] == number:
            return int(entry["fit_seeds"]["chosen"])
    known = ", ".join(str(entry["round"]) for entry in summary.get("rounds", [])) or "none"
    raise UserError(f"{run} has no round {number} that was evaluated; it has: {known}")


def _recorded(folder: Path, fit: int) -> list[tuple[int, float]]:
    """(seed, smallest distance) of a fit's test episodes."""
    path = folder / "evaluation.parquet"
    try:
        table = pd.read_parquet(path)
        rows = table[table["fit_seed"] == fit].sort_values("seed")
        recorded = list(zip(rows["seed"].astype(int).tolist(), rows["value"].astype(float).tolist(), strict=True))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be read as a round's evaluation: {error}") from error
    if not recorded:
        raise UserError(f"{path} holds no episode of fit {fit}, which the summary names as the round's")
    return recorded


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); give the directory of a finished run") from error


def _print(comparison: Comparison) -> None:
    how = "sampled actions" if comparison.sampled else "mean action"
    print(f"{comparison.run}, round {comparison.round}: {how}, {comparison.repeats} episode(s) a seed in Meta-World")
    print(f"{'seed':>6} {'recorded m':>11} {'metaworld m':>12} {'difference':>11} {'final m':>9} {'success':>8}")
    for r in comparison.rows:
        print(
            f"{r.seed:>6} {r.recorded:>11.4f} {r.metaworld:>12.4f} {r.metaworld - r.recorded:>+11.4f} "
            f"{r.final:>9.4f} {r.success:>8.2f}"
        )
    print(
        f"{'mean':>6} {comparison.recorded_mean:>11.4f} {comparison.metaworld_mean:>12.4f} "
        f"{comparison.difference:>+11.4f} {'':>9} {comparison.success:>8.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and perhaps write; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--round", type=int, help="the round; the run's best by default")
    parser.add_argument("--repeats", type=int, default=1, help="episodes of each seed in Meta-World")
    parser.add_argument("--environment", type=Path, default=default_environment(), help="Meta-World's own")
    parser.add_argument("--tolerance", type=float, default=0.002, help="largest difference of the means, metres")
    parser.add_argument("--json", type=Path, help="write the comparison to this file as well")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: give at least 1")
    try:
        comparison = compare(options.run, options.round, options.repeats, options.environment)
        agrees = abs(comparison.difference) <= options.tolerance
        if options.json:
            result = {
                **asdict(comparison),
                "run": options.run.resolve().name,
                "recorded_mean": comparison.recorded_mean,
                "metaworld_mean": comparison.metaworld_mean,
                "difference": comparison.difference,
                "success": comparison.success,
                "tolerance": options.tolerance,
                "agrees": agrees,
            }
            options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    except (UserError, ImportError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    _print(comparison)
    print(f"the means {'agree' if agrees else 'DISAGREE'} within the tolerance of {options.tolerance:g} m")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
