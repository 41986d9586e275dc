"""What a run directory says about one round: its evaluation, its fit, its texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from jaxrefine import stats
from jaxrefine.report.battery import Battery, read_battery
from jaxrefine.report.fields import JSON, LARGEST, get, integer, items, number, numbers, read_json, string
from jaxrefine.report.untrusted import is_regular, read_text, visible
from jaxrefine.report.weights import Weight, read_weights


@dataclass(frozen=True)
class Episode:
    """One evaluation episode; `steps` is None where it was not recorded."""

    seed: int
    value: float
    steps: int | None


@dataclass(frozen=True)
class Fits:
    """The evaluation mean of every fit seed, and which one was chosen (None where it is not known)."""

    means: tuple[float, ...]
    chosen: int | None
    sample: stats.Sample | None


@dataclass(frozen=True)
class Curves:
    """Negative log-likelihood while fitting: one row for each fit seed, of shape (seeds, points).

    Attributes:
        steps: The update at each point, shape (points,).
        train: On the training part of the demonstration.
        validation: On the part kept back; no rows where none was.
        chosen: The fit seed that was kept, None where it is not known.
    """

    steps: np.ndarray
    train: np.ndarray
    validation: np.ndarray
    chosen: int | None


@dataclass(frozen=True)
class Analysis:
    """Analyses the model wrote, and what they printed (None: they never ran, or printed nothing)."""

    name: str
    code: str | None
    result: str | None


@dataclass(frozen=True)
class Logged:
    """What the event log says of a round: the decision on it, whether it was kept, and against what."""

    decision: str | None = None
    accepted: bool | None = None
    against: str | None = None


@dataclass(frozen=True)
class Round:
    """Everything known of one round; None and empty where the run did not get that far.

    Attributes:
        other_fits: The values of the evaluation episodes of each fit seed that was not chosen.
        against: How it compares with the best round before it, in the run's own words.
        changes: What the model said it changed to arrive at this round's program.
        battery: The built-in checks as the model was shown them.
        findings: What their numbers say.
    """

    index: int
    evaluation: stats.Sample | None
    episodes: tuple[Episode, ...]
    other_fits: tuple[tuple[float, ...], ...]
    fits: Fits | None
    validation: stats.Sample | None
    nll_train: float | None
    nll_validation: float | None
    decision: str | None
    accepted: bool | None
    parameters: int | None
    regenerations: int | None
    analysis_requests: int | None
    curves: Curves | None
    weights: tuple[Weight, ...]
    program: str | None
    reply: str | None
    checks: str | None
    structure: str | None
    against: str | None
    changes: str | None
    battery: str | None
    findings: Battery
    analyses: tuple[Analysis, ...]


def round_folders(run: Path) -> dict[int, Path]:
    """The run's round folders by number."""
    matches = (
        (re.fullmatch(r"round_(\d{1,4})", path.name), path)
        for path in run.iterdir()
        if path.is_dir() and not path.is_symlink()
    )
    return {int(match.group(1)): path for match, path in matches if match}


def read_round(index: int, folder: Path, entry: JSON, logged: Logged, gaps: list[str]) -> Round:
    """Read one round.

    Args:
        index: Its number.
        folder: Its folder, which need not exist.
        entry: What summary.json says of it, None if there is no summary.
        logged: What the event log says, for want of a summary.
        gaps: Receives a sentence for each file that is there and cannot be read.
    """
    fit = read_json(folder / "fit.json", gaps)
    chosen = integer(get(entry, "fit_seeds", "chosen"))
    chosen = integer(get(fit, "chosen")) if chosen is None else chosen
    table = _read_evaluation(folder / "evaluation.parquet", gaps)
    episodes = _summary_episodes(entry) or _table_episodes(table, chosen)
    evaluation = (
        stats.describe([episode.value for episode in episodes]) if episodes else read_sample(get(entry, "metric"))
    )
    accepted = get(entry, "accepted")
    return Round(
        index=index,
        evaluation=evaluation,
        episodes=episodes,
        other_fits=_other_fits(table, chosen),
        fits=_fits(get(entry, "fit_seeds"), table, chosen),
        validation=read_sample(get(entry, "validation")),
        nll_train=number(get(entry, "nll", "train")),
        nll_validation=number(get(entry, "nll", "validation")),
        decision=string(get(entry, "decision")) or logged.decision,
        accepted=accepted if isinstance(accepted, bool) else logged.accepted,
        parameters=integer(get(entry, "parameters")),
        regenerations=integer(get(entry, "regenerations")),
        analysis_requests=integer(get(entry, "analyses")),
        curves=_curves(fit, chosen),
        weights=read_weights(folder, gaps),
        program=read_text(folder / "policy.py"),
        reply=read_text(folder / "decision.md"),
        checks=read_text(folder / "checks.txt"),
        structure=read_text(folder / "graph_changes.txt"),
        against=string(get(entry, "against_best", "line")) or logged.against,
        changes=string(get(entry, "changes")),
        battery=read_text(folder / "battery.txt"),
        findings=read_battery(folder, gaps),
        analyses=_analyses(folder),
    )


