from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import own_task
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_own_task import PROGRAM as TEMPLATE

from jaxrefine import task as tasks
from jaxrefine.errors import UserError
from jaxrefine.sandbox import Backend, Jail, choose
from jaxrefine.worker import ProcessWorker, ProgramError, TaskChoice, Worker, WorkerLimits
from jaxrefine.worker.calls import CALLS, NoReplyError, read_reply
from jaxrefine.worker.modules import modules_beside, provide, readable

PROGRAM = TEMPLATE.format(loss=0.0)
FIT = {"updates": 40}
SECRET = "sk-not-to-be-seen"
HOSTILE = Path(__file__).with_name("hostile.py")
CHECKED = {"parameters": 4, "columns": [], "weights": [], "latents": []}
FITTED: dict[str, Any] = {
    **{name: [] for name in ("train_nll", "validation_nll", "updates", "skipped")},
    "curves": {name: [] for name in ("steps", "train", "validation")},
}
needs_jail = pytest.mark.skipif(not choose().strong, reason="no strong sandbox holds on this machine")


class Standin:
    """The jail of a worker, with another process inside."""

    def __init__(self) -> None:
        self._backend = choose()
        self.name, self.status = self._backend.name, self._backend.status

    def command(self, jail: Jail, python: Any) -> list[str]:
        inside = Jail(**{**vars(jail), "read": (*jail.read, HOSTILE)})
        return self._backend.command(inside, (str(HOSTILE),))


@pytest.fixture(autouse=True, scope="module")
def surroundings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXREFINE_WORKER_CACHE_DIR", str(Path.home() / ".cache" / "jaxrefine-tests" / "worker-xla"))
        patch.setenv("OPENAI_API_KEY", SECRET)
        yield


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[ProcessWorker]:
    limits = WorkerLimits(memory_mb=400, check_s=3, file_mb=1)
    with make_worker(tmp_path, limits=limits, backend=Standin()) as worker:
        yield worker


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


# --- the worker's own process


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


# --- a process that does what it likes


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import os; os._exit(0)", r"ended \(exit status 0\)"),
        ("raise SystemExit('no more')", r"ended \(exit status 1\).*no more"),
        ("import ctypes; ctypes.string_at(0)", r"signal 11, SIGSEGV"),
        ("import time; time.sleep(100)", r"stopped after 3 s"),
        ("kept = []\nwhile True: kept.append(bytearray(1 << 24))", r"may use 400|MemoryError$"),
        (
            "import mmap\nkept = []\nwhile True: kept.append(mmap.mmap(-1, 1 << 24)); kept[-1].write(b'a' * (1 << 24))",
            r"it was stopped, for it used \d+ MiB of memory and may use 400",
        ),
        ("import os\nwhile True: os.write(1, b'a' * 65536)", r"more than 64 MiB"),
        ("import os\nwhile True: os.write(2, b'a' * 65536)", r"stopped after 3 s"),
        ("print('hello', flush=True)", "no JSON"),
        ("import os; os.write(1, b'\\xff\\x00\\n')", "no JSON"),
        ("import os; os.write(1, b'[' * 100000 + b'\\n')", "no JSON"),
        ("send({'call': call, 'result': {}})", "wrong form"),
        ("send({'call': call + 1, 'result': {}})", "answers no call"),
        ("send({'call': call, 'progress': ['a', 'b']})", "wrong form"),
        ("send({'call': call, 'progress': [1]})", "wrong form"),
        ("send({'call': call, 'sing': 'a song'})", "wrong form"),
    ],
)
def test_what_a_program_does_to_its_process_is_its_own_end(hostile: ProcessWorker, source: str, says: str) -> None:
    with pytest.raises(ProgramError, match=says) as caught:
        hostile.check(source)
    assert "\n" not in str(caught.value).split("The last it printed")[0]
    assert hostile.check(f"result = {CHECKED}") == CHECKED


REFUSED = """
try:
{act}
except BaseException as error:
    result["columns"] = [type(error).__name__]
else:
    result["columns"] = ["done"]
"""


def attempt(worker: ProcessWorker, act: str) -> str:
    indented = "\n".join("    " + line for line in act.splitlines())
    return worker.check(f"result = {CHECKED}" + REFUSED.format(act=indented))["columns"][0]


@needs_jail
def test_the_jail_keeps_the_host_out_of_reach(hostile: ProcessWorker, tmp_path: Path) -> None:
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.write_text(SECRET)
    (tmp_path / "round_0").mkdir()
    (tmp_path / "round_0" / "policy.py").write_text(PROGRAM)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for act in (
            f"open({str(secret)!r}).read()",
            f"open({str(secret)!r} + 'x', 'w')",
            f"open({str(Path.home() / 'mine')!r}, 'w')",
            f"open({str(tmp_path / 'round_0' / 'policy.py')!r}, 'a')",
            f"import os; os.rename({str(tmp_path / 'worker')!r}, {str(tmp_path / 'other')!r})",
            f"import os; os.link({str(tmp_path / 'room.npz')!r}, {str(tmp_path / 'worker' / 'room.npz')!r})",
            f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)",
            "import os; os.fork()",
            "import subprocess; subprocess.run(['/bin/true'])",
            f"import os; os.kill({os.getpid()}, 0)",
            f"open('/proc/{os.getpid()}/environ').read()",
            f"assert {SECRET!r} in open('/proc/self/environ').read() + str(__import__('os').environ)",
        ):
            assert attempt(hostile, act) != "done", act
    assert not (tmp_path.parent / f"{secret.name}x").exists()
    for act in (
        f"open({str(tmp_path / 'round_0' / 'policy.py')!r}).read()",
        f"open({str(tmp_path / 'room.npz')!r}, 'rb').read()",
        f"open({str(tmp_path / 'worker' / 'mine')!r}, 'w').write('x')",
        "import threading; t = threading.Thread(target=print, kwargs={'file': None}); t.daemon = True",
    ):
        assert attempt(hostile, act) == "done", act


