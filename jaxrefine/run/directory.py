"""A run directory: everything a person or a later process needs, in plain files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jaxrefine.errors import UserError
from jaxrefine.run.events import Event, EventLog, plain
from jaxrefine.run.files import disk_error, sweep, whole_file, write_whole
from jaxrefine.run.lock import RunLock
from jaxrefine.run.steps import Json, Listener, Steps

EVENTS = "events.jsonl"
LOCK = ".lock"


class RunDirectory:
    """One run on the disk, held by one process at a time.

    Use as a context manager, or call `close`, to let go of it. Names of files are relative to the directory.

    Attributes:
        path: The directory, absolute.
        notices: What opening had to mend, for people.
    """

    def __init__(self, path: Path) -> None:
        """Take hold of the directory; use `create`, `open` or `open_or_create` instead."""
        self.path = path
        self._lock = RunLock(path / LOCK)
        try:
            self._log = EventLog(path / EVENTS)
        except BaseException:
            self._lock.release()
            raise
        try:
            sweep(path)
            self._steps = Steps(self._log)
            self.notices = tuple(self._log.notices)
            for text in self.notices:
                self.emit("notice", text=text)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path | str) -> Self:
        """Start a run in a new folder, or in one that holds no run.

        Raises:
            UserError: The folder holds a run already, is in use, or cannot be written.
        """
        path = _absolute(path)
        if (path / EVENTS).exists():
            raise UserError(f"{path} holds a run already. Continue it with run={path}, or choose another folder.")
        return cls.open_or_create(path)

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Go on with a run.

        Raises:
            UserError: There is no run, another process has it, or its event log is damaged.
        """
        path = _absolute(path)
        if not (path / EVENTS).is_file():
            raise UserError(
                f"{path} holds no run (it has no {EVENTS}). Give the folder of an earlier run, or leave run= out."
            )
        return cls(path)

    @classmethod
    def open_or_create(cls, path: Path | str) -> Self:
        """Go on with the run in this folder if there is one, else start it.

        Raises:
            UserError: Another process has it, its event log is damaged, or the folder cannot be written.
        """
        path = _absolute(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(path, error, "create") from error
        return cls(path)

    def close(self) -> None:
        """Close the log and release the lock; a second call does nothing."""
        self._log.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def file(self, name: str | Path) -> Path:
        """The absolute path of a file of the run.

        Raises:
            ValueError: The name leads out of the directory.
        """
        path = (self.path / name).resolve()
        if not path.is_relative_to(self.path):
            raise ValueError(f"{name} is outside the run directory")
        return path

    def round_path(self, round_number: int) -> Path:
        """The folder of a round, made if need be."""
        folder = self.path / f"round_{round_number}"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise disk_error(folder, error, "create") from error
        return folder

    def write_bytes(self, name: str | Path, data: bytes) -> Path:
        """Write a file whole: temporary file, fsync, rename.

        Raises:
            UserError: The folder cannot be written, or the disk is full; an earlier file of this name is intact.
        """
        path = self.file(name)
        write_whole(path, data)
        return path

    def write_text(self, name: str | Path, text: str) -> Path:
        """Write UTF-8 text whole, as `write_bytes`; what UTF-8 cannot hold is written as an escape."""
        return self.write_bytes(name, text.encode("utf-8", "backslashreplace"))

    def write_json(self, name: str | Path, value: Json) -> Path:
        """Write JSON that any reader takes, as `write_bytes`; NaN and the infinities become null.

        Raises:
            TypeError: Something in `value` has no JSON form.
        """
        finite = _finite(json.loads(json.dumps(value, default=plain)))
        return self.write_text(name, json.dumps(finite, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    @contextmanager
    def whole_file(self, name: str | Path) -> Iterator[Path]:
        """As `files.whole_file`, for what is written in pieces or by a library."""
        with whole_file(self.file(name)) as temporary:
            yield temporary

    def read_text(self, name: str | Path) -> str:
        """Read a file of the run.

        Raises:
            UserError: It is missing or unreadable.
        """
        path = self.file(name)
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise disk_error(path, error, "read") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is damaged: {error}. Restore it from a copy.") from error

    def read_json(self, name: str | Path) -> Json:
        """Read a JSON file of the run.

        Raises:
            UserError: It is missing, unreadable or no JSON.
        """
        text = self.read_text(name)
        try:
            return json.loads(text)
        except ValueError as error:
            raise UserError(f"{self.file(name)} is damaged: {error}. Restore it from a copy.") from error

    @property
    def events(self) -> tuple[Event, ...]:
        """All logged events, oldest first."""
        return tuple(self._log.events)

    @property
    def wall_s(self) -> float:
        """Seconds spent in finished steps, over all processes that worked on this run."""
        return self._steps.wall_s

    def emit(self, event: str, **fields: Any) -> None:
        """Log an event and tell the listeners; see `Steps.emit`."""
        self._steps.emit(event, **fields)

    def notice(self, text: str) -> None:
        """Log something a person should know."""
        self.emit("notice", text=text)

    def progress(self, done: int, total: int) -> None:
        """Tell the listeners how far the running step is; not logged."""
        self._steps.progress(done, total)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each event from now on; what is returned ends that."""
        return self._steps.subscribe(listener)

    def done(self, step: str) -> bool:
        """Whether a step's end is in the log."""
        return self._steps.done(step)

    def step(self, name: str, function: Callable[[], Json], *, label: str | None = None) -> Json:
        """Run a step, or give its recorded result; see `Steps.step`."""
        return self._steps.step(name, function, label=label)


def _absolute(path: Path | str) -> Path:
    return Path(path).expanduser().resolve()


def _finite(value: Json) -> Json:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value
