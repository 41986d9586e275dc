"""What runs inside an analysis process. Started as a file; imports nothing of the package that started it.

The first byte it prints is `STARTED`: whatever comes after may be the analysis's own doing. The exit status tells how
it went; any other status means that the analysis ended the process itself. Nothing else is reported but text: what the
analysis wrote and printed, and a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import linecache
import os
import random
import sys
import traceback
import types
import warnings
from pathlib import Path
from typing import Any, NoReturn

STARTED = b"\x06"
FINISHED = 40
RAISED = 41
OUT_OF_MEMORY = 42
FILE_TOO_LARGE = 43
NO_TABLE = 44

_NAME = "analysis"
_LIBRARIES = sorted(filter(None, sys.path), key=len, reverse=True)


def main(table: str, code: str, failure: str) -> NoReturn:
    """Run an analysis in the working directory and end the process.

    Args:
        table: Path of a Parquet file.
        code: Path of the analysis's source.
        failure: Path to write a traceback to.
    """
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
    os.write(sys.stdout.fileno(), STARTED)
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
