"""The run's own transcript: every exchange is on the disk before the run goes on with its answer."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrefine.llm.budget import Budget, Totals
from jaxrefine.llm.client import Client, Completion, Notice, Request, UnusableReplyError, describe, print_notice
from jaxrefine.llm.transcript import (
    Exchange,
    TranscriptError,
    Unusable,
    exchange_of,
    first_difference,
    header_line,
    parse_transcript,
    read_bytes,
    record_line,
    same_but_for_numbers,
)


class Recorder:
    """A client that records another one's answers and, in a resumed run, gives them again.

    A resumed run must ask everything anew from its beginning, in the same order: recorded answers are handed out
    until they are used up, and only then is the inner client asked. The file it writes can be played by
    `TranscriptClient`. One recorder writes one file; keeping other processes away is the run directory's task.

    Attributes:
        header: Where the conversation comes from, as it stands in the file.
        replayed: How many answers came from the file instead of the inner client.
    """

    def __init__(
        self,
        inner: Client,
        path: Path,
        header: Mapping[str, Any],
        budget: Budget | None = None,
        on_notice: Notice = print_notice,
    ) -> None:
        """Opens the transcript, or starts it.

        Args:
            inner: Who answers what is not recorded yet.
            path: The transcript to write, and to go on with if it is there.
            header: Provenance to put into a new file; a file that is there keeps its own.
            budget: Limits; one budget for one recorder. None for no limits.
            on_notice: Told when a line that a killed process left incomplete is cut off.

        Raises:
            TranscriptError: The file is damaged elsewhere than at its end, or cannot be read or written.
        """
        self.inner = inner
        self.header = dict(header)
        self.replayed = 0
        self._path = path
        self._budget = budget or Budget()
        self._records: tuple[Exchange | Unusable, ...] = ()
        self._next = 0
        self._on_notice = on_notice
        self._open(on_notice)

    @property
    def name(self) -> str:
        """Name of the provider that answers."""
        return self.inner.name

    @property
    def totals(self) -> Totals:
        """Calls, tokens and cost of the run so far, recorded answers included."""
        return self._budget.state

    def complete(self, request: Request) -> Completion:
        """The recorded answer if there is one, else the inner client's, recorded first.

        Raises:
            BudgetError: The budget is used up; the inner client was not asked.
            TranscriptError: The request is not the one that the file goes on with, or the file cannot be written.
            LLMError: The inner client has no answer.
        """
        recorded = self._take_recorded_failures()
        self._budget.check(None if recorded else getattr(self.inner, "model", None))
        if recorded is not None:
            return self._replay(recorded, request)
        try:
            completion = self.inner.complete(request)
        except UnusableReplyError as error:
            self._append(record_line(Unusable(*request.place, error.usage, error.model, str(error))))
            self._budget.spend(error.usage, error.model)
            raise
        self._append(record_line(exchange_of(request, completion)))
        self._budget.spend(completion.usage, completion.model)
        return completion

    @property
    def ahead(self) -> tuple[str, int, int] | None:
        """Purpose, round and attempt of the next exchange that is recorded, here or by who answers; else None."""
        for record in self._records[self._next :]:
            if isinstance(record, Exchange):
                return record.place
        return getattr(self.inner, "ahead", None)

    def recall(self, request: Request) -> Completion:
        """The recorded answer to a request that an earlier process has made; nobody is asked.

        Raises:
            TranscriptError: The file does not hold it, or goes on with another request.
        """
        recorded = self._take_recorded_failures()
        if recorded is None:
            raise TranscriptError(
                f"the run has used an answer to {describe(*request.place)} that its transcript {self._path} does not "
                "hold: the file was lost or cut. Restore it, or start a new run directory"
            )
        return self._replay(recorded, request)

    def _take_recorded_failures(self) -> Exchange | None:
        """Counts the failures recorded before the next answer, and gives that answer's record if there is one."""
        while self._next < len(self._records):
            record = self._records[self._next]
            if isinstance(record, Exchange):
                return record
            self._budget.spend(record.usage, record.model)
            self._next += 1
        return None

    def _replay(self, recorded: Exchange, request: Request) -> Completion:
        if recorded.place != request.place:
            difference = f"recorded is {describe(*recorded.place)}"
        elif not same_but_for_numbers(recorded.messages, request.messages):
            difference = first_difference(recorded.messages, request.messages)
        else:
            if recorded.key != request.key:
                self._on_notice(
                    f"a step that ran again gave other numbers than the ones answered before in "
                    f"{describe(*request.place)}; the recorded answer is used"
                )
            skip = getattr(self.inner, "skip", None)
            if skip is not None:
                skip(recorded)
            self._next += 1
            self.replayed += 1
            self._budget.spend(recorded.completion.usage, recorded.completion.model)
            return recorded.completion
        raise TranscriptError(
            f"the run asks for {describe(*request.place)} otherwise than its own transcript {self._path} goes on "
            f"({difference}): the program or its settings have changed since the run was started. Resume it with "
            "those it was started with, or start a new run directory"
        )

    def _open(self, on_notice: Notice) -> None:
        if not self._path.exists():
            self._start()
            return
        data = read_bytes(self._path)
        whole, newline, torn = data.rpartition(b"\n")
        kept = whole + newline
        if torn:
            # A prefix of a JSON object never parses: if this does, only its newline was lost and it is paid for.
            if _parses(torn):
                self._append(b"\n")
                kept = data + b"\n"
            else:
                on_notice(f"the last line of {self._path} was cut short when the run was killed; it is removed")
                self._truncate(len(kept))
        if not kept.strip():
            self._truncate(0)
            self._start()
            return
        transcript = parse_transcript(kept, self._path)
        self.header = transcript.header
        self._records = transcript.records

    def _start(self) -> None:
        self._append(header_line(self.header))
        try:
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._unwritable(error) from error

    def _append(self, line: bytes) -> None:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                size = os.fstat(descriptor).st_size
                try:
                    _write_all(descriptor, line)
                    os.fsync(descriptor)
                except OSError:
                    os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._unwritable(error) from error

    def _truncate(self, size: int) -> None:
        try:
            os.truncate(self._path, size)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> TranscriptError:
        return TranscriptError(
            f"the transcript {self._path} cannot be written ({error.strerror}); make room or give the folder write "
            "permission, then resume the run with run=PATH"
        )


def _write_all(descriptor: int, data: bytes) -> None:
    # A nearly full disk takes a part without complaint and refuses the rest.
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _parses(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
