"""The battery: every check that needs no model, over one round's fit and rollouts, as one text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from jaxrefine.policy.graph import SemanticGraph
from jaxrefine.task import Task
from jaxrefine.worker import checks
from jaxrefine.worker.arrays import load_arrays


def of_table(task: Task, graph: SemanticGraph, folder: Path, by_mean: int, chosen: int) -> list[checks.Check]:
    """The checks that a round's files are enough for.

    Args:
        task: whose demonstration the rollouts are held against.
        graph: of the round's program.
        folder: of the round.
        by_mean: the first episodes of ``rollouts.parquet``, as many, took the mean action.
        chosen: the fit that is the round's.
    """
    table = pd.read_parquet(folder / "rollouts.parquet")
    demonstration = task.demonstration
    observed = task.schema.flatten(demonstration.observations)
    return [
        checks.structure(graph),
        checks.weights(load_arrays(folder / "initial_weights.npz"), load_arrays(folder / "fits.npz"), chosen),
        checks.latents(table),
        checks.actions(table, task.schema, demonstration.actions, by_mean),
        checks.shift(table, task.schema, observed),
        checks.worst_states(table, by_mean),
        checks.reconstruction(table, _varying_inputs(graph, table)),
    ]


def means_of_latents(folder: Path, graph: SemanticGraph) -> Float[np.ndarray, " latents"]:
    """The mean of every latent of the graph, in its order, over the round's rollouts."""
    table = pd.read_parquet(folder / "rollouts.parquet", columns=list(graph.latents))
    return table.to_numpy(float).mean(axis=0)


def _varying_inputs(graph: SemanticGraph, table: pd.DataFrame) -> dict[str, list[str]]:
    """For each latent that is computed, the columns of what it is directly computed from and that are not constant."""
    inputs = {}
    for name, found in graph.latents.items():
        columns = [c if c in table else f"obs_{c}" for c in found.inputs if not c.startswith("weight_")]
        if found.role == "intermediate":
            inputs[name] = [c for c in columns if c in table]
    return inputs


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
