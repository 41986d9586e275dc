"""A folder that a jailed process writes to, and how the host takes files out of it.

Whoever writes there may put a link, a pipe or a folder where a file is expected, and may do so at any moment. So the
folder is held open by the host, names in it are never followed, and a file is looked at after it has been moved to
where only the host can write.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from jaxrefine.run.files import TEMPORARY_PREFIX, disk_error


class NotAFileError(Exception):
    """What lies where a file was expected; the text names it."""


class Outbox:
    """A new folder for one call; as a context manager, it is removed at the end.

    Attributes:
        path: where it is.
    """

    def __init__(self, parent: Path, inputs: Sequence[Path]) -> None:
        """Make the folder inside a parent, with links to the inputs by their names."""
        try:
            self.path = Path(tempfile.mkdtemp(dir=parent))
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            for file in inputs:
                os.symlink(file, file.name, dir_fd=self._descriptor)
        except OSError as error:
            raise disk_error(parent, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
        remove_tree(self.path)

    def publish(self, names: Sequence[str], folder: Path, most_bytes: int, optional: Sequence[str] = ()) -> None:
        """Move files to a folder, replacing what has their names; nothing is replaced unless all of them are files.

        Of the optional ones, those that are there are among them.

        Raises:
            NotAFileError: one is missing, is no regular file of its own, or is too large.
            UserError: the folder cannot be written.
        """
        there = os.listdir(self._descriptor)  # noqa: PTH208 its path may lead elsewhere by now
        names = [*names, *(name for name in optional if name in there)]
        temporary = [TEMPORARY_PREFIX + name for name in names]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            target = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise disk_error(folder, error) from error
        try:
            for name, moved in zip(names, temporary, strict=True):
                self._take(name, moved, target, most_bytes)
            for name, moved in zip(names, temporary, strict=True):
                os.replace(moved, name, src_dir_fd=target, dst_dir_fd=target)
            os.fsync(target)
        except OSError as error:
            raise disk_error(folder, error) from error
        finally:
            for moved in temporary:
                _discard(moved, target)
            os.close(target)

    def _take(self, name: str, moved: str, target: int, most_bytes: int) -> None:
        try:
            os.replace(name, moved, src_dir_fd=self._descriptor, dst_dir_fd=target)
        except FileNotFoundError as error:
            raise NotAFileError(f"there is no file {name}") from error
        try:
            # a pipe without a writer would be waited for
            descriptor = os.open(moved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=target)
        except OSError as error:
            raise NotAFileError(f"{name} is a link, or cannot be opened") from error
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise NotAFileError(f"{name} is no file of its own")
            if found.st_size > most_bytes:
                raise NotAFileError(f"{name} has {found.st_size:,} bytes; the most is {most_bytes:,}")
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & 0o666)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _discard(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except OSError:  # a folder
        with contextlib.suppress(OSError, RecursionError):
            shutil.rmtree(name, dir_fd=folder)


def remove_tree(path: Path) -> None:
    """Remove a folder that a jailed process wrote to, as far as that is possible."""
    # a tree that is too deep to be removed is left to the user
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(path)
