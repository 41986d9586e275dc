"""Pools of tracks on disk, so that a large one is built once.

A file belongs to one list of seeds and holds the pool's arrays, nothing that could run. It is written whole. What
is read is believed only where it agrees with what would be built: in structure, types and shapes, in its first
track, and in whatever else its reader checks.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

FORMAT = 1  # raised when a pool of the same seeds would no longer be the same
TOLERANCE = 1e-4  # processors round differently, m and rad

Pool = TypeVar("Pool")


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/jaxrefine/car_racing``, or the same below ``~/.cache``."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # relative ones are to be ignored, says the XDG specification
        root = Path.home() / ".cache"
    return root / "jaxrefine" / "car_racing"


def path_for(folder: Path, seeds: Sequence[int], precision: str) -> Path:
    """The file of these seeds, in this order, in a precision such as ``"float32"``."""
    digest = hashlib.sha256(" ".join(map(str, seeds)).encode()).hexdigest()
    return folder / f"tracks-v{FORMAT}-{precision}-{digest[:32]}.npz"


def load(path: Path, first: Pool, count: int, check: Callable[[Pool], None]) -> Pool | None:
    """The pool in a file, or None where there is no file or a bad one, of which a warning tells.

    Args:
        path: the file.
        first: the pool of the first track alone, built afresh; its dimensions of size 1 are the tracks'.
        count: tracks in the pool.
        check: raises ``ValueError`` for a pool that cannot be.
    """
    try:
        pool = _read(path, first, count)
        check(pool)
    except FileNotFoundError:
        return None
    except Exception as error:  # readers of archives raise anything at all on a damaged one
        warnings.warn(f"{path} does not hold the tracks it should and is made anew: {error}", stacklevel=3)
        return None
    return pool


def store(path: Path, pool: Pool) -> None:
    """Keep a pool; where that is not possible, a warning is all that happens."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.stem, suffix=".partial", delete=False) as file:
            try:
                arrays: Any = _named(pool)
                np.savez(file, **arrays)
                file.close()
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        warnings.warn(f"tracks cannot be kept in {path}: {error}", stacklevel=3)


def _read(path: Path, first: Pool, count: int) -> Pool:
    leaves = []
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        for name, leaf in _named(first).items():
            values = file[name]
            shape = tuple(count if size == 1 else size for size in leaf.shape)
            if values.dtype != leaf.dtype or values.shape != shape:
                raise ValueError(f"{name} is {values.dtype}{values.shape}, not {leaf.dtype}{shape}")
            own = values[tuple(slice(1) if size == 1 else slice(None) for size in leaf.shape)]
            if not np.allclose(own, leaf, rtol=0, atol=TOLERANCE if leaf.dtype.kind == "f" else 0):
                raise ValueError(f"{name} of the first track is not what is built")
            leaves.append(values)
    return jax.tree.unflatten(jax.tree.structure(first), leaves)


def _named(pool: Pool) -> dict[str, np.ndarray]:
    leaves = jax.tree.leaves_with_path(pool)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}
