"""Does a program that was fitted and scored in our Door Opening do the same in Meta-World itself?

    python -m envs.door.reference                          # once: Meta-World's own virtual environment
    python -m bench.metaworld_bridge runs/some-run
    python -m bench.metaworld_bridge runs/some-run --round 0 --repeats 5 --json parity.json

drives a round's policy through Meta-World's door-open-v3 on the seeds of the run's ``evaluation.parquet`` and prints
each of the task's metrics beside the recorded one. Actions are sampled as the task's protocol says, and no two
samplings are the same: what is recorded is one sample a seed, and ``--repeats`` episodes of a seed in Meta-World are
averaged. A policy that opens the door only sometimes may so differ by chance alone. Exit status: 0 when the mean
smallest distances agree within ``--tolerance`` and the shares of successes within ``--success-tolerance``, 1 when they
do not, 2 when the comparison could not be made.

Like the run itself it executes the model-written program, so use it on runs you made.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np

from bench.bridge import Act, load_policy, read_round
from envs.door.reference import Episode, Moment, Reference, default_environment, run_episode
from envs.door.schema import SCHEMA
from jaxrefine import task as tasks
from jaxrefine.errors import UserError
from jaxrefine.task import EvaluationProtocol, Metric

DISTANCE, SUCCESS = "smallest_distance", "success"  # the metrics that must agree
REDUCTIONS: dict[str, Callable[[np.ndarray], float]] = {
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "last": lambda steps: steps[-1],
}


@dataclass(frozen=True)
class Row:
    """One seed: a number for each metric's key.

    Attributes:
        seed: Meta-World's.
        recorded: what the run recorded, of one episode.
        metaworld: what Meta-World says, mean over its repeats.
    """

    seed: int
    recorded: dict[str, float]
    metaworld: dict[str, float]


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
    def recorded_mean(self) -> dict[str, float]:
        """Means over the seeds, as the run recorded them."""
        return _mean([row.recorded for row in self.rows])

    @property
    def metaworld_mean(self) -> dict[str, float]:
        """Means over the same seeds in Meta-World."""
        return _mean([row.metaworld for row in self.rows])

    @property
    def difference(self) -> dict[str, float]:
        """Of the means, Meta-World's less the recorded one."""
        return {key: value - self.recorded_mean[key] for key, value in self.metaworld_mean.items()}

    def agrees(self, tolerance: float, success_tolerance: float) -> bool:
        """Whether the mean smallest distances (m) and the shares of successes differ by no more than that."""
        limits = {DISTANCE: tolerance, SUCCESS: success_tolerance}
        # 0.8 - 0.7 is more than 0.1
        return all(abs(self.difference[key]) <= limit + 1e-9 for key, limit in limits.items())


def _mean(each: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([values[key] for values in each])) for key in each[0]}


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
    task = tasks.get("door")
    columns = {task.metric.key: "value"} | {metric.key: metric.key for metric in task.further_metrics}
    recorded = read_round(run, "door", number, list(columns.values()))
    act = load_policy(recorded.folder, task.class_name, SCHEMA)
    rows = []
    with Reference(environment) as reference:
        versions = reference.versions()
        for values in recorded.episodes.to_dict("records"):
            seed = int(values["seed"])
            episodes = [_episode(act, seed, repeat, reference, task.protocol) for repeat in range(repeats)]
            metaworld = {
                metric.key: float(np.mean([measure(metric, episode) for episode in episodes]))
                for metric in (task.metric, *task.further_metrics)
            }
            rows.append(Row(seed, {key: float(values[column]) for key, column in columns.items()}, metaworld))
    return Comparison(str(run), recorded.number, task.protocol.sampled, repeats, tuple(rows), versions)


def measure(metric: Metric, episode: Episode) -> float:
    """A metric of an episode in Meta-World."""
    # a step's distance is the one after it
    known = {"reward": episode.rewards, "success": episode.successes, "handle_distance": episode.distances[1:]}
    return float(REDUCTIONS[metric.reduce](known[metric.of]))


def _episode(act: Act, seed: int, repeat: int, reference: Reference, protocol: EvaluationProtocol) -> Episode:
    keys = iter(jax.random.split(jax.random.fold_in(jax.random.key(seed), repeat), protocol.steps))

    def policy(moment: Moment) -> np.ndarray:
        observation = SCHEMA.unflatten(np.asarray(moment.observation, np.float32))
        return act(observation, next(keys) if protocol.sampled else None)

    return run_episode(policy, seed, reference, protocol.steps)


def _print(comparison: Comparison) -> None:
    how = "sampled actions" if comparison.sampled else "mean action"
    print(
        f"{comparison.run}, round {comparison.round}: {how}; of each seed one episode was recorded, "
        f"{comparison.repeats} driven in Meta-World"
    )
    keys = list(comparison.difference)
    print(f"{'':>10}" + "".join(f"{key.replace('_', ' '):>24}" for key in keys))
    print(f"{'seed':>10}" + f"{'recorded':>13}{'Meta-World':>11}" * len(keys))
    lines = [(str(row.seed), row.recorded, row.metaworld) for row in comparison.rows]
    for name, recorded, metaworld in (*lines, ("mean", comparison.recorded_mean, comparison.metaworld_mean)):
        print(f"{name:>10}" + "".join(f"{recorded[key]:>13.4f}{metaworld[key]:>11.4f}" for key in keys))
    print(f"{'difference':>10}" + "".join(f"{value:>+24.4f}" for value in comparison.difference.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and perhaps write; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.metaworld_bridge",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--round", type=int, help="the round; the run's best by default")
    parser.add_argument("--repeats", type=int, default=1, help="episodes of each seed in Meta-World")
    parser.add_argument("--environment", type=Path, default=default_environment(), help="Meta-World's own")
    parser.add_argument("--tolerance", type=float, default=0.002, help="of the mean smallest distance, metres")
    parser.add_argument("--success-tolerance", type=float, default=0.1, help="of the share of successes")
    parser.add_argument("--json", type=Path, help="write the comparison to this file as well")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: give at least 1")
    try:
        comparison = compare(options.run, options.round, options.repeats, options.environment)
        agrees = comparison.agrees(options.tolerance, options.success_tolerance)
        if options.json:
            result = {
                **asdict(comparison),
                "run": options.run.resolve().name,
                "recorded_mean": comparison.recorded_mean,
                "metaworld_mean": comparison.metaworld_mean,
                "difference": comparison.difference,
                "tolerance": options.tolerance,
                "success_tolerance": options.success_tolerance,
                "agrees": agrees,
            }
            options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    except (UserError, ImportError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    _print(comparison)
    verdict = "agree" if agrees else "DISAGREE"
    print(
        f"smallest distance and success {verdict} within the tolerances of {options.tolerance:g} m "
        f"and {options.success_tolerance:g}"
    )
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
