"""The fitted numbers of a round's program beside the ones they started from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxrefine.report.archive import read_arrays
from jaxrefine.report.untrusted import visible

_LISTED_ENTRIES = 64


@dataclass(frozen=True)
class Weight:
    """One fitted number beside the one it started from; or an array too large to list, by its mean.

    Attributes:
        name: The parameter's name, with an index where it has several entries.
        initial: The value in the program, None where it was not kept.
        fitted: The value after fitting.
        flips: How many entries changed sign.
        entries: How many entries this line stands for.
    """

    name: str
    initial: float | None
    fitted: float
    flips: int
    entries: int


def read_weights(folder: Path, gaps: list[str]) -> tuple[Weight, ...]:
    """A round's fitted parameters, one entry a line; what cannot be read is added to `gaps`."""
    fitted = read_arrays(folder / "weights.npz", gaps)
    initial = read_arrays(folder / "initial_weights.npz", gaps)
    lines: list[Weight] = []
    for name, after in fitted.items():
        before = initial.get(name)
        if before is not None and before.shape != after.shape:
            before = None
        lines += _weight_lines(visible(name), before, after)
    return tuple(lines)


def _weight_lines(name: str, before: np.ndarray | None, after: np.ndarray) -> list[Weight]:
    flipped = np.zeros(after.shape, bool) if before is None else np.sign(before) * np.sign(after) < 0
    if after.size > _LISTED_ENTRIES:
        mean = None if before is None else float(before.mean())
        return [Weight(name, mean, float(after.mean()), int(flipped.sum()), after.size)]
    return [
        Weight(
            name if after.size == 1 else f"{name}[{', '.join(map(str, index))}]",
            None if before is None else float(before[index]),
            float(after[index]),
            int(flipped[index]),
            1,
        )
        for index in np.ndindex(after.shape)
    ]
