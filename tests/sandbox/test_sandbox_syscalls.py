from __future__ import annotations

import errno
import json
import os
import platform
import re
from pathlib import Path

import pytest
from sandbox_jailed import Jailed

from jaxrefine.sandbox import Backend, Jail
from jaxrefine.sandbox.syscalls import ALWAYS, LAST_NUMBER, NUMBERS, seccomp_policy

X86_64 = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
# What aarch64 takes its numbers from.
GENERIC = Path("/usr/include/asm-generic/unistd.h")
# The generic numbering has no calls that newer ones replace, nor those of the x86 processor.
ONLY_X86_64 = {
    *("fork", "vfork", "chmod", "chown", "lchown", "utime", "utimes", "futimesat", "uselib"),
    *("iopl", "ioperm", "modify_ldt"),
}

RAW = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
results = {}
for number in json.loads(sys.argv[1]):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
    results[number] = ctypes.get_errno() if result == -1 else 0
print(json.dumps(results))
"""


@pytest.mark.parametrize(("header", "column"), [(X86_64, 0), (GENERIC, 1)], ids=["x86_64", "aarch64"])
def test_numbers_are_the_kernels(header: Path, column: int) -> None:
    if not header.exists():
        pytest.skip(f"no {header}")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(), re.MULTILINE)
    kernel = {name: int(number) for name, number in found}
    missing = ONLY_X86_64 if column == 1 else set()
    assert {name: numbers[column] for name, numbers in NUMBERS.items()} == {
        name: None if name in missing else kernel[name] for name in NUMBERS
    }


def test_each_denied_call_fails(strong: Backend, jailed: Jailed) -> None:
    policy = seccomp_policy(processes=False)
    expected = {rule[0]: rule[1] for rule in policy["rules"] if rule[2] is None}
    expected[LAST_NUMBER + 2] = errno.ENOSYS
    ended = jailed(strong, RAW, json.dumps(list(expected)))
    assert ended.stderr == ""
    assert {int(number): error for number, error in json.loads(ended.stdout).items()} == expected
    assert len(expected) > len(ALWAYS) - len(ONLY_X86_64)


CONDITIONAL = """
import ctypes, fcntl, os, resource, signal, sys, termios, threading
host = int(sys.argv[1])

def denied(attempt):
    try:
        attempt()
    except PermissionError:
        return True
    return False

libc = ctypes.CDLL(None, use_errno=True)
def prctl(option):
    if libc.prctl(option, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")

file = open("file", "w")
forbidden = {
    "signal": lambda: os.kill(host, 0),
    "signal the group": lambda: os.kill(0, 0),
    "signal all": lambda: os.kill(-1, 0),
    "limit": lambda: resource.prlimit(host, resource.RLIMIT_NOFILE),
    "processors": lambda: os.sched_setaffinity(host, {0}),
    "owner": lambda: fcntl.fcntl(file, fcntl.F_SETOWN, host),
    "signal of a file": lambda: fcntl.fcntl(file, fcntl.F_SETSIG, 9),
    "typing": lambda: fcntl.ioctl(file, termios.TIOCSTI, b"x"),
    "end with the starter": lambda: prctl(1),
}
allowed = {
    "signal itself": lambda: os.kill(os.getpid(), 0),
    "signal a thread": lambda: signal.pthread_kill(threading.get_ident(), 0),
    "limit itself": lambda: resource.prlimit(0, resource.RLIMIT_NOFILE),
    "its processors": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    "a lock": lambda: fcntl.lockf(file, fcntl.LOCK_EX),
    "a thread": lambda: threading.Thread(target=int).start(),
}
print([name for name, attempt in forbidden.items() if not denied(attempt)])
print([name for name, attempt in allowed.items() if denied(attempt)])
"""


def test_calls_that_are_judged_by_their_arguments(strong: Backend, jailed: Jailed) -> None:
    ended = jailed(strong, CONDITIONAL, os.getpid())
    assert (ended.stdout, ended.stderr) == ("[]\n[]\n", "")


def test_new_namespaces_are_denied_to_those_that_may_start_processes(strong: Backend, jailed: Jailed) -> None:
    program = """
    import ctypes, errno, os, platform
    libc = ctypes.CDLL(None, use_errno=True)
    clone = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    for namespace in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        if (made := libc.syscall(clone, 17 | namespace, 0, 0, 0, 0)) == 0:
            os._exit(0)
        print(made, ctypes.get_errno() == errno.EPERM)
    """
    ended = jailed(strong, program, jail=Jail(processes=True))
    assert ended.stdout == "-1 True\n" * 7


@pytest.mark.skipif(platform.machine() != "x86_64", reason="another architecture's calls exist on x86_64")
@pytest.mark.parametrize("way", ["x32", "i386"])
def test_calls_of_another_architecture_end_the_process(strong: Backend, jailed: Jailed, way: str) -> None:
    program = """
    import ctypes, mmap, sys
    if sys.argv[1] == "x32":
        ctypes.CDLL(None).syscall(0x40000000 | 39)
    else:
        # mov eax, 20 (getpid); int 0x80; ret
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(bytes.fromhex("b814000000cd80c3"))
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    print("went on")
    """
    ended = jailed(strong, program, way)
    assert ended.stdout == ""
    assert strong.status(ended.returncode) == -31  # SIGSYS
