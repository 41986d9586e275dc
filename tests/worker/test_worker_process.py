"""The jailed worker answers as the one in this process does, and no process of it outlives its host."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import own_task
import pytest
from worker_process import FIT, PROGRAM, SECRET, contents, make_worker, processes, wait_until

from jaxrefine import task as tasks
from jaxrefine.errors import UserError
from jaxrefine.worker import ProcessWorker, ProgramError, Worker, WorkerLimits
from jaxrefine.worker import process as module
from jaxrefine.worker.calls import CALLS


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, surroundings: None) -> Iterator[tuple[Worker, ProcessWorker, Path]]:
    run, told = tmp_path_factory.mktemp("run"), []
    limits = WorkerLimits(memory_mb=4000)
    with make_worker(run, progress=lambda *p: told.append(p), limits=limits) as jailed:
        task = tasks.get("own_task:room", run / "room.npz")
        here = Worker.from_options(task, 0, FIT, lambda *p: told.append(p))
        here.told = jailed.told = told  # type: ignore[attr-defined]
        yield here, jailed, run


def test_every_call_gives_the_same_result_and_the_same_files(both) -> None:
    here, jailed, run = both
    found = []
    for worker, folder in ((here, run / "here"), (jailed, run / "jailed")):
        worker.told.clear()
        results = [worker.check(PROGRAM), worker.fit(PROGRAM, 3, folder), worker.evaluate(PROGRAM, folder)]
        results += [worker.rollout(PROGRAM, folder, 7), worker.device()]
        found.append((results, list(worker.told), contents(folder)))
    assert found[0] == found[1]
    assert sorted(path.name for path in run.iterdir()) == ["here", "jailed", "room.npz", "worker"]
    assert not {"fits.npz"} & {path.name for path in (run / "worker").rglob("*")}


def test_a_call_raises_what_it_raises_here(both) -> None:
    here, jailed, run = both
    (run / "empty").mkdir()
    for call in (
        lambda w: w.check(PROGRAM.replace("heat = ", "heat = open('/etc/passwd') + ")),
        lambda w: w.check(PROGRAM.replace("std[None, None]", "std")),
        lambda w: w.rollout(PROGRAM, run / "empty", 7),
    ):
        raised = []
        for worker in (here, jailed):
            with pytest.raises((ProgramError, UserError)) as caught:
                call(worker)
            raised.append((caught.type, str(caught.value)))
        assert raised[0] == raised[1]


def test_a_table_that_is_lost_or_cut_is_named(both) -> None:
    _, jailed, run = both
    folder = run / "cut"
    folder.mkdir()
    for content in (None, b"", b"PAR1 and no more"):
        if content is not None:
            (folder / "rollouts.parquet").write_bytes(content)
        with pytest.raises(UserError, match=rf"the table {folder}/rollouts\.parquet cannot be read"):
            jailed.excerpt(folder, 4, 1000)


def test_what_is_nobodys_mistake_is_told_whole_and_ends_nothing(both) -> None:
    _, jailed, run = both
    jailed.device()
    before = processes(run)
    with pytest.raises(RuntimeError, match=r"in the worker process:\nTraceback"):
        jailed.fit(PROGRAM, -1, run / "none")
    with pytest.raises(ProgramError, match="more memory than there is"):
        jailed.fit(PROGRAM, 10**9, run / "none")
    assert not (run / "none").exists()
    assert processes(run) == before


def test_no_process_of_the_worker_is_given_a_key(both) -> None:
    _, jailed, run = both
    jailed.device()
    started = processes(run)
    assert started
    for process in started:
        environ = (process / "environ").read_bytes()
        assert b"JAX_COMPILATION_CACHE_DIR" in environ
        assert SECRET.encode() not in environ


def test_a_killed_process_is_replaced(both) -> None:
    _, jailed, run = both
    jailed.device()
    old = processes(run)
    for process in old:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process.name), signal.SIGKILL)
    assert wait_until(lambda: not any(process.exists() and process in processes(run) for process in old), 10)
    assert jailed.check(PROGRAM)["parameters"] == 4
    assert not set(old) & set(processes(run))


HOST = """
import sys
from pathlib import Path
from jaxrefine.worker import ProcessWorker, TaskChoice
sys.path.append(sys.argv[2])
run = Path(sys.argv[1])
worker = ProcessWorker(TaskChoice("own_task:room", demonstration=run / "room.npz"), 0, {"updates": 10**8}, run)
worker.check(Path(run / "policy.py").read_text())
print("fitting", flush=True)
worker.fit(Path(run / "policy.py").read_text(), 2, run / "round_0")
"""


def test_a_killed_host_leaves_no_process(tmp_path: Path) -> None:
    own_task.demonstrate(tmp_path / "room.npz")
    (tmp_path / "policy.py").write_text(PROGRAM)
    command = [sys.executable, "-c", HOST, tmp_path, Path(__file__).parents[1]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"fitting\n"
        time.sleep(1)
        assert len(processes(tmp_path)) >= 2
        host.kill()
    assert wait_until(lambda: not processes(tmp_path), 10)


def test_the_jailed_worker_has_every_call_of_the_worker() -> None:
    fields = Worker.__dataclass_fields__
    methods = {name for name in vars(Worker) if not name.startswith("_") and name not in (*fields, "from_options")}
    assert methods == CALLS.keys()
    for name in methods:
        assert inspect.signature(getattr(ProcessWorker, name)) == inspect.signature(getattr(Worker, name))


def test_xla_fuses_as_this_project_wants_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = (Path("/home"), Path("/cache"))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert module._environment(*folders, False)["XLA_FLAGS"] == "--xla_cpu_use_fusion_emitters=false"
    assert "XLA_FLAGS" not in module._environment(*folders, True)  # an accelerator's compiler knows no such trap
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/x")
    assert module._environment(*folders, False)["XLA_FLAGS"] == "--xla_dump_to=/tmp/x"
