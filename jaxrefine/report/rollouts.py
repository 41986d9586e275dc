"""What a round's files say of its episodes, step by step: the best, the median and the worst of them.

Episodes that the round's film drove stand in ``scene.parquet`` with what the policy reported at each step. Where there
is none, they are taken from ``rollouts.parquet``, of which only the columns that are shown are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from jaxrefine.report.fields import get, items, number, read_json
from jaxrefine.report.untrusted import is_regular, visible

MOST_ROWS = 50_000_000  # of all of a round's episodes
MOST_STEPS = 20_000  # of one episode that is shown
MOST_COLUMNS = 400  # read of a table, in which nothing else grows with what a program reports
LATENTS = 8
ROLES = {1: ("best",), 2: ("best", "worst"), 3: ("best", "median", "worst")}
_ABLATION = "Each latent held at its mean"


@dataclass(frozen=True)
class Driven:
    """One episode.

    Attributes:
        role: `best`, `median` or `worst` of those it was chosen among.
        episode: Its number in the round's table.
        reward: The sum of its rewards.
        table: Its steps in order: `t`, and `action_*`, `latent_*` and whatever else its file holds, all float.
    """

    role: str
    episode: int
    reward: float
    table: pd.DataFrame


@dataclass(frozen=True)
class Rollouts:
    """The episodes of a round that are shown.

    Attributes:
        episodes: Best first.
        source: The file's name.
        progress: The column of what the metric is of: a distance as it is, or the rewards up to each step.
        actions: Columns of actions.
        latents: Columns of the latents that matter most, at most `LATENTS`.
        by_loss: Whether that is by what holding them at their means cost; else by how much they vary.
    """

    episodes: tuple[Driven, ...]
    source: str
    progress: str
    actions: tuple[str, ...]
    latents: tuple[str, ...]
    by_loss: bool


def read_rollouts(folder: Path, gaps: list[str], higher_is_better: bool = True) -> Rollouts | None:
    """Read a round's episodes; None where it has none.

    Args:
        folder: The round's.
        gaps: Receives a sentence for each file that is there and cannot be read.
        higher_is_better: Which way the metric goes, for the ablation's loss.
    """
    losses = _losses(folder, gaps, higher_is_better)
    for name, read in (("scene.parquet", _of_scene), ("rollouts.parquet", _of_table)):
        path = folder / name
        if not is_regular(path):
            continue
        try:
            episodes = read(path)
            if episodes:
                return _shown(episodes, name, losses)
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
            gaps.append(f"{folder.name}/{name} cannot be read ({visible(str(error))[:300]}).")
    return None


def _shown(episodes: tuple[Driven, ...], source: str, losses: dict[str, float]) -> Rollouts:
    for driven in episodes:
        progress = _progress(driven.table)
    table = pd.concat([driven.table for driven in episodes])
    actions = tuple(column for column in table.columns if column.startswith("action_"))
    return Rollouts(episodes, source, progress, actions[:LATENTS], _ranked(table, losses)[:LATENTS], bool(losses))


def _of_scene(path: Path) -> tuple[Driven, ...]:
    """Every episode of the file, in its order, which is from best to worst."""
    file = _opened(path, len(ROLES) * MOST_STEPS)
    columns = _numbers(file.schema_arrow, file.schema_arrow.names)
    table = _numeric(file.read(columns=columns).to_pandas(ignore_metadata=True))
    order = list(dict.fromkeys(table["episode"]))
    if len(order) not in ROLES:
        raise ValueError(f"it holds {len(order)} episodes; there should be at most three")
    return _episodes(table, order)


def _of_table(path: Path) -> tuple[Driven, ...]:
    """The best, median and worst by return of the episodes that took the mean action, which are the first half."""
    file = _opened(path, MOST_ROWS)
    rewards = _numeric(
        file.read(columns=_numbers(file.schema_arrow, ["episode", "reward"])).to_pandas(ignore_metadata=True)
    )
    count = int(rewards["episode"].max()) + 1
    means = rewards[rewards["episode"] < (count + 1) // 2]
    returns = means.groupby("episode")["reward"].sum(min_count=1).dropna().sort_values(kind="stable", ascending=False)
    if not len(returns):
        return ()
    places = sorted({0, len(returns) // 2, len(returns) - 1})
    order = [float(returns.index[place]) for place in places]
    names = [
        name
        for name in file.schema_arrow.names
        if name.startswith("latent_") or (name.startswith("action_") and not name.startswith("action_mean_"))
    ]
    positions = [n for n in file.schema_arrow.names if _is_position(n)]
    columns = _numbers(file.schema_arrow, ["episode", "t", "reward", *names, *positions])
    table = pq.read_table(path, columns=columns, filters=[("episode", "in", [int(e) for e in order])])
    return _episodes(_numeric(table.to_pandas(ignore_metadata=True)), order)


def _is_position(name: str) -> bool:
    """Of a handle or of its target, from which the report finds how far one is from the other."""
    return name in {f"obs_{what}_{axis}" for what in ("handle", "target") for axis in "xyz"}


def _opened(path: Path, most_rows: int) -> pq.ParquetFile:
    file = pq.ParquetFile(path)
    if file.metadata.num_rows > most_rows:
        raise ValueError(f"it has {file.metadata.num_rows:,} rows, more than a report reads")
    return file


def _numbers(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Those of the columns that hold one number a row: an entry of another kind may be of any size."""
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"it has {len(names):,} columns, more than a report reads")
    twice = [name for name, times in Counter(schema.names).items() if times > 1 and name in names]
    if twice:
        raise ValueError(f"it has several columns named {', '.join(twice)}")
    kinds = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean)
    return [name for name in names if name in schema.names and any(kind(schema.field(name).type) for kind in kinds)]


