"""The bundled conversations: where they come from, and that they answer the prompts that are sent today."""

from __future__ import annotations

from pathlib import Path

import pytest

import jaxrefine
from jaxrefine import task as tasks
from jaxrefine.config import Config
from jaxrefine.llm import Exchange, read_transcript
from jaxrefine.llm.client import messages_key
from jaxrefine.methods import prompting
from jaxrefine.methods.replies import find_analyses, find_decision, find_program
from jaxrefine.policy.program import PolicySpec, load_program
from jaxrefine.tables import column_names
from jaxrefine.task import Task

FOLDER = Path(jaxrefine.__file__).parent / "transcripts"
BUNDLED = sorted(FOLDER.rglob("*.jsonl"))


def test_every_task_has_a_conversation() -> None:
    assert {path.parent.name for path in BUNDLED} == set(tasks.names())


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_provenance_is_told_and_the_prompts_are_todays(path: Path) -> None:
    transcript = read_transcript(path)
    header = transcript.header
    assert (header["task"], header["chain"]) == (path.parent.name, path.stem)
    assert header["provider"] == "recorded through the mailbox provider"
    assert header["date"]
    assert header["model"]
    assert header["prompt_version"] == prompting.version()
    task, program = tasks.get(header["task"], None, header["condition"], header["text"]), ""
    battery = prompting.part("battery_note") if header.get("battery") else ""
    for exchange in transcript.exchanges:
        if exchange.purpose in ("generate", "diagnose"):  # the others hold the results of a machine's own rounding
            assert exchange.key == _today(task, exchange, program, battery)
        if exchange.purpose == "generate":
            program = find_program(exchange.completion.text, task.class_name)
        elif exchange.purpose == "revise":
            program = find_decision(exchange.completion.text, task.class_name).code or program
        if exchange.purpose == "diagnose":
            assert "def run_all" in find_analyses(exchange.completion.text)
    if header["revisions"]:
        assert find_decision(transcript.exchanges[-1].completion.text, task.class_name)


def test_the_programs_of_best_of_n_are_first_answers_to_one_request() -> None:
    pool = read_transcript(FOLDER / "car_racing" / "best-of-n.jsonl").exchanges
    assert [exchange.place for exchange in pool] == [("generate", i, 0) for i in range(len(pool))]
    assert len({exchange.key for exchange in pool}) == 1
    texts = [exchange.completion.text for exchange in pool]
    assert len(set(texts)) == len(texts) >= 9
    for chain in ("0", "1", "2", "slick-0", "slick-1", "delay-0"):
        first = read_transcript(FOLDER / "car_racing" / f"{chain}.jsonl").exchanges[0]
        assert first.completion.text in texts


def _today(task: Task, exchange: Exchange, program: str, battery: str) -> str:
    fields = prompting.numbers(Config())
    if exchange.purpose == "diagnose":
        schema = task.schema
        spec = PolicySpec(task.class_name, tuple(schema.observation_shapes.items()), schema.action_size)
        columns = column_names(schema, load_program(program, spec).info_keys)
        fields |= {"columns": prompting.column_list(columns), "program": program.strip()}
        fields |= {"episodes": "64", "last_mean_episode": "31", "battery": battery}
    return messages_key(prompting.messages(task, exchange.purpose, fields))
