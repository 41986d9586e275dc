"""The event log: one JSON object a line, on the disk before anything else hears of it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from jaxrefine.errors import UserError
from jaxrefine.run.files import disk_error

Event = dict[str, Any]
"""`time` (UTC, ISO 8601, milliseconds), `event` (its name), and the fields of that event."""


def plain(value: Any) -> Any:
    """Turn what JSON does not know (numpy scalars and arrays, paths) into what it does.

    Raises:
        TypeError: `value` has no JSON form.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r:.200}")


def new_event(name: str, fields: dict[str, Any]) -> Event:
    """An event of this moment, as reading it back would give it (tuples are lists, keys strings).

    NaN and the infinities stay numbers: Python's `json` writes and reads them.

    Raises:
        TypeError: A field has no JSON form.
    """
    moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    event: Event = json.loads(json.dumps({"time": moment, "event": name, **fields}, default=plain))
    return event


def read_events(path: Path) -> list[Event]:
    """The events of a log that may still be growing; a torn last line is left out, and left alone.

    Args:
        path: An `events.jsonl`.

    Raises:
        UserError: The file cannot be read, or a line other than a torn last one is damaged.
    """
    return _parse(path, _whole_lines(_read(path)))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise disk_error(path, error, "read") from error


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _parse(path: Path, content: bytes) -> list[Event]:
    events: list[Event] = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            event = json.loads(line)
            if not (isinstance(event, dict) and isinstance(event.get("event"), str)):
                raise ValueError("not an event")
        except ValueError as error:
            raise UserError(
                f"{path}, line {number} is damaged ({error}): {line[:80]!r}. "
                "The lines before it are intact. Restore the file from a copy, or delete this line and all that "
                "follow it to go on from there with run=PATH."
            ) from error
        events.append(event)
    return events


class EventLog:
    """The log of a run that this process is writing.

    Attributes:
        events: All events on the disk, oldest first.
        notices: What opening the log had to mend, for people.
    """

    def __init__(self, path: Path) -> None:
        """Open the log, or make an empty one; cut off a last line that a kill left unfinished.

        Raises:
            UserError: The file cannot be read or written, or a line other than a torn last one is damaged.
        """
        self.path = path
        self.notices: list[str] = []
        self._lock = Lock()
        try:
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise disk_error(path, error) from error
        try:
            content = _read(path)
            whole = _whole_lines(content)
            self.events = _parse(path, whole)
            self._size = len(whole)
            if len(whole) < len(content):
                self._cut()
                self.notices.append(
                    f"{path.name}: the last line was cut short when the run was stopped; its "
                    f"{len(content) - len(whole)} bytes are removed and that step runs again"
                )
        except BaseException:
            self.close()
            raise

    def append(self, event: Event) -> None:
        """Put an event on the disk; either all of its line is there afterwards or none of it.

        Raises:
            UserError: The disk is full or refuses; the events before this one are intact.
        """
        line = json.dumps(event, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        with self._lock:
            if self._descriptor is None:
                raise ValueError(f"{self.path} is closed")
            try:
                unwritten = line
                while unwritten:
                    unwritten = unwritten[os.write(self._descriptor, unwritten) :]
                os.fsync(self._descriptor)
            except BaseException as error:
                # Half a line in the middle of the log would make the rest unreadable.
                self._cut()
                if isinstance(error, OSError):
                    raise disk_error(self.path, error) from error
                raise
            self._size += len(line)
            self.events.append(event)

    def _cut(self) -> None:
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, self._size)
            os.fsync(self._descriptor)
        except OSError as error:
            raise disk_error(self.path, error) from error

    def named(self, name: str) -> Sequence[Event]:
        """The events of this name, oldest first."""
        return [event for event in self.events if event["event"] == name]

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
