from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxrefine.run import Event, RunDirectory


def names(events: tuple[Event, ...] | list[Event]) -> list[str]:
    return [event["event"] for event in events]


def test_a_step_runs_once_and_is_remembered(tmp_path: Path) -> None:
    calls = []

    def fit() -> object:
        calls.append(1)
        return {"nll": np.float32(-2.5), "seeds": (1, 2), 3: math.nan}

    with RunDirectory.create(tmp_path) as run:
        assert not run.done("round_0/fit")
        fresh = run.step("round_0/fit", fit, label="fit 2 seeds")
        assert run.done("round_0/fit")
        again = run.step("round_0/fit", fit)
        seconds = run.wall_s
    with RunDirectory.open(tmp_path) as run:
        resumed = run.step("round_0/fit", fit)
        assert run.wall_s == seconds
    assert calls == [1]
    assert repr(fresh) == repr(again) == repr(resumed) == repr({"nll": -2.5, "seeds": [1, 2], "3": math.nan})
    assert names(run.events) == ["step_started", "step_finished"]
    assert run.events[0]["label"] == run.events[1]["label"] == "fit 2 seeds"


def test_wall_time_adds_up_over_processes(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        run.step("a", lambda: time.sleep(0.05))
        assert 0.05 <= run.wall_s < 0.5
    with RunDirectory.open(tmp_path) as run:
        run.step("b", lambda: time.sleep(0.05))
        assert 0.1 <= run.wall_s < 1.0


def test_a_step_that_raises_is_logged_and_runs_again(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        with pytest.raises(ZeroDivisionError):
            run.step("a", lambda: 1 / 0)
        assert run.step("a", lambda: 5) == 5
    assert names(run.events) == ["step_started", "step_failed", "step_started", "step_finished"]
    assert run.events[1]["error"] == "division by zero"


def test_a_result_without_json_form_fails_the_step(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        with pytest.raises(TypeError, match="no JSON form"):
            run.step("a", lambda: {"model": object()})
        assert not run.done("a")
    assert names(run.events) == ["step_started", "step_failed"]


def test_ctrl_c_leaves_the_log_ready_to_go_on(tmp_path: Path) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with RunDirectory.create(tmp_path) as run:
        run.step("a", lambda: 1)
        with pytest.raises(KeyboardInterrupt):
            run.step("b", interrupted)
    with RunDirectory.open(tmp_path) as run:
        assert run.step("a", pytest.fail) == 1
        assert run.step("b", lambda: 2) == 2
        assert run.notices == ()


def test_a_step_inside_a_step_is_an_error(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        with pytest.raises(RuntimeError, match="'inner' was started inside step 'outer'"):
            run.step("outer", lambda: run.step("inner", lambda: 1))
        assert run.step("inner", lambda: 1) == 1


def test_listeners_hear_events_after_they_are_on_disk(tmp_path: Path) -> None:
    heard: list[Event] = []
    with RunDirectory.create(tmp_path) as run:

        def listen(event: Event) -> None:
            heard.append(event)
            assert event in run.events or event["event"] in ("step_progress", "step_reused")

        unsubscribe = run.subscribe(listen)
        run.step("a", lambda: run.progress(3, 10))
        run.step("a", pytest.fail)
        run.notice("look")
        unsubscribe()
        run.notice("unheard")
    assert names(heard) == ["step_started", "step_progress", "step_finished", "step_reused", "notice"]
    progress = heard[1]
    assert (progress["step"], progress["done"], progress["total"]) == ("a", 3, 10)
    assert names(run.events) == ["step_started", "step_finished", "notice", "notice"]


SCRIPT = """
import sys, time
from jaxrefine.run import RunDirectory
with RunDirectory.open_or_create(sys.argv[1]) as run:
    total = 0
    for k in range(30):
        def work(k=k, total=total):
            run.write_text(f"round_{k}/artifact", str(total + k) * 200)
            time.sleep(0.004)
            return total + k
        total = run.step(f"round_{k}/work", work)
    run.write_json("summary.json", {"total": total})
"""


def test_killed_at_any_time_and_resumed_it_ends_the_same(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "killed")]
    kills = 0
    for _ in range(8):
        before = len((tmp_path / "killed" / "events.jsonl").read_bytes()) if kills else 0
        child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        # Wait until it is past its imports, so that the kill falls into its work.
        while child.poll() is None and (
            not (tmp_path / "killed" / "events.jsonl").exists()
            or (tmp_path / "killed" / "events.jsonl").stat().st_size <= before
        ):
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.05))
        child.send_signal(signal.SIGKILL)
        _, trouble = child.communicate()
        assert trouble == ""
        kills += child.returncode == -signal.SIGKILL
    assert kills >= 3
    for name in ("killed", "undisturbed"):
        subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / name)], check=True)

    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    files = [path.relative_to(undisturbed) for path in undisturbed.rglob("*") if path.is_file()]
    assert sorted(files) == sorted(path.relative_to(killed) for path in killed.rglob("*") if path.is_file())
    for file in files:
        if file.name not in (".lock", "events.jsonl"):
            assert (killed / file).read_bytes() == (undisturbed / file).read_bytes()
    with RunDirectory.open(killed) as run:
        ended: set[str] = set()
        for event in run.events:
            if event["event"] == "step_started":
                assert event["step"] not in ended
            if event["event"] == "step_finished":
                assert event["step"] not in ended
                ended.add(event["step"])
        assert len(ended) == 30
        assert names(run.events).count("step_started") > 30
