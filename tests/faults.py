"""What tests of faults share: a short run of the real command, and what must hold of its directory."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import own_task
import pyarrow.parquet as pq
from test_own_task import ANALYSES, PROGRAM, fenced

REPLIES = [
    fenced(PROGRAM.format(loss=0.0)),
    fenced(ANALYSES),
    "[Decision]\nprogram\n\n" + fenced(PROGRAM.format(loss=0.02)),
    fenced(ANALYSES),
    "[Decision]\ndone\n",
]
OPTIONS = [
    "task=own", "task.name=own_task:room", "llm=scripted", "llm.path=replies", "seeds=2", "fit.updates=40",
    "refine.rollouts=4", "refine.accept=always",
]  # fmt: skip


def prepare(folder: Path) -> None:
    """Puts into a folder what the command is started with there."""
    own_task.demonstrate(folder / "room.npz")
    (folder / "replies").mkdir()
    for number, reply in enumerate(REPLIES):
        (folder / "replies" / f"{number:02}.md").write_text(reply)


def command(run: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "jaxrefine.main", *OPTIONS, f"run={run}", *more]


def surroundings() -> dict[str, str]:
    """The command's environment."""
    tests = str(Path(own_task.__file__).parent)
    cache = str(Path.home() / ".cache" / "jaxrefine-tests" / "worker-xla")
    return os.environ | {"PYTHONWARNINGS": "ignore", "PYTHONPATH": tests, "JAXREFINE_WORKER_CACHE_DIR": cache}


def carry_out(folder: Path, run: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The command from its start to its end."""
    return subprocess.run(
        command(run, *more), cwd=folder, env=surroundings(), capture_output=True, text=True, check=False
    )


def comparable(run: Path) -> dict[str, Any]:
    """The summary but for what the clock says."""
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    del summary["resources"]["wall_s"]
    return summary


def asked(run: Path) -> list[tuple[str, int, int]]:
    """What the model was asked for."""
    lines = [json.loads(line) for line in (run / "transcript.jsonl").read_text().splitlines()]
    return [(line["purpose"], line["round"], line["attempt"]) for line in lines[1:]]


def files(run: Path) -> dict[str, bytes]:
    """All that lies in a run directory, but for the worker's own scratch."""
    found = {str(path.relative_to(run)): path for path in run.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith("worker/")}


def hold_whole(run: Path) -> int:
    """Reads every file of a run directory whose name is a final one; returns how many there are."""
    names = [name for name in files(run) if not Path(name).name.startswith(".")]
    for name in names:
        path = run / name
        match path.suffix:
            case ".json":
                json.loads(path.read_text())
            case ".jsonl":
                for line in path.read_bytes().split(b"\n")[:-1]:  # the last may be cut
                    json.loads(line)
            case ".parquet":
                pq.read_table(path)
            case ".npz":
                with zipfile.ZipFile(path) as archive:
                    assert archive.testzip() is None
            case ".py":
                compile(path.read_text(), name, "exec")
            case _:
                assert path.read_text()
    return len(names)


def ended(process: subprocess.Popen[bytes]) -> int:
    """Waits for a process that was sent a signal."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(60)
    process.kill()
    return process.wait()
