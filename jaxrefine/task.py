"""A task: an environment, its text, its demonstration, its metric and its evaluation protocol."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import envs
from envs.base import Environment, Schema
from envs.car_racing import conditions
from jaxrefine.demonstration import Demonstration, load_demonstration
from jaxrefine.errors import UserError


@dataclass(frozen=True)
class Metric:
    """How an episode is scored, and which way is better.

    Attributes:
        name: as it is printed.
        unit: of the number; empty for none.
        better: ``"higher"`` or ``"lower"``.
        of: ``"reward"``, or an entry of the environment's info.
        reduce: over the episode's steps.
    """

    name: str
    unit: str = ""
    better: Literal["higher", "lower"] = "higher"
    of: str = "reward"
    reduce: Literal["sum", "min", "max", "last"] = "sum"

    @property
    def key(self) -> str:
        """The name as tables and files write it."""
        return self.name.replace(" ", "_")


@dataclass(frozen=True)
class EvaluationProtocol:
    """Which episodes count, and how they are driven. Seeds for choosing never overlap the test seeds.

    Attributes:
        test_seeds: episodes whose results are reported and never used to choose.
        validation_seeds: episodes on which the best round is chosen.
        rollout_seeds: episodes that the analyses see.
        training_seeds: episodes that reinforcement learning starts from; by default the rollout seeds.
        steps: the most steps of an episode.
        sampled: whether a test episode samples its actions or takes their mean.
    """

    test_seeds: tuple[int, ...]
    validation_seeds: tuple[int, ...]
    rollout_seeds: tuple[int, ...]
    steps: int
    sampled: bool
    training_seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.training_seeds:
            object.__setattr__(self, "training_seeds", self.rollout_seeds)
        chosen = set(self.validation_seeds) | set(self.rollout_seeds) | set(self.training_seeds)
        if overlap := chosen & set(self.test_seeds):
            raise ValueError(f"seeds for choosing overlap the test seeds: {sorted(overlap)}")


@dataclass(frozen=True)
class Task:
    """Everything that the method needs to know of a task; nothing elsewhere depends on which task it is.

    Attributes:
        name: as it is chosen; run directories are named after it, so it holds letters, digits, ``_``, ``-`` and ``.``.
        class_name: the class that a policy program defines.
        text: what the model is told of the task, Markdown.
        make_env: builds the environment and its default parameters.
        metric: how an episode is scored.
        protocol: which episodes count.
        demonstration_path: the recorded episode.
        condition: the environment's, by name, of the same characters; the text says nothing of it.
        episodes_differ_in: what changes from episode to episode, in the plural, as the prompts say it.
        further_metrics: reported beside the metric; nothing is chosen by them.
    """

    name: str
    class_name: str
    text: str
    make_env: Callable[[], tuple[Environment, Any]]
    metric: Metric
    protocol: EvaluationProtocol
    demonstration_path: Path
    condition: str = "stock"
    episodes_differ_in: str = "starts"
    further_metrics: tuple[Metric, ...] = ()

    def __post_init__(self) -> None:
        for what, name in (("name", self.name), ("condition", self.condition)):
            # a path in it would put the run elsewhere than the user said
            if not re.fullmatch(r"\w[\w.-]*", name):
                raise ValueError(
                    f"the task's {what} is {name!r}; run directories are named after it, so it must hold letters, "
                    "digits, _, - and . alone, and start with a letter or digit"
                )
        keys = ["value", *(metric.key for metric in self.further_metrics)]
        if len({*keys, "fit_seed", "seed", "steps", "terminated"}) != len(keys) + 4:
            raise ValueError(
                f"further metrics need names of their own, apart from the evaluation's columns: {keys[1:]}"
            )

    @cached_property
    def env(self) -> Environment:
        """The environment; the same object at every call, so that compiled functions are found again."""
        return self.make_env()[0]

    @property
    def schema(self) -> Schema:
        """The environment's columns."""
        return self.env.schema

    @cached_property
    def demonstration(self) -> Demonstration:
        """The demonstration, read once."""
        return load_demonstration(self.demonstration_path, self.schema)


def names() -> tuple[str, ...]:
    """The tasks that ship."""
    return tuple(_TASKS)


