"""The real command, killed at random moments and started again, ends as if nothing had happened."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from datetime import datetime
from pathlib import Path

import faults
import pytest

from jaxrefine.run import read_events

KILLS = 3


def seconds(run: Path) -> float:
    """From the first event of a run to its last."""
    first, *_, last = (datetime.fromisoformat(event["time"]) for event in read_events(run / "events.jsonl"))
    return (last - first).total_seconds()


def size(run: Path) -> int:
    log = run / "events.jsonl"
    return log.stat().st_size if log.exists() else 0


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_the_same_and_asks_nothing_twice(tmp_path: Path) -> None:
    faults.prepare(tmp_path)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    ended = faults.carry_out(tmp_path, whole)
    assert ended.returncode == 0, ended.stderr
    chance, landed = random.Random(0), 0
    for _ in range(KILLS):
        before = size(broken)
        process = subprocess.Popen(
            faults.command(broken), cwd=tmp_path, env=faults.surroundings(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        # what is drawn is the moment of its work, not of its imports
        while size(broken) <= before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, seconds(whole) / 2))
        process.send_signal(signal.SIGKILL)
        landed += faults.ended(process) == -signal.SIGKILL
        assert faults.hold_whole(broken) >= 2
    assert landed >= 2, "the run was over before it could be disturbed"
    ended = faults.carry_out(tmp_path, broken)
    assert ended.returncode == 0, ended.stderr
    assert faults.comparable(broken) == faults.comparable(whole)
    assert faults.files(broken).keys() == faults.files(whole).keys()
    said = [
        [json.loads(line) for line in (run / "transcript.jsonl").read_text().splitlines()] for run in (broken, whole)
    ]
    assert said[0] == said[1]
    assert len(set(faults.asked(broken))) == len(faults.asked(broken)) == len(faults.REPLIES)
    steps = [event["step"] for event in read_events(broken / "events.jsonl") if event["event"] == "step_finished"]
    assert len(steps) == len(set(steps))
