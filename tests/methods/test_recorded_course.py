"""A played conversation goes on as it did, also where this run's own fits would be judged otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_feedback import WORSE
from test_loop import ANALYSES, BETTER, code, config, decide, run
from toy import PROGRAM, make_task

from jaxrefine.llm import TranscriptClient
from jaxrefine.methods import rounds
from jaxrefine.methods.acceptance import recorded_course
from jaxrefine.methods.experiment import run_experiment
from jaxrefine.run import RunDirectory

DIAGNOSE, REVISE = ("diagnose", 2, 0), ("revise", 1, 1)


@pytest.mark.parametrize(
    ("ahead", "aside", "course"),
    [
        (None, None, None),  # nothing more is recorded: as judged
        (None, 1, 1),
        (DIAGNOSE, None, None),
        (DIAGNOSE, 1, None),
        (REVISE, 1, 1),
        (REVISE, None, 1),
        (REVISE, 0, 1),  # both set it aside, for different rounds
        (("generate", 3, 0), 1, 1),  # of another method
    ],
)
def test_the_recorded_course(ahead: tuple[str, int, int] | None, aside: int | None, course: int | None) -> None:
    found, words = recorded_course(ahead, 2, aside)
    assert found == course
    assert (words is None) == (found == aside)


def _played(path: Path, verdict: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], list[str]]:
    """The recorded run played again with another judgement of every revision."""
    genuine = rounds.compare
    monkeypatch.setattr(rounds, "compare", lambda *arguments: genuine(*arguments) | {"verdict": verdict})
    client = TranscriptClient(path / "run" / "transcript.jsonl")
    with RunDirectory.open_or_create(path / "played") as directory:
        summary = run_experiment(config(), make_task(path), directory, client)
        said = [str(event["result"]["line"]) for event in directory.events if str(event.get("step")).endswith("judge")
                and event["event"] == "step_finished"]  # fmt: skip
    return summary, said


def test_set_aside_as_recorded_though_judged_no_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tmp_path, [code(PROGRAM), code(ANALYSES), decide("program", WORSE), decide("program", BETTER),
                           code(ANALYSES), decide("done")])  # fmt: skip
    assert [entry["accepted"] for entry in first["rounds"]] == [True, False, True]
    again, said = _played(tmp_path, "not different from", monkeypatch)
    assert again["status"] == "finished"
    assert [entry["accepted"] for entry in again["rounds"]] == [True, False, True]
    assert [entry["decision"] for entry in again["rounds"]] == [entry["decision"] for entry in first["rounds"]]
    assert again["rounds"][1]["against_best"]["verdict"] == "not different from"  # what this run found
    assert said[0].endswith("the recorded conversation set it aside for round 0, which is followed")
    assert "recorded" not in said[1]


def test_kept_as_recorded_though_judged_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tmp_path, [code(PROGRAM), code(ANALYSES), decide("program", BETTER), code(ANALYSES), decide("done")])
    again, said = _played(tmp_path, "worse than", monkeypatch)
    assert [entry["accepted"] for entry in again["rounds"]] == [True, True]
    assert again["best_round"] == first["best_round"]
    assert said[0].endswith("the recorded conversation kept it, which is followed")
    places = [
        [
            (line["purpose"], line["round"])
            for line in map(json.loads, (tmp_path / name / "transcript.jsonl").read_text().splitlines())
            if line["kind"] == "exchange"
        ]
        for name in ("run", "played")
    ]
    assert places[0] == places[1]
