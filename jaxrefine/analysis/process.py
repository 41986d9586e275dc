"""Run a command as a process group of its own, with a deadline and a bounded reader."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from jaxrefine.analysis.excerpt import Excerpt
from jaxrefine.errors import UserError

_CHUNK = 1 << 16
_TICK_S = 0.05
_LAST_WORDS = 1 << 20
_DYING_S = 1.0


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: Its exit status; minus the signal's number if a signal killed it.
        stopped: Why it was killed from here, if it was.
        stdout: What it printed, `marked` if the mark came first.
        stderr: What it printed to standard error.
        wall_s: Seconds from its start to its end.
    """

    status: int
    stopped: Literal["timeout", "output"] | None
    stdout: Excerpt
    stderr: Excerpt
    wall_s: float


def run_group(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    wall_s: float,
    keep_bytes: int,
    most_bytes: int,
    mark: bytes,
) -> Ended:
    """Run a command to its end or its deadline, then kill all that is left of its process group.

    Args:
        command: Program and arguments; its standard input is empty.
        folder: Its working directory.
        environment: All of its environment.
        wall_s: Seconds until it is killed.
        keep_bytes: Bytes kept of each of its two outputs.
        most_bytes: Bytes it may print in all before it is killed.
        mark: One byte that it prints first, if all is well.

    Raises:
        UserError: The process cannot be started.
    """
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(f"cannot start a process for an analysis: {error}. Free memory or processes.") from error
    assert process.stdout is not None
    assert process.stderr is not None
    outputs = {process.stdout: Excerpt(keep_bytes, mark), process.stderr: Excerpt(keep_bytes)}
    try:
        stopped = _watch(process, outputs, start + wall_s, most_bytes)
    finally:
        # Also when the reading process is interrupted: nothing may outlive this call.
        _kill_group(process.pid)
        status = process.wait()
        for pipe, excerpt in outputs.items():
            _drain(pipe, excerpt)
            pipe.close()
    return Ended(status, stopped, outputs[process.stdout], outputs[process.stderr], time.monotonic() - start)


def _watch(
    process: subprocess.Popen[bytes], outputs: Mapping[IO[bytes], Excerpt], deadline: float, most_bytes: int
) -> Literal["timeout", "output"] | None:
    with selectors.DefaultSelector() as selector:
        for pipe in outputs:
            selector.register(pipe, selectors.EVENT_READ)
        # The end of the process counts, not the end of its pipes: a process it left behind may hold those open.
        while process.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout"
            for key, _ in selector.select(min(left, _TICK_S)):
                pipe = next(pipe for pipe in outputs if pipe is key.fileobj)
                data = os.read(key.fd, _CHUNK)
                outputs[pipe].feed(data)
                if not data:
                    selector.unregister(pipe)
            if sum(excerpt.total for excerpt in outputs.values()) > most_bytes:
                return "output"
    return None


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _drain(pipe: IO[bytes], excerpt: Excerpt) -> None:
    """Read what is left, until all that could write more of it is gone."""
    start, deadline = excerpt.total, time.monotonic() + _DYING_S
    while excerpt.total - start < _LAST_WORDS:
        readable, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not readable or not (data := os.read(pipe.fileno(), _CHUNK)):
            return
        excerpt.feed(data)
