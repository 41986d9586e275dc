"""A demonstration: one recorded episode, read from a table or from arrays."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from envs.base import Schema
from jaxrefine.errors import UserError


@dataclass(frozen=True)
class Demonstration:
    """One recorded episode.

    Attributes:
        name: as it is printed.
        source: the file it came from.
        observations: ``(n, ...)`` an entry of the observation, float32.
        actions: ``(n, A)``, float32.
        rewards: ``(n,)``, or None when the file does not hold them.
        provenance: what the file beside it says of it.
        own_results: the demonstrator's own results, by the episode's seed, where the provenance holds them.
    """

    name: str
    source: str
    observations: dict[str, np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray | None
    provenance: dict[str, Any] = field(default_factory=dict)
    own_results: dict[int, float] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Its length."""
        return len(self.actions)


def load_demonstration(path: Path, schema: Schema) -> Demonstration:
    """Read one episode from Parquet or CSV with the schema's column names, or from NPZ.

    A table holds ``obs_<column>`` and ``action_<column>`` for every column of the schema, one row a step in order, and
    may hold ``t`` and ``reward``; others are ignored. An NPZ holds either the same names as one-dimensional arrays, or
    the observation's entries by key, ``(n, ...)``, beside ``actions``, ``(n, A)``, and possibly ``rewards``. A JSON
    object in a file of the same name beside it is its provenance; its ``own_results`` with ``per_episode``, a list of
    ``{"seed": ..., "value": ...}``, are the demonstrator's own results.

    Raises:
        UserError: the file is missing, unreadable, or lacks a column; or a value is not finite or out of bounds. The
            message names the file and the column.
    """
    if not path.exists():
        raise UserError(f"the demonstration {path} does not exist; give a .parquet, .csv or .npz file")
    frame = _read_table(path, schema)
    if frame.empty:
        raise UserError(f"the demonstration {path} has no rows")
    observations = schema.unflatten(_columns(frame, "obs_", [c.name for c in schema.observation], path))
    actions = _columns(frame, "action_", [c.name for c in schema.action], path)
    if len(frame) < 2:
        raise UserError(f"the demonstration {path} has {len(frame)} row(s); it needs at least 2")
    if "t" in frame and not np.array_equal(frame["t"].to_numpy(), np.arange(len(frame))):
        raise UserError(f"the column `t` of {path} is not 0, 1, 2, ...: give one episode, its steps in order")
    for i, column in enumerate(schema.action):
        low, high = actions[:, i].min(), actions[:, i].max()
        if low < column.low - 1e-6 or high > column.high + 1e-6:
            raise UserError(
                f"the column `action_{column.name}` of {path} goes from {low:g} to {high:g}; it must lie in "
                f"[{column.low:g}, {column.high:g}]"
            )
    rewards = _columns(frame, "", ["reward"], path)[:, 0] if "reward" in frame else None
    provenance = _provenance(path.with_suffix(".json"))
    own_results = _own_results(path.with_suffix(".json"), provenance)
    return Demonstration(path.stem, path.name, observations, actions, rewards, provenance, own_results)


def _provenance(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text()) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"the provenance {path} beside the demonstration cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"the provenance {path} beside the demonstration must be a JSON object")
    return found


def _own_results(path: Path, provenance: dict[str, Any]) -> dict[int, float]:
    if (own := provenance.get("own_results")) is None:
        return {}
    try:
        results = {int(entry["seed"]): float(entry["value"]) for entry in own["per_episode"]}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"`own_results` of {path} must hold `per_episode`, a list of objects with `seed` and `value`: {error!r}"
        ) from error
    if not all(math.isfinite(value) for value in results.values()):
        raise UserError(f"`own_results` of {path} holds a value that is not finite")
    return results


def _read_table(path: Path, schema: Schema) -> pd.DataFrame:
    try:
        match path.suffix.lower():
            case ".parquet":
                return pd.read_parquet(path)
            case ".csv":
                return pd.read_csv(path)
            case ".npz":
                return _table_of_arrays(path, schema)
    except UserError:
        raise
    except Exception as error:  # every reader has its own family of errors
        raise UserError(f"the demonstration {path} cannot be read as {path.suffix}: {error}") from error
    raise UserError(f"the demonstration {path} must be a .parquet, .csv or .npz file, not {path.suffix or 'a folder'}")


def _table_of_arrays(path: Path, schema: Schema) -> pd.DataFrame:
    with np.load(path, allow_pickle=False) as arrays:
        data = {name: arrays[name] for name in arrays.files}
    shapes = schema.observation_shapes
    if any(name.startswith("obs_") for name in data):
        return pd.DataFrame({name: value for name, value in data.items() if value.ndim == 1})
    for name in (*shapes, "actions"):
        if name not in data:
            raise UserError(f"the demonstration {path} has no array `{name}`; it has: {', '.join(data) or 'none'}")
    n = len(data["actions"])
    for name, shape in {**shapes, "actions": (schema.action_size,)}.items():
        if data[name].shape != (n, *shape):
            raise UserError(
                f"the array `{name}` of {path} has shape {data[name].shape}; it must be "
                f"({', '.join(map(str, ('n', *shape)))}) with n = {n} as in `actions`"
            )
    observed = schema.flatten(data)
    table = {f"obs_{c.name}": observed[:, i] for i, c in enumerate(schema.observation)}
    table |= {f"action_{c.name}": data["actions"][:, i] for i, c in enumerate(schema.action)}
    return pd.DataFrame(table | ({"reward": data["rewards"]} if "rewards" in data else {}))


def _columns(frame: pd.DataFrame, prefix: str, columns: list[str], path: Path) -> np.ndarray:
    wanted = [prefix + column for column in columns]
    if missing := [name for name in wanted if name not in frame]:
        more = f" (and {len(missing) - 3} more)" if len(missing) > 3 else ""
        raise UserError(
            f"the demonstration {path} lacks the column {', '.join(f'`{name}`' for name in missing[:3])}{more}; its "
            f"header must hold {wanted[0]} ... {wanted[-1]}"
        )
    for name in wanted:
        if not (pd.api.types.is_numeric_dtype(frame[name]) and not pd.api.types.is_complex_dtype(frame[name])):
            raise UserError(f"the column `{name}` of {path} is of type {frame[name].dtype}; it must hold numbers")
        values = frame[name].to_numpy(dtype=np.float32)
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise UserError(f"the column `{name}` of {path} is not finite in row {row}")
    return frame[wanted].to_numpy(dtype=np.float32)
