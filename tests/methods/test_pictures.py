"""A round's pictures as a step of its run: made once, never in the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scenic_toy import seen
from test_loop import GOOD, Killed, comparable, config

from jaxrefine.learn.imitation import FitSettings
from jaxrefine.llm import ScriptedClient
from jaxrefine.methods.experiment import run_experiment
from jaxrefine.run import RunDirectory
from jaxrefine.worker import Worker, film


def carry_out(path: Path, worker: Worker, pictures: bool = True) -> dict[str, Any]:
    settings = config("zero_shot")  # one program for all runs, so that it compiles once
    settings.film = pictures
    with RunDirectory.open_or_create(path) as directory:
        return run_experiment(settings, worker.task, directory, ScriptedClient(GOOD), worker)


def lines(run: Path) -> dict[str, str]:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    ended = [event for event in events if event["event"] == "step_finished" and event["step"].endswith("/film")]
    return {event["step"]: event["result"]["line"] for event in ended}


def test_a_run_killed_in_its_film_goes_on_and_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(seen(tmp_path), fit_settings=FitSettings(updates=40))
    whole = carry_out(tmp_path / "whole", worker)
    assert lines(tmp_path / "whole")["round_0/film"].startswith("3 of 8 episodes")
    assert (tmp_path / "whole" / "round_0" / "film.webp").exists()

    def kill(*arguments: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(film, "_write", kill)
        with pytest.raises(Killed):
            carry_out(tmp_path / "broken", worker)
    assert comparable(carry_out(tmp_path / "broken", worker)) == comparable(whole)
    written = [
        {str(p.relative_to(run)) for p in run.rglob("round_*/*")} for run in (tmp_path / "whole", tmp_path / "broken")
    ]
    assert written[0] == written[1]

    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError("no such picture")

    with monkeypatch.context() as patch:
        patch.setattr(worker, "film", fail)
        ended = carry_out(tmp_path / "failing", worker)
    assert ended["status"] == "finished"
    assert lines(tmp_path / "failing")["round_0/film"] == "could not be made: no such picture"
    unseen = carry_out(tmp_path / "unseen", worker, pictures=False)
    assert lines(tmp_path / "unseen") == {}
    # pictures are no episodes that anything is chosen by
    assert unseen["resources"]["refinement_resets"] == whole["resources"]["refinement_resets"]
    assert unseen["resources"]["env_steps"] < whole["resources"]["env_steps"]
