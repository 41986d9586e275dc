"""A client for any chat window: it writes the question to a file and waits for the answer in another."""

from __future__ import annotations

import os
import time
from pathlib import Path

from jaxrefine.llm.client import (
    Completion,
    LLMError,
    Message,
    Notice,
    Request,
    describe,
    estimated_usage,
    print_notice,
)
from jaxrefine.llm.transcript import Exchange

_HEADINGS = {"system": "# System", "user": "# User", "assistant": "# Assistant"}


class MailboxClient:
    """Writes each request into a folder of its own and takes the reply that somebody puts beside it."""

    name = "mailbox"

    def __init__(
        self,
        folder: Path,
        poll_s: float = 1.0,
        timeout_s: float | None = None,
        on_notice: Notice = print_notice,
        model: str = "unknown (mailbox)",
    ) -> None:
        """Sets the mailbox up; the folder is made with the first request.

        Args:
            folder: Where the requests' folders go.
            poll_s: Seconds between two looks for the reply.
            timeout_s: Seconds to wait for one reply; None to wait for ever.
            on_notice: Told where each request lies.
            model: The model that will answer, as it shall stand in the record.
        """
        self.model = model
        self._folder = folder
        self._poll_s = poll_s
        self._timeout_s = timeout_s
        self._on_notice = on_notice
        self._answered = 0

    def complete(self, request: Request) -> Completion:
        """Waits for the reply to a request; one that lies there from an earlier start is taken at once.

        Raises:
            LLMError: The folder cannot be written or read, no reply came in time, or the reply there belongs to
                another request.
        """
        started = time.monotonic()
        number = self._answered + 1
        folder = self._folder / f"{number:03d}_{request.purpose}_round{request.round}_attempt{request.attempt}"
        try:
            self._write_request(folder, request_text(request.messages))
            text = self._wait(folder, request)
        except OSError as error:
            raise LLMError(
                f"the mailbox {folder} cannot be used ({error.strerror}); give the folder read and write permission, "
                "then resume the run with run=PATH"
            ) from error
        self._answered = number
        return Completion(
            text=text,
            usage=estimated_usage(request.messages, text),
            finish_reason="stop",
            latency=time.monotonic() - started,
            model=self.model,
        )

    def skip(self, exchange: Exchange) -> None:
        """Passes over a request that a resumed run has the answer to, so that the folders' numbers go on."""
        self._answered += 1

    def _write_request(self, folder: Path, text: str) -> None:
        path = folder / "request.md"
        data = text.encode("utf-8", "surrogatepass")
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            if path.read_bytes() == data:
                return
            if (folder / "reply.md").exists():
                raise LLMError(
                    f"{folder} holds a reply to another request than the one to be asked now: the program or its "
                    f"settings have changed since. Move {folder} away and resume, or start a new run directory"
                )
        temporary = folder / "request.md.tmp"
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def _wait(self, folder: Path, request: Request) -> str:
        path = folder / "reply.md"
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        before = self._settled_reply(path)
        if before is not None:
            return _decoded(before, path)
        self._on_notice(
            f"waiting for the reply to {describe(*request.place)}: give a model {folder / 'request.md'} and save its "
            f"whole reply as {path}"
        )
        while True:
            now = _read(path)
            # A reply still being written grows between two looks.
            if now is not None and now == before:
                return _decoded(now, path)
            before = now
            if deadline is not None and time.monotonic() >= deadline:
                raise LLMError(
                    f"no reply came to {describe(*request.place)} within {self._timeout_s:g} s; save it as {path} and "
                    "resume the run with run=PATH"
                )
            time.sleep(self._poll_s)

    def _settled_reply(self, path: Path) -> bytes | None:
        try:
            age = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            return None
        return _read(path) if age > self._poll_s else None


def request_text(messages: tuple[Message, ...]) -> str:
    """The messages as one text to paste: system text then user text; with headings once the turns alternate."""
    if [message.role for message in messages] in (["user"], ["system", "user"]):
        return "\n\n".join(message.content for message in messages)
    return "\n\n".join(f"{_HEADINGS[message.role]}\n\n{message.content}" for message in messages)


def _read(path: Path) -> bytes | None:
    """The reply, or None while there is none or nothing but white space."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return data if data.strip() else None


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LLMError(
            f"the reply {path} is not UTF-8 ({error}); save it as UTF-8 and resume the run with run=PATH"
        ) from error
