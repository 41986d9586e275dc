"""Record a demonstration of Door Opening in its reference, Meta-World.

    python -m envs.door.reference                                         # once: the reference's own environment
    python -m envs.door.demonstrations.record --out planner.parquet

opens one door with the motion planner, writes the episode's table (``.parquet`` or ``.csv``) and, beside it, its
provenance as JSON. The same command gives the same table again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from envs.door.demonstrations.planner import Planner, Style, target_angle
from envs.door.reference import Episode, Reference, default_environment, run_episode
from envs.door.schema import SCHEMA

TEST_SEEDS = range(10)
FIRST_SEED = 20
DOOR = 9
RULE = "the lowest seed from 20 on that ends in success with the door past the target, as the planner has it"

_DESCRIPTION = """\
A motion planner. From the first observation it plans the hand's whole way: up, over the handle with the fingers open, \
shut them, down behind the handle's bar, back against the bar, and about the hinge until the door is 0.1 rad past the \
target, where it rests. Every piece has minimum-jerk timing. A controller adds to the plan's velocity a share of the \
hand's distance from the plan."""


def drive(seed: int, reference: Reference, style: Style | None = None) -> Episode:
    """One episode of the planner."""
    planner = Planner(Style() if style is None else style)
    return run_episode(lambda moment: planner(moment.observation), seed, reference)


def is_past_the_target(episode: Episode) -> bool:
    """Whether the episode ends in success, with the door further open than where the handle is nearest the target."""
    return bool(episode.successes[-1] and -episode.qpos[-1, DOOR] > target_angle(episode.observations[0]))


def to_table(episode: Episode) -> pd.DataFrame:
    """Columns ``t, obs_*, action_*, reward``, float32; all of the same step."""
    steps = len(episode.actions)
    columns: dict[str, np.ndarray] = {"t": np.arange(steps)}
    columns |= {f"obs_{c.name}": episode.observations[:steps, c.index[0]] for c in SCHEMA.observation}
    columns |= {f"action_{c.name}": episode.actions[:, c.index[0]] for c in SCHEMA.action}
    columns["reward"] = episode.rewards
    return pd.DataFrame(columns).astype(np.float32)


def provenance(episode: Episode, own: Sequence[Episode], versions: dict[str, str], out: Path) -> dict[str, Any]:
    """Where the demonstration comes from and how good its planner is."""
    least = np.array([e.distances.min() for e in own])
    return {
        "driver": {"name": "planner", "description": _DESCRIPTION, "style": asdict(Style())},
        "condition": {"name": "stock", "changes": {}},
        "reference": versions,
        "seed": episode.seed,
        "note": RULE,
        "door": episode.door.tolist(),
        "steps": len(episode.actions),
        "return": round(episode.total, 3),
        "steps_to_success": episode.steps_to_success,
        "success_at_the_end": bool(episode.successes[-1]),
        "smallest_distance": round(float(episode.distances.min()), 6),
        "final_distance": round(float(episode.distances[-1]), 6),
        "target_angle": round(target_angle(episode.observations[0]), 4),
        "final_angle": round(float(-episode.qpos[-1, DOOR]), 4),
        "own_results": {
            "over": "test seeds, one episode each, in the reference; the smallest distance from handle to target, m",
            "per_episode": [
                {
                    "seed": e.seed,
                    "value": round(float(e.distances.min()), 6),
                    "success": e.steps_to_success is not None,
                    "steps_to_success": e.steps_to_success,
                    "return": round(e.total, 3),
                    "final_distance": round(float(e.distances[-1]), 6),
                }
                for e in own
            ],
            "mean": round(float(least.mean()), 6),
            "std": round(float(least.std()), 6),
            "std_sample": round(float(least.std(ddof=1)), 6),
            "success": float(np.mean([e.steps_to_success is not None for e in own])),
            "n": len(own),
        },
        "date": date.today().isoformat(),
        "command": shlex.join(["python", "-m", "envs.door.demonstrations.record", "--out", out.name]),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Record one episode and write its table and provenance; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the table, .parquet or .csv; .json goes beside it")
    parser.add_argument("--environment", type=Path, default=default_environment(), help="the reference's own")
    options = parser.parse_args(arguments)
    if options.out.suffix not in {".parquet", ".csv"}:
        parser.error(f"--out {options.out}: give it the ending .parquet or .csv")
    if not options.out.parent.is_dir():
        parser.error(f"--out {options.out}: there is no folder {options.out.parent}; make it first")
    try:
        with Reference(options.environment) as reference:
            episodes = (drive(seed, reference) for seed in count(FIRST_SEED))
            episode = next(e for e in episodes if is_past_the_target(e))
            own = [drive(seed, reference) for seed in TEST_SEEDS]
            about = provenance(episode, own, reference.versions(), options.out)
        table = to_table(episode)
        if options.out.suffix == ".csv":
            table.to_csv(options.out, index=False)
        else:
            table.to_parquet(options.out, index=False)
        options.out.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    except (ImportError, OSError) as error:
        print(f"nothing was recorded: {error}", file=sys.stderr)
        return 2
    results = about["own_results"]
    print(f"{options.out}: seed {episode.seed}, success after {episode.steps_to_success} steps")
    print(f"smallest distance over seeds 0..9: {results['mean']:.4f} m, success {results['success']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
