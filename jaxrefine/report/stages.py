"""Rows of a comparison table out of run directories: who was compared, over how many runs and episodes, how surely."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxrefine.errors import UserError
from jaxrefine.report.fields import JSON, get, integer, items, read_json, string
from jaxrefine.report.parquet import read_numbers, wide
from jaxrefine.report.resampling import cluster_bootstrap
from jaxrefine.report.untrusted import is_regular
from jaxrefine.stats import Interval, describe, holm, interquartile_mean, welch

IMITATION = "IL"


@dataclass(frozen=True)
class Part:
    """What one run holds of one stage.

    Attributes:
        values: A row for each fit or training seed, a column for each test episode; NaN where one is not finite.
        chosen: The row that validation episodes chose, None where it is not known.
        resets: Episodes driven to choose, analyse and train one policy, None where it is not known.
    """

    values: pd.DataFrame
    chosen: int | None
    resets: float | None


@dataclass(frozen=True)
class RunParts:
    """What one run gives to a comparison.

    Attributes:
        path: The run directory.
        method: As its summary names it.
        calls: Of the model.
        conversation: What tells its conversation from others: its first program; the run itself where there is none.
        parts: By stage, imitation first, then budgets by size; empty for a run that chose no round.
    """

    path: Path
    method: str
    calls: int | None
    conversation: str
    parts: Mapping[str, Part]


@dataclass(frozen=True)
class Stage:
    """One row: a method after imitation, or after a budget of reinforcement learning.

    Attributes:
        method: as the table names it.
        stage: ``IL`` or ``RL n``, n the resets of one seed.
        values: every independent run's test episodes, ``(runs, episodes)``, episodes in the order of ``seeds``; NaN
            where one is not finite.
        clusters: ``(runs,)``; runs of one number share a conversation, so they are not independent of each other.
        seeds: of the test episodes.
        calls: of the model, for one policy, mean over conversations; NaN where that is not known.
        resets: episodes driven to choose, analyse and train one policy, mean over conversations.
        chosen: the runs that validation episodes chose, one a conversation: what a user of the method would have.
    """

    method: str
    stage: str
    values: NDArray[np.float64]
    clusters: NDArray[np.intp]
    seeds: tuple[int, ...]
    calls: float
    resets: float
    chosen: NDArray[np.intp]

    @property
    def by_run(self) -> NDArray[np.float64]:
        """Every run's mean over its episodes; NaN for one that failed in any of them."""
        return self.values.mean(1)

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Which runs failed nowhere."""
        return np.isfinite(self.by_run)

    @property
    def by_conversation(self) -> NDArray[np.float64]:
        """The mean of every conversation's runs that failed nowhere, of those that have one."""
        by_run, clusters = self.by_run[self.finite], self.clusters[self.finite]
        return np.array([by_run[clusters == number].mean() for number in np.unique(clusters)])

    @property
    def by_episode(self) -> NDArray[np.float64]:
        """The mean over runs that failed nowhere, of every test episode; NaN without such a run."""
        values = self.values[self.finite]
        return values.mean(0) if len(values) else np.full(self.values.shape[1], np.nan)


@dataclass(frozen=True)
class Row:
    """A stage in numbers, of the runs that failed nowhere; None where there is no such run.

    ``p_value`` is Welch's over conversations against the named method's, Holm-adjusted.
    """

    method: str
    stage: str
    calls: float | None
    resets: float | None
    mean: float | None
    interval: Interval | None
    iqm: float | None
    std_episodes: float | None
    std_runs: float | None
    episodes: int
    runs: int
    conversations: int
    chosen_mean: float | None
    failed: int = 0
    p_value: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


def read_parts(run: Path, gaps: list[str]) -> RunParts:
    """What a run holds, as far as it can be read.

    Args:
        run: The run directory.
        gaps: Receives a sentence for everything that is there and cannot be read.
    """
    summary = read_json(run / "summary.json", gaps)
    method, spent = string(get(summary, "method")) or "", get(summary, "resources")
    before, best = integer(get(spent, "refinement_resets")), integer(get(summary, "best_round"))
    parts: dict[str, Part] = {}
    if best is not None:
        entry = next((entry for entry in items(get(summary, "rounds")) if integer(get(entry, "round")) == best), None)
        parts |= _part(IMITATION, run / f"round_{best}", entry, "fit_seeds", before, f"round_{best}", gaps)
    trained = [(integer(_number(get(entry, "budget"))), entry) for entry in items(get(summary, "rl"))]
    for budget, entry in sorted(((b, e) for b, e in trained if b is not None and b > 0), key=lambda pair: pair[0]):
        seeds = len(items(get(entry, "seeds", "means")))
        driven, choice = integer(get(entry, "resets")), integer(get(entry, "choice_resets"))
        known = seeds and before is not None and driven is not None and choice is not None
        resets = before + (driven + choice) / seeds if known else None  # type: ignore[operator]
        parts |= _part(f"RL {budget}", run / "rl" / str(budget), entry, "seeds", resets, f"rl/{budget}", gaps)
    return RunParts(run, method, integer(get(spent, "llm_calls")), _conversation(run, method), parts)


def _part(
    name: str, folder: Path, entry: JSON, seeds: str, resets: float | None, within: str, gaps: list[str]
) -> dict[str, Part]:
    table = read_numbers(folder / "evaluation.parquet", ("fit_seed", "seed", "value"), gaps, within)
    if table is None:
        return {}
    table = table.dropna(subset=["fit_seed", "seed"])
    values = wide(table, "fit_seed", "seed", "value")
    if values is None:
        gaps.append(f"{within}/evaluation.parquet does not say one thing of every seed and episode.")
        return {}
    chosen = integer(get(entry, seeds, "chosen"))
    known = chosen is not None and 0 <= chosen < len(values)
    return {name: Part(values, chosen if known else None, resets)}


