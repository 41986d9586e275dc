"""An environment is tried out in shapes before anything is spent on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import own_task
import pytest
from toy import Block, make_task

from jaxrefine import task as tasks
from jaxrefine.errors import UserError
from jaxrefine.task import Metric, Task
from jaxrefine.worker.rehearsal import rehearse


@pytest.mark.parametrize("name", tasks.names())
def test_the_shipped_tasks_pass(name: str) -> None:
    rehearse(tasks.get(name))


def test_tasks_of_ones_own_pass(tmp_path: Path) -> None:
    rehearse(own_task.room("stock", "accurate"))
    rehearse(make_task(tmp_path))


class Odd(Block):
    """A block whose step does one thing differently."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def step_env(self, key, state, action, params):
        return self.change(*super().step_env(key, state, action, params))


class Wordless(Block):
    def reset_to(self, params, index):
        return super().reset_to(params, index)[1]


class Lost(Block):
    def params_for_seeds(self, seeds):
        raise FileNotFoundError("no map of episode 0")


class Nested(Block):
    def reset_to(self, params, index):
        observation, state = super().reset_to(params, index)
        return {"block": {"inner": observation["block"]}}, state


class Counting(Block):
    """Says how many steps are left in the place of whether any are."""

    def is_truncated(self, state, params):
        return params.max_steps_in_episode - state.time


def odd(tmp_path: Path, env: Block, **changes: Any) -> Task:
    return replace(make_task(tmp_path), make_env=lambda: (env, None), **changes)


def fail(*_: Any) -> Any:
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (fail, r"block fails in its first step: ZeroDivisionError: mine"),
        (lambda o, s, r, t, i: (o, s, r, t), r"must return \(observation, state, reward, terminated, info\)"),
        (lambda o, s, r, t, i: (o, s, r, t, None), "info a dict"),
        (lambda o, s, r, t, i: ({"cube": o["block"]}, s, r, t, i), "observation .* has not the form of reset_to's"),
        (
            lambda o, s, r, t, i: ({"block": o["block"][:1]}, s, r, t, i),
            r"\['block'\] is float32\[1\], at first .*\[2\]",
        ),
        (lambda o, s, r, t, i: (o, s.replace(time=s.time * 1.0), r, t, i), r"\.time is float32\[\], at first int32"),
        (lambda o, s, r, t, i: (o, s, jnp.zeros(2), t, i), r"'reward' of the metric 'return' .* one number a step"),
        (lambda o, s, r, t, i: (o, s, r, jnp.zeros(3, bool), i), "terminated .* one number a step"),
        (lambda o, s, r, t, i: (o, s, r, t * 1, i), "must be a bool, and is int32"),
    ],
)
def test_a_step_that_rollouts_cannot_use_is_told(tmp_path: Path, change: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        rehearse(odd(tmp_path, Odd(change)))


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (Lost(), "FileNotFoundError: no map of episode 0"),
        (Wordless(), r"reset_to .* must return \(observation, state\)"),
    ],
)
def test_a_start_that_fails_is_told(tmp_path: Path, env: Block, says: str) -> None:
    with pytest.raises(UserError, match=says):
        rehearse(odd(tmp_path, env))


def test_observations_of_another_shape_than_the_schemas_are_told(tmp_path: Path) -> None:
    class Wide(Block):
        def reset_to(self, params, index):
            observation, state = super().reset_to(params, index)
            return {"block": jnp.tile(observation["block"], 2)}, state

    with pytest.raises(UserError, match=r"shapes {'block': \(2,\)}; the environment's have {'block': \(4,\)}"):
        rehearse(odd(tmp_path, Wide()))


@pytest.mark.parametrize("where", ["metric", "further_metrics"])
def test_a_metric_of_no_entry_is_told_with_those_that_there_are(tmp_path: Path, where: str) -> None:
    wrong = Metric("way left", of="distanse", reduce="last")
    changes: dict[str, Any] = {where: wrong if where == "metric" else (wrong,)}
    with pytest.raises(UserError, match=r"'way left' .* 'distanse', .* there are: distance, reward"):
        rehearse(odd(tmp_path, Block(), **changes))


def test_an_observation_of_containers_is_told(tmp_path: Path) -> None:
    class NestedThroughout(Nested):
        def step_env(self, key, state, action, params):
            observation, *rest = super().step_env(key, state, action, params)
            return {"block": {"inner": observation["block"]}}, *rest

    with pytest.raises(UserError, match=r"entry 'block' of the observation .* is dict; .* a dict of arrays"):
        rehearse(odd(tmp_path, NestedThroughout()))


def test_a_truncation_that_is_no_bool_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is_truncated of the task block must return a bool, and returns int32"):
        rehearse(odd(tmp_path, Counting()))
