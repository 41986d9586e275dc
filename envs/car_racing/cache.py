"""Tracks on disk, so that a large pool is generated once.

A file belongs to one list of seeds and holds plain arrays. It is written whole. What is read is believed only if
it is what a generator of this version would have written: a file that is damaged, or is not what its name says,
is reported and then replaced.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from envs.car_racing.track import NODE_SPACING, Track, generate

BYTES_PER_NODE = 33  # four float64 and a flag
FORMAT = 1  # of the file and of the generator: raised when the tracks of a seed would no longer be the same


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/jaxrefine/car_racing``, or the same below ``~/.cache``."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # relative ones are to be ignored, says the XDG specification
        root = Path.home() / ".cache"
    return root / "jaxrefine" / "car_racing"


def path_for(folder: Path, seeds: Sequence[int]) -> Path:
    """The file of these seeds, in this order."""
    return folder / f"tracks-v{FORMAT}-{_digest(seeds)[:16]}.npz"


def load(folder: Path, seeds: Sequence[int], longest: int) -> list[Track] | None:
    """The tracks of these seeds, of up to ``longest`` nodes each, or None where no file of ``folder`` holds them.

    A warning tells of a file that should hold them and does not.
    """
    path = path_for(folder, seeds)
    try:
        return _read(path, seeds, longest)
    except FileNotFoundError:
        return None
    except Exception as error:  # readers of archives raise anything at all on a damaged one
        warnings.warn(f"{path} does not hold the tracks it should and is made anew: {error}", stacklevel=3)
        return None


def store(folder: Path, seeds: Sequence[int], tracks: Sequence[Track]) -> None:
    """Keep tracks; a warning is all that happens where that is not possible."""
    path = path_for(folder, seeds)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=path.stem, suffix=".partial", delete=False) as file:
            try:
                np.savez(
                    file,
                    seeds=np.array(_digest(seeds)),
                    length=np.array([len(track) for track in tracks], np.int64),
                    nodes=np.concatenate([track.nodes for track in tracks]),
                    kerbs=np.concatenate([track.kerbs for track in tracks]),
                )
                file.close()
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        warnings.warn(f"tracks cannot be kept in {path}: {error}", stacklevel=3)


def _digest(seeds: Sequence[int]) -> str:
    return hashlib.sha256(" ".join(map(str, seeds)).encode()).hexdigest()


def _read(path: Path, seeds: Sequence[int], longest: int) -> list[Track]:
    # a header can claim any size: look at the file's own before anything is allocated
    if path.stat().st_size > len(seeds) * (longest * BYTES_PER_NODE + 8) + 4096:
        raise ValueError("it is too large")
    with np.load(path, allow_pickle=False) as file:
        digest, length, nodes, kerbs = (file[name] for name in ("seeds", "length", "nodes", "kerbs"))
    if str(digest) != _digest(seeds):
        raise ValueError("it belongs to other seeds")
    _expect(length, np.int64, (len(seeds),))
    if length.min() < 1 or length.max() > longest:
        raise ValueError(f"a track of {length.min()} or {length.max()} nodes is none")
    ends = np.cumsum(length)
    _expect(nodes, np.float64, (ends[-1], 4))
    _expect(kerbs, np.bool_, (ends[-1],))
    steps = np.delete(np.diff(nodes[:, 2:], axis=0), ends[:-1] - 1, axis=0)
    if not np.isfinite(nodes).all() or (np.abs(np.hypot(*steps.T) - NODE_SPACING) > 1e-6).any():
        raise ValueError("its nodes do not make tracks")
    tracks = [
        Track(nodes[end - count : end], kerbs[end - count : end]) for end, count in zip(ends, length, strict=True)
    ]
    first = generate(seeds[0])
    if not (np.array_equal(first.nodes, tracks[0].nodes) and np.array_equal(first.kerbs, tracks[0].kerbs)):
        raise ValueError("another generator made it")
    return tracks


def _expect(values: np.ndarray, dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    if values.dtype != dtype or values.shape != shape:
        raise ValueError(f"an array is {values.dtype}{values.shape}, not {np.dtype(dtype)}{shape}")
