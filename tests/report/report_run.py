"""A run directory as a finished run of three rounds leaves it, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

SEEDS = list(range(1000, 1010))
MEANS = [905.0, 880.0, 917.5]

PROGRAM = '''import jax.numpy as jnp
from flax import nnx


class RacecarPolicy(nnx.Module):
    """Steers at a point ahead and slows before corners."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.weight_lookahead = nnx.Param(jnp.array({lookahead}))
        self.weight_brake = nnx.Param(jnp.array(0.8))

    def __call__(self, tiles, indicators):
        latent_heading = jnp.arctan2(tiles[{tile}, 1], tiles[{tile}, 0])
        latent_speed = indicators[0]
        steer = self.weight_lookahead[...] * latent_heading
        gas = 1.0 - self.weight_brake[...] * latent_speed
        mean = jnp.stack([steer, gas, 0.0])
        return mean, 0.1 * jnp.eye(3), {{"latent_heading": latent_heading, "latent_speed": latent_speed}}
'''


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1))


def episode_values(index: int, fit_seed: int) -> np.ndarray:
    rng = np.random.default_rng(10 * index + fit_seed)
    spread = rng.normal(0, 12, size=len(SEEDS))
    return MEANS[index] - 15 * fit_seed + spread - spread.mean()


def write_round(folder: Path, index: int) -> None:
    folder.mkdir()
    (folder / "policy.py").write_text(PROGRAM.format(lookahead=0.9 + index / 10, tile=3 + index))
    np.savez(
        folder / "initial_weights.npz", lookahead=0.9 + index / 10, brake=0.8, gains=np.array([[1.0, 2.0], [3.0, 4.0]])
    )
    np.savez(
        folder / "weights.npz",
        lookahead=1.234,
        brake=-0.25,
        gains=np.array([[1.5, 2.5], [-3.5, 4.5]]),
        big=np.ones(100),
    )
    steps = np.arange(0, 1000, 10)
    curves = [(2.0 * np.exp(-steps / 150) - 1.5 + 0.1 * seed).tolist() for seed in range(3)]
    validation = [[value + 0.2 for value in row] for row in curves]
    write_json(folder / "fit.json", {"steps": steps.tolist(), "train": curves, "validation": validation, "chosen": 0})
    (folder / "diagnostics.py").write_text(
        "def run_all(df):\n    with open('test_results.txt', 'w') as f:\n        f.write(str(df.reward.mean()))\n"
    )
    (folder / "results.txt").write_text(
        f"PASS steering follows heading: corr = 0.9{index}\nFAIL brakes late in corner\n"
    )
    (folder / "decision.md").write_text(
        f"The car brakes late, so round {index} needs a longer look ahead.\n\n# Decision\nrevise"
    )
    (folder / "checks.txt").write_text("All checks passed.\n")
    rows = [
        {"fit_seed": fit, "seed": seed, "value": value, "steps": 812, "terminated": True}
        for fit in range(3)
        for seed, value in zip(SEEDS, episode_values(index, fit), strict=True)
    ]
    pd.DataFrame(rows).to_parquet(folder / "evaluation.parquet")


def summary_round(index: int, decision: str) -> dict[str, Any]:
    values = episode_values(index, 0)
    means = [float(episode_values(index, fit).mean()) for fit in range(3)]
    sample = {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "std_sample": float(values.std(ddof=1)),
        "n": 10,
    }
    return {
        "round": index,
        "metric": {**sample, "over": "episodes"},
        "per_episode": [{"seed": s, "value": float(v), "steps": 812} for s, v in zip(SEEDS, values, strict=True)],
        "fit_seeds": {
            "means": means,
            "nll": [-1.4, -1.3, -1.2],
            "chosen": 0,
            "mean": float(np.mean(means)),
            "std": float(np.std(means)),
            "std_sample": float(np.std(means, ddof=1)),
            "n": 3,
        },
        "validation": {**sample, "over": "episodes"},
        "nll": {"train": -1.423, "validation": -1.208},
        "decision": decision,
        "accepted": index != 1,
        "parameters": 107,
        "regenerations": index,
        "analyses": 1,
    }


def make_run(run: Path, rounds: int = 3) -> Path:
    run.mkdir()
    decisions = ["program", "program", "done"]
    (run / "config.yaml").write_text("task: car_racing\nmethod: refine\nseeds: 3\n")
    header = {
        "kind": "header", "format": 1, "task": "car_racing", "chain": "0", "date": "2025-11-02", "model": "a-model",
        "provider": "mailbox", "prompt_version": "7", "note": "recorded by hand",
    }  # fmt: skip
    exchanges = [
        {
            "kind": "exchange", "purpose": purpose, "round": index, "attempt": 0, "key": "00",
            "messages": [{"role": "user", "content": "Write a program."}],
            "completion": {
                "text": "```python\n```", "finish_reason": "stop", "latency": 4.5, "model": "a-model",
                "usage": {"input_tokens": 1500, "output_tokens": 700, "reasoning_tokens": 200},
            },
        }
        for index in range(rounds)
        for purpose in ("generate" if index == 0 else "revise", "diagnose")
    ]  # fmt: skip
    (run / "transcript.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [header, *exchanges]))
    events: list[dict[str, Any]] = [{"time": 0.0, "event": "run_started", "task": "car_racing", "method": "refine"}]
    for index in range(rounds):
        write_round(run / f"round_{index}", index)
        for step, wall_s in (("fit", 21.5), ("rollout", 8.25), ("evaluate", 6.0), ("decide", 0.1)):
            name = f"round_{index}/{step}"
            events.append({"time": 1.0, "event": "step_started", "step": name, "label": f"{step} it"})
            result = {"decision": decisions[index]} if step == "decide" else {}
            finished = {"step": name, "label": f"{step} it", "wall_s": wall_s, "result": result}
            events.append({"time": 2.0, "event": "step_finished", **finished})
    events.append({"time": 3.0, "event": "notice", "text": "the prompt differs from the recorded one"})
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    summary = {
        "task": "car_racing",
        "method": "refine",
        "status": "finished",
        "reason": None,
        "best_round": rounds - 1,
        "metric": {"name": "return", "better": "higher", "unit": ""},
        "demonstration": {"name": "human_like_0", "source": "Gymnasium CarRacing-v3", "metric": 871.0, "steps": 1000},
        "rounds": [summary_round(index, decisions[index]) for index in range(rounds)],
        "rl": [],
        "resources": {
            "llm_calls": 2 * rounds, "input_tokens": 9000, "output_tokens": 4200, "reasoning_tokens": 1200,
            "cost": None, "refinement_resets": 192, "training_resets": 0, "env_steps": 1234567, "wall_s": 107.55,
        },
        "provenance": {
            "versions": {"python": "3.11.2", "jax": "0.10.2"}, "device": "cpu",
            "seeds": {"fit": [0, 1, 2], "rollout": 10000},
            "transcript": header, "sandbox": "process", "prompt_version": "7",
        },
    }  # fmt: skip
    write_json(run / "summary.json", summary)
    return run