def get(name: str, demonstration: Path | None = None, condition: str = "stock", text: str = "accurate") -> Task:
    """The task of this name.

    Args:
        name: of a task that ships; or ``module:function``, where a function of your own stands that takes a condition
            and a choice of text and returns the task.
        demonstration: another one than the condition's own.
        condition: of the environment.
        text: which of the task's texts the model is told. A task of your own gets it, and its function answers for it:
            one with a single text may ignore it.

    Raises:
        UserError: there is no such task, condition or text; the message lists those that exist.
    """
    if ":" not in name:
        task = _shipped(name)(condition, text)
    else:
        builder = _own(name)
        try:
            task = builder(condition, text)
        except UserError:
            raise
        except Exception as error:  # it is the user's own code
            raise UserError(f"the task {name} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(task, Task):
        raise UserError(
            f"{name} returned an object of type {type(task).__name__}; it must return a jaxrefine.task.Task"
        )
    if task.condition != condition:
        raise UserError(
            f"no condition of {name} is called {condition!r}; it made one that is called {task.condition!r}"
        )
    return task if demonstration is None else replace(task, demonstration_path=demonstration)


def _shipped(name: str) -> Builder:
    if not name:
        raise UserError("task=own needs the function that makes your task: task.name=module:function")
    if name not in _TASKS:
        raise UserError(
            f"no task is called {name!r}; there are: {', '.join(_TASKS)}; or name your own, module:function"
        )
    return _TASKS[name]


def _own(name: str) -> Builder:
    module, _, function = name.partition(":")
    try:
        found: Builder = getattr(import_module(module), function)
    except Exception as error:  # importing runs the user's own code
        raise UserError(
            f"the task {name!r} cannot be found: {type(error).__name__}: {error}; give module:function, of a "
            "module in the current folder or among the installed packages"
        ) from error
    return found


def _packaged(package: str, name: str) -> Path:
    return Path(str(files(package).joinpath(name)))


# the paper's own description, which says less and calls the front wheel's angle the car's heading, is for comparison
_CAR_RACING_TEXTS = {"accurate": "tasks/car_racing.md", "paper": "tasks/car_racing_paper.md"}


def _car_racing(condition: str, text: str) -> Task:
    try:
        conditions.changes(condition)
    except ValueError as error:
        raise UserError(str(error)) from error
    if text not in _CAR_RACING_TEXTS:
        raise UserError(f"no text of car_racing is called {text!r}; there are: {', '.join(_CAR_RACING_TEXTS)}")
    driver = "human_like" if condition == "stock" else condition
    return Task(
        name="car_racing",
        class_name="RacecarPolicy",
        text=_packaged("prompts", _CAR_RACING_TEXTS[text]).read_text(encoding="utf-8"),
        make_env=lambda: envs.make("car_racing", condition=condition),
        metric=Metric("return"),
        protocol=EvaluationProtocol(
            test_seeds=tuple(range(1000, 1010)),
            validation_seeds=tuple(range(2000, 2016)),
            rollout_seeds=tuple(range(10000, 10032)),
            steps=1000,
            sampled=False,
            training_seeds=tuple(range(11000, 11256)),
        ),
        demonstration_path=_packaged("envs.car_racing.demonstrations", f"{driver}.parquet"),
        condition=condition,
        episodes_differ_in="roads",
    )


def _door(condition: str, text: str) -> Task:
    if condition != "stock":
        raise UserError(f"no condition of door is called {condition!r}; there is: stock")
    if text != "accurate":
        raise UserError(f"no text of door is called {text!r}; there is: accurate")
    return Task(
        name="door",
        class_name="OpenDoorPolicy",
        text=_packaged("prompts", "tasks/door.md").read_text(encoding="utf-8"),
        make_env=lambda: envs.make("door"),
        metric=Metric("smallest distance", "m", "lower", of="handle_distance", reduce="min"),
        protocol=EvaluationProtocol(
            test_seeds=tuple(range(10)),
            validation_seeds=tuple(range(100, 116)),
            rollout_seeds=tuple(range(10000, 10032)),
            steps=500,
            sampled=True,
            training_seeds=tuple(range(11000, 11256)),
        ),
        demonstration_path=_packaged("envs.door.demonstrations", "planner.parquet"),
        episodes_differ_in="door positions",
        further_metrics=(
            Metric("success", of="success", reduce="max"),
            Metric("final distance", "m", "lower", of="handle_distance", reduce="last"),
            Metric("return"),
        ),
    )


Builder = Callable[[str, str], Task]
_TASKS: dict[str, Builder] = {"car_racing": _car_racing, "door": _door}
