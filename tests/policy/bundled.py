"""The programs of the bundled conversations, as a language model wrote them."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import jax
import pytest

import jaxrefine
from jaxrefine import task as tasks
from jaxrefine.llm import read_transcript
from jaxrefine.methods.replies import ReplyError, find_program
from jaxrefine.policy.graph import SemanticGraph, semantic_graph
from jaxrefine.policy.program import PolicySpec, Program, load_program
from jaxrefine.policy.source import ProgramError
from jaxrefine.task import Task

# for programs that run once: most of the time goes into compiling them
quick_jit = partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
)


def _sources() -> dict[str, tuple[str, str]]:
    """Name -> (task, source)."""
    found = {}
    for path in sorted((Path(jaxrefine.__file__).parent / "transcripts").rglob("*.jsonl")):
        task = path.parent.name
        for exchange in read_transcript(path).exchanges:
            with suppress(ReplyError):  # analyses, or the word that nothing is left to correct
                source = find_program(exchange.completion.text, tasks.get(task).class_name)
                found[f"{task}-{path.stem}-{exchange.purpose}-{exchange.round}-{exchange.attempt}"] = (task, source)
    return found


SOURCES = _sources()
# the last of each conversation
FINAL = tuple({name.rsplit("-", 3)[0]: name for name in SOURCES}.values())
# with the nine independent first ones; all of them would take minutes
SAMPLE = tuple(sorted({*FINAL, *(name for name in SOURCES if "best-of-n" in name)}))


@cache
def load(name: str) -> tuple[Task, Program, SemanticGraph]:
    task = tasks.get(SOURCES[name][0])
    schema = task.schema
    spec = PolicySpec(task.class_name, tuple(schema.observation_shapes.items()), schema.action_size)
    try:
        program = load_program(SOURCES[name][1], spec)
    except ProgramError:
        pytest.skip("a mistake, which the conversation keeps")
    return task, program, semantic_graph(program, schema)
