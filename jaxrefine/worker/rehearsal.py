"""One step of a task's environment, in shapes alone: what is wrong with it is told before anything is spent on it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrefine.errors import UserError
from jaxrefine.task import Task


def rehearse(task: Task) -> None:
    """Trace a start and a step of the task's environment, and hold what comes against its schema and its metrics.

    Nothing is compiled, and nothing computed but the parameters of one episode.

    Raises:
        UserError: the environment fails, what it gives has not the form that rollouts need, or a metric is of an entry
            that its info does not have; the message names the part and what there is.
    """
    try:
        started, stepped = _trace(task)
    except UserError:
        raise
    except Exception as error:  # it may be the user's own code
        raise UserError(
            f"the environment of the task {task.name} fails in its first step: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(stepped, tuple) and len(stepped) == 5 and isinstance(stepped[4], dict)):
        raise UserError(
            f"step_env of the task {task.name} must return (observation, state, reward, terminated, info), info a dict"
        )
    observation, state, reward, terminated, info = stepped
    _hold_to_schema(task, started[0])
    for what, before, after in (("observation", started[0], observation), ("state", started[1], state)):
        if (difference := _difference(before, after)) is not None:
            raise UserError(
                f"the {what} that step_env of the task {task.name} returns has not the form of reset_to's: {difference}"
            )
    known = {**info, "reward": reward}
    for metric in (task.metric, *task.further_metrics):
        if metric.of not in known:
            raise UserError(
                f"the metric {metric.name!r} of the task {task.name} is of the entry {metric.of!r}, which the "
                f"environment's info does not have; there are: {', '.join(sorted(known))}"
            )
        _hold_to_scalar(task, f"the entry {metric.of!r} of the metric {metric.name!r}", known[metric.of])
    _hold_to_scalar(task, "terminated", terminated)
    if terminated.dtype != bool:
        raise UserError(f"terminated of the task {task.name} must be a bool, and is {terminated.dtype}")


def _trace(task: Task) -> tuple[Any, Any]:
    """What ``reset_to`` and ``step_env`` return, as shapes and types."""
    env, seed = task.env, task.protocol.test_seeds[:1]
    params = env.params_for_seeds(seed)
    index, action = jnp.zeros((), jnp.int32), jnp.zeros(task.schema.action_size)
    started = jax.eval_shape(env.reset_to, params, index)
    if not (isinstance(started, tuple) and len(started) == 2 and isinstance(started[0], dict)):
        raise UserError(f"reset_to of the task {task.name} must return (observation, state), observation a dict")
    truncated = jax.eval_shape(env.is_truncated, started[1], params)
    _hold_to_scalar(task, "is_truncated", truncated)
    if truncated.dtype != bool:
        raise UserError(f"is_truncated of the task {task.name} must return a bool, and returns {truncated.dtype}")
    return started, jax.eval_shape(env.step_env, jax.random.key(0), started[1], action, params)


def _hold_to_schema(task: Task, observation: dict[str, Any]) -> None:
    shapes = task.schema.observation_shapes
    for key, value in observation.items():
        if not hasattr(value, "shape"):
            raise UserError(
                f"the entry {key!r} of the observation of the task {task.name} is {type(value).__name__}; an "
                "observation is a dict of arrays, with no further containers in it"
            )
    found = {key: tuple(value.shape) for key, value in observation.items()}
    if found != shapes:
        raise UserError(
            f"the schema of the task {task.name} describes observations of the shapes {shapes}; the environment's "
            f"have {found}"
        )


def _hold_to_scalar(task: Task, what: str, value: Any) -> None:
    if getattr(value, "shape", None) != ():
        raise UserError(f"{what} of the task {task.name} must be one number a step, and is {value}")


def _difference(before: Any, after: Any) -> str | None:
    """Where two trees of shapes differ."""
    shape, other = (str(jax.tree.structure(tree)) for tree in (before, after))
    if shape != other:
        return f"{other} instead of {shape}"
    old, new = (jax.tree_util.tree_leaves_with_path(tree) for tree in (before, after))
    for (path, one), (_, two) in zip(old, new, strict=True):
        # a scan takes on the later type of a number that had none of its own
        same_type = one.dtype == two.dtype or one.weak_type
        if one.shape != two.shape or not same_type:
            first, then = (f"{leaf.dtype}{list(leaf.shape)}" for leaf in (one, two))
            return f"{jax.tree_util.keystr(path)} is {then}, at first {first}"
    return None
