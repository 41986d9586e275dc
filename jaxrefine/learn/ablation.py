"""Ablation: what an episode's measures become where one latent of the policy is held at a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jaxrefine.learn.evaluate import Evaluation, Measure, evaluate
from jaxrefine.learn.types import Environment, Info, Observation, Params

# (parameters, ONE observation, which latent or -1, at what value) -> what a policy returns
HeldPolicy: TypeAlias = Callable[[Params, Observation, Array, Array], tuple[Array, Array, Info]]
# no parameter is called so: a path is made of names and numbers
_WHICH, _VALUE = "held: which", "held: value"


@dataclass(frozen=True)
class _AsPolicy:
    """What is held travels among the parameters, so that evaluation batches it; equal wherever ``held`` is."""

    held: HeldPolicy

    def __call__(self, params: Params, observation: Observation) -> tuple[Array, Array, Info]:
        own = {name: value for name, value in params.items() if name not in (_WHICH, _VALUE)}
        return self.held(own, observation, params[_WHICH], params[_VALUE])


def ablate(
    env: Environment,
    held: HeldPolicy,
    env_params: Any,
    params: Params,
    which: Int[Array, "rows"],
    value: Float[Array, "rows"],
    index: Int[Array, "episodes"],
    keys: Key[Array, "episodes"],
    *,
    measures: tuple[Measure, ...],
    steps: int,
    sampled: bool = False,
) -> Evaluation:
    """Evaluate one policy with each of some latents held, on the same episodes.

    It is compiled once for a policy and a number of rows; the caller cuts many rows into chunks of one size.

    Args:
        env: static.
        held: static; the function that ``jaxrefine.policy.ablation.hold`` made.
        env_params: the episodes' shared parameters, not batched.
        params: one set of policy parameters.
        which: which latent each row holds; -1: none, the policy as it is.
        value: what each row holds it at; of a row that holds none it is ignored.
        index: which episode of ``env_params`` each evaluation starts.
        keys: one an episode, the same for every row, which so meets the same noise.
        measures: static; of each episode.
        steps: static; the most steps of an episode.
        sampled: static; actions are sampled, or are the mean.

    Returns:
        Evaluations of shape ``(rows, episodes)``.
    """
    rows = {name: jnp.broadcast_to(leaf, (len(which), *leaf.shape)) for name, leaf in params.items()}
    return evaluate(
        env,
        _AsPolicy(held),
        env_params,
        rows | {_WHICH: which, _VALUE: value},
        index,
        keys,
        measures=measures,
        steps=steps,
        sampled=sampled,
    )
