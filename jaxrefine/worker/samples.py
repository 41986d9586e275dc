"""Values as plain JSON, and samples of them in numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from jaxrefine.stats import describe


def plain(values: Any) -> Any:
    """Nested lists of numbers; what is not finite becomes None, for JSON has no word for it."""
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.floating):
        return array.tolist()
    if array.ndim:
        return [plain(part) for part in array]
    return float(array) if np.isfinite(array) else None


def ranged(values: np.ndarray) -> dict[str, Any]:
    """A sample with its least and largest value; none of them where there are no values."""
    if not values.size:
        return {"mean": None, "std": None, "min": None, "max": None, "n": 0}
    return sample(values, "episodes") | {"min": plain(values.min()), "max": plain(values.max())}


def sample(values: np.ndarray, over: str) -> dict[str, Any]:
    """Mean, deviations and n of values that are all finite, and of what they are values; empty of numbers otherwise."""
    if not np.isfinite(values).all():
        return {"mean": None, "std": None, "std_sample": None, "n": int(values.size), "over": over}
    return asdict(describe(values)) | {"over": over}
