from __future__ import annotations

import contextlib
import io
import os
import socket
import struct
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxrefine.analysis import AnalysisResult, Limits, run_analysis
from jaxrefine.errors import UserError
from jaxrefine.sandbox import Backend, choose

LIMITS = Limits(wall_s=30, cpu_s=30, memory_mb=2048, output_kb=16, file_mb=2)

pytestmark = pytest.mark.usefixtures("nothing_left")


def attack(body: str, table: Path, backend: Backend, limits: Limits = LIMITS) -> AnalysisResult:
    code = "import os, sys, time\nfrom pathlib import Path\n\n\ndef run_all(df):\n" + textwrap.indent(
        textwrap.dedent(body).strip(), "    "
    )
    return run_analysis(code, table, limits, backend)


ESCAPES = """
import ctypes, io, pickle, platform, socket, subprocess, threading
import numpy as np, pandas as pd

libc = ctypes.CDLL(None, use_errno=True)
calls = dict(zip(
    ("socket", "execve", "ptrace", "kill", "unshare", "mount", "process_vm_readv"),
    {"x86_64": (41, 59, 101, 62, 272, 165, 310), "aarch64": (198, 221, 117, 129, 97, 40, 270)}[platform.machine()],
))

def raw(name, *arguments):
    if libc.syscall(calls[name], *arguments) == -1:
        raise OSError(ctypes.get_errno(), name)

def connect(family, address):
    with socket.socket(family) as it:
        it.connect(address)

class Bomb:
    def __reduce__(self):
        return Path.read_text, (Path(KEY),)

def through_npz():
    file = io.BytesIO()
    np.savez(file, x=np.array([Bomb()], dtype=object))
    file.seek(0)
    return np.load(file, allow_pickle=True)["x"]

def leave_a_daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(OUTSIDE, "daemon").write_text("x")
            time.sleep(60)
        os._exit(0)

def environment():
    if b"ARROW_DEFAULT_MEMORY_POOL" in Path("/proc", str(HOST), "environ").read_bytes():
        raise PermissionError("its own")

class Reader:
    def read(self):
        return Path(KEY).read_text()

reader = Reader()
attempts = {
    "read the home folder": lambda: Path(HOME_KEY).read_text(),
    "read another folder": reader.read,
    "read an environment": environment,
    "write elsewhere": lambda: Path(OUTSIDE, "new").write_text("x"),
    "write the table": lambda: open(TABLE, "r+b"),
    "empty the table": lambda: os.truncate(TABLE, 0),
    "remove the table": lambda: os.remove(TABLE),
    "change the table's mode": lambda: os.chmod(TABLE, 0),
    "write its source": lambda: Path("../analysis.py").write_text("x"),
    "IPv4": lambda: connect(socket.AF_INET, ("127.0.0.1", PORT)),
    "IPv6": lambda: connect(socket.AF_INET6, ("::1", PORT_6)),
    "unix": lambda: connect(socket.AF_UNIX, SOCKET),
    "abstract unix": lambda: connect(socket.AF_UNIX, ABSTRACT),
    "a name server": lambda: socket.getaddrinfo("localhost", 80),
    "fork": os.fork,
    "a daemon": leave_a_daemon,
    "a shell": lambda: subprocess.run(["sh", "-c", "true"]),
    "query": lambda: df.query("@reader.read() == episode", local_dict={"reader": reader}),
    "eval": lambda: pd.eval("reader.read()", local_dict={"reader": reader}, engine="python"),
    "a pickle": lambda: pickle.loads(pickle.dumps(Bomb())),
    "a pickle in an NPZ": through_npz,
    "raw socket": lambda: raw("socket", 2, 1, 0),
    "raw execve": lambda: raw("execve", b"/bin/sh", None, None),
    "raw ptrace": lambda: raw("ptrace", 16, HOST, 0, 0),
    "raw kill": lambda: raw("kill", HOST, 9),
    "raw kill of the parent": lambda: raw("kill", os.getppid(), 9),
    "raw unshare": lambda: raw("unshare", 0x10000000),
    "raw mount": lambda: raw("mount", b"none", b"/", b"tmpfs", 0, None),
    "raw process_vm_readv": lambda: raw("process_vm_readv", HOST, None, 0, None, 0, 0),
}
for name, attempt in attempts.items():
    if name in LEFT_OUT:
        continue
    try:
        attempt()
    except OSError:
        pass
    except Exception as error:
        print(name, "failed otherwise:", repr(error))
    else:
        print(name)
print("tried", len(attempts))
"""


# Their success would harm the machine or the test that tries them.
HARMFUL = {
    *("fork", "a daemon", "raw execve", "raw ptrace", "raw kill", "raw kill of the parent", "raw unshare", "raw mount"),
    *("write the table", "empty the table", "remove the table", "change the table's mode"),
}


@pytest.fixture
def names(tmp_path_factory: pytest.TempPathFactory, table: Path) -> Iterator[dict[str, object]]:
    """What the attempts aim at: files that must stay, and servers that answer."""
    outside, home_key = tmp_path_factory.mktemp("outside"), Path.home() / f".jaxrefine-test-{os.getpid()}"
    abstract = f"\0jaxrefine-test-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))]
        if socket.has_dualstack_ipv6():
            servers.append(stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6)))
        for address in (str(outside / "socket"), abstract):
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(address)
            server.listen()
        for key in (outside / "key", home_key):
            key.write_text("secret")
        yield {
            "KEY": str(outside / "key"),
            "HOME_KEY": str(home_key),
            "OUTSIDE": str(outside),
            "TABLE": str(table),
            "HOST": os.getpid(),
            "PORT": servers[0].getsockname()[1],
            "PORT_6": servers[-1].getsockname()[1],
            "SOCKET": str(outside / "socket"),
            "ABSTRACT": abstract,
        }
        home_key.unlink()


