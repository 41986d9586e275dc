"""Arrays out of a run directory's ``.npz`` files, which a jailed process wrote: nothing in them is certain.

An array's header may claim any shape, and NumPy makes room for what it claims before it reads a number. So every header
is read first, and held against the size of its entry, beyond which `zipfile` never unpacks.
"""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from jaxrefine.report.untrusted import is_regular, visible

MOST_BYTES = 20_000_000  # of a file, and of what it unpacks to
MOST_ARRAYS = 1_000

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# bzip2 and LZMA unpack a block whole, however little of it is asked for
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DAMAGE = (
    ValueError, TypeError, OSError, KeyError, EOFError, MemoryError, OverflowError, RuntimeError, SyntaxError,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def read_arrays(path: Path, gaps: list[str]) -> dict[str, np.ndarray]:
    """All arrays of a file as float64, by name; none where there is no such file or any of it cannot be read.

    Args:
        path: A ``.npz`` file of booleans, integers and real numbers of at most eight bytes.
        gaps: Receives a sentence if the file is there and cannot be read.
    """
    if not is_regular(path):
        return {}
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if max(path.stat().st_size, sum(entry.file_size for entry in entries)) > MOST_BYTES:
                raise ValueError("it unpacks to more than a report reads")
            if len(entries) > MOST_ARRAYS:
                raise ValueError(f"it holds {len(entries):,} arrays, more than a report reads")
            return {entry.filename.removesuffix(".npy"): _array(archive, entry) for entry in entries}
    except FileNotFoundError:
        return {}
    except _DAMAGE as error:
        gaps.append(f"{path.parent.name}/{path.name} cannot be read ({visible(str(error))[:300]}).")
        return {}


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    if entry.compress_type not in _METHODS:
        raise ValueError("it is packed in a way that NumPy does not use")
    with archive.open(entry) as stream:
        version = npy.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError("an array of it has no header of a plain array")
        shape, _, dtype = _HEADERS[version](stream)
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise ValueError("an array of it holds something else than numbers")
        if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize > entry.file_size:
            raise ValueError("an array of it is smaller than its header says")
    with archive.open(entry) as stream:
        return np.asarray(npy.read_array(stream, allow_pickle=False), dtype=float)
