"""What tests of the jailed worker share: how one is made, and how its processes are found."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import own_task
from test_own_task import PROGRAM as TEMPLATE

from jaxrefine.sandbox import Jail, choose
from jaxrefine.worker import ProcessWorker, TaskChoice

PROGRAM = TEMPLATE.format(loss=0.0)
FIT = {"updates": 40}
SECRET = "sk-not-to-be-seen"
HOSTILE = Path(__file__).with_name("hostile.py")


class Standin:
    """The jail of a worker, with another process inside."""

    def __init__(self) -> None:
        self._backend = choose()
        self.name, self.status = self._backend.name, self._backend.status

    def command(self, jail: Jail, python: Any) -> list[str]:
        inside = Jail(**{**vars(jail), "read": (*jail.read, HOSTILE)})
        return self._backend.command(inside, (str(HOSTILE),))


def make_worker(run: Path, **options: Any) -> ProcessWorker:
    demonstration = own_task.demonstrate(run / "room.npz")
    return ProcessWorker(TaskChoice("own_task:room", demonstration=demonstration), 0, FIT, run, **options)


def processes(run: Path) -> list[Path]:
    """Those that were started for a run: it is in the command of each."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(run).encode() in (process / "cmdline").read_bytes():
                found.append(process)
    return found


def wait_until(condition: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
