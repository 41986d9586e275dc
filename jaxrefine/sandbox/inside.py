"""What runs first inside a jail: it gives up rights for good, then runs the program in this same process.

Started as a file; imports nothing of the package that started it. What to give up comes as JSON:
`limits` (see `_limit`), `path` (folders to import from), and where the jail is a strong one `seccomp` (see
`_filter_calls`), and `landlock`: a list of paths, each with "read", "run", "write" or "device".
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import json
import os
import resource
import runpy
import signal
import struct
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_MB = 1 << 20
_ORPHAN_GRACE_S = 2.0

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 22, 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_MOST_CAPABILITIES = 64
_CAPSET = {"x86_64": 126, "aarch64": 91}

_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_VERSION, _LANDLOCK_PATH_BENEATH = 1, 1
# The first version that also forbids emptying a file that may only be read.
_LEAST_LANDLOCK = 3

_LOAD_WORD, _JUMP, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_BITS, _RETURN = 0x20, 0x05, 0x15, 0x25, 0x45, 0x06
_KILL, _ERROR, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32_BIT = 0x40000000


def main(told: str, *python: str) -> None:
    """Apply what the first argument says, then run `-m module ...` or `path ...` as the main program."""
    how = json.loads(told)
    _limit(**how["limits"])
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if "seccomp" in how:
        _drop_capabilities()
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        if "landlock" in how:
            _confine(how["landlock"])
        _filter_calls(**how["seccomp"])
    sys.path += [folder for folder in how["path"] if folder not in sys.path]
    sys.meta_path.append(_Unlisted())
    if python[0] == "-m":
        sys.argv = list(python[1:])
        runpy.run_module(python[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(python)
        runpy.run_path(python[0], run_name="__main__")


class _Unlisted:
    """Finds packages and modules by name in folders that may be searched but not listed, which Python's own does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if path is not None:
            return None
        for folder in sys.path:
            for file in (Path(folder, fullname, "__init__.py"), Path(folder, f"{fullname}.py")):
                if file.is_file():
                    return importlib.util.spec_from_file_location(fullname, file)
        return None


def _limit(wall_s: float | None = None, cpu_s: float | None = None, **most: int) -> None:
    if wall_s is not None:
        # Should the process that started this one be killed, nobody else would end it.
        signal.setitimer(signal.ITIMER_REAL, wall_s + _ORPHAN_GRACE_S)
    if cpu_s is not None:
        _lower(resource.RLIMIT_CPU, max(1, round(cpu_s)), spare=2)
    _lower(resource.RLIMIT_CORE, 0)
    for name, limit, unit in (
        ("file_mb", resource.RLIMIT_FSIZE, _MB),
        ("open_files", resource.RLIMIT_NOFILE, 1),
        ("memory_mb", resource.RLIMIT_AS, _MB),
        ("data_mb", resource.RLIMIT_DATA, _MB),
        ("tasks", resource.RLIMIT_NPROC, 1),
    ):
        # Elsewhere address space is not a measure of memory.
        if name in most and (sys.platform == "linux" or name not in ("memory_mb", "tasks")):
            _lower(limit, most[name] * unit)


def _lower(limit: int, value: int, spare: int = 0) -> None:
    """Lower a limit; the signal that warns comes at `value`, the one that kills `spare` later."""
    _, hard = resource.getrlimit(limit)
    most = value + spare if hard == resource.RLIM_INFINITY else min(value + spare, hard)
    resource.setrlimit(limit, (min(value, most), most))


def _drop_capabilities() -> None:
    for capability in range(_MOST_CAPABILITIES):
        # Fails past the last one, and for those who have none to drop.
        _LIBC.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    _call(_CAPSET[os.uname().machine], struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24))


def _confine(places: list[tuple[str, str]]) -> None:
    """Leave this thread, and all that it starts, no files but these."""
    version = _call(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    if version < _LEAST_LANDLOCK:
        raise OSError(f"Landlock is of version {version}; {_LEAST_LANDLOCK} is the least that holds")
    run, write_file, read_file, read_folder = (1 << bit for bit in range(4))
    make_device = 1 << 6 | 1 << 11
    truncate, control_device = 1 << 14, 1 << 15
    handled = (1 << (16 if version >= 5 else 15)) - 1
    rights = {
        "read": read_file | read_folder,
        "run": read_file | read_folder | run,
        "write": handled & ~(make_device | run | control_device),
        "device": read_file | read_folder | write_file | control_device,
    }
    of_files = run | write_file | read_file | truncate | control_device
    network = 0b11 if version >= 4 else 0
    scoped = 0b11 if version >= 6 else 0
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _call(_LANDLOCK_CREATE_RULESET, struct.pack("=QQQ", handled, network, scoped), size, 0)
    for path, kind in places:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = rights[kind] & handled & (-1 if Path(path).is_dir() else of_files)
        _call(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_PATH_BENEATH, struct.pack("=Qi", allowed, place), 0)
        # The kernel forgets a process's folder in /proc, and the rule with it, unless it is held open.
        if path != "/proc/self":
            os.close(place)
    _call(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _filter_calls(architecture: int, last_number: int, rules: list[list[Any]]) -> None:
    """Deny system calls from now on.

    Args:
        architecture: The only one whose calls are let through at all.
        last_number: Calls with greater numbers do not exist.
        rules: Number, error, and index of an argument, test ("one of", "none of", "any bit", "no bit") and values, of
            which "self" stands for this process's id; or None three times.
    """
    program = [
        _step(_LOAD_WORD, _ARCHITECTURE_AT),
        _step(_JUMP_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD_WORD, _NUMBER_AT),
        _step(_JUMP_BITS, _X32_BIT, 0, 1),
        _step(_RETURN, _KILL),
        _step(_JUMP_GREATER, last_number, 0, 1),
        _step(_RETURN, _ERROR | errno.ENOSYS),
    ]
    for number, error, argument, test, values in rules:
        body = [_step(_RETURN, _ERROR | error)]
        if argument is not None:
            own = [os.getpid() if value == "self" else value for value in values]
            # The low half: the kernel reads no more of these arguments. The number is what the next rule looks at.
            body = [
                _step(_LOAD_WORD, _ARGUMENTS_AT + 8 * argument),
                *_test(test, own),
                *body,
                _step(_LOAD_WORD, _NUMBER_AT),
            ]
        program += [_step(_JUMP_EQUAL, number, 0, len(body)), *body]
    program.append(_step(_RETURN, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(program))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))


def _test(test: str, values: list[int]) -> list[bytes]:
    """Go on to the next step if the test of the loaded word holds, else jump over it."""
    jump = _JUMP_BITS if test.endswith("bit") else _JUMP_EQUAL
    hit, miss = (0, 1) if test in ("one of", "any bit") else (1, 0)
    last = len(values) - 1
    return [_step(jump, value, last - index + hit, 0 if index < last else miss) for index, value in enumerate(values)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _prctl(option: int, *arguments: Any) -> None:
    padded = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in (*arguments, 0, 0, 0, 0)[:4]]
    _checked(_LIBC.prctl(option, *padded), "prctl")


def _call(number: int, *arguments: Any) -> int:
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(_LIBC.syscall(ctypes.c_long(number), *wide), f"system call {number}")


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


_LIBC = ctypes.CDLL(None, use_errno=True)

if __name__ == "__main__":
    main(*sys.argv[1:])
