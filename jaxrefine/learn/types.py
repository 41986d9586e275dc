"""The shapes that travel between the functions of this room."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from flax import struct
from jaxtyping import Array, Bool, Float, Int

Params = dict[str, Array]
Observation = Mapping[str, Array]
Info = dict[str, Float[Array, "..."]]
# (parameters, ONE observation) -> mean (A,), lower Cholesky factor of the covariance (A, A), named scalars
Policy = Callable[[Params, Observation], tuple[Float[Array, "a"], Float[Array, "a a"], Info]]


@runtime_checkable
class Environment(Protocol):
    """The part of a gymnax environment that rollouts use. It must be hashable: it is a static argument."""

    def reset_to(self, params: Any, index: Int[Array, ""]) -> tuple[Observation, Any]:
        """Start the ``index``-th episode that ``params`` holds."""
        ...

    def step_env(
        self, key: Array, state: Any, action: Array, params: Any
    ) -> tuple[Observation, Any, Array, Array, dict[str, Array]]:
        """Observation, state, reward, terminated, info; without a reset."""
        ...

    def is_truncated(self, state: Any, params: Any) -> Array:
        """Whether the time limit ends the episode here."""
        ...


@struct.dataclass
class Transition:
    """One step of one episode, actions of shape ``(A,)``; every field belongs to the same step t.

    ``action`` is what the policy sampled, before the environment clips it. ``valid`` is false from the step after
    the episode's end on, and whatever stands in such a row means nothing.
    """

    observation: Observation
    action_mean: Float[Array, "..."]
    action: Float[Array, "..."]
    info: Info
    reward: Float[Array, "..."]
    done: Bool[Array, "..."]
    terminated: Bool[Array, "..."]
    valid: Bool[Array, "..."]


@struct.dataclass
class Rollouts:
    """Whole episodes, everything logged, in arrays of ``(steps, ..., episodes)``.

    With the episodes last, every scalar of a step is a contiguous row, as the environments compute it and as a table
    keeps it; episodes first would cost a transposed copy of everything.

    Attributes:
        transitions: of each step.
        last_observation: what followed the last step, ``(..., episodes)``; what followed an earlier step stands in
            the row after it, also where the episode ended with that step.
    """

    transitions: Transition
    last_observation: Observation
