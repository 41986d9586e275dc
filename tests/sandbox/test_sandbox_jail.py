from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_jailed import Jailed

from jaxrefine.errors import UserError
from jaxrefine.sandbox import Backend, Jail
from jaxrefine.sandbox.choice import STRONG, weakness
from jaxrefine.sandbox.places import PROJECT

TRY = """
import os, sys
from pathlib import Path
key, outside, readable, host = sys.argv[1:]

def attempt(name, function):
    try:
        function()
    except OSError as error:
        return
    print(name)

def environment():
    if b"MARK=of the jail" in Path("/proc", host, "environ").read_bytes():
        raise PermissionError

attempt("read the home folder's file", lambda: Path(key).read_bytes())
attempt("read a file elsewhere", lambda: Path(outside, "key").read_bytes())
attempt("reach it by a link", lambda: (os.symlink(outside, "link"), Path("link", "key").read_bytes()))
attempt("reach it by a hard link", lambda: os.link(Path(outside, "key"), "hard"))
attempt("reach it by a descriptor", lambda: Path("/proc/self/root", outside[1:], "key").read_bytes())
attempt("list it", lambda: os.listdir(outside))
attempt("write elsewhere", lambda: Path(outside, "new").write_text("x"))
attempt("write to /tmp", lambda: Path("/tmp/jaxrefine-escape").write_text("x"))
attempt("write to shared memory", lambda: Path("/dev/shm/jaxrefine-escape").write_text("x"))
attempt("write to the root", lambda: Path("/jaxrefine-escape").write_text("x"))
attempt("write what it may read", lambda: Path(readable).write_text("x"))
attempt("empty what it may read", lambda: os.truncate(readable, 0))
attempt("empty it in opening", lambda: os.open(readable, os.O_RDONLY | os.O_TRUNC))
attempt("remove what it may read", lambda: os.unlink(readable))
attempt("replace what it may read", lambda: (Path("mine").write_text("x"), os.replace("mine", readable)))
attempt("change its mode", lambda: os.chmod(readable, 0o777))
attempt("change its mode by a descriptor", lambda: os.fchmod(os.open(readable, os.O_RDONLY), 0o777))
attempt("change its times", lambda: os.utime(readable, (0, 0)))
attempt("change an attribute", lambda: os.setxattr(readable, "user.x", b"x"))
attempt("write to a package", lambda: Path(os.__file__).with_name("escape.py").write_text("x"))
attempt("write another's memory", lambda: open(f"/proc/{os.getppid()}/mem", "r+b"))
attempt("read another's environment", environment)
attempt("open a device", lambda: open("/dev/kmsg"))
attempt("make a device", lambda: os.mknod("device", 0o020666, os.makedev(1, 3)) or open("device"))
assert Path(readable).read_text() == "table"
Path("mine").write_text("x"); os.mkdir("folder"); os.rename("mine", "folder/mine"); os.remove("folder/mine")
"""


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Path, Path, Path]]:
    """A file in the home folder, a folder with a file `key`, and a file that the jail may read."""
    key, outside, readable = Path.home() / f".jaxrefine-test-{os.getpid()}", tmp_path / "outside", tmp_path / "readable"
    outside.mkdir()
    for file in (key, outside / "key"):
        file.write_text("secret")
    readable.write_text("table")
    yield key, outside, readable
    key.unlink()


def test_nothing_is_read_or_written_but_what_the_jail_says(
    strong: Backend, jailed: Jailed, places: tuple[Path, Path, Path]
) -> None:
    _, outside, readable = places
    ended = jailed(strong, TRY, *places, os.getpid(), jail=Jail(read=(readable,)))
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)
    assert readable.read_text() == "table"
    assert [path.name for path in outside.iterdir()] == ["key"]


def test_the_same_attempts_to_read_succeed_under_limits_alone(jailed: Jailed, places: tuple[Path, Path, Path]) -> None:
    # Else the test above could pass because the attempts are no good.
    program = TRY.split('attempt("write elsewhere"')[0] + 'attempt("environment", environment)'
    ended = jailed(Backend(), program, *places, os.getpid())
    assert len(ended.stdout.splitlines()) == 7


