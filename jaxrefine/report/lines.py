"""Lines with many points, made small enough for a page: fewer points, and no more digits than can be seen."""

from __future__ import annotations

import itertools
import re

import numpy as np
from markupsafe import Markup


def thin(values: np.ndarray, points: int) -> np.ndarray:
    """Which of a signal's values to draw, in order: at most so many, and the extremes of every stretch among them.

    Args:
        values: of shape (n,); those that are not finite are drawn as gaps.
        points: even, at least 2.
    """
    n = len(values)
    if n <= points:
        return np.arange(n)
    edges = np.linspace(0, n, points // 2 + 1).astype(int)
    kept = set()
    for start, end in itertools.pairwise(edges):
        stretch = values[start:end]
        finite = np.isfinite(stretch)
        if not finite.any():
            kept.add(int(start))
            continue
        kept.add(int(start + np.where(finite, stretch, np.inf).argmin()))
        kept.add(int(start + np.where(finite, stretch, -np.inf).argmax()))
    return np.array(sorted(kept))


def spaced(n: int, points: int) -> np.ndarray:
    """Which of n points of a path to draw: at most so many, evenly, the first and the last among them."""
    return np.unique(np.linspace(0, n - 1, min(n, points)).round().astype(int))


def compact(markup: Markup) -> Markup:
    """A figure whose places are written to a tenth of a point, on one line."""

    def shorten(attribute: re.Match[str]) -> str:
        short = re.sub(r"-?\d+\.\d+", lambda digits: f"{float(digits[0]):.1f}".removesuffix(".0"), attribute[2])
        return f' {attribute[1]}="{" ".join(short.split())}"'

    return Markup(re.sub(r"\n\s*", "", re.sub(r' (d|x|y|transform)="([^"]*)"', shorten, markup)))
