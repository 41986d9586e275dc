from __future__ import annotations

import json

import numpy as np
import pytest

from bench import throughput, throughput_door
from bench.throughput import load_subject, other_cases, own_cases, raw_work
from bench.throughput_case import Case, Effort
from envs.door import model

TINY = Effort(steps=2, seconds=0.01)


@pytest.mark.parametrize("name", throughput.SUBJECTS)
def test_batches_of_every_environment_can_be_measured(name):
    subject = load_subject(name)
    cases = own_cases(subject, [2], TINY)
    assert len({case.name + case.note for case in cases}) == len(cases) == 4
    for case in cases[:2]:
        assert 0 < case.measure() < np.inf, case.name


def test_one_environment_alone_can_be_measured():
    # which environment makes no difference, and this one compiles soonest
    for case in own_cases(load_subject("car_racing"), [], TINY):
        assert 0 < case.measure() < np.inf, case.name


@pytest.mark.parametrize("name", throughput.SUBJECTS)
def test_other_implementations_are_measured_or_it_is_said_what_to_install(name):
    subject = load_subject(name)
    cases, missing = other_cases(subject, TINY)
    assert len(cases) + len(missing) == len(subject.yardsticks)
    assert all("install" in message for message in missing)
    # one of each name, since processes of Gymnasium take long to start, and its drawing too
    for case in {case.name: case for case in reversed(cases) if "as users run it" not in case.name}.values():
        assert 0 < case.measure() < np.inf, case.name


def test_mujocos_rollout_moves_as_the_environment_does():
    """Under the same actions, so that the two rates are of the same work."""
    steps, batch = 2, 2
    run, arguments = raw_work(load_subject("door"), batch, Effort(steps=steps))
    _, state, _ = run(*arguments)
    states = throughput_door.mujoco_work(batch, steps, threads=2)()
    assert states.shape == (batch, steps * model.FRAME_SKIP, 21)
    np.testing.assert_allclose(states[:, -1, 1:11], state.motion.qpos, atol=2e-4)
    moved = np.abs(states[:, -1, 1:11] - model.HOMED_QPOS).max(axis=1)
    assert np.all(moved > 2e-3)


def test_the_door_is_touched_within_a_measurement():
    states = throughput_door.mujoco_work(64, 100, threads=2)()
    angle = states[:, -1, 10]
    assert np.mean(angle < -0.01) > 0.02


@pytest.fixture
def instant(monkeypatch):
    """Cases that take no time."""
    monkeypatch.setattr(
        throughput, "own_cases", lambda *_, single: [Case("ours", lambda: 6.0), Case("other", lambda: 3.0)]
    )
    monkeypatch.setattr(throughput, "other_cases", lambda *_: ([Case("theirs", lambda: 12.0)], ["install it"]))


def test_the_command_prints_and_writes(instant, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(throughput, "compile_times", lambda *_: {"cold": 20.0, "cached": 4.0})
    path = tmp_path / "throughput.json"
    throughput.main(["--env", "door", "--rounds", "3", "--compile", "--json", str(path)])
    written = json.loads(path.read_text())
    assert written["environment"] == "door"
    assert written["results"][0] == {"case": "ours", "note": "", "median": 6.0, "rates": [6.0] * 3}
    assert written["compile_seconds"] == {"batch": 1024, "cold": 20.0, "cached": 4.0}
    printed = capsys.readouterr().out
    assert "Door Opening" in printed
    assert "left out: install it" in printed
    assert [line.split()[-2] for line in printed.splitlines() if "theirs" in line] == ["0.5"]


def test_car_racing_is_measured_unless_told_otherwise(instant, tmp_path):
    path = tmp_path / "throughput.json"
    throughput.main(["--rounds", "1", "--json", str(path)])
    written = json.loads(path.read_text())
    assert written["environment"] == "car_racing"
    assert "compile_seconds" not in written


def test_an_unknown_environment_is_refused(capsys):
    with pytest.raises(SystemExit) as refused:
        throughput.main(["--env", "cartpole"])
    assert refused.value.code == 2
    assert "car_racing" in capsys.readouterr().err
