"""Record what Meta-World's door-open-v3 does, for the tests of the environment in JAX.

    python -m tests.reference.door.record
    python -m tests.reference.door.record --environment ~/metaworld --out /tmp/door --only scripted

makes the reference's virtual environment if there is none in the folder, and writes the files of README.md. The same
command gives the same files again on the same kind of processor.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envs.door.reference import (
    MAX_STEPS,
    Episode,
    Moment,
    Policy,
    Reference,
    default_environment,
    door_positions,
    make_environment,
    run_episode,
)
from envs.door.schema import HAND, HANDLE

SEEDS = range(10)
CLOSED_LOOP_SEEDS = range(1000, 1200)
NUDGE = (0.001, 0.0, 0.0)
HERE = Path(__file__).parent


def scripted(seed: int) -> Policy:
    """Meta-World's own policy, SawyerDoorOpenV3Policy."""
    return lambda moment: moment.scripted


def noisy(seed: int) -> Policy:
    """The same, plus Gaussian noise of standard deviation 1 on all four actions, at every step afresh."""
    random = np.random.default_rng([seed, 1])
    return lambda moment: moment.scripted + random.standard_normal(4)


def smooth(seed: int) -> Policy:
    """An Ornstein-Uhlenbeck process: standard deviation 0.5, correlation time 20 steps (0.25 s)."""
    random = np.random.default_rng([seed, 2])
    wander = _wander(random, deviation=0.5, time=20.0)
    return lambda moment: wander()


def mixed(seed: int) -> Policy:
    """Contact-rich: segments of 20 to 60 steps, of which every other on average follows the scripted policy.

    In the rest the hand is drawn to a point about the handle, uniform within 8 cm along each axis, with some grip, both
    drawn for the segment. All actions carry an Ornstein-Uhlenbeck noise: standard deviation 0.2, correlation time 10
    steps (0.125 s).
    """
    random = np.random.default_rng([seed, 3])
    wander = _wander(random, deviation=0.2, time=10.0)
    left, follow, offset, grip = 0, True, np.zeros(3), 0.0

    def act(moment: Moment) -> np.ndarray:
        nonlocal left, follow, offset, grip
        if left == 0:
            left = int(random.integers(20, 61))
            follow = random.random() < 0.5
            offset = random.uniform(-0.08, 0.08, 3)
            grip = random.uniform(-1.0, 1.0)
        left -= 1
        towards = 10.0 * (moment.observation[HANDLE] + offset - moment.observation[HAND])
        action = np.clip(moment.scripted if follow else np.append(towards, grip), -1, 1)
        return action + wander()

    return act


def _wander(random: np.random.Generator, deviation: float, time: float) -> Callable[[], np.ndarray]:
    kept = np.exp(-1 / time)
    state = deviation * random.standard_normal(4)

    def step() -> np.ndarray:
        nonlocal state
        state = kept * state + deviation * np.sqrt(1 - kept**2) * random.standard_normal(4)
        return state

    return step


MOTIONS = {"scripted": scripted, "noisy": noisy, "smooth": smooth, "mixed": mixed}


def arrays(episodes: Sequence[Episode]) -> dict[str, np.ndarray]:
    """Episodes of one length, stacked: float64 where the reward and the kinematics follow from it, else float32."""
    exact = ("observations", "qpos", "rewards", "successes")
    return {
        "seeds": np.array([e.seed for e in episodes]),
        "doors": np.stack([e.door for e in episodes]),
        **{name: np.stack([getattr(e, name) for e in episodes]) for name in exact},
        **{
            name: np.stack([getattr(e, name) for e in episodes]).astype(np.float32)
            for name in ("actions", "qvel", "mocap")
        },
    }