def escapes(names: dict[str, object], table: Path, backend: Backend, left_out: set[str]) -> str:
    lines = [f"{name} = {value!r}" for name, value in {**names, "LEFT_OUT": left_out}.items()]
    return attack("\n".join(lines) + ESCAPES, table, backend).text


def test_no_escape_succeeds(strong: Backend, table: Path, names: dict[str, object]) -> None:
    before = table.read_bytes()
    assert escapes(names, table, strong, set()) == "--- printed ---\ntried 29\n"
    assert sorted(path.name for path in Path(str(names["OUTSIDE"])).iterdir()) == ["key", "socket"]
    assert table.read_bytes() == before


def test_the_same_escapes_succeed_under_limits_alone(table: Path, names: dict[str, object]) -> None:
    # Else the test above could pass because the attempts are no good.
    reached = escapes(names, table, choose("limits"), HARMFUL).splitlines()
    assert "read another folder" in reached
    assert "write elsewhere" in reached
    for name in ("IPv4", "unix", "abstract unix", "a shell", "eval", "a pickle in an NPZ", "raw socket"):
        assert name in reached
    assert any(line.startswith("query") and "PermissionError" not in line for line in reached)


IGNORES_SIGNALS = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except OSError:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
while True:
    time.sleep(9)
"""


@pytest.mark.parametrize(
    ("body", "limits", "status", "said"),
    [
        ("while True: os.fork()", {}, "error", "PermissionError"),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", {"memory_mb": 700}, "memory", "more than 700 MiB"),
        (
            "import mmap\nx = []\nwhile True:\n    m = mmap.mmap(-1, 1 << 24); m.write(bytes(1 << 24)); x.append(m)",
            {"memory_mb": 700},
            "error",
            "Cannot allocate memory",
        ),
        (
            IGNORES_SIGNALS,
            {"wall_s": 2.5},
            "timeout",
            "longer than 2.5 s",
        ),
        ("while True: os.write(1, b'x' * 100_000)", {}, "output", "printed more than 2 MiB"),
        (
            "import threading\nfor k in range(100_000):\n    threading.Thread(target=time.sleep, args=(60,)).start()",
            {"memory_mb": 1024},
            "error",
            "can't start new thread",
        ),
        ("os.symlink('/etc/passwd', 'test_results.txt')", {}, "error", "without writing"),
        ("os.symlink('../analysis.py', 'test_results.txt')", {}, "error", "without writing"),
        ("os.mkfifo('test_results.txt')", {}, "error", "without writing"),
        ("os.mkdir('test_results.txt')", {}, "error", "without writing"),
        ("open('x', 'wb').truncate(1 << 50)", {}, "output", "a file of more than 2 MiB"),
        ("import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))", {}, "error", "not allowed to raise"),
    ],
    ids=[
        *("forks", "memory", "mapped memory", "sleep", "printing", "threads", "link", "link to its source", "fifo"),
        *("folder", "large file", "raised limits"),
    ],
)
def test_what_has_no_end_is_ended(
    strong: Backend, table: Path, body: str, limits: dict[str, float], status: str, said: str
) -> None:
    start = time.monotonic()
    result = attack(body, table, strong, Limits(**{**vars(LIMITS), **limits}))
    assert result.status == status
    assert said in result.text
    assert len(result.text) < 20_000
    assert "root:" not in result.text
    assert time.monotonic() - start < 30


def test_hostile_archives_end_in_a_traceback(strong: Backend, table: Path) -> None:
    body = """
    import io, zipfile, numpy as np
    good = io.BytesIO()
    np.savez(good, x=np.zeros(9))
    claims = io.BytesIO()
    with zipfile.ZipFile(claims, "w") as archive:
        header = np.lib.format.header_data_from_array_1_0(np.zeros(1)) | {"shape": (1 << 44,)}
        member = io.BytesIO()
        np.lib.format.write_array_header_1_0(member, header)
        archive.writestr("x.npy", member.getvalue())
    for name, data in (("cut", good.getvalue()[:99]), ("claims", claims.getvalue())):
        try:
            np.load(io.BytesIO(data))["x"]
        except BaseException as error:
            print(name, type(error).__name__)
    """
    result = attack(body, table, strong)
    assert result.text == "--- printed ---\ncut BadZipFile\nclaims MemoryError\n"


def parquet() -> bytes:
    file = io.BytesIO()
    pd.DataFrame({"x": np.arange(1000)}).to_parquet(file)
    return file.getvalue()


def with_footer_length(length: int) -> bytes:
    whole = parquet()
    return whole[:-8] + struct.pack("<I", length) + whole[-4:]


@pytest.mark.parametrize(
    "data",
    [parquet()[:500], with_footer_length(1 << 31), b""],
    ids=["cut", "a vast footer", "empty"],
)
def test_a_hostile_table_is_refused(strong: Backend, data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("hostile") / "rollouts.parquet"
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"rollouts.parquet cannot be read for an analysis: \w"):
        attack("print('read it')", path, strong)


def test_numbers_that_lie_inside_a_table_do_no_harm(strong: Backend, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("hostile") / "rollouts.parquet"
    data = bytearray(parquet())
    footer = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    data[footer : footer + 200] = bytes(value ^ 0x7F for value in data[footer : footer + 200])
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"rollouts.parquet cannot be read"):
        attack("print('read it')", path, strong)