NETWORK = """
import socket
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET, 40):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind)
        except PermissionError:
            continue
        except OSError as error:
            print(family, kind, error)
        else:
            print(family, kind)
try:
    print(socket.socketpair())
except PermissionError:
    pass
"""


def test_there_is_no_network(strong: Backend, jailed: Jailed) -> None:
    ended = jailed(strong, NETWORK)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)


PROCESSES = """
import os, subprocess, sys
for attempt in (
    os.fork,
    os.forkpty,
    lambda: os.execv("/usr/bin/env", ["env"]),
    lambda: os.posix_spawn("/usr/bin/env", ["env"], {}),
    lambda: subprocess.run(["/usr/bin/env"]),
    lambda: os.system("env"),
    os.setsid,
    lambda: os.setpgid(0, 0),
):
    try:
        result = attempt()
    except OSError:
        continue
    # What the shell says of a program that it could not start.
    if result not in (-1, 127 << 8):
        print(attempt, result)
"""


def test_no_process_is_started(strong: Backend, jailed: Jailed) -> None:
    ended = jailed(strong, PROCESSES)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)


def test_processes_that_are_allowed_are_held_too(strong: Backend, jailed: Jailed, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    program = """
    import subprocess, sys
    key = sys.argv[1]
    print(subprocess.run(["/usr/bin/env"], env={"A": "1"}, capture_output=True, text=True).stdout)
    print(subprocess.run(["/bin/cat", key], capture_output=True, text=True).stdout)
    print(subprocess.run(["/bin/sh", "-c", "echo x > " + key], capture_output=True, text=True).returncode)
    code = "import socket; socket.socket()"
    print("PermissionError" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr)
    """
    ended = jailed(strong, program, tmp_path / "key", jail=Jail(processes=True))
    assert ended.stdout.split() == ["A=1", "2" if _dash() else "1", "True"], ended.stderr
    assert (tmp_path / "key").read_text() == "secret"


def _dash() -> bool:
    return Path("/bin/sh").resolve().name == "dash"


def test_rights_of_the_superuser_are_gone(strong: Backend, jailed: Jailed) -> None:
    program = """
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print({status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}, status["NoNewPrivs"].strip())
    """
    assert jailed(strong, program).stdout == "{'0000000000000000'} 1\n"


def test_a_module_of_this_project_runs_as_the_main_program(any_backend: Backend) -> None:
    command = any_backend.command(Jail(), ("-m", "jaxrefine.sandbox.canary"))
    ended = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, check=False)
    assert "main() missing 4 required positional arguments" in ended.stderr


def test_of_the_projects_folder_only_its_packages_are_seen(strong: Backend, jailed: Jailed) -> None:
    if PROJECT.name in ("site-packages", "dist-packages"):
        pytest.skip("installed among the packages")
    program = f"""
    import jaxrefine.errors
    try:
        print(sorted(set(__import__("os").listdir({str(PROJECT)!r})) - {{"jaxrefine", "envs", "prompts", ".venv"}}))
        open({str(PROJECT / "pyproject.toml")!r})
    except OSError as error:
        print("[]")
    """
    assert set(jailed(strong, program).stdout.split()) == {"[]"}