def compare(before: Round, after: Round) -> stats.PairedDifference | None:
    """The metric's change from one round to another on the evaluation seeds both have; None if there are none."""
    first = {episode.seed: episode.value for episode in before.episodes}
    second = {episode.seed: episode.value for episode in after.episodes}
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    return stats.paired_difference([first[seed] for seed in seeds], [second[seed] for seed in seeds])


def _summary_episodes(entry: JSON) -> tuple[Episode, ...]:
    found = []
    for item in items(get(entry, "per_episode")):
        seed, value = integer(get(item, "seed")), number(get(item, "value"))
        if seed is not None and value is not None:
            found.append(Episode(seed, value, integer(get(item, "steps"))))
    return tuple(found)


def _read_evaluation(path: Path, gaps: list[str]) -> pd.DataFrame:
    columns = ["fit_seed", "seed", "value", "steps"]
    empty = pd.DataFrame(columns=columns, dtype=float)
    if not is_regular(path):
        return empty
    try:
        table = pd.read_parquet(path, columns=columns)
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        gaps.append(f"{path.parent.name}/{path.name} cannot be read ({visible(str(error))}).")
        return empty
    numeric = table.apply(pd.to_numeric, errors="coerce").astype(float)
    return numeric[(numeric.abs() < LARGEST).all(axis=1)]  # not of NaN either


def _table_episodes(table: pd.DataFrame, chosen: int | None) -> tuple[Episode, ...]:
    rows = table[_is_chosen(table, chosen)]
    return tuple(
        Episode(int(seed), float(value), int(steps))
        for seed, value, steps in zip(rows["seed"], rows["value"], rows["steps"], strict=True)
    )


def _other_fits(table: pd.DataFrame, chosen: int | None) -> tuple[tuple[float, ...], ...]:
    others = table[~_is_chosen(table, chosen)]
    return tuple(tuple(map(float, fit["value"])) for _, fit in others.groupby("fit_seed"))


def _is_chosen(table: pd.DataFrame, chosen: int | None) -> pd.Series:
    """Which rows belong to the chosen fit, the only one if there is but one; none where it is not known."""
    fits = sorted(set(table["fit_seed"]))
    if len(fits) == 1:
        chosen = 0
    known = chosen is not None and 0 <= chosen < len(fits)
    return table["fit_seed"] == (fits[chosen or 0] if known else np.nan)


def _fits(entry: JSON, table: pd.DataFrame, chosen: int | None) -> Fits | None:
    means = numbers(get(entry, "means"))
    if not means and len(table):
        means = tuple(float(mean) for mean in table.groupby("fit_seed")["value"].mean())
    return Fits(means, chosen, stats.describe(means)) if means else None


def read_sample(entry: JSON) -> stats.Sample | None:
    """A sample as the summary holds it; None where it lacks a part."""
    mean, std, n = number(get(entry, "mean")), number(get(entry, "std")), integer(get(entry, "n"))
    if mean is None or std is None or n is None:
        return None
    return stats.Sample(mean, std, number(get(entry, "std_sample")), n)


def _curves(fit: JSON, chosen: int | None) -> Curves | None:
    train, validation = _rows(get(fit, "train")), _rows(get(fit, "validation"))
    points = train.shape[1] or validation.shape[1]
    if not points:
        return None
    steps = np.array(numbers(get(fit, "steps")))
    if steps.size != points:
        steps = np.arange(1, points + 1, dtype=float)
    return Curves(steps, train, validation[:, :points], chosen)


def _rows(value: JSON) -> np.ndarray:
    """One curve or a list of them as shape (seeds, points), NaN where a number is missing."""
    rows = items(value)
    if rows and not isinstance(rows[0], list):
        rows = [rows]
    length = max((len(items(row)) for row in rows), default=0)
    table = np.full((len(rows), length), np.nan)
    for row, values in zip(table, rows, strict=True):
        for column, entry in enumerate(items(values)):
            found = number(entry)
            row[column] = np.nan if found is None else found
    return table


def _analyses(folder: Path) -> tuple[Analysis, ...]:
    """Pairs diagnostics*.py with results*.txt by what their names add; a round asks for more analyses at times."""
    suffixes = {path.stem.removeprefix("diagnostics") for path in folder.glob("diagnostics*.py")}
    suffixes |= {path.stem.removeprefix("results") for path in folder.glob("results*.txt")}
    ordered = sorted(suffixes, key=lambda suffix: (len(suffix), suffix))
    return tuple(
        Analysis(
            visible(suffix.strip("_-. ")),
            read_text(folder / f"diagnostics{suffix}.py"),
            read_text(folder / f"results{suffix}.txt"),
        )
        for suffix in ordered
    )
