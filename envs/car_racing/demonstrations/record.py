"""Record a demonstration of Car Racing in its reference, Gymnasium.

    python -m envs.car_racing.demonstrations.record --driver human_like --seed 6 --out demonstration.parquet

drives one episode under the driver's condition, writes its table (``.parquet`` or ``.csv``) and, beside it, its
provenance as JSON. The same command gives the same table again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from envs.car_racing.conditions import changes
from envs.car_racing.demonstrations.driver import HumanLikeDriver, Style
from envs.car_racing.reference import Episode, make_reference, reference_versions, run_episode
from envs.car_racing.schema import SCHEMA

TEST_SEEDS = range(1000, 1010)
NOISE_STREAM = 1


@dataclass(frozen=True)
class Demonstrator:
    """A driver with a style of his own, and the car he has got used to.

    Attributes:
        style: how he drives.
        description: what it amounts to, for the provenance.
        condition: of his car and its road.
    """

    style: Style
    description: str
    condition: str = "stock"


_HUMAN_LIKE = """\
Pure pursuit of the centre line on a picture of the road that is one reaction time old, moved by the motion felt \
since. Speed by the bends in sight, judged on the stale picture, hence late braking. Pedals nearly on or off, gas \
eased while steering. Low-passed stick and pedals with slow motor noise."""

_RACING_LINE = """\
As human_like, but quicker to see and to act, with a steadier hand. He goes wide before a bend and cuts it on the \
inside, trusts the tyres further, brakes late and hard, and is fast wherever the road is straight."""

_CAUTIOUS = """\
As human_like, but slow and smooth. He keeps to the centre line at a moderate speed that suits most bends, lifts the \
gas early, seldom brakes and then gently, and moves stick and pedals slowly with hardly a tremor."""

_SLICK = """\
As human_like, on a road that he knows to be slippery. Little gas, so that the wheels do not spin; he brakes early \
and very gently, waits for a straight wheel before he accelerates, and cuts the bends a little."""

_PULL = """\
As human_like, in a car that he knows to pull to the right: he holds the stick to the left all the time, and steers \
about that."""

_DELAY = """\
As human_like, in a car that he knows to obey late. He steers by where the road will be once his last commands have \
taken effect, aims nearer, and brakes early and gently."""

_WORN = """\
As human_like, in a car with worn tyres and a pull to the right, both of which he knows: he holds the stick to the \
left, and spares the tyres by gentle gas and long, gentle braking."""

DRIVERS = {
    "human_like": Demonstrator(Style(), _HUMAN_LIKE),
    "racing_line": Demonstrator(
        Style(
            lag=6,
            lateral_grip=139.0,
            arc_grip=200.0,
            braking=79.0,
            top_speed=82.0,
            gas_band=6.9,
            brake_margin=2.4,
            hand=0.3,
            hand_noise=0.04,
            inside=50.0,
            outside=15.0,
        ),
        _RACING_LINE,
    ),
    "cautious": Demonstrator(
        Style(
            lag=6,
            look_ahead=0.33,
            lateral_grip=110.0,
            arc_grip=140.0,
            braking=30.0,
            top_speed=54.0,
            gas_band=14.0,
            brake_margin=2.0,
            brake_band=25.0,
            brake_most=0.35,
            easing=1.0,
            hand=0.18,
            foot=0.12,
            hand_noise=0.02,
            foot_noise=0.01,
        ),
        _CAUTIOUS,
    ),
    "slick": Demonstrator(
        Style(
            lag=4,
            look_ahead=0.46,
            look_ahead_least=11.8,
            steering_gain=1.94,
            lateral_grip=85.0,
            arc_grip=91.0,
            braking=15.0,
            top_speed=62.0,
            gas_band=25.0,
            gas_most=0.52,
            brake_margin=5.5,
            brake_band=12.5,
            brake_most=0.2,
            easing=3.7,
            hand=0.33,
            inside=20.0,
        ),
        _SLICK,
        "slick",
    ),
    "pull": Demonstrator(Style(trim=-0.25), _PULL, "pull"),
    "delay": Demonstrator(
        Style(
            lag=5,
            look_ahead_least=9.6,
            steering_gain=1.8,
            lateral_grip=72.5,
            arc_grip=100.0,
            braking=35.9,
            top_speed=80.0,
            gas_band=8.5,
            brake_margin=3.4,
            brake_band=25.0,
            brake_most=0.2,
            easing=1.8,
            hand=0.22,
            anticipation=8,
        ),
        _DELAY,
        "delay",
    ),
    "worn": Demonstrator(
        Style(
            lag=7,
            steering_gain=1.8,
            lateral_grip=112.0,
            arc_grip=110.0,
            braking=14.0,
            top_speed=75.0,
            gas_band=20.0,
            gas_most=0.8,
            brake_margin=4.4,
            brake_band=25.0,
            brake_most=0.3,
            easing=3.0,
            hand=0.28,
            trim=-0.2,
        ),
        _WORN,
        "worn",
    ),
}


def drive(name: str, seed: int, env: Any = None) -> Episode:
    """One episode of a driver, by name, on a track; his noise is drawn from the same seed.

    Args:
        name: of the driver.
        seed: of the track.
        env: the reference to drive in; made under the driver's own condition when absent.
    """
    demonstrator = DRIVERS[name]
    env = make_reference(condition=demonstrator.condition) if env is None else env
    driver = HumanLikeDriver(demonstrator.style, np.random.default_rng([seed, NOISE_STREAM]))
    return run_episode(driver, seed, env=env)


def to_table(episode: Episode) -> pd.DataFrame:
    """Columns ``t, obs_*, action_*, reward``, float32; all of the same step."""
    columns: dict[str, np.ndarray] = {"t": np.arange(episode.steps)}
    seen = SCHEMA.flatten(episode.observations)
    columns |= {f"obs_{c.name}": seen[:, i] for i, c in enumerate(SCHEMA.observation)}
    columns |= {f"action_{c.name}": episode.actions[:, i] for i, c in enumerate(SCHEMA.action)}
    columns["reward"] = episode.rewards
    return pd.DataFrame(columns).astype(np.float32)


def linear_r_squared(episode: Episode) -> dict[str, float]:
    """Share of each action's variance that a linear regression on the 48 tile columns explains."""
    tiles = episode.observations["tiles"].reshape(episode.steps, -1).astype(np.float64)
    inputs = np.column_stack([tiles, np.ones(episode.steps)])
    actions = episode.actions.astype(np.float64)
    coefficients, *_ = np.linalg.lstsq(inputs, actions, rcond=None)
    residual = np.var(actions - inputs @ coefficients, axis=0)
    share = 1 - residual / np.var(actions, axis=0)
    return {column.name: round(float(share[i]), 3) for i, column in enumerate(SCHEMA.action)}