@pytest.mark.parametrize(
    "act",
    [
        "pass",
        "(folder / 'fits.npz').symlink_to('/etc/passwd')",
        "(folder / 'fits.npz').symlink_to(folder / 'initial_weights.npz')",
        "(folder / 'fits.npz').mkdir(); (folder / 'fits.npz' / 'x').mkdir()",
        "import os; os.mkfifo(folder / 'fits.npz')",
        "import os; (folder / 'x').write_text('x'); os.link(folder / 'x', folder / 'fits.npz')",
        "import os; (folder / 'fits.npz').write_text(''); os.truncate(folder / 'fits.npz', (1 << 20) + 1)",
        "import os; os.rename(folder, str(folder) + 'x'); os.symlink(folder.parents[1] / 'round_0', folder)",
    ],
)
def test_nothing_but_files_leaves_the_jail(hostile: ProcessWorker, tmp_path: Path, act: str) -> None:
    folder = tmp_path / "round_0"
    folder.mkdir()
    (folder / "fits.npz").write_text("of an earlier try")
    (folder / "policy.py").write_text(PROGRAM)
    before = contents(folder)
    begin = "from pathlib import Path; folder = Path(folder); (folder / 'initial_weights.npz').write_text('0')\n"
    with pytest.raises(ProgramError, match=r"fits\.npz"):
        hostile.fit(f"{begin}{act}\nresult = {FITTED}", 1, folder)
    assert contents(folder) == before
    assert not processes(tmp_path)
    good = f"{begin}(folder / 'fits.npz').write_text('1')\nresult = {FITTED}"
    assert hostile.fit(good, 1, folder) == FITTED
    assert contents(folder) == before | {"initial_weights.npz": b"0", "fits.npz": b"1"}


def test_an_interrupt_ends_the_process_at_once(hostile: ProcessWorker, tmp_path: Path) -> None:
    hostile.check(f"result = {CHECKED}")
    threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        hostile.check("import time; time.sleep(100)")
    assert time.monotonic() - start < 3
    assert not processes(tmp_path)


def test_the_scratch_folder_goes_with_the_worker(hostile: ProcessWorker, tmp_path: Path) -> None:
    hostile.check(f"from pathlib import Path; Path('left').mkdir(); result = {CHECKED}")
    assert (tmp_path / "worker" / "left").exists()
    hostile.close()
    assert not (tmp_path / "worker").exists()
    assert not processes(tmp_path)


def test_a_process_that_cannot_start_is_a_persons_to_mend(tmp_path: Path) -> None:
    class Broken(Backend):
        def command(self, jail: Jail, python: Any) -> list[str]:
            return [sys.executable, "-c", "raise SystemExit('no such jail')"]

    with make_worker(tmp_path, backend=Broken()) as worker, pytest.raises(UserError, match="no such jail"):
        worker.check(PROGRAM)


# --- a task of one's own in another process


@pytest.mark.parametrize("name", ["alone_task:make", "whole_package.task:make", "bare_package.task:make"])
def test_a_task_of_ones_own_is_imported_with_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for package in ("whole_package", "bare_package"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "task.py").write_text("import beside_task")
    (tmp_path / "whole_package" / "__init__.py").touch()
    (tmp_path / "alone_task.py").write_text("import beside_task")
    (tmp_path / "beside_task.py").touch()
    (tmp_path / "never_imported.py").touch()
    module = name.partition(":")[0]
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        import_module(module)
    found = modules_beside(name)
    assert found.keys() == {module.partition(".")[0], "beside_task"}
    own = tmp_path / ("alone_task.py" if module == "alone_task" else module.partition(".")[0])
    assert set(readable(found)) == {own, tmp_path / "beside_task.py"}
    for imported in {module, *found}:
        del sys.modules[imported]
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    with pytest.raises(ImportError):
        import_module(module)
    provide(found)
    assert import_module(module).beside_task.__file__ == str(tmp_path / "beside_task.py")
    for imported in {module, *found}:
        del sys.modules[imported]


@pytest.mark.parametrize("name", ["car_racing", "scipy.stats:norm"])
def test_what_is_installed_needs_no_leave(name: str) -> None:
    assert modules_beside(name) == {}


# --- replies


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON, st.sampled_from([*CALLS.values()]))
def test_no_reply_of_another_form_is_taken(value: Any, call: Any) -> None:
    if not isinstance(value, str):
        with pytest.raises(NoReplyError):
            read_reply(json.dumps({"call": 1, "result": value}).encode(), 1, call.result)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 5000, "true", '"1"', "[1]"])
def test_a_number_is_a_finite_number(number: str) -> None:
    with pytest.raises(NoReplyError):
        read_reply(b'{"call": 1, "result": %s}' % number.encode(), 1, (float, int, None))
