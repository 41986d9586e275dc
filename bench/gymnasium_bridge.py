"""Does a program that was fitted and scored in our Car Racing score the same in Gymnasium itself?

    python -m bench.gymnasium_bridge runs/some-run
    python -m bench.gymnasium_bridge runs/some-run --round 0 --json parity.json

drives a round's policy, with the mean action, on the test tracks of Gymnasium's CarRacing-v3, and prints each
return beside the one that the run recorded in its ``evaluation.parquet``. Gymnasium's car and road are changed as
the run's condition says, or as ``--condition`` does. Exit status: 0 when the two means agree within the tolerance,
1 when they do not, 2 when the comparison could not be made.

It needs `jaxrefine[test]`. Like the run itself it executes the model-written program, so use it on runs you made.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.bridge import load_policy, read_round
from envs.car_racing.reference import make_reference, reference_versions, run_episode
from envs.car_racing.schema import SCHEMA
from jaxrefine import task as tasks
from jaxrefine.errors import UserError


@dataclass(frozen=True)
class Row:
    """One track: what the run recorded, and what Gymnasium says."""

    seed: int
    recorded: float
    recorded_steps: int
    gymnasium: float
    gymnasium_steps: int


@dataclass(frozen=True)
class Comparison:
    """A round's policy in both environments."""

    run: str
    round: int
    condition: str
    rows: tuple[Row, ...]

    @property
    def recorded_mean(self) -> float:
        """Mean return over the tracks, as the run recorded it."""
        return float(np.mean([row.recorded for row in self.rows]))

    @property
    def gymnasium_mean(self) -> float:
        """Mean return over the same tracks in Gymnasium."""
        return float(np.mean([row.gymnasium for row in self.rows]))

    @property
    def difference(self) -> float:
        """Of the means, Gymnasium's against the recorded one, per cent."""
        if self.recorded_mean == 0:
            return 0.0 if self.gymnasium_mean == 0 else float("inf")
        return 100 * (self.gymnasium_mean - self.recorded_mean) / abs(self.recorded_mean)


def compare(run: Path, number: int | None = None, condition: str | None = None) -> Comparison:
    """Drive a round of a run in Gymnasium over the tracks on which the run evaluated it.

    Args:
        run: the run directory.
        number: the round; the run's best when absent.
        condition: of Gymnasium's car and road; the run's own when absent.

    Raises:
        UserError: the run is not one of Car Racing or lacks what is needed, or there is no such condition; the
            message says what.
        ImportError: Gymnasium, Box2D or pygame is missing.
    """
    task = tasks.get("car_racing")
    recorded = read_round(run, "car_racing", number, ("value", "steps"))
    act = load_policy(recorded.folder, task.class_name, SCHEMA)
    condition = recorded.condition if condition is None else condition
    try:
        env = make_reference(condition=condition)
    except ValueError as error:
        raise UserError(str(error)) from error
    rows = []
    for seed, value, steps in recorded.episodes[["seed", "value", "steps"]].itertuples(index=False):
        episode = run_episode(act, int(seed), max_steps=task.protocol.steps, env=env)
        rows.append(Row(int(seed), float(value), int(steps), episode.total, episode.steps))
    return Comparison(str(run), recorded.number, condition, tuple(rows))


def _print(comparison: Comparison) -> None:
    print(f"{comparison.run}, round {comparison.round}, {comparison.condition}: mean action, one episode a track")
    print(f"{'track':>6} {'recorded':>10} {'steps':>6} {'gymnasium':>10} {'steps':>6} {'difference':>11}")
    for r in comparison.rows:
        print(
            f"{r.seed:>6} {r.recorded:>10.2f} {r.recorded_steps:>6} {r.gymnasium:>10.2f} {r.gymnasium_steps:>6} "
            f"{r.gymnasium - r.recorded:>+11.2f}"
        )
    print(
        f"{'mean':>6} {comparison.recorded_mean:>10.2f} {'':>6} {comparison.gymnasium_mean:>10.2f} {'':>6} "
        f"{comparison.difference:>+10.2f}%"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and perhaps write; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gymnasium_bridge",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--round", type=int, help="the round; the run's best by default")
    parser.add_argument("--condition", help="of Gymnasium's car and road; the run's own by default")
    parser.add_argument("--tolerance", type=float, default=2.0, help="largest difference of the means, per cent")
    parser.add_argument("--json", type=Path, help="write the comparison to this file as well")
    options = parser.parse_args(arguments)
    try:
        comparison = compare(options.run, options.round, options.condition)
        agrees = abs(comparison.difference) <= options.tolerance
        if options.json:
            result = {
                **asdict(comparison),
                "run": options.run.resolve().name,
                "recorded_mean": comparison.recorded_mean,
                "gymnasium_mean": comparison.gymnasium_mean,
                "difference_percent": comparison.difference,
                "tolerance_percent": options.tolerance,
                "agrees": agrees,
                "reference": reference_versions(),
            }
            options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    except (UserError, ImportError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    _print(comparison)
    verdict = "agree" if agrees else "DISAGREE"
    print(f"the means {verdict} within the tolerance of {options.tolerance:g}%")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
