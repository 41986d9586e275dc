"""The battery: every check that needs no model, over one round's fit and rollouts, as one text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxrefine.task import Task
from jaxrefine.worker import checks
from jaxrefine.worker.arrays import load_arrays


def of_table(task: Task, folder: Path, by_mean: int, chosen: int) -> list[checks.Check]:
    """The checks that a round's files are enough for.

    Args:
        task: whose demonstration the rollouts are held against.
        folder: of the round.
        by_mean: the first episodes of ``rollouts.parquet``, as many, took the mean action.
        chosen: the fit that is the round's.
    """
    table = pd.read_parquet(folder / "rollouts.parquet")
    demonstration = task.demonstration
    observed = task.schema.flatten(demonstration.observations)
    return [
        checks.weights(load_arrays(folder / "initial_weights.npz"), load_arrays(folder / "fits.npz"), chosen),
        checks.latents(table),
        checks.actions(table, task.schema, demonstration.actions, by_mean),
        checks.shift(table, task.schema, observed),
        checks.worst_states(table, by_mean),
    ]


def compose(found: list[checks.Check]) -> dict[str, Any]:
    """All checks as one text, and their numbers by title."""
    text = "\n\n".join(check.text() for check in found) + "\n"
    return {"text": text, "numbers": {check.title.split(":")[0]: _plain(check.numbers) for check in found}}


def _plain(value: Any) -> Any:
    """What JSON can hold; a number that is not finite becomes None."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | str):
        return value
    return float(value) if np.isfinite(value) else None
