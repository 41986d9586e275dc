"""Run a model-written analysis over a table in a jailed child process; text comes back.

The jail (`jaxrefine.sandbox`) leaves it the table to read, a temporary working directory to write, and limits on time,
memory, file size, open files and threads. Here its environment is emptied, its output bounded, and its whole process
group killed at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from jaxrefine.analysis import child
from jaxrefine.analysis.check import check_analysis
from jaxrefine.analysis.excerpt import Excerpt
from jaxrefine.analysis.process import Ended, run_group
from jaxrefine.errors import UserError
from jaxrefine.sandbox import Backend, Jail, choose

__all__ = ["AnalysisResult", "Limits", "check_analysis", "run_analysis"]

RESULTS = "test_results.txt"

_FAILURE = ".traceback"
_OPEN_FILES = 256

Status = Literal["ok", "error", "timeout", "memory", "output", "crash"]


@dataclass(frozen=True)
class Limits:
    """What an analysis may use.

    Attributes:
        wall_s: Seconds until it is killed.
        cpu_s: Seconds of processor time.
        memory_mb: Address space in MiB; pandas and scipy alone take about 650.
        output_kb: KiB of text that come back; of more, the head and the tail.
        file_mb: MiB that one file may have, and that it may print in all.
        processes: Threads beyond those the user runs already; processes too, where limits alone hold it.
    """

    wall_s: float = 60
    cpu_s: float = 60
    memory_mb: int = 4096
    output_kb: int = 64
    file_mb: int = 16
    processes: int = 64


@dataclass(frozen=True)
class AnalysisResult:
    """What came of an analysis.

    Attributes:
        status: "ok"; "error" (it raised, is no valid analysis, or wrote nothing); "timeout"; "memory"; "output"
            (too much); "crash" (it ended its own process).
        text: For the model: what it wrote to `test_results.txt`, then under headings what it printed, the traceback,
            and why it was stopped. Partial results are in it whatever the status.
        wall_s: Seconds it took, the start of its process included.
    """

    status: Status
    text: str
    wall_s: float


def run_analysis(
    code: str, table: Path, limits: Limits | None = None, backend: Backend | None = None
) -> AnalysisResult:
    """Call the `run_all(df)` of an analysis in a child process.

    Args:
        code: Python source; may use numpy, scipy and pandas.
        table: A Parquet file, given to `run_all` as a DataFrame.
        limits: The defaults if absent.
        backend: What holds it; the strongest there is if absent.

    Raises:
        UserError: The table cannot be read, or no process can be started.
    """
    limits = limits or Limits()
    backend = backend or choose()
    if (complaint := check_analysis(code)) is not None:
        return AnalysisResult("error", complaint, 0.0)
    if not table.is_file():
        raise UserError(f"the table {table} cannot be read for an analysis: there is no such file.")
    keep = limits.output_kb << 10
    with _scratch() as scratch:
        work, source = scratch / "work", scratch / "analysis.py"
        work.mkdir()
        source.write_text(code, encoding="utf-8")
        inputs = (table.resolve(), source)
        jail = Jail(
            read=inputs,
            write=(work,),
            memory_mb=limits.memory_mb,
            wall_s=limits.wall_s,
            cpu_s=limits.cpu_s,
            file_mb=limits.file_mb,
            open_files=_OPEN_FILES,
            tasks=limits.processes,
        )
        # Held open, so that the analysis cannot put another folder in its place.
        descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
        try:
            ended = run_group(
                backend.command(jail, (child.__file__, *map(str, inputs), str(work / _FAILURE))),
                folder=work,
                environment=_environment(work),
                wall_s=limits.wall_s,
                keep_bytes=keep,
                most_bytes=limits.file_mb << 20,
                mark=child.STARTED,
            )
            results = _excerpt_of(RESULTS, keep, limits, descriptor)
            trace = _excerpt_of(_FAILURE, keep, limits, descriptor)
        finally:
            os.close(descriptor)
    ended = replace(ended, status=backend.status(ended.status))
    if not ended.stdout.marked and ended.stopped is None and ended.status != -signal.SIGXCPU:
        # Nothing of the analysis has run yet, so this is none of its doing.
        if ended.status == child.NO_TABLE:
            raise UserError(f"the table {table} cannot be read for an analysis: {trace.text()}")
        raise UserError(f"no analysis can be started ({_how(ended.status)}): {ended.stderr.text().strip()}")
    status, verdict = _judge(ended, limits)
    if status == "ok" and not (results.total or ended.stdout.total):
        status, verdict = "error", f"run_all returned without writing {RESULTS} or printing anything."
    return AnalysisResult(status, _compose(results, ended, trace, verdict, keep), round(ended.wall_s, 3))


def _environment(home: Path) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "TMPDIR": str(home),
        "MPLBACKEND": "Agg",
        "PYTHONHASHSEED": "0",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "ARROW_IO_THREADS": "1",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"),
    }


@contextmanager
def _scratch() -> Iterator[Path]:
    try:
        folder = Path(tempfile.mkdtemp(prefix="jaxrefine-analysis-"))
    except OSError as error:
        raise UserError(
            f"no temporary folder can be made for an analysis: {error}. Free space or set TMPDIR."
        ) from error
    try:
        yield folder
    finally:
        with contextlib.suppress(RecursionError):
            shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            # Folders it locked, or nested deeper than Python's own remover goes.
            subprocess.run(["chmod", "-R", "u+rwX", str(folder)], stderr=subprocess.DEVNULL, check=False)
            subprocess.run(["rm", "-rf", str(folder)], stderr=subprocess.DEVNULL, check=False)


def _excerpt_of(name: str, keep: int, limits: Limits, folder: int) -> Excerpt:
    """Read a file that may be missing, or anything else that hostile code can put in its place."""
    excerpt = Excerpt(keep)
    with contextlib.suppress(OSError):
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                while excerpt.total <= limits.file_mb << 20 and (data := os.read(descriptor, 1 << 16)):
                    excerpt.feed(data)
        finally:
            os.close(descriptor)
    return excerpt


def _judge(ended: Ended, limits: Limits) -> tuple[Status, str]:
    """The status, and a sentence for the model where the traceback does not say it all."""
    if ended.stopped == "timeout":
        return "timeout", f"The analysis was stopped because it ran longer than {limits.wall_s:g} s."
    if ended.stopped == "output":
        return "output", f"The analysis was stopped because it printed more than {limits.file_mb} MiB."
    if ended.status == child.FINISHED:
        return "ok", ""
    if ended.status == child.RAISED:
        return "error", ""
    if ended.status == child.FILE_TOO_LARGE:
        return "output", f"The analysis wrote a file of more than {limits.file_mb} MiB."
    if ended.status == child.OUT_OF_MEMORY or "bad_alloc" in ended.stderr.text():
        return "memory", f"The analysis needed more than {limits.memory_mb} MiB of memory."
    if ended.status == -signal.SIGXCPU:
        return "timeout", f"The analysis was stopped because it used more than {limits.cpu_s:g} s of processor time."
    return "crash", f"The analysis ended its own process ({_how(ended.status)}) before run_all returned."


def _how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        # Real-time signals between the first and the last have no name.
        return f"signal {-status}"


def _compose(results: Excerpt, ended: Ended, trace: Excerpt, verdict: str, keep: int) -> str:
    """One text of about `keep` bytes: the traceback is short and tells most, so it is served first."""
    traceback_bytes = min(trace.total, keep // 4)
    stderr_bytes = min(ended.stderr.total, keep // 8)
    left = keep - traceback_bytes - stderr_bytes
    stdout_bytes = min(ended.stdout.total, max(left // 3, left - results.total))
    sections = [results.text(left - stdout_bytes).strip("\n")]
    for heading, excerpt, size in (
        ("printed", ended.stdout, stdout_bytes),
        ("standard error", ended.stderr, stderr_bytes),
        ("traceback", trace, traceback_bytes),
    ):
        if text := excerpt.text(size).strip("\n"):
            sections.append(f"--- {heading} ---\n{text}")
    if verdict:
        sections.append(f"--- outcome ---\n{verdict}")
    return "\n\n".join(section for section in sections if section) + "\n"
