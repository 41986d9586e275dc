"""The prompts: templates from the package ``prompts``, filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from string import Template

from envs.base import Column, Schema
from jaxrefine.llm import Message
from jaxrefine.task import Task


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
        fields: what the template asks for besides the task and the specification.

    Raises:
        KeyError: the template asks for a field that is missing.
    """
    shared = {"task": task_text(task), "specification": specification(task)}
    body = Template(_text(f"{purpose}.md")).substitute({**shared, **fields})
    return Message("system", _text("system.md").strip()), Message("user", body.strip() + "\n")


def task_text(task: Task) -> str:
    """What the model is told of the task, with the columns of its schema."""
    schema = task.schema
    return Template(task.text).substitute(inputs=_inputs(schema), outputs=_outputs(schema)).strip()


def specification(task: Task) -> str:
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
        )
        .strip()
    )


def bullet_list(names: Iterable[str]) -> str:
    """One name a line."""
    return "\n".join(f"- {name}" for name in names)


def _inputs(schema: Schema) -> str:
    return "\n".join(_line(f"{c.key}[{', '.join(map(str, c.index))}]", c) for c in schema.observation)


def _outputs(schema: Schema) -> str:
    lines = (_line(f"mean[{c.index[0]}]", c, bounds=True) for c in schema.action)
    return "\n".join(lines) + "\n\nActions are clipped to these ranges after they have been sampled."


def _line(place: str, column: Column, bounds: bool = False) -> str:
    unit = f" [{column.unit}]" if column.unit else ""
    span = f" in [{column.low:g}, {column.high:g}]" if bounds else ""
    return f"- `{place}` {column.name}{span}{unit}: {column.meaning}"
