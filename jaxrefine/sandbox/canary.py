"""What a strong jail must not let through, tried from within one. Started as a file; prints what it could do, as JSON.

The environment variable of the name below tells this process's own environment from its starter's.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

MARK = "JAXREFINE_CANARY"


def main(secret: str, outside: str, starter: str, work: str) -> None:
    """Try it all.

    Args:
        secret: A file that must not be readable.
        outside: A folder that nothing may be written to.
        starter: Id of the process whose environment must not be readable.
        work: A folder that must be writable.
    """
    escapes = [
        ("read a file", lambda: Path(secret).read_bytes()),
        ("write a file", lambda: Path(outside, "written").write_bytes(b"")),
        ("rename a file", lambda: Path(secret).rename(Path(work, "secret"))),
        ("change a file's mode", lambda: Path(secret).chmod(0o777)),
        ("read an environment", lambda: _environment_of(starter)),
        ("open a socket", socket.socket),
        ("open a local socket", lambda: socket.socket(socket.AF_UNIX)),
        ("start a process", lambda: os.fork() or os._exit(0)),
        ("run a program", lambda: os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})),
        ("signal a process", lambda: os.kill(int(starter), 0)),
    ]
    Path(work, "written").write_bytes(b"")
    print(json.dumps([name for name, attempt in escapes if _succeeds(attempt)]))


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _environment_of(process: str) -> None:
    if f"{MARK}=".encode() in Path("/proc", process, "environ").read_bytes():
        raise PermissionError("a process of the jail that has the same id")


if __name__ == "__main__":
    main(*sys.argv[1:])
