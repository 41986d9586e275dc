"""Files that are either whole or absent, whatever kills the process that writes them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxrefine.errors import UserError

TEMPORARY_PREFIX = ".tmp-"

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENOENT})


def disk_error(path: Path, error: OSError, verb: str = "write") -> UserError:
    """The error a person sees when the operating system refuses a file.

    Args:
        path: The file or folder that was refused.
        error: What the operating system said.
        verb: What was tried: "write", "read", "create", "lock".
    """
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        advice = "Free some space (or raise the limit), then continue the run with run=PATH."
    elif error.errno in _REFUSED:
        advice = "Check the path and its permissions, or choose another folder."
    else:
        advice = "Check the disk, then continue the run with run=PATH."
    return UserError(f"cannot {verb} {path}: {reason}. {advice}")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path` to write to; on success it becomes `path`, on any exception it is removed.

    The temporary name keeps the suffix, since writers such as `numpy.savez` add the one they miss, and is
    the same each time, so that what a kill leaves behind is overwritten by the next try.

    Raises:
        UserError: The folder cannot be written, or the disk is full.
    """
    temporary = path.with_name(TEMPORARY_PREFIX + path.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(path.parent, error, "create") from error
    try:
        try:
            yield temporary
        except OSError as error:
            # Only a full disk is surely about this file: the body may do more than write it.
            if error.errno in _FULL:
                raise disk_error(path, error) from error
            raise
        _publish(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _publish(temporary: Path, path: Path) -> None:
    try:
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise disk_error(path, error) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` by way of a temporary file, fsync and rename.

    Raises:
        UserError: The folder cannot be written, or the disk is full.
    """
    with whole_file(path) as temporary:
        try:
            temporary.write_bytes(data)
        except OSError as error:
            raise disk_error(path, error) from error


def sweep(folder: Path) -> None:
    """Remove what killed writers left under temporary names anywhere below `folder`."""
    for leftover in list(folder.rglob(TEMPORARY_PREFIX + "*")):
        # a jailed process may have put a folder or a link where a file was expected
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
