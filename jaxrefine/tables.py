"""Trajectories as one table of named columns, and demonstrations read back from such tables.

One row per (episode, step), every value of the SAME step t; ``next_obs_*`` alone belongs to t + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from envs.base import Schema
from jaxrefine.learn.types import Transition
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


def to_columns(schema: Schema, transition: Transition, first_episode: int) -> dict[str, np.ndarray]:
    """The valid rows of transitions ``(episodes, steps)``, column by column.

    ``action_*`` is the action as the environment used it: clipped to the schema's bounds.
    """
    valid = np.asarray(transition.valid)
    episode, step = np.nonzero(valid)
    observed = schema.flatten(transition.observation)[valid]
    following = schema.flatten(transition.next_observation)[valid]
    mean, action = np.asarray(transition.action_mean)[valid], np.asarray(transition.action)[valid]
    low = np.array([column.low for column in schema.action], action.dtype)
    high = np.array([column.high for column in schema.action], action.dtype)
    action = np.clip(action, low, high)
    table: dict[str, np.ndarray] = {
        "episode": (episode + first_episode).astype(np.int32),
        "t": step.astype(np.int32),
        "reward": np.asarray(transition.reward)[valid],
        "done": np.asarray(transition.done)[valid],
    }
    for i, column in enumerate(schema.observation):
        table[f"obs_{column.name}"] = observed[:, i]
        table[f"next_obs_{column.name}"] = following[:, i]
    for i, column in enumerate(schema.action):
        table[f"action_mean_{column.name}"] = mean[:, i]
        table[f"action_{column.name}"] = action[:, i]
    table |= {key: np.asarray(value)[valid] for key, value in transition.info.items()}
    order = column_names(schema, sorted(transition.info))
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
