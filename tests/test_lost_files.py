"""A run whose files were lost, cut or changed says which one, and changes nothing; so does one that another holds."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import faults
import own_task
import pytest
from test_full_disk import REPLIES
from test_main import call
from toy import make_task

from jaxrefine.config import Config
from jaxrefine.errors import UserError
from jaxrefine.learn.imitation import FitSettings
from jaxrefine.llm import ScriptedClient
from jaxrefine.methods.experiment import run_experiment
from jaxrefine.run import RunDirectory
from jaxrefine.task import Task
from jaxrefine.worker import Worker


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Task, Worker]:
    folder = tmp_path_factory.mktemp("finished")
    task = make_task(folder)
    worker = Worker(task, fit_settings=FitSettings(updates=40))
    carry_out(folder / "run", task, worker)
    return folder / "run", task, worker


def carry_out(path: Path, task: Task, worker: Worker) -> None:
    config = Config(seeds=2)
    config.method.name, config.refine.rollouts = "refine", 4
    with RunDirectory.open_or_create(path) as run:
        run_experiment(config, task, run, ScriptedClient(REPLIES), worker)


def cut_before(run: Path, step: str) -> None:
    """As if it had been killed when this step began."""
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if json.loads(line).get("step") == step)
    (run / "events.jsonl").write_text("".join(lines[: at + 1]))


def lose(path: Path) -> None:
    path.unlink()


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def spoil(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\0 nothing of this kind\n" + path.read_bytes())


# each with the step that reads it, where a finished run does not
FILES = {
    "round_0/policy.py": None,
    "round_0/fits.npz": "round_0/evaluate",
    "round_0/weights.npz": "round_0/rollout",
    "round_0/rollouts.parquet": "round_0/analyse_0",
    "round_0/battery.txt": None,
    "transcript.jsonl": None,
}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (name, damage)
        for name in FILES
        for damage in (lose, halve, replace_by_a_folder, spoil)
        if (name, damage) != ("round_0/battery.txt", halve)  # half a text is a text
    ],
)
def test_a_file_that_is_lost_or_damaged_is_named(
    tmp_path: Path,
    finished: tuple[Path, Task, Worker],
    name: str,
    damage: Callable[[Path], None],
) -> None:
    whole, task, worker = finished
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    if (step := FILES[name]) is not None:
        cut_before(run, step)
    damage(run / name)
    with pytest.raises(UserError) as error:
        carry_out(run, task, worker)
    assert str(run / name) in str(error.value)
    # and mended, it goes on
    if (run / name).is_dir():
        (run / name).rmdir()
    shutil.copy(whole / name, run / name)
    carry_out(run, task, worker)
    assert faults.comparable(run) == faults.comparable(whole)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of the command that was stopped early, in the current folder."""
    faults.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(own_task.__file__).parent)
    for reply in sorted((tmp_path / "replies").iterdir())[1:]:
        reply.unlink()
    return tmp_path / "run"


def test_the_command_tells_of_a_damaged_log_and_of_another_process(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*faults.OPTIONS, f"run={kept}"]
    status, _, err = call(monkeypatch, capsys, *arguments)
    assert status == 2
    assert "the scripted replies end after 1" in err
    before = faults.files(kept)
    assert before["events.jsonl"].count(b"step_finished") >= 3

    with RunDirectory.open(kept):
        held = faults.files(kept)
        status, _, err = call(monkeypatch, capsys, *arguments)
        assert status == 2
        assert f"{kept} is in use by process {os.getpid()} on" in err
        assert faults.files(kept) == held

    lines = before["events.jsonl"].splitlines(keepends=True)
    (kept / "events.jsonl").write_bytes(b"".join([*lines[:2], b'{"time": "2026', b"\n", *lines[3:]]))
    damaged = faults.files(kept)
    status, _, err = call(monkeypatch, capsys, *arguments)
    assert status == 2
    assert f"{kept / 'events.jsonl'}, line 3 is damaged" in err
    assert faults.files(kept) == damaged  # the lock tells of this same process

    (kept / "events.jsonl").write_bytes(before["events.jsonl"][:-9])
    status, out, err = call(monkeypatch, capsys, *arguments)
    assert status == 2
    assert "the scripted replies end after 1" in err
    assert "note: events.jsonl: the last line was cut short" in out
    assert "Traceback" not in out + err
