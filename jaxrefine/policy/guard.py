"""Around everything that runs a program: its failures become paragraphs, and it ends in time."""

from __future__ import annotations

import linecache
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from jaxrefine.policy.errors import ProgramError

FILENAME = "policy.py"
_AGAIN = 1.0  # seconds until an interruption that was swallowed is repeated
_LONGEST = 600  # characters of a message that is not ours


@contextmanager
def complaints(doing: str) -> Iterator[None]:
    """Turn whatever a program raises into one paragraph that shows its own line."""
    try:
        yield
    except ProgramError:
        raise
    except Exception as error:
        message = str(error).strip().split("\n\n")[0].replace("\n", " ")[:_LONGEST]
        raise ProgramError(f"While {doing}{own_line(error)}: {type(error).__name__}: {message}") from error


def remember_lines(source: str) -> None:
    """Let tracebacks and complaints show the program's own lines."""
    linecache.cache[FILENAME] = (len(source), None, source.splitlines(keepends=True), FILENAME)


def own_line(error: BaseException) -> str:
    """The last line of the program that an error passed through, for a message; empty if there is none."""
    traceback, line = error.__traceback__, ""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == FILENAME:
            number = traceback.tb_lineno
            line = f", at line {number} `{linecache.getline(FILENAME, number).strip()[:200]}`"
        traceback = traceback.tb_next
    return line


@contextmanager
def deadline(seconds: float, doing: str) -> Iterator[None]:
    """Interrupt Python code that does not end, again and again until it does.

    Only a main thread can be interrupted; elsewhere there is no deadline. One long call into compiled code is
    interrupted only after it returns. A timer that was already running is put back with the time it has left.

    Args:
        seconds: time allowed.
        doing: what is interrupted, for the message: "The program ran for more than 20 s {doing}."
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if not over:
            raise ProgramError(f"The program ran for more than {seconds:g} s {doing}.")

    handler = signal.signal(signal.SIGALRM, interrupt)
    start = time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        try:
            yield
        finally:
            over = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - start), 1e-3), interval)
