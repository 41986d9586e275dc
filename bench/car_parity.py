"""How closely does our Car Racing follow Gymnasium's, and how closely does Gymnasium follow itself?

    python -m bench.car_parity
    python -m bench.car_parity --json bench/results/car_parity.json

replays four kinds of scripts, open loop, in Gymnasium, in ours and in Gymnasium's world turned by 0.3 rad, and lets
one driver drive in all three. What the turned world differs by is float32's rounding, the noise floor. Exit status:
0 when ours meets every target, 1 when it misses one, 2 when Gymnasium is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import envs
from envs.car_racing.reference import reference_versions

try:
    from bench.car_gymnasium import Live, Trace, Turned, distance, driven_in_gymnasium, in_gymnasium
except ImportError as error:  # says what to install
    sys.exit(f"{error}; install what is missing with `pip install 'jaxrefine[test]'`")
from bench.car_gymnasium import driven_in_jax, in_jax

STEPS = 1000
SEEDS = tuple(range(1000, 1030))
AFTER = (50, 200, 500, 1000)
QUANTILES = (0.5, 0.75, 0.9)
# median distance after all steps, m; and how much worse than the floor a quantile may be, and the share of steps in
# which some wheel touches other tiles
MEDIANS = {"steady": 0.005, "noisy": 0.01, "random": 0.02, "bang-bang": 0.005}
WORST_QUANTILE = 3.0
WORST_TILES = 1.5
KEPT = 0.9  # of the episodes count for the tiles; the others are those that one contact threw off, there as here


def steady(tiles: Any, indicators: Any, xp: Any) -> Any:
    """A driver who makes for the road ahead, slows for bends and keeps his tyres from sliding."""
    steer = xp.clip(1.2 * xp.arctan2(tiles[4, 0], tiles[4, 1]), -1, 1)
    bend = xp.max(xp.abs(tiles[:10, 2] - tiles[0, 2]))
    wanted, speed = xp.clip(0.7 - 0.6 * bend, 0.4, 0.7), indicators[0]
    gas, brake = xp.clip(4 * (wanted - speed), 0, 0.3), xp.clip(2 * (speed - wanted), 0, 0.3)
    return xp.stack([steer, gas, brake]).astype(np.float32)


def smooth_random(seed: int, steps: int) -> np.ndarray:
    """Noise smoothed over about half a second; the front wheels are at their limit half of the time."""
    window = np.hanning(60)
    noise = np.random.default_rng(seed).normal(size=(3, steps + len(window) - 1))
    steer, gas, brake = (np.convolve(row, window / np.linalg.norm(window), "valid") for row in noise)
    return np.stack([np.tanh(0.7 * steer), 0.3 + 0.3 * gas, np.minimum(0.3 * brake - 0.3, 0.8)], axis=1)


def bang_bang(seed: int, steps: int) -> np.ndarray:
    """Full lock, full gas and locked wheels, each on or off for twenty steps."""
    random, pieces = np.random.default_rng(seed), -(-steps // 20)
    choices = [random.choice(values, pieces) for values in ((-1, 0, 1), (0, 1), (0, 0, 0, 1))]
    return np.repeat(np.stack(choices, axis=1), 20, axis=0)[:steps].astype(float)


def scripts(world: Live, kind: str, seeds: Sequence[int], steps: int = STEPS) -> np.ndarray:
    """Actions (episode, step, 3) of one kind of ``MEDIANS``; a driver's are computed in the live world."""
    if kind in ("steady", "noisy"):
        drawn = np.stack([np.random.default_rng(seed).normal(size=(steps, 3)) for seed in seeds])
        noise = (0.2, 0.1, 0.1) * drawn if kind == "noisy" else None
        _, actions = driven_in_gymnasium(world, seeds, steady, steps, noise)
    else:
        make: Callable[[int, int], np.ndarray] = smooth_random if kind == "random" else bang_bang
        actions = np.stack([make(seed, steps) for seed in seeds])
    return np.clip(actions, (-1, 0, 0), (1, 1, 1)).astype(np.float32)


@dataclass(frozen=True)
class OpenLoop:
    """One kind of script: ours, and the turned world, against Gymnasium.

    Attributes:
        kind: of script.
        episodes: how many.
        ours: distance (m) after so many steps, at ``QUANTILES`` and at most.
        floor: the same of the turned world.
        our_tiles: share of steps in which some wheel touches other tiles, over the best nine tenths of the episodes.
        floor_tiles: the same of the turned world.
        our_return: largest difference of a return.
        floor_return: the same of the turned world.
    """

    kind: str
    episodes: int
    ours: dict[int, list[float]]
    floor: dict[int, list[float]]
    our_tiles: float
    floor_tiles: float
    our_return: float
    floor_return: float

    def misses(self) -> list[str]:
        """The targets that are missed; none for episodes shorter than ``STEPS``."""
        ours, floor = self.ours.get(STEPS, [0.0]), self.floor.get(STEPS, [0.0])
        missed = []
        if ours[0] > MEDIANS[self.kind]:
            missed.append(f"{self.kind}: median {ours[0]:.1e} m, wanted {MEDIANS[self.kind]:g} m")
        for quantile, one, other in zip(QUANTILES, ours, floor, strict=False):
            if one > WORST_QUANTILE * other:
                missed.append(f"{self.kind}: quantile {quantile:g} is {one / other:.1f} times the floor's")
        return missed