def test_links_to_what_may_be_read_lead_there(strong: Backend, jailed: Jailed, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("found")
    (tmp_path / "alias").symlink_to("real")
    program = "import sys; print(open(sys.argv[1]).read(), open(sys.argv[2]).read())"
    for place in ("alias", "real"):
        paths = (tmp_path / place / "file", tmp_path / "real" / "file")
        assert jailed(strong, program, *paths, jail=Jail(read=(tmp_path / place,))).stdout == "found found\n"


def test_a_folder_to_write_may_lie_in_one_to_read(strong: Backend, jailed: Jailed, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "scratch").mkdir(parents=True)
    program = """
    import os, sys
    open(sys.argv[1] + "/scratch/new", "w").write("x")
    try:
        open(sys.argv[1] + "/new", "w")
    except OSError:
        print("kept")
    """
    ended = jailed(strong, program, run, jail=Jail(read=(run,), write=(run / "scratch",)))
    assert (ended.stdout, ended.stderr) == ("kept\n", "")
    assert (run / "scratch" / "new").read_text() == "x"


def test_a_place_that_does_not_exist_is_the_users_matter(tmp_path: Path) -> None:
    for jail in (Jail(read=(tmp_path / "no",)), Jail(write=(tmp_path / "no",))):
        with pytest.raises(UserError, match=r"no does not exist"):
            Backend().command(jail, ("x.py",))


@pytest.mark.parametrize(
    ("program", "jail", "status", "said"),
    [
        ("x = bytearray(1 << 34)", Jail(memory_mb=512), 1, "MemoryError"),
        ("x = bytearray(1 << 34)", Jail(data_mb=512), 1, "MemoryError"),
        ("while True: pass", Jail(cpu_s=1), -signal.SIGXCPU, ""),
        ("while True: pass", Jail(wall_s=-1.9), -signal.SIGALRM, ""),
        ("open('f', 'wb').write(bytes(2 << 20))", Jail(file_mb=1), 1, "File too large"),
        ("x = [open('f', 'wb') for _ in range(99)]", Jail(open_files=64), 1, "Too many open files"),
        ("import os; os._exit(7)", Jail(), 7, ""),
        ("import os; os.abort()", Jail(), -signal.SIGABRT, ""),
        ("import ctypes; ctypes.string_at(0)", Jail(), -signal.SIGSEGV, ""),
        ("import os; os.kill(os.getpid(), 9)", Jail(), -signal.SIGKILL, ""),
    ],
)
def test_limits_and_ends(
    any_backend: Backend, jailed: Jailed, program: str, jail: Jail, status: int, said: str
) -> None:
    ended = jailed(any_backend, program, jail=jail)
    assert any_backend.status(ended.returncode) == status, ended.stderr
    assert said in ended.stderr


def test_it_ends_with_whoever_started_it(any_backend: Backend, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import time\nprint('up', flush=True)\ntime.sleep(60)")
    command = any_backend.command(Jail(read=(program,)), (str(program),))
    code = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], start_new_session=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"up\n"
        starter.kill()
        start = time.monotonic()
        # Ends when nobody holds the pipe any more.
        assert starter.stdout.read() == b""
        assert time.monotonic() - start < 10


def test_killing_the_group_ends_all_of_it(strong: Backend, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, time\nos.fork()\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for attempt in (os.setsid, lambda: os.setpgid(0, 0)):\n    try: attempt()\n    except OSError: pass\n"
        "os.write(1, b'up\\n')\ntime.sleep(60)"
    )
    command = strong.command(Jail(read=(program,), processes=True), (str(program),))
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout.read() in (b"", b"up\n")


def test_an_ordinary_users_jail_holds_too() -> None:
    if os.getuid() != 0:
        pytest.skip("the other tests run as an ordinary user")
    user = {"user": 65534, "group": 65534, "extra_groups": []}
    code = """
import sys
if sys.version_info < (3, 11):
    sys.exit("no new enough Python")
from jaxrefine.sandbox.choice import STRONG, weakness
print(*(f"{backend.name}: {weakness(backend)}" for backend in STRONG), sep="\\n")
"""
    try:
        # Not this Python: it may lie in the superuser's home folder.
        ended = subprocess.run(
            ["/usr/bin/python3", "-B", "-c", code],
            env={"PYTHONPATH": str(PROJECT), "PATH": os.environ["PATH"]},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            **user,
        )
    except OSError as error:
        pytest.skip(f"no Python for an ordinary user: {error}")
    if "No module named" in ended.stderr or "no new enough" in ended.stderr:
        pytest.skip(f"an ordinary user does not reach this project: {ended.stderr}")
    assert "let a process" not in ended.stdout
    for backend in STRONG:
        # An administrator may leave namespaces, which bubblewrap needs, to root alone.
        if backend.name != "bubblewrap":
            assert f"{backend.name}: {weakness(backend)}\n" in ended.stdout, ended.stderr