def _numeric(table: pd.DataFrame) -> pd.DataFrame:
    return table.apply(pd.to_numeric, errors="coerce").astype(float)


def _episodes(table: pd.DataFrame, order: Sequence[float]) -> tuple[Driven, ...]:
    found = []
    for role, episode in zip(ROLES[len(order)], order, strict=True):
        steps = table[table["episode"] == episode].sort_values("t", kind="stable").head(MOST_STEPS)
        if not np.isfinite(steps[["episode", "t"]]).all(axis=None):
            raise ValueError("a step of it has no number")
        found.append(Driven(role, int(episode), float(steps["reward"].sum()), steps.reset_index(drop=True)))
    return tuple(found)


def _progress(table: pd.DataFrame) -> str:
    """Add what the metric is of, and return its name."""
    measured = next((name for name in table.columns if name.startswith("value_") and name != "value_reward"), None)
    axes = [axis for axis in "xyz" if {f"obs_handle_{axis}", f"obs_target_{axis}"} <= set(table.columns)]
    if measured is not None:
        name, values = measured.removeprefix("value_"), table[measured]
    elif axes:
        handle, target = (table[[f"obs_{what}_{axis}" for axis in axes]].to_numpy() for what in ("handle", "target"))
        name, values = "handle_distance", pd.Series(np.linalg.norm(handle - target, axis=1))
    else:
        name, values = "return_so_far", table["reward"].cumsum()
    table[f"progress_{name}"] = values
    return f"progress_{name}"


def _losses(folder: Path, gaps: list[str], higher_is_better: bool) -> dict[str, float]:
    """What holding each latent at its mean cost the metric, for those of the round's battery."""
    entries = read_json(folder / "battery.json", gaps)
    title = next((key for key in entries if key.startswith(_ABLATION)), "") if isinstance(entries, dict) else ""
    held = get(entries, title)
    base = _mean(get(held, "none", "values"))
    if not isinstance(held, dict) or base is None:
        return {}
    sign = 1.0 if higher_is_better else -1.0
    means = {name: _mean(get(entry, "values")) for name, entry in held.items() if name.startswith("latent_")}
    return {name: sign * (base - mean) for name, mean in means.items() if mean is not None}


def _mean(values: object) -> float | None:
    found = [number(value) for value in items(values)]
    kept = [value for value in found if value is not None]
    return float(np.mean(kept)) if kept and len(kept) == len(found) else None


def _ranked(table: pd.DataFrame, losses: dict[str, float]) -> tuple[str, ...]:
    """Latents that vary, those first whose loss is largest; the others by how much they vary for their size."""
    variation = {}
    for name in (c for c in table.columns if c.startswith("latent_")):
        values = table[name].to_numpy()
        values = values[np.isfinite(values)]
        size = float(np.abs(values).max()) if values.size else 0.0
        share = float(values.std()) / size if size else 0.0
        if share > 1e-5:
            variation[name] = share
    return tuple(sorted(variation, key=lambda name: (-losses.get(name, -np.inf), -variation[name])))