def _number(budget: JSON) -> JSON:
    """A budget is written as text."""
    return int(budget) if isinstance(budget, str) and budget.isascii() and budget.isdigit() else budget


def _conversation(run: Path, method: str) -> str:
    """Runs that replay one conversation begin with the same program, byte by byte."""
    program = run / "round_0" / "policy.py"
    if method == "mlp" or not is_regular(program):
        return str(run.resolve())
    return hashlib.sha256(program.read_bytes()).hexdigest()


def stages(method: str, runs: Sequence[Path]) -> list[Stage]:
    """Read a method's runs, one a conversation; each contributes its fit seeds and its training seeds.

    For imitation a conversation's runs are the fits of its best round: independent seeds of the same program.

    Raises:
        UserError: A run cannot be read whole, or lacks a stage that another has.
    """
    gaps: list[str] = []
    found = [read_parts(run, gaps) for run in runs]
    names = {name for entry in found for name in entry.parts}
    gaps += [
        f"{entry.path} lacks {', '.join(missing)}." for entry in found if (missing := sorted(names - {*entry.parts}))
    ]
    if gaps or not names:
        raise UserError(" ".join(gaps) or f"{', '.join(map(str, runs))}: there is nothing to compare.")
    return combine(method, found)


def combine(method: str, runs: Sequence[RunParts]) -> list[Stage]:
    """The stages of one method, each of the runs that have it.

    Args:
        method: As tables name it.
        runs: All with the same test episodes.

    Raises:
        ValueError: Runs were tested on different episodes.
    """
    numbers = {name: i for i, name in enumerate(dict.fromkeys(run.conversation for run in runs))}
    return [_stage(method, name, runs, numbers) for name in stage_names(runs)]


def stage_names(runs: Sequence[RunParts]) -> list[str]:
    """Imitation, then budgets by size, of all runs."""
    names = {name for run in runs for name in run.parts}
    return sorted(names, key=lambda name: 0 if name == IMITATION else int(name.split()[1]))


def _stage(method: str, name: str, runs: Sequence[RunParts], numbers: Mapping[str, int]) -> Stage:
    having = [(run, run.parts[name]) for run in runs if name in run.parts]
    parts = [part for _, part in having]
    seeds = tuple(int(seed) for seed in parts[0].values.columns)
    if any(tuple(map(int, part.values.columns)) != seeds for part in parts):
        raise ValueError(f"runs of {method} were tested on different episodes")
    starts = np.cumsum([0, *(len(part.values) for part in parts)])
    # fits of a perceptron begin with nothing in common; trainings of it begin with one and the same fit
    apart = name == IMITATION and having[0][0].method == "mlp"
    clusters = np.repeat([numbers[run.conversation] for run, _ in having], [len(part.values) for part in parts])
    return Stage(
        method,
        name,
        np.concatenate([part.values.to_numpy(float) for part in parts]),
        np.arange(starts[-1]) if apart else clusters,
        seeds,
        _mean([run.calls for run, _ in having]),
        _mean([part.resets for part in parts]),
        np.array([s + p.chosen for s, p in zip(starts, parts, strict=False) if p.chosen is not None], dtype=np.intp),
    )


def _mean(values: Sequence[float | None]) -> float:
    """NaN unless all are known."""
    return float(np.mean([np.nan if value is None else value for value in values]))


def rows(found: Sequence[Stage], against: str = "refined") -> list[Row]:
    """Summarise stages, each beside the same stage of one method."""
    return _with_p_values([_row(stage) for stage in found], found, against)


def _row(stage: Stage) -> Row:
    by_run, finite = stage.by_run, stage.finite
    kept, any_kept = by_run[finite], bool(finite.any())
    chosen = by_run[stage.chosen]
    chosen = chosen[np.isfinite(chosen)]
    return Row(
        method=stage.method,
        stage=stage.stage,
        calls=_known(stage.calls),
        resets=_known(stage.resets),
        mean=float(kept.mean()) if any_kept else None,
        interval=cluster_bootstrap(kept, stage.clusters[finite]),
        iqm=interquartile_mean(kept) if any_kept else None,
        std_episodes=describe(stage.by_episode).std if any_kept else None,
        std_runs=describe(kept).std_sample if any_kept else None,
        episodes=stage.values.shape[1],
        runs=len(by_run),
        conversations=len(np.unique(stage.clusters)),
        chosen_mean=float(chosen.mean()) if chosen.size else None,
        failed=int((~finite).sum()),
        details={
            "per_run": [_known(value) for value in by_run],
            "per_episode": dict(zip(map(str, stage.seeds), map(_known, stage.by_episode), strict=True)),
            "conversation_of_run": stage.clusters.tolist(),
        },
    )


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _with_p_values(made: list[Row], found: Sequence[Stage], against: str) -> list[Row]:
    """Welch's test over conversations, whose runs are not independent, where either side has at least two."""
    yardsticks = {stage.stage: stage.by_conversation for stage in found if stage.method == against}
    compared = [
        i
        for i, stage in enumerate(found)
        if stage.method != against
        and stage.stage in yardsticks
        and min(len(stage.by_conversation), len(yardsticks[stage.stage])) > 1
    ]
    tests = [welch(found[i].by_conversation, yardsticks[found[i].stage]).p_value for i in compared]
    adjusted = dict(zip(compared, holm([p for p in tests if p is not None]), strict=True)) if compared else {}
    return [replace(row, p_value=adjusted.get(i)) for i, row in enumerate(made)]


def to_json(row: Row) -> dict[str, Any]:
    """Plain values."""
    return asdict(row)
