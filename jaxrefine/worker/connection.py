"""The host's end of the channel to a process that is not trusted: it may say anything, hang, or die."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from jaxrefine.errors import UserError
from jaxrefine.worker.calls import MOST_BYTES, Form, NoReplyError, Reply, plain, read_reply

_CHUNK = 1 << 18
_TICK_S = 0.2
_LAST_WORDS = 2000
_DYING_S = 10.0


class ProcessEndedError(Exception):
    """Why the process is gone: the end of a sentence that begins with what it did.

    Attributes:
        own: whether it ended by itself and was not killed from here.
    """

    def __init__(self, reason: str, own: bool = False) -> None:
        super().__init__(reason)
        self.own = own


class BrokenProtocolError(ProcessEndedError):
    """It was killed, alive, for what it said: a line that is no reply, or none of its call's form."""


class Connection:
    """A process that answers one request after the other."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        memory_mb: int,
        status: Callable[[int], int],
    ) -> None:
        """Start it.

        Args:
            command: program and arguments.
            folder: its working directory.
            environment: all of its environment.
            memory_mb: MiB of resident memory, with the processes it started, beyond which it is killed.
            status: how the process ended, from how the command did: its exit status, or minus a signal's number.

        Raises:
            UserError: it cannot be started.
        """
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,  # an interrupt of the terminal is the host's to answer
            )
        except OSError as error:
            raise UserError(f"cannot start the worker process: {error}. Free memory or processes.") from error
        self._requests, self._replies, self._errors = _pipes(self._process)
        os.set_blocking(self._requests.fileno(), False)
        self._memory_mb = memory_mb
        self._status = status
        self._buffer = bytearray()
        self._words = b""
        self._number = -1

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self._replies.closed and self._process.poll() is None

    @property
    def last_words(self) -> str:
        """The end of what it wrote to its standard error."""
        return plain(self._words.decode("utf-8", "replace")).strip()

    def ask(self, request: Mapping[str, Any], form: Form, wall_s: float | None, progress: Callable[..., None]) -> Reply:
        """Send a request and wait for its answer.

        Args:
            request: plain JSON values.
            form: of the result.
            wall_s: seconds after which the process is killed; None waits for ever.
            progress: called with (done, total).

        Returns:
            A reply that is no progress.

        Raises:
            ProcessEndedError: the process ended, or was killed for breaking a limit.
            BrokenProtocolError: it was killed for breaking the protocol.
        """
        self._number += 1
        line = json.dumps({"call": self._number, **request}).encode() + b"\n"
        try:
            for answer in self._lines(memoryview(line), wall_s):
                reply = read_reply(answer, self._number, form)
                if reply.kind != "progress":
                    return reply
                progress(*reply.value)
            raise self._ended()
        except NoReplyError as error:
            self.close()
            raise BrokenProtocolError(f"broke the protocol of its answers with {error}") from error
        except BaseException:
            # whatever went wrong, an interrupt included: an answer that comes now would be taken for the next one's
            self.close()
            raise

    def _lines(self, outgoing: memoryview, wall_s: float | None) -> Iterator[bytes]:
        """The lines that come while a request goes out and is worked on, until the process closes the channel."""
        deadline = None if wall_s is None else time.monotonic() + wall_s
        watched = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            selector.register(self._errors, selectors.EVENT_READ)
            selector.register(self._requests, selectors.EVENT_WRITE)
            while True:
                ready = [key.fileobj for key, _ in selector.select(_TICK_S)]
                now = time.monotonic()
                if deadline is not None and now > deadline:
                    raise ProcessEndedError(f"was stopped after {wall_s:g} s")
                if now - watched > _TICK_S:
                    watched = now
                    self._watch_memory()
                if self._requests in ready:
                    try:
                        outgoing = outgoing[os.write(self._requests.fileno(), outgoing) :]
                    except BrokenPipeError:
                        outgoing = outgoing[:0]
                    if not outgoing:
                        selector.unregister(self._requests)
                if self._errors in ready and not self._hear():
                    selector.unregister(self._errors)
                if self._replies in ready:
                    data = os.read(self._replies.fileno(), _CHUNK)
                    if not data:
                        return
                    yield from self._split(data)

    def _split(self, data: bytes) -> Iterator[bytes]:
        *whole, rest = data.split(b"\n")
        for part in whole:
            line = bytes(self._buffer) + part
            self._buffer.clear()
            yield line
        self._buffer += rest
        if len(self._buffer) > MOST_BYTES:
            raise NoReplyError(f"a line of more than {MOST_BYTES >> 20} MiB")

    def _watch_memory(self) -> None:
        if (resident := _resident_mb(self._process.pid)) > self._memory_mb:
            raise ProcessEndedError(
                f"was stopped, for it used {resident:,} MiB of memory and may use {self._memory_mb:,}"
            )

    def _ended(self) -> ProcessEndedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._status(self._process.wait(_DYING_S))
            os.set_blocking(self._errors.fileno(), False)
            with contextlib.suppress(BlockingIOError):
                self._hear()
            return ProcessEndedError(f"ended ({_describe(status)})", own=True)
        return ProcessEndedError("closed the channel of its answers", own=True)

    def _hear(self) -> bytes:
        words = os.read(self._errors.fileno(), _CHUNK)
        self._words = (self._words + words)[-_LAST_WORDS:]
        return words

    def close(self) -> None:
        """Kill the process and whatever it started; returns when they are gone. A second call does nothing."""
        if self._replies.closed:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._await_the_last()
        for pipe in (self._requests, self._replies, self._errors):
            pipe.close()

    def _await_the_last(self) -> None:
        """What was started in namespaces of its own dies after the process that was waited for; its pipes end then."""
        deadline = time.monotonic() + _DYING_S
        os.set_blocking(self._replies.fileno(), False)
        while time.monotonic() < deadline:
            try:
                if not os.read(self._replies.fileno(), _CHUNK):
                    return
            except BlockingIOError:
                time.sleep(0.01)


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    return process.stdin, process.stdout, process.stderr


def _describe(status: int) -> str:
    names = {-s.value: s.name for s in signal.Signals}
    return f"signal {-status}, {names[status]}" if status in names else f"exit status {status}"


def _resident_mb(process: int) -> int:
    """MiB that a process and those it started hold in memory; 0 where the system does not tell."""
    pages, waiting = 0, [str(process)]
    while waiting:
        folder = Path("/proc", waiting.pop())
        with contextlib.suppress(OSError):
            pages += int((folder / "statm").read_text().split()[1])
            for children in folder.glob("task/*/children"):
                with contextlib.suppress(OSError):
                    waiting += children.read_text().split()
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20
