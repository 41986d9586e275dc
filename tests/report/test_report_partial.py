"""Runs that did not end well, and folders in which something is broken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_reader import page_of
from report_run import make_run

Edit = Callable[[Path, Callable[[dict[str, Any]], None]], None]


def log(run: Path, *events: dict[str, Any]) -> None:
    with (run / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def test_a_killed_run_is_shown_as_far_as_it_got(finished_run: Path) -> None:
    (finished_run / "summary.json").unlink()
    (finished_run / "round_2" / "evaluation.parquet").unlink()
    log(finished_run, {"event": "step_started", "step": "round_2/again", "label": "again"})
    with (finished_run / "events.jsonl").open("a") as file:
        file.write('{"time": 3, "event": "step_fin')
    page = page_of(finished_run)
    assert page.has("overview", "Unfinished: there is no summary.json", "last step, round_2/again, did not finish")
    assert page.has("overview", "the last one evaluated is round 1: its program has a mean return of 880.0", "cut off")
    assert page.has("rounds", "905.0 ± ", "890.0 ± 12.2 (3)")
    assert page.has("round-2", "Not evaluated.", "Decision: done", "class RacecarPolicy", "Changes since round 1")
    assert page.has("steps", "round_2/again again not finished")
    assert page.has("head", "car_racing · refine")
    assert page.has("cost", "all 6 9,000")
    assert page.has("provenance", "prompt version 7")


def test_a_run_killed_before_its_first_step(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(json.dumps({"event": "run_started", "task": "door", "method": "mlp"}) + "\n")
    page = page_of(tmp_path)
    assert page.has("overview", "it logged no step", "No round was evaluated.")
    assert page.has("rounds", "No round was begun.")
    assert page.has("cost", "The model was asked nothing.")


def test_a_step_that_was_begun_again_after_a_kill(finished_run: Path) -> None:
    lines = (finished_run / "events.jsonl").read_text().splitlines()
    (finished_run / "events.jsonl").write_text("\n".join([lines[1], *lines]) + "\n")
    assert page_of(finished_run).has("steps", "round_0/fit fit it begun 2 times 21.5 s")


def test_a_failed_run_says_why_and_shows_its_broken_round(finished_run: Path, edit_summary: Edit) -> None:
    def change(summary: dict[str, Any]) -> None:
        summary |= {"status": "failed", "reason": "The program was refused 5 times.", "best_round": None}
        summary["rounds"][2] = {"round": 2, "metric": None, "per_episode": [], "decision": "failed", "nll": None}

    edit_summary(finished_run, change)
    shutil.rmtree(finished_run / "round_2")
    page = page_of(finished_run)
    assert page.has("overview", "This run failed: The program was refused 5 times. No round was chosen;")
    assert page.has("round-2", "Not evaluated.", "Decision: failed", "This round left no program.")


def test_one_round(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "one", rounds=1))
    assert page.has("overview", "Finished after 1 round. Round 0 was chosen")
    assert "Changes since" not in page.sections["round-0"]


def test_one_episode_has_no_interval(finished_run: Path, edit_summary: Edit) -> None:
    def change(summary: dict[str, Any]) -> None:
        for entry in summary["rounds"]:
            entry["per_episode"] = entry["per_episode"][:1]

    edit_summary(finished_run, change)
    page = page_of(finished_run)
    assert "95%:" not in page.sections["rounds"]
    assert page.has("rounds", " ± 0.0 (1)")


def test_a_round_without_common_seeds_is_not_compared(finished_run: Path, edit_summary: Edit) -> None:
    def change(summary: dict[str, Any]) -> None:
        for episode in summary["rounds"][1]["per_episode"]:
            episode["seed"] += 500

    edit_summary(finished_run, change)
    assert "p = " not in page_of(finished_run).sections["rounds"].replace("p is", "")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", b'{"task": "car'),
        ("summary.json", b"\xff\xfe\x00"),
        ("round_0/fit.json", b"[" * 100_000),
        ("round_0/weights.npz", b"PK\x03\x04 no archive"),
        ("round_0/weights.npz", b""),
        ("round_0/evaluation.parquet", b"PAR1 no table"),
        ("events.jsonl", b"not json\n{}\n"),
        ("transcript.jsonl", b"[1, 2]\n{}\n"),
    ],
)
def test_a_broken_file_is_named_and_the_rest_is_shown(tmp_path: Path, name: str, content: bytes) -> None:
    run = make_run(tmp_path / "run", rounds=1)
    (run / name).write_bytes(content)
    page = page_of(run)
    assert page.has("overview", "could not be read whole", Path(name).name)
    assert page.has("round-0", "class RacecarPolicy")


@pytest.mark.parametrize(
    "summary", [[], 3, "text", {"rounds": {"a": 1}, "metric": [], "resources": 4}, {"rounds": [None]}]
)
def test_a_summary_of_another_shape(tmp_path: Path, summary: Any) -> None:
    run = make_run(tmp_path / "run", rounds=1)
    (run / "summary.json").write_text(json.dumps(summary))
    assert page_of(run).has("round-0", "class RacecarPolicy")


def test_numbers_that_are_none(finished_run: Path, edit_summary: Edit) -> None:
    def change(summary: dict[str, Any]) -> None:
        for episode in summary["rounds"][0]["per_episode"][:4]:
            episode["value"] = float("nan")
        summary["rounds"][1]["per_episode"] = []
        summary["rounds"][1]["metric"] = {"mean": float("inf"), "std": None, "n": 10}
        summary["demonstration"] |= {"metric": None, "test": None}

    edit_summary(finished_run, change)
    (finished_run / "round_1" / "fit.json").write_text('{"train": [NaN, 1.0, null, 0.5], "validation": []}')
    page = page_of(finished_run)
    assert page.has("rounds", "(6)")
    assert page.has("overview", "n = 10 evaluation episodes).")
