"""One process at a time on one run directory."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from jaxrefine.errors import UserError
from jaxrefine.run.files import disk_error


class RunLock:
    """An advisory lock on a file, held until `release` or the death of the process, kill -9 included."""

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises:
            UserError: Another process holds it (named), or the file system cannot lock.
        """
        self.path = path
        try:
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise disk_error(path, error) from error
        try:
            self._take(self._descriptor)
        except BaseException:
            self.release()
            raise

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 512, 0).decode(errors="replace").strip() or "another process"
            raise UserError(
                f"{self.path.parent} is in use by {holder}. Wait for it to end, stop it, or choose another folder."
            ) from error
        except OSError as error:
            raise disk_error(self.path, error, "lock") from error
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except OSError as error:
            raise disk_error(self.path, error) from error

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