@dataclass(frozen=True)
class ClosedLoop:
    """One driver in the three worlds, one entry an episode; ``parted`` is the largest distance from Gymnasium, m."""

    seeds: list[int]
    gymnasium: list[float]
    ours: list[float]
    turned: list[float]
    steps: list[int]
    our_steps: list[int]
    our_parted: list[float]
    turned_parted: list[float]

    def misses(self) -> list[str]:
        """The seeds on which returns or steps differ."""
        rows = zip(self.seeds, self.gymnasium, self.ours, self.steps, self.our_steps, strict=True)
        return [f"closed loop: track {seed}" for seed, a, b, n, m in rows if n != m or abs(a - b) > 0.01]


def open_loop(kind: str, theirs: Trace, ours: Trace, turned: Trace) -> OpenLoop:
    """Compare three replays of the same scripts."""
    ours_at, floor_at = _at(distance(ours, theirs)), _at(distance(turned, theirs))
    return OpenLoop(
        kind,
        len(theirs.x),
        ours_at,
        floor_at,
        other_tiles(ours, theirs),
        other_tiles(turned, theirs),
        float(np.abs(ours.returns - theirs.returns).max()),
        float(np.abs(turned.returns - theirs.returns).max()),
    )


def _at(distances: np.ndarray) -> dict[int, list[float]]:
    steps = [n for n in AFTER if n <= distances.shape[1]]
    return {n: np.quantile(distances[:, n - 1], (*QUANTILES, 1)).tolist() for n in steps}


def other_tiles(one: Trace, other: Trace) -> float:
    """Share of steps in which some wheel touches other tiles, over the best ``KEPT`` of the episodes."""
    shares = np.sort((one.tiles != other.tiles).any(axis=(2, 3)).mean(axis=1))
    return float(shares[: max(1, round(KEPT * len(shares)))].mean())


def closed_loop(seeds: Sequence[int], steps: int = STEPS) -> ClosedLoop:
    """Let the steady driver drive in the three worlds."""
    env, _ = envs.make("car_racing")
    theirs, _ = driven_in_gymnasium(Live(), seeds, steady, steps)
    turned, _ = driven_in_gymnasium(Turned(), seeds, steady, steps)
    ours = driven_in_jax(env, env.params_for_seeds(seeds), steady, steps)
    running = np.arange(steps) < theirs.lengths[:, None]
    parted = [np.where(running, distance(trace, theirs), 0).max(axis=1).tolist() for trace in (ours, turned)]
    returns = [trace.returns.tolist() for trace in (theirs, ours, turned)]
    return ClosedLoop(list(seeds), *returns, theirs.lengths.tolist(), ours.lengths.tolist(), *parted)


def tiles_missed(rows: Sequence[OpenLoop]) -> list[str]:
    """The target for the tiles, which only all scripts together touch often enough to count."""
    ours, floor = (sum(getattr(row, name) for row in rows) for name in ("our_tiles", "floor_tiles"))
    steps = sum(row.episodes for row in rows) * STEPS / len(rows)
    allowed = WORST_TILES * (floor * steps + 2 * np.sqrt(floor * steps))  # with its counting error
    return [f"tiles: {ours / floor:.1f} times the floor's"] if ours * steps > allowed else []


def _print(rows: Sequence[OpenLoop], closed: ClosedLoop) -> None:
    print("open loop, distance from Gymnasium in mm after so many steps: median, quantiles 0.75 and 0.9, largest")
    for row in rows:
        print(f"\n{row.kind}, {row.episodes} episodes")
        for name, at in (("ours", row.ours), ("floor", row.floor)):
            cells = "   ".join(f"@{n} " + " ".join(f"{1000 * value:.3g}" for value in at[n]) for n in at)
            print(f"  {name:<6}{cells}")
        print(f"  other tiles: ours {row.our_tiles:.5f}, floor {row.floor_tiles:.5f} of the steps")
        print(f"  returns differ by at most: ours {row.our_return:.2g}, floor {row.floor_return:.2g}")
    print("\nclosed loop: returns, steps, and by how much ours and the turned world part from Gymnasium")
    print(f"{'track':>6} {'Gymnasium':>10} {'ours':>10} {'steps':>6} {'ours':>6} {'parted':>9} {'floor':>9}")
    for i, seed in enumerate(closed.seeds):
        print(
            f"{seed:>6} {closed.gymnasium[i]:>10.3f} {closed.ours[i]:>10.3f} {closed.steps[i]:>6} "
            f"{closed.our_steps[i]:>6} {closed.our_parted[i]:>8.1e}m {closed.turned_parted[i]:>8.1e}m"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and perhaps write; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.car_parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs=2, default=(SEEDS[0], SEEDS[-1]), help="first and last track seed")
    parser.add_argument("--json", type=Path, help="write the comparison to this file as well")
    options = parser.parse_args(arguments)
    seeds = range(options.seeds[0], options.seeds[1] + 1)
    env, _ = envs.make("car_racing")
    live, turned, params = Live(), Turned(), env.params_for_seeds(seeds)
    rows = []
    for kind in MEDIANS:
        actions = scripts(live, kind, seeds)
        traces = in_gymnasium(live, seeds, actions), in_jax(env, params, actions), in_gymnasium(turned, seeds, actions)
        rows.append(open_loop(kind, *traces))
    closed = closed_loop(seeds)
    _print(rows, closed)
    missed = [miss for row in rows for miss in row.misses()] + tiles_missed(rows) + closed.misses()
    print("\n" + ("\n".join(f"MISSED {miss}" for miss in missed) if missed else "every target is met"))
    if options.json:
        result = {
            "seeds": [seeds[0], seeds[-1]],
            "steps": STEPS,
            "quantiles": [*QUANTILES, 1.0],
            "open_loop": [asdict(row) for row in rows],
            "closed_loop": asdict(closed),
            "missed": missed,
            "reference": reference_versions(),
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