def floor(motion: str, reference: Reference, episodes: Sequence[Episode]) -> dict[str, float]:
    """How far the reference strays from itself when the hand's target starts 1 mm away: no port can be held to less."""
    hand, angle, reward = [], [], []
    for episode in episodes:
        actions = iter(episode.actions)
        again = run_episode(lambda m, actions=actions: next(actions), episode.seed, reference, mocap_offset=NUDGE)
        hand.append(np.linalg.norm(again.observations[:, HAND] - episode.observations[:, HAND], axis=1).mean())
        angle.append(np.abs(again.qpos[:, 9] - episode.qpos[:, 9]).mean())
        reward.append(np.abs(again.rewards - episode.rewards).mean())
    return {
        "hand_m": round(float(np.mean(hand)), 5),
        "angle_rad": round(float(np.mean(angle)), 5),
        "reward": round(float(np.mean(reward)), 5),
    }


def summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Statistics over episodes, and each of them on its own."""
    reached = [e.steps_to_success for e in episodes if e.steps_to_success is not None]
    totals = np.array([e.total for e in episodes])
    least = np.array([e.distances.min() for e in episodes])
    return {
        "n": len(episodes),
        "success": len(reached) / len(episodes),
        "return_mean": round(float(totals.mean()), 3),
        "return_std": round(float(totals.std()), 3),
        "steps_to_success_mean": round(float(np.mean(reached)), 3) if reached else None,
        "least_distance_mean": round(float(least.mean()), 6),
        "final_distance_mean": round(float(np.mean([e.distances[-1] for e in episodes])), 6),
        "per_episode": [
            {
                "seed": e.seed,
                "door": e.door.tolist(),
                "return": round(e.total, 4),
                "steps_to_success": e.steps_to_success,
                "least_distance": round(float(e.distances.min()), 6),
                "final_distance": round(float(e.distances[-1]), 6),
                "most_open": round(float(-e.qpos[:, 9].min()), 6),
            }
            for e in episodes
        ],
    }


def lines(record: dict[str, Any]) -> str:
    """JSON, one line for each entry and for each element of a list."""
    entries = []
    for name, value in record.items():
        listed = isinstance(value, list) and value and isinstance(value[0], dict)
        text = "[\n " + ",\n ".join(map(json.dumps, value)) + "\n]" if listed else json.dumps(value)
        entries.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def check_start(reference: Reference) -> None:
    """Every episode must start in the same state, bit for bit, with its door where the seed says.

    Raises:
        RuntimeError: one does not.
    """
    seeds = [*SEEDS, *CLOSED_LOOP_SEEDS]
    first = reference.reset(seeds[0])
    for seed, door in zip(seeds, door_positions(seeds), strict=True):
        moment = reference.reset(seed)
        for name in ("qpos", "qvel", "mocap"):
            if not np.array_equal(getattr(moment, name), getattr(first, name)):
                raise RuntimeError(f"the {name} at the start of seed {seed} is not that of seed {seeds[0]}")
        if not np.array_equal(moment.door, door):
            raise RuntimeError(f"the door of seed {seed} stands at {moment.door}, not at {door}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Record; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=default_environment(), help="the reference's own")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the files")
    parser.add_argument("--only", choices=["model", *MOTIONS, "closed_loop"], nargs="+", help="instead of everything")
    options = parser.parse_args(arguments)
    if not options.environment.exists():
        make_environment(options.environment)
    wanted = options.only or ["model", *MOTIONS, "closed_loop"]
    with Reference(options.environment) as reference:
        versions = reference.versions()
        check_start(reference)
        if "model" in wanted:
            text = lines({"versions": versions, **reference.model()})
            (options.out / "reference_model.json").write_text(text, encoding="utf-8")
        for motion in MOTIONS:
            if motion in wanted:
                episodes = [run_episode(MOTIONS[motion](seed), seed, reference) for seed in SEEDS]
                np.savez_compressed(options.out / f"{motion}.npz", **arrays(episodes))
                about = {"versions": versions, "motion": " ".join((MOTIONS[motion].__doc__ or "").split())}
                about |= {"floor": floor(motion, reference, episodes), **summary(episodes)}
                (options.out / f"{motion}.json").write_text(lines(about), encoding="utf-8")
        if "closed_loop" in wanted:
            episodes = [run_episode(scripted(seed), seed, reference) for seed in CLOSED_LOOP_SEEDS]
            about = {"versions": versions, "policy": scripted.__doc__, "steps": MAX_STEPS, **summary(episodes)}
            (options.out / "closed_loop.json").write_text(lines(about), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
