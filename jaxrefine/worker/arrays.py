"""Parameters as files: NPZ archives of named arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrefine.errors import UserError
from jaxrefine.run.files import whole_file


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write named arrays whole; ``numpy.load`` reads them.

    ``numpy.savez`` takes the names as keywords and has some of its own (``file``), so a parameter of that name would be
    lost with it.
    """
    with whole_file(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, value in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(value), allow_pickle=False)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read named arrays.

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"the parameters in {path} cannot be read: {error}. Restore the file, or start a new run"
        ) from error
