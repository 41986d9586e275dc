"""The prompts: templates from the package ``prompts``, filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from envs.base import Column, Schema
from jaxrefine.config import Config
from jaxrefine.llm import Message
from jaxrefine.task import Task

_GAP = re.compile(r"\n{4,}")
_PREFIXES = ("obs_", "next_obs_", "latent_", "weight_", "action_mean_", "action_")


@cache
def _text(name: str) -> str:
    return files("prompts").joinpath(name).read_text(encoding="utf-8")


def version() -> str:
    """Of the prompts; it changes when their meaning does, and with it every recorded conversation is outdated."""
    return _text("VERSION").strip()


def messages(task: Task, purpose: str, fields: Mapping[str, str]) -> tuple[Message, ...]:
    """The whole request for one purpose: nothing of an earlier request is presumed.

    Args:
        task: what the program is for.
        purpose: the template's name.
        fields: what the template and the specification ask for besides the task; see ``numbers``.

    Raises:
        KeyError: the template asks for a field that is missing.
    """
    shared = {
        "task": task_text(task),
        "specification": specification(task, fields),
        "instances": task.episodes_differ_in,
    }
    body = Template(_text(f"{purpose}.md")).substitute({**shared, **fields})
    # a part that has nothing to say leaves empty lines behind
    return Message("system", _text("system.md").strip()), Message("user", _GAP.sub("\n\n", body).strip() + "\n")


def part(name: str, **fields: str) -> str:
    """A piece of a prompt, filled in.

    Raises:
        KeyError: it asks for a field that is missing.
    """
    return Template(_text(f"{name}.md")).substitute(fields).strip()


def task_text(task: Task) -> str:
    """What the model is told of the task, with the columns of its schema."""
    schema = task.schema
    return Template(task.text).substitute(inputs=_inputs(schema), outputs=_outputs(schema)).strip()


def numbers(config: Config) -> dict[str, str]:
    """What the prompts say of the options, so that they say what is so."""
    return {
        "learning_rate": f"{config.fit.learning_rate:g}",
        "updates": f"{config.fit.updates:,}",
        "wall_s": f"{config.analysis.wall_s:g}",
        "memory_gb": f"{config.analysis.memory_mb / 1024:g}",
        "characters": f"{config.analysis.output_kb * 1000:,}",
    }


def specification(task: Task, fields: Mapping[str, str]) -> str:
    """The contract of a policy program, for this task."""
    schema = task.schema
    shapes = schema.observation_shapes
    return (
        Template(_text("specification.md"))
        .substitute(
            class_name=task.class_name,
            arguments=", ".join(shapes),
            shapes=", ".join(f"`{name}` {shape}" for name, shape in shapes.items()),
            action_size=str(schema.action_size),
            learning_rate=fields["learning_rate"],
            updates=fields["updates"],
        )
        .strip()
    )


def column_list(names: Sequence[str]) -> str:
    """The header of a table, one line for each kind of column."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(next((prefix for prefix in _PREFIXES if name.startswith(prefix)), ""), []).append(name)
    observed = [name.removeprefix("obs_") for name in kinds.get("obs_", [])]
    lines = []
    for prefix, columns in kinds.items():
        if prefix == "next_obs_" and [name.removeprefix(prefix) for name in columns] == observed:
            lines.append("- next_obs_*: the same names as obs_*, one step later")
        else:
            lines.append(f"- {', '.join(columns)}")
    return "\n".join(lines)


def _inputs(schema: Schema) -> str:
    """The observation's columns; those that differ in their first index alone share a line."""
    groups: dict[tuple[Any, ...], list[Column]] = {}
    for column in schema.observation:
        key = (column.key, column.index[1:], column.unit, column.meaning)
        groups.setdefault(key if len(column.index) > 1 else (column.name,), []).append(column)
    lines = []
    for columns in groups.values():
        first, last = columns[0], columns[-1]
        rest = "".join(f", {i}" for i in first.index[1:])
        numbers = [column.index[0] for column in columns]
        if len(columns) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
            place, names = f"{first.key}[i{rest}]", f"{first.name} ... {last.name}"
            lines.append(_line(f"{place}`, i = {numbers[0]} ... {numbers[-1]}, `{names}", first, name=""))
        else:
            lines += [_line(f"{c.key}[{', '.join(map(str, c.index))}]", c) for c in columns]
    return "\n".join(lines)


def _outputs(schema: Schema) -> str:
    lines = (_line(f"mean[{c.index[0]}]", c, bounds=True) for c in schema.action)
    return "\n".join(lines) + "\n\nActions are clipped to these ranges after they have been sampled."


def _line(place: str, column: Column, *, name: str | None = None, bounds: bool = False) -> str:
    called = f" {column.name}" if name is None else name
    unit = f" [{column.unit}]" if column.unit else ""
    span = f" in [{column.low:g}, {column.high:g}]" if bounds else ""
    return f"- `{place}`{called}{span}{unit}: {column.meaning}"
