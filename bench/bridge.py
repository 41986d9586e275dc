"""What the bridges to the references share: a round of a finished run as it was recorded, and the round's policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from envs.base import Schema
from jaxrefine.errors import UserError
from jaxrefine.learn.types import Params
from jaxrefine.policy.mlp import mlp_of
from jaxrefine.policy.program import PolicySpec, Program, load_program
from jaxrefine.policy.source import ProgramError
from jaxrefine.worker.arrays import load_arrays


class Act(Protocol):
    """A policy for one observation at a time."""

    def __call__(self, observation: Mapping[str, Any], key: jax.Array | None = None) -> np.ndarray:
        """The action (A,): the mean, or with a key a sample."""
        ...


@dataclass(frozen=True)
class Round:
    """A round as the run recorded it.

    Attributes:
        number: of the round.
        folder: where its files are.
        condition: of the environment.
        episodes: the test episodes of the fit that became the round's, a row each, by ascending ``seed``.
    """

    number: int
    folder: Path
    condition: str
    episodes: pd.DataFrame


def read_round(run: Path, task: str, number: int | None, columns: Sequence[str]) -> Round:
    """Read what a run recorded of one of its rounds.

    Args:
        run: the run directory.
        task: which the run must be of.
        number: the round; the run's best when absent.
        columns: of the evaluation, which must have them, besides ``seed``.

    Raises:
        UserError: the run is one of another task or lacks what is needed; the message says what.
    """
    summary = read_summary(run)
    if summary.get("task") != task:
        raise UserError(f"{run} is a run of {summary.get('task')!r}; this bench is for {task}")
    if number is None:
        number = summary.get("best_round")
        if number is None:
            raise UserError(f"{run / 'summary.json'} names no best round; choose one with --round")
    folder = run / f"round_{number}"
    episodes = _episodes(folder / "evaluation.parquet", _chosen_fit(summary, number, run), columns)
    return Round(int(number), folder, str(summary.get("condition", "stock")), episodes)


def load_policy(folder: Path, class_name: str, schema: Schema) -> Act:
    """The policy in ``folder``, one observation at a time; arguments and errors as of `load_program_of`."""
    program, params = load_program_of(folder, class_name, schema)

    @jax.jit
    def act(observation: dict[str, Any], key: jax.Array | None) -> jax.Array:
        mean, scale_tril, _ = program.apply(params, observation)
        return mean if key is None else mean + scale_tril @ jax.random.normal(key, mean.shape)

    return lambda observation, key=None: np.asarray(act(dict(observation), key))


def load_program_of(folder: Path, class_name: str, schema: Schema) -> tuple[Program, Params]:
    """The program of ``policy.py`` and the parameters of ``weights.npz``.

    Args:
        folder: of a round.
        class_name: that the program defines.
        schema: of the environment; a task's own would build the environment in JAX, which is not needed here.

    Raises:
        UserError: a file is missing or unreadable, or the two do not belong together.
    """
    spec = PolicySpec(class_name, tuple(schema.observation_shapes.items()), schema.action_size)
    try:
        source = _read_text(folder / "policy.py")
        program = mlp_of(source, spec) or load_program(source, spec)
    except ProgramError as error:
        raise UserError(f"{folder / 'policy.py'} is no policy program: {error}") from error
    params = {name: jnp.asarray(value) for name, value in load_arrays(folder / "weights.npz").items()}
    for name in sorted(set(program.initial) ^ set(params)):
        where = "policy.py has" if name in program.initial else "weights.npz has"
        raise UserError(f"in {folder}, only {where} the parameter {name!r}: the two are not of the same fit")
    return program, params


def read_summary(run: Path) -> dict[str, Any]:
    path = run / "summary.json"
    try:
        summary = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(summary, dict):
        raise UserError(f"{path} is not a run's summary")
    return summary


def _chosen_fit(summary: dict[str, Any], number: int, run: Path) -> int:
    """Which of the round's fits became its ``weights.npz``."""
    for entry in summary.get("rounds", []):
        if entry["round"] == number:
            return int(entry["fit_seeds"]["chosen"])
    known = ", ".join(str(entry["round"]) for entry in summary.get("rounds", [])) or "none"
    raise UserError(f"{run} has no round {number} that was evaluated; it has: {known}")


def _episodes(path: Path, fit: int, columns: Sequence[str]) -> pd.DataFrame:
    """A fit's test episodes."""
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a round's evaluation: {error}") from error
    if missing := [name for name in ("fit_seed", "seed", *columns) if name not in table]:
        raise UserError(f"{path} cannot be read as a round's evaluation: it has no column {', '.join(missing)}")
    episodes = table[table["fit_seed"] == fit].sort_values("seed")
    if episodes.empty:
        raise UserError(f"{path} holds no episode of fit {fit}, which the summary names as the round's")
    return episodes


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); give the directory of a finished run") from error
