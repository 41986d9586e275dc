"""A disk that is full, wherever a run writes: one clear error, an intact record, and a run that goes on with room."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faults
import pytest
from toy import PROGRAM, make_task

from jaxrefine.config import Config
from jaxrefine.errors import UserError
from jaxrefine.learn.imitation import FitSettings
from jaxrefine.llm import ScriptedClient
from jaxrefine.methods.experiment import run_experiment
from jaxrefine.run import RunDirectory
from jaxrefine.run.files import TEMPORARY_PREFIX
from jaxrefine.worker import Worker

REPLIES = [
    f"```python\n{PROGRAM}```\n",
    "```python\ndef run_all(df):\n    open('test_results.txt', 'w').write(f'{len(df)} rows')\n```\n",
    "[Decision]\ndone\n",
]
LOGS = ("events.jsonl", "transcript.jsonl")


class Disk:
    """Refuses writing for good once it has refused a place that it has not refused before; logs get half a line."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.refused: list[tuple[Path, str]] = []
        self._full = True
        self._write, self._sync = os.write, os.fsync
        patch.setattr(os, "write", self.write)
        patch.setattr(os, "fsync", self.fsync)

    def make_room(self) -> None:
        self._full = False

    def write(self, descriptor: int, data: Any) -> int:
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        if place.name in LOGS and self._refuses(place, _entry(bytes(data))):
            self._write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        if place.name not in LOGS and self._refuses(place, ""):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._sync(descriptor)

    def _refuses(self, place: Path, entry: str) -> bool:
        if place.is_relative_to(self.folder) and not self._full and (place, entry) not in self.refused:
            self.refused.append((place, entry))
            self._full = True
        return self._full and place.is_relative_to(self.folder)


def _entry(line: bytes) -> str:
    """Which line of a log it is, in whatever attempt."""
    fields = json.loads(line)
    return str([fields.get(key) for key in ("event", "step", "kind", "purpose", "round")])


def final(path: Path) -> str:
    """The name that a file has when it is whole."""
    return path.name.removeprefix(TEMPORARY_PREFIX)


@pytest.fixture(scope="module")
def carry_out(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("task")
    task = make_task(folder)
    worker = Worker(task, fit_settings=FitSettings(updates=40))  # one for all runs, so that it compiles once
    config = Config(seeds=2)
    config.method.name, config.refine.rollouts = "refine", 4

    def run(path: Path) -> dict[str, Any]:
        with RunDirectory.open_or_create(path) as directory:
            return run_experiment(config, task, directory, ScriptedClient(REPLIES), worker)

    return run


def refusal(function: Callable[[], Any]) -> str | None:
    try:
        function()
    except UserError as error:
        return str(error)
    return None


def test_full_at_every_place_and_given_room_it_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carry_out: Callable[[Path], dict[str, Any]]
) -> None:
    carry_out(tmp_path / "whole")
    run = tmp_path / "broken"
    disk = Disk(run, monkeypatch)
    for before in range(200):
        disk.make_room()
        if (said := refusal(lambda: carry_out(run))) is None:
            break
        assert len(disk.refused) == before + 1
        assert final(disk.refused[-1][0]) in said
        assert "No space left on device" in said
        assert "run=PATH" in said
        faults.hold_whole(run)
        assert not list(run.rglob(f"{TEMPORARY_PREFIX}*"))
    refused = {final(path) for path, _ in disk.refused}
    written = {Path(name).name for name in faults.files(run)}
    assert written - refused == {".lock"}
    assert faults.comparable(run) == faults.comparable(tmp_path / "whole")
    assert faults.asked(run) == faults.asked(tmp_path / "whole")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system whose size can be changed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs leave to mount a file system")

    def resize(size: str) -> Path:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)
        return folder

    try:
        yield resize
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
def test_the_command_on_a_disk_that_is_full(tmp_path: Path, small_disk: Callable[[str], Path]) -> None:
    """With room for about the parameters of the first round, and with enough."""
    faults.prepare(tmp_path)
    run = small_disk("72k") / "run"
    ended = faults.carry_out(tmp_path, run)
    assert ended.returncode == 2, ended.stderr
    assert "No space left on device" in ended.stderr
    assert f"cannot write {run}" in ended.stderr or f"the transcript {run}" in ended.stderr
    assert "/worker/" not in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    faults.hold_whole(run)
    run = small_disk("16m") / "run"
    ended = faults.carry_out(tmp_path, run)
    assert ended.returncode == 0, ended.stderr
    whole = tmp_path / "whole"
    assert faults.carry_out(tmp_path, whole).returncode == 0
    assert faults.comparable(run) == faults.comparable(whole)
    assert faults.asked(run) == faults.asked(whole)
