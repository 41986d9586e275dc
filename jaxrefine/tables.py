"""Trajectories as one table of named columns, and demonstrations read back from such tables.

One row per (episode, step), every value of the SAME step t; ``next_obs_*`` alone belongs to t + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from envs.base import Schema
from jaxrefine.learn.types import Rollouts
from jaxrefine.run.files import whole_file


def column_names(schema: Schema, info_keys: Sequence[str]) -> list[str]:
    """The table's header for an environment's schema and a program's reported names."""
    observations = [column.name for column in schema.observation]
    actions = [column.name for column in schema.action]
    return [
        "episode",
        "t",
        *(f"obs_{name}" for name in observations),
        *(key for key in info_keys if key.startswith("latent_")),
        *(key for key in info_keys if key.startswith("weight_")),
        *(f"action_mean_{name}" for name in actions),
        *(f"action_{name}" for name in actions),
        "reward",
        "done",
        *(f"next_obs_{name}" for name in observations),
    ]


def to_columns(schema: Schema, rollouts: Rollouts, first_episode: int) -> dict[str, np.ndarray]:
    """The valid rows of rollouts, episode after episode, column by column.

    ``action_*`` is the action as the environment used it: clipped to the schema's bounds.
    """
    log = rollouts.transitions
    valid = np.asarray(log.valid).T
    episode, step = np.nonzero(valid)

    def rows(values: Any) -> np.ndarray:
        """Of ``(steps, episodes)``."""
        return np.asarray(values).T[valid]

    action = np.asarray(log.action)
    table: dict[str, np.ndarray] = {
        "episode": (episode + first_episode).astype(np.int32),
        "t": step.astype(np.int32),
        "reward": rows(log.reward),
        "done": rows(log.done),
    }
    observed = {
        key: np.concatenate([np.asarray(log.observation[key]), np.asarray(last)[None]])
        for key, last in rollouts.last_observation.items()
    }
    for column in schema.observation:
        values = np.moveaxis(observed[column.key], 0, -1)[column.index].T
        table[f"obs_{column.name}"], table[f"next_obs_{column.name}"] = rows(values[:-1]), rows(values[1:])
    for i, column in enumerate(schema.action):
        table[f"action_mean_{column.name}"] = rows(log.action_mean[:, i])
        table[f"action_{column.name}"] = rows(np.clip(action[:, i], column.low, column.high))
    table |= {key: rows(value) for key, value in log.info.items()}
    order = column_names(schema, sorted(log.info))
    return {name: _narrow(table[name]) for name in order}


def _narrow(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32) if np.issubdtype(values.dtype, np.floating) else values


def write_parquet(path: Path, chunks: Iterable[Mapping[str, np.ndarray]]) -> int:
    """Stream chunks of columns into one Parquet file, whole or not at all.

    Returns:
        The number of rows.
    """
    rows, writer = 0, None
    with whole_file(path) as temporary:
        try:
            for chunk in chunks:
                table = pa.table({name: pa.array(values) for name, values in chunk.items()})
                writer = writer or pq.ParquetWriter(temporary, table.schema, compression="zstd")
                writer.write_table(table)
                rows += table.num_rows
            if writer is None:
                raise ValueError("a table needs at least one chunk")
        finally:
            if writer is not None:
                writer.close()
    return rows
