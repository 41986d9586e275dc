"""Rows of a comparison table out of run directories: who was compared, over how many runs and episodes, how surely."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxrefine.stats import Interval, describe, holm, interquartile_mean, welch

RESAMPLES = 10_000


@dataclass(frozen=True)
class Stage:
    """One row: a method after imitation, or after a budget of reinforcement learning.

    Attributes:
        method: as the table names it.
        stage: ``IL`` or ``RL n``, n the resets of one seed.
        values: every independent run's test episodes, ``(runs, episodes)``, episodes in the order of ``seeds``.
        clusters: ``(runs,)``; runs of one number share a conversation, so they are not independent of each other.
        seeds: of the test episodes.
        calls: of the model, for one policy, mean over conversations.
        resets: episodes driven to choose, analyse and train one policy, mean over conversations.
        chosen: the runs that validation episodes chose, one a conversation: what a user of the method would have.
    """

    method: str
    stage: str
    values: np.ndarray
    clusters: np.ndarray
    seeds: tuple[int, ...]
    calls: float
    resets: float
    chosen: np.ndarray


@dataclass(frozen=True)
class Row:
    """A stage in numbers; ``p_value`` is Welch's over conversations against the named method's, Holm-adjusted."""

    method: str
    stage: str
    calls: float
    resets: float
    mean: float
    interval: Interval | None
    iqm: float
    std_episodes: float
    std_runs: float | None
    episodes: int
    runs: int
    conversations: int
    chosen_mean: float
    p_value: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


def stages(method: str, runs: Sequence[Path]) -> list[Stage]:
    """Read a method's runs, one a conversation; each contributes its fit seeds and its training seeds.

    For imitation a conversation's runs are the fits of its best round: independent seeds of the same program.
    """
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    names = ["IL", *(f"RL {entry['budget']}" for entry in summaries[0]["rl"])]
    parts: dict[str, list[tuple[pd.DataFrame, int]]] = {name: [] for name in names}
    calls, resets = [], {name: [] for name in names}  # type: ignore[var-annotated]
    for run, summary in zip(runs, summaries, strict=True):
        best = next(entry for entry in summary["rounds"] if entry["round"] == summary["best_round"])
        spent = summary["resources"]
        calls.append(spent["llm_calls"])
        parts["IL"].append((_values(run / f"round_{best['round']}"), best["fit_seeds"]["chosen"]))
        resets["IL"].append(spent["refinement_resets"])
        for entry in summary["rl"]:
            name = f"RL {entry['budget']}"
            parts[name].append((_values(run / "rl" / entry["budget"]), entry["seeds"]["chosen"]))
            training = (entry["resets"] + entry["choice_resets"]) / len(entry["seeds"]["means"])
            resets[name].append(spent["refinement_resets"] + training)
    found = []
    for name, tables in parts.items():
        starts = np.cumsum([0, *(len(table) for table, _ in tables)])
        found.append(
            Stage(
                method,
                name,
                np.concatenate([table.to_numpy(float) for table, _ in tables]),
                _clusters(summaries[0]["method"], name, [len(table) for table, _ in tables]),
                tuple(tables[0][0].columns),
                float(np.mean(calls)),
                float(np.mean(resets[name])),
                np.array([start + chosen for start, (_, chosen) in zip(starts, tables, strict=False)]),
            )
        )
    return found


def _clusters(method: str, stage: str, sizes: Sequence[int]) -> np.ndarray:
    """Which runs share what they began with: a conversation's program; nothing, for fits of a perceptron.

    Training seeds of a perceptron start from one and the same fit.
    """
    if method == "mlp" and stage == "IL":
        return np.arange(sum(sizes))
    return np.repeat(np.arange(len(sizes)), sizes)


def _values(folder: Path) -> pd.DataFrame:
    """A row per fit seed, a column per test episode."""
    return pd.read_parquet(folder / "evaluation.parquet").pivot(index="fit_seed", columns="seed", values="value")


def rows(found: Sequence[Stage], against: str = "refined") -> list[Row]:
    """Summarise stages, each beside the same stage of one method."""
    made = []
    for stage in found:
        by_run = stage.values.mean(1)
        made.append(
            Row(
                stage.method,
                stage.stage,
                stage.calls,
                stage.resets,
                float(by_run.mean()),
                cluster_bootstrap(by_run, stage.clusters),
                interquartile_mean(by_run),
                describe(stage.values.mean(0)).std,
                describe(by_run).std_sample,
                stage.values.shape[1],
                len(by_run),
                len(np.unique(stage.clusters)),
                float(by_run[stage.chosen].mean()),
                details={
                    "per_run": by_run.tolist(),
                    "per_episode": dict(zip(map(str, stage.seeds), stage.values.mean(0).tolist(), strict=True)),
                    "conversation_of_run": stage.clusters.tolist(),
                },
            )
        )
    return _with_p_values(made, found, against)


def _with_p_values(made: list[Row], found: Sequence[Stage], against: str) -> list[Row]:
    """Welch's test over conversations, whose runs are not independent, where either side has at least two."""
    yardsticks = {stage.stage: _by_cluster(stage) for stage in found if stage.method == against}
    compared = [
        i
        for i, stage in enumerate(found)
        if stage.method != against
        and stage.stage in yardsticks
        and min(len(_by_cluster(stage)), len(yardsticks[stage.stage])) > 1
    ]
    p_values = [welch(_by_cluster(found[i]), yardsticks[found[i].stage]).p_value for i in compared]
    adjusted = dict(zip(compared, holm(p_values), strict=True)) if compared else {}
    return [Row(**{**_shallow(row), "p_value": adjusted.get(i)}) for i, row in enumerate(made)]


def _by_cluster(stage: Stage) -> np.ndarray:
    by_run = stage.values.mean(1)
    return np.array([by_run[stage.clusters == number].mean() for number in np.unique(stage.clusters)])


def _shallow(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def cluster_bootstrap(values: np.ndarray, clusters: np.ndarray, level: float = 0.95, seed: int = 0) -> Interval | None:
    """Percentile interval of the mean, resampling conversations and, within each, its runs.

    Runs of one conversation share its program; resampling them alone would call that certainty. With one conversation
    there is nothing to resample but its runs, and the interval says nothing of other conversations.
    """
    if len(values) < 2:
        return None
    generator = np.random.default_rng(seed)
    groups = [values[clusters == number] for number in np.unique(clusters)]
    means = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        picked = generator.integers(0, len(groups), len(groups))
        means[i] = np.mean([generator.choice(groups[j], len(groups[j])).mean() for j in picked])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level)


def to_json(row: Row) -> dict[str, Any]:
    """Plain values."""
    return asdict(row)