def provenance(name: str, seed: int, note: str, episode: Episode, out: Path, env: Any) -> dict[str, Any]:
    """Where the demonstration comes from and how good its driver is; drives the ten test tracks for it."""
    demonstrator = DRIVERS[name]
    module = "envs.car_racing.demonstrations.record"
    command = ["python", "-m", module, "--driver", name, "--seed", str(seed), "--out", out.name]
    command += ["--note", note] if note else []
    env.reset(seed=seed)
    nodes = len(env.track)
    own = [drive(name, test_seed, env) for test_seed in TEST_SEEDS]
    returns = np.array([e.total for e in own])
    return {
        "driver": {"name": name, "description": demonstrator.description, "style": asdict(demonstrator.style)},
        "condition": {"name": demonstrator.condition, "changes": dict(changes(demonstrator.condition))},
        "reference": reference_versions(),
        "track_seed": seed,
        "track_nodes": nodes,
        "note": note,
        "noise_seed": [seed, NOISE_STREAM],
        "return": round(episode.total, 3),
        "steps": episode.steps,
        "terminated": episode.terminated,
        "linear_r_squared_on_tiles": linear_r_squared(episode),
        "own_results": {
            "over": "test track seeds, one episode each, in the reference under the condition",
            "per_episode": [
                {"seed": s, "value": round(e.total, 3), "steps": e.steps} for s, e in zip(TEST_SEEDS, own, strict=True)
            ],
            "mean": round(float(returns.mean()), 3),
            "std": round(float(returns.std()), 3),
            "std_sample": round(float(returns.std(ddof=1)), 3),
            "n": len(returns),
        },
        "date": date.today().isoformat(),
        "command": shlex.join(command),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Record one episode and write its table and provenance; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", choices=sorted(DRIVERS), default="human_like")
    parser.add_argument("--seed", type=int, required=True, help="track seed")
    parser.add_argument("--out", type=Path, required=True, help="the table, .parquet or .csv; .json goes beside it")
    parser.add_argument("--note", default="", help="kept in the provenance, e.g. how the track was chosen")
    options = parser.parse_args(arguments)
    if options.out.suffix not in {".parquet", ".csv"}:
        parser.error(f"--out {options.out}: give it the ending .parquet or .csv")
    if not options.out.parent.is_dir():
        parser.error(f"--out {options.out}: there is no folder {options.out.parent}; make it first")
    try:
        env = make_reference(condition=DRIVERS[options.driver].condition)
        episode = drive(options.driver, options.seed, env)
        about = provenance(options.driver, options.seed, options.note, episode, options.out, env)
        table = to_table(episode)
        if options.out.suffix == ".csv":
            table.to_csv(options.out, index=False)
        else:
            table.to_parquet(options.out, index=False)
        options.out.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    except (ImportError, OSError) as error:
        print(f"nothing was recorded: {error}", file=sys.stderr)
        return 2
    own = about["own_results"]
    print(f"{options.out}: track {options.seed}, return {episode.total:.1f} in {episode.steps} steps")
    print(f"the driver on tracks 1000..1009: {own['mean']:.1f} +- {own['std']:.1f} (population), n = {own['n']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
