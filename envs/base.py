"""What every environment here adds to a gymnax ``Environment``.

``Schema`` is the one description of an environment's observations and actions: the prompt, the table's
header, the loader of demonstrations and the documentation are all written from it, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from gymnax.environments import environment
from jaxtyping import Float, Int, UInt8

Observation = dict[str, jax.Array]
TEnvState = TypeVar("TEnvState", bound=environment.EnvState)
TEnvParams = TypeVar("TEnvParams", bound=environment.EnvParams)


@dataclass(frozen=True)
class Column:
    """One number of an observation or an action.

    Attributes:
        name: snake_case; the table calls it ``obs_<name>``, ``next_obs_<name>`` or ``action_<name>``.
        unit: of the number as it stands in the observation, scaling included, e.g. ``"rad / pi"``.
        meaning: one sentence, with the sign convention.
        low: smallest value met in ordinary operation; for an action, the bound it is clipped to.
        high: largest value met in ordinary operation; for an action, the bound it is clipped to.
        key: the observation's entry (a policy program's argument); empty for actions.
        index: where the number sits in that entry (or in the action vector).
    """

    name: str
    unit: str
    meaning: str
    low: float
    high: float
    key: str
    index: tuple[int, ...]


@dataclass(frozen=True)
class Schema:
    """The ordered columns of an environment's observations and actions."""

    observation: tuple[Column, ...]
    action: tuple[Column, ...]

    def __post_init__(self) -> None:
        for kind, columns in (("observation", self.observation), ("action", self.action)):
            names = [column.name for column in columns]
            if len(set(names)) != len(names):
                raise ValueError(f"the schema names an {kind} column twice: {sorted(names)}")

    @property
    def observation_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each entry of the observation, in the order of the policy program's arguments."""
        shapes: dict[str, tuple[int, ...]] = {}
        for column in self.observation:
            old = shapes.get(column.key, (0,) * len(column.index))
            shapes[column.key] = tuple(max(a, b + 1) for a, b in zip(old, column.index, strict=True))
        return shapes

    @property
    def action_size(self) -> int:
        """Number of action components, A."""
        return len(self.action)

    def flatten(self, observation: Mapping[str, Any]) -> np.ndarray:
        """Observation entries with any leading shape ``(...)`` -> ``(..., number of columns)``, in order."""
        entries = {key: np.asarray(value) for key, value in observation.items()}
        return np.stack([entries[c.key][_last(c.index)] for c in self.observation], axis=-1)

    def unflatten(self, columns: np.ndarray) -> dict[str, np.ndarray]:
        """The inverse of ``flatten``: ``(..., number of columns)`` -> entries with the leading shape."""
        entries = {
            key: np.zeros((*columns.shape[:-1], *shape), columns.dtype)
            for key, shape in self.observation_shapes.items()
        }
        for position, c in enumerate(self.observation):
            entries[c.key][_last(c.index)] = columns[..., position]
        return entries


def _last(index: tuple[int, ...]) -> Any:
    """Indexes the last axes, whatever comes before them."""
    return (Ellipsis, *index)


class Environment(environment.Environment[TEnvState, TEnvParams], Generic[TEnvState, TEnvParams]):
    """A gymnax environment whose episodes are the reference's own, and whose numbers have names."""

    schema: Schema

    def params_for_seeds(self, seeds: Sequence[int]) -> TEnvParams:
        """Parameters holding the reference's own episodes for these seeds, built once on the host.

        The result is shared by every environment of a batch; ``reset_to(params, i)`` starts the i-th.
        """
        raise NotImplementedError

    def reset_to(self, params: TEnvParams, index: Int[jax.Array, ""]) -> tuple[Observation, TEnvState]:
        """Start the ``index``-th episode of ``params``, deterministically. One environment; vmap outside."""
        raise NotImplementedError

    def render(self, states: TEnvState, params: TEnvParams) -> UInt8[np.ndarray, "time height width 3"]:
        """Draw a stacked sequence of states, one frame each, without a display."""
        raise NotImplementedError


@runtime_checkable
class Scenic(Protocol):
    """What an environment may have beside, so that its episodes can be drawn from above; nothing else needs it."""

    def place(self, state: Any) -> dict[str, Float[jax.Array, ""]]:
        """Where things are in one state, vmap outside: names -> numbers.

        ``x`` and ``y`` (or ``<thing>_x`` and ``<thing>_y``, and ``_z``) are a position, m. Any other name is a
        quantity by which a path may be coloured, such as ``speed``.
        """
        ...

    def outline(self, params: Any, index: int) -> dict[str, Float[np.ndarray, "points axes"]]:
        """What stands still in the ``index``-th episode of ``params``: names -> lines (m), of two or three axes.

        A single point is a mark.
        """
        ...


def draws(env: Any) -> bool:
    """Whether an environment has a ``render`` of its own."""
    method = getattr(type(env), "render", None)
    return method is not None and method not in (Environment.render, getattr(environment.Environment, "render", None))
