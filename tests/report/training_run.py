"""What training leaves in a run directory, from numbers that a test knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

EPISODES = (1000, 1001, 1002)


def write_evaluation(folder: Path, values: np.ndarray, episodes: Sequence[int] = EPISODES) -> None:
    """`evaluation.parquet` of values (fit or training seeds, episodes), its rows in no order."""
    fit, episode = np.meshgrid(np.arange(len(values)), episodes, indexing="ij")
    columns = {"fit_seed": fit.ravel(), "seed": episode.ravel(), "value": values.ravel(), "steps": 900}
    pd.DataFrame(columns).sample(frac=1, random_state=0).to_parquet(folder / "evaluation.parquet")


def write_looks(folder: Path, resets: Sequence[int], means: np.ndarray) -> None:
    """`checkpoints.parquet` whose means over the episodes are `means`, shape (seeds, looks)."""
    spread = np.array([-1.0, 0.0, 1.0])
    seed, at, episode = np.meshgrid(np.arange(len(means)), resets, EPISODES, indexing="ij")
    columns = {"seed": seed, "resets": at, "episode": episode, "value": means[..., None] + spread}
    pd.DataFrame({name: values.ravel() for name, values in columns.items()}).to_parquet(folder / "checkpoints.parquet")


def write_curves(folder: Path, seeds: int, updates: int) -> None:
    """`curves.parquet` with 20 resets an update."""
    seed, update = (x.ravel() for x in np.meshgrid(np.arange(seeds), np.arange(updates), indexing="ij"))
    columns = {
        "seed": seed, "update": update, "resets": 20 * (update + 1), "episode_return": 100.0 * update + seed,
        "length": 900.0, "kl": 1.0 / (update + 1), "clip_fraction": 0.5, "entropy": -3.0, "gradient_norm": 0.1,
        "largest_log_ratio": 4.0, "epochs": 3,
    }  # fmt: skip
    pd.DataFrame(columns).to_parquet(folder / "curves.parquet")


def add_budget(run: Path, resets: int, ends: np.ndarray, looks: np.ndarray, *, chosen: int = 0) -> None:
    """Train in a run directory.

    Args:
        run: With a summary.json.
        resets: The budget.
        ends: Test values in the end, shape (seeds, episodes).
        looks: Test means on the way, shape (seeds, looks), the first before training.
        chosen: The seed.
    """
    folder = run / "rl" / str(resets)
    folder.mkdir(parents=True)
    write_evaluation(folder, ends)
    write_looks(folder, np.linspace(0, resets, looks.shape[1]).astype(int).tolist(), looks)
    write_curves(folder, len(ends), resets // 20)
    means = ends.mean(1)
    entry: dict[str, Any] = {
        "budget": str(resets), "round": 0, "updates": resets // 20, "stopped_steps": 0,
        "resets": resets * len(ends), "choice_resets": 16 * len(ends), "env_steps": 123_456,
        "seeds": {"means": [float(x) if np.isfinite(x) else None for x in means], "chosen": chosen, "n": len(ends)},
    }  # fmt: skip
    summary = json.loads((run / "summary.json").read_text())
    summary["rl"] = [*summary["rl"], entry]
    (run / "summary.json").write_text(json.dumps(summary))


def make_refinement(
    run: Path,
    means: Sequence[float],
    *,
    condition: str = "slick",
    method: str = "refine",
    feedback: str = "analysis",
    program: str = "",
    options: str = "",
    rejected: Sequence[int] = (),
) -> Path:
    """A finished run whose rounds have these means: two fit seeds, one 1 above the mean and one 1 below; round -1 best.

    The demonstrator has 860. `options` is more YAML for config.yaml.
    """
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(
        f"task: {{name: car_racing, condition: {condition}}}\nmethod: {{name: {method}}}\n"
        f"refine: {{feedback: {feedback}, rounds: 6}}\nllm: {{chain: {run.name}}}\n{options}"
    )
    rounds = []
    for index, mean in enumerate(means):
        folder = run / f"round_{index}"
        folder.mkdir()
        (folder / "policy.py").write_text(program or f"# {run.name}\n")
        np.savez(folder / "initial_weights.npz", gain=1.0, brake=0.5)
        np.savez(folder / "weights.npz", gain=1.5 + index, brake=-0.5 if index == 0 else 0.25)
        values = np.array([[mean - 9.0, mean + 1.0, mean + 11.0], [mean - 11.0, mean - 1.0, mean + 9.0]])
        write_evaluation(folder, values)
        pairs = zip(EPISODES, values[0].tolist(), strict=True)
        sample = {"mean": mean + 1.0, "std": 8.0, "std_sample": 10.0, "n": 3}
        rounds.append(
            {
                "round": index, "metric": sample, "accepted": index not in rejected, "decision": "program",
                "per_episode": [{"seed": seed, "value": value, "steps": 900} for seed, value in pairs],
                "fit_seeds": {"means": [mean + 1.0, mean - 1.0], "chosen": 0, "n": 2, "mean": mean},
                "changes": f"- change number {index}",
            }
        )  # fmt: skip
    purposes = ["generate"] + ["diagnose", "revise"] * (len(means) - 1)
    exchanges = [
        {
            "kind": "exchange", "purpose": purpose, "round": (i + 1) // 2, "attempt": 0, "messages": [],
            "completion": {"text": "", "model": "m", "usage": {"input_tokens": 1000 * (i + 1), "output_tokens": 500}},
        }
        for i, purpose in enumerate(purposes)
    ]  # fmt: skip
    header = {"kind": "header", "chain": run.name, "task": "car_racing"}
    (run / "transcript.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [header, *exchanges]))
    (run / "events.jsonl").write_text("")
    summary = {
        "task": "car_racing", "condition": condition, "method": method, "status": "finished", "reason": None,
        "best_round": len(means) - 1, "metric": {"name": "return", "key": "return", "better": "higher", "unit": ""},
        "demonstration": {"name": "d", "metric": 850.0, "test": {"mean": 860.0, "std": 5.0, "std_sample": 6.0, "n": 3}},
        "rounds": rounds, "rl": [], "resources": {"llm_calls": len(purposes), "refinement_resets": 100},
        "provenance": {"transcript": header if method != "mlp" else None},
    }  # fmt: skip
    (run / "summary.json").write_text(json.dumps(summary))
    return run
