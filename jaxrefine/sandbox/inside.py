"""What runs first inside a jail: it gives up rights, then runs the program in this same process.

Started as a file; imports nothing of the package that started it.
"""

from __future__ import annotations

import json
import resource
import runpy
import signal
import sys
from typing import Any

_MB = 1 << 20
_ORPHAN_GRACE_S = 2.0


def main(told: str, *python: str) -> None:
    """Apply what the first argument says, then run `-m module ...` or `path ...` as the main program."""
    how = json.loads(told)
    _limit(**how["limits"])
    sys.path += [folder for folder in how["path"] if folder not in sys.path]
    if python[0] == "-m":
        sys.argv = list(python[1:])
        runpy.run_module(python[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(python)
        runpy.run_path(python[0], run_name="__main__")


def _limit(wall_s: float | None = None, cpu_s: float | None = None, **most: Any) -> None:
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
        if name in most:
            _lower(limit, int(most[name]) * unit)


def _lower(limit: int, value: int, spare: int = 0) -> None:
    """Lower a limit; the signal that warns comes at `value`, the one that kills `spare` later."""
    _, hard = resource.getrlimit(limit)
    most = value + spare if hard == resource.RLIM_INFINITY else min(value + spare, hard)
    resource.setrlimit(limit, (min(value, most), most))


if __name__ == "__main__":
    main(*sys.argv[1:])
