"""A worker's process that does what it likes harms nobody and is found out."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_process import PROGRAM, SECRET, contents, make_worker, processes

from jaxrefine.errors import UserError
from jaxrefine.sandbox import Backend, Jail, choose
from jaxrefine.worker import ProcessWorker, ProgramError
from jaxrefine.worker.calls import CALLS, NoReplyError, read_reply
from jaxrefine.worker.process import WorkerDefectError

CHECKED = {"parameters": 4, "columns": [], "weights": [], "latents": []}
FITTED: dict[str, Any] = {
    **{name: [] for name in ("train_nll", "validation_nll", "updates", "skipped")},
    "curves": {name: [] for name in ("steps", "train", "validation")},
}
needs_jail = pytest.mark.skipif(not choose().strong, reason="no strong sandbox holds on this machine")


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


class Says(Backend):
    """A jail that holds nothing: a process that answers everything with one line."""

    def __init__(self, line: str) -> None:
        self.line = line

    def command(self, jail: Jail, python: Any) -> list[str]:
        script = f"import sys\nfor line in sys.stdin:\n    print({self.line!r}, flush=True)"
        return [sys.executable, "-c", script]


@pytest.mark.parametrize("line", ["starting ...", '{"call": 0, "result": "cpu"}', '{"call": 7, "result": null}', "{}"])
def test_an_answer_of_another_form_about_no_program_is_our_defect(tmp_path: Path, line: str) -> None:
    """The start's answer is null."""
    with make_worker(tmp_path, backend=Says(line)) as worker:
        with pytest.raises(
            WorkerDefectError, match=r"broke the protocol .* asked for `start`, which is about no program"
        ):
            worker.device()
        assert not processes(tmp_path)


def test_a_call_about_no_program_is_a_defect_after_a_good_start_too(tmp_path: Path) -> None:
    (tmp_path / "round_0").mkdir()
    with make_worker(tmp_path, backend=Says('{"call": 0, "result": null}')) as worker:
        for call in (worker.device, lambda: worker.excerpt(tmp_path / "round_0", 4, 1000)):
            with pytest.raises(WorkerDefectError, match="a line that answers no call"):
                call()


def test_an_answer_of_another_form_about_a_program_blames_nobody_for_sure(hostile: ProcessWorker) -> None:
    with pytest.raises(
        ProgramError, match=r"Either the program wrote to the channel .* or this is a defect of jaxrefine"
    ):
        hostile.check("send({'call': call, 'result': {'parameters': '4'}})")
    with pytest.raises(ProgramError) as caught:
        hostile.check("import os; os._exit(0)")
    assert "defect" not in str(caught.value)


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
