"""Reinforcement learning in a run directory: the curves of every budget and what they came to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.core.groupby import SeriesGroupBy

from jaxrefine import stats
from jaxrefine.report.fields import JSON, get, integer, items, read_json, string
from jaxrefine.report.numbers import count
from jaxrefine.report.parquet import MOST_SEEDS, read_numbers, wide

CURVES = ("episode_return", "kl", "clip_fraction", "entropy", "gradient_norm")


@dataclass(frozen=True)
class Line:
    """Values of every seed at the same numbers of resets.

    Attributes:
        resets: Of one seed, shape (points,).
        values: Shape (seeds, points), NaN where a seed has none that is finite.
    """

    resets: NDArray[np.float64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Final:
    """What the trained policies came to on the test episodes.

    Attributes:
        by_seed: The mean over episodes of every training seed, NaN where it is not finite.
        sample: Of the seeds that are finite; None where none is.
        interval: Bootstrap interval of their mean over seeds; None for fewer than two.
        episodes: Test episodes of each seed.
        chosen: The seed that did best on validation episodes, None where it is not known.
    """

    by_seed: NDArray[np.float64]
    sample: stats.Sample | None
    interval: stats.Interval | None
    episodes: int
    chosen: int | None

    @property
    def chosen_value(self) -> float | None:
        """The chosen seed's mean over test episodes."""
        known = self.chosen is not None and 0 <= self.chosen < len(self.by_seed)
        value = float(self.by_seed[self.chosen or 0]) if known else np.nan
        return value if np.isfinite(value) else None


@dataclass(frozen=True)
class Budget:
    """One budget of resets; None and empty where the run did not get that far.

    Attributes:
        name: Resets of one seed, as the run's folder is called.
        looks: Mean return on the test episodes, on the way; nothing is chosen by it.
        curves: What every update came to, by the name of its column.
        final: The evaluation after the last update.
        round: Whose program was trained.
        training_resets: Over all seeds.
        choice_resets: Validation episodes over all seeds, by which one is chosen.
        env_steps: Of training, looks and evaluation.
        stopped_steps: Gradient steps that were left out: a stop, or a gradient that was not finite.
    """

    name: str
    looks: Line | None
    curves: Mapping[str, Line]
    final: Final | None
    round: int | None
    training_resets: int | None
    choice_resets: int | None
    env_steps: int | None
    stopped_steps: int | None

    @property
    def failed(self) -> tuple[int, ...]:
        """Seeds with a value that is not finite, in the end or on the way."""
        tables = [line.values for line in (self.looks, *self.curves.values()) if line]
        tables += [self.final.by_seed[:, None]] if self.final else []
        return tuple(sorted({int(i) for table in tables for i in np.flatnonzero(~np.isfinite(table).all(1))}))

    @property
    def title(self) -> str:
        """For a person."""
        return f"{count(int(self.name))} resets a seed"

    @property
    def finished(self) -> bool:
        """Whether it was trained and evaluated."""
        return self.final is not None


@dataclass(frozen=True)
class Training:
    """All budgets, the smallest first, and a sentence for everything that could not be read."""

    budgets: tuple[Budget, ...]
    gaps: tuple[str, ...]


def read_training(run: Path) -> Training:
    """Read `RUN/rl` and what the summary says of it; no budgets where there was no training."""
    gaps: list[str] = []
    entries = items(get(read_json(run / "summary.json", []), "rl"))
    by_name = {string(get(entry, "budget")): entry for entry in entries}
    folder = run / "rl"
    if folder.is_symlink():  # which may lead out of the run
        return Training((), ())
    try:
        found = (
            {path.name: path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()}
            if folder.is_dir()
            else {}
        )
    except OSError as error:
        return Training((), (f"rl cannot be read ({error.strerror or error}).",))
    names = sorted((name for name in found if re.fullmatch(r"[1-9]\d{0,8}", name)), key=int)
    return Training(tuple(_budget(found[name], by_name.get(name), gaps) for name in names), tuple(gaps))


def read_looks(folder: Path, gaps: list[str], within: str) -> Line | None:
    """The looks of one budget, a mean over episodes for every seed; None where there are none."""
    table = read_numbers(folder / "checkpoints.parquet", ("seed", "resets", "episode", "value"), gaps, within)
    if table is None:
        return None
    means = _strict_mean(table.groupby(["seed", "resets"])["value"]).reset_index()
    return _line(means, "value", gaps, f"{within}/checkpoints.parquet")


def _budget(folder: Path, entry: JSON, gaps: list[str]) -> Budget:
    within = f"rl/{folder.name}"
    table = read_numbers(folder / "curves.parquet", ("seed", "resets", *CURVES), gaps, within)
    curves = {} if table is None else {name: _line(table, name, gaps, f"{within}/curves.parquet") for name in CURVES}
    return Budget(
        name=folder.name,
        looks=read_looks(folder, gaps, within),
        curves={name: line for name, line in curves.items() if line is not None},
        final=_final(folder, integer(get(entry, "seeds", "chosen")), gaps, within),
        round=integer(get(entry, "round")),
        training_resets=integer(get(entry, "resets")),
        choice_resets=integer(get(entry, "choice_resets")),
        env_steps=integer(get(entry, "env_steps")),
        stopped_steps=integer(get(entry, "stopped_steps")),
    )


def _line(table: pd.DataFrame, column: str, gaps: list[str], said: str) -> Line | None:
    if table.empty or not np.isfinite(table[["seed", "resets"]].to_numpy()).all():
        gaps.append(f"{said} names no seeds or no resets.")
        return None
    if table.duplicated(["seed", "resets"]).any():
        gaps.append(f"{said} says two things of one seed at the same resets.")
        return None
    values = wide(table, "seed", "resets", column)
    if values is None:
        gaps.append(f"{said} does not say one thing of every seed after the same resets.")
        return None
    return Line(values.columns.to_numpy(float), values.to_numpy(float))


def _strict_mean(groups: SeriesGroupBy) -> pd.Series:
    """NaN where a value is: a seed that failed in one episode has failed, and leaving it out would flatter it."""
    return groups.mean().where(groups.count() == groups.size())


def _final(folder: Path, chosen: int | None, gaps: list[str], within: str) -> Final | None:
    table = read_numbers(folder / "evaluation.parquet", ("fit_seed", "seed", "value"), gaps, within)
    if table is None or table.empty:
        return None
    groups = table.groupby("fit_seed")["value"]
    if not groups.ngroups:
        gaps.append(f"{within}/evaluation.parquet names no seeds.")
        return None
    if groups.ngroups > MOST_SEEDS:
        gaps.append(f"{within}/evaluation.parquet has {groups.ngroups:,} seeds, more than a report reads.")
        return None
    by_seed = _strict_mean(groups).to_numpy(float)
    finite = by_seed[np.isfinite(by_seed)]
    return Final(
        by_seed,
        stats.describe(finite) if finite.size else None,
        stats.bootstrap_interval(finite) if finite.size > 1 else None,
        int(groups.size().max()),
        chosen,
    )


def level_reached(training: Training, level: float | None, higher_is_better: bool) -> str | None:
    """A sentence on how the trained policies stand to the demonstrator; None where that is not known."""
    finals = [(budget.title, budget.final.by_seed) for budget in training.budgets if budget.final]
    if level is None or not finals:
        return None
    # a comparison with NaN is false: a seed that failed did not reach anything
    reached = [(title, values >= level if higher_is_better else values <= level) for title, values in finals]
    said = ", ".join(f"{mask.sum()} of {mask.size} training seeds after {title}" for title, mask in reached)
    return f"As good as the demonstrator or better on the test episodes: {said}."
