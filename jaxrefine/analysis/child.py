"""What runs inside an analysis process. Started as a file; imports nothing of the package that started it.

The exit status tells how it went; any other status means that the analysis ended the process itself. Nothing else
is reported but text: what the analysis wrote and printed, and a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import linecache
import os
import random
import resource
import signal
import sys
import traceback
import types
import warnings
from pathlib import Path
from typing import Any, NoReturn

FINISHED = 40
RAISED = 41
OUT_OF_MEMORY = 42
FILE_TOO_LARGE = 43
NO_TABLE = 44

_NAME = "analysis"
_LIBRARIES = sorted(filter(None, sys.path), key=len, reverse=True)
_MB = 1 << 20
_ORPHAN_GRACE_S = 2.0


def main(table: str, code: str, failure: str, limits: str) -> NoReturn:
    """Run an analysis in the working directory and end the process.

    Args:
        table: Path of a Parquet file.
        code: Path of the analysis's source.
        failure: Path to write a traceback to.
        limits: JSON of `wall_s`, `cpu_s`, `memory_mb`, `file_mb`, `processes`.
    """
    _limit(**json.loads(limits))
    try:
        frame = _read(Path(table))
    except BaseException as error:
        Path(failure).write_text(f"{type(error).__name__}: {error}", encoding="utf-8", errors="backslashreplace")
        os._exit(NO_TABLE)
    source = Path(code).read_text(encoding="utf-8")
    module = types.ModuleType(_NAME)
    sys.modules[_NAME] = module
    sys.argv = [f"{_NAME}.py"]
    linecache.cache[f"{_NAME}.py"] = (len(source), None, source.splitlines(keepends=True), f"{_NAME}.py")
    status = FINISHED
    try:
        exec(compile(source, f"{_NAME}.py", "exec", dont_inherit=True), module.__dict__)
        module.__dict__["run_all"](frame)
    except BaseException as error:
        status = _status_of(error)
        if status == OUT_OF_MEMORY:
            # What filled the memory is held by the frames, and describing the error needs some.
            traceback.clear_frames(error.__traceback__)
        Path(failure).write_text(_describe(error), encoding="utf-8", errors="backslashreplace")
        traceback.clear_frames(error.__traceback__)
    # Files the analysis left open hold results that are not on the disk yet.
    module.__dict__.clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    # Past threads and exit handlers that the analysis may have left.
    os._exit(status)


def _limit(wall_s: float, cpu_s: float, memory_mb: int, file_mb: int, processes: int) -> None:
    # Should the process that started this one be killed, nobody else would end it.
    signal.setitimer(signal.ITIMER_REAL, wall_s + _ORPHAN_GRACE_S)
    _lower(resource.RLIMIT_CPU, max(1, round(cpu_s)), spare=2)
    _lower(resource.RLIMIT_FSIZE, file_mb * _MB)
    _lower(resource.RLIMIT_NOFILE, 256)
    _lower(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":
        _lower(resource.RLIMIT_AS, memory_mb * _MB)
        _lower(resource.RLIMIT_NPROC, _tasks_of_user() + processes)


def _lower(limit: int, value: int, spare: int = 0) -> None:
    """Lower a limit; the signal that warns comes at `value`, the one that kills `spare` later."""
    _, hard = resource.getrlimit(limit)
    most = value + spare if hard == resource.RLIM_INFINITY else min(value + spare, hard)
    resource.setrlimit(limit, (min(value, most), most))


def _tasks_of_user() -> int:
    """Threads that this user runs now: the kernel counts them all against the limit on processes."""
    user, count = os.getuid(), 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            fields = dict(line.split(":", 1) for line in status.read_text(errors="replace").splitlines() if ":" in line)
            if int(fields["Uid"].split()[0]) == user:
                count += int(fields["Threads"])
    return count


def _read(table: Path) -> Any:
    import numpy as np
    import pandas as pd
    import pyarrow.parquet as pq

    frame = pq.read_table(table, use_threads=False).to_pandas(use_threads=False)
    # The same analysis of the same table gives the same text.
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - analyses use the global generator
    warnings.simplefilter("ignore")
    pd.set_option("display.width", 160, "display.max_columns", 40, "display.max_rows", 100)
    return frame


def _status_of(error: BaseException) -> int:
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return FILE_TOO_LARGE
    return RAISED


def _describe(error: BaseException) -> str:
    """The traceback as Python prints it, from the analysis's first line on.

    Libraries are named from their package on, so that the text is the same on every machine.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    for folder in _LIBRARIES:
        text = text.replace(folder + os.sep, "")
    return text


if __name__ == "__main__":
    main(*sys.argv[1:])
