"""Intervals of means over runs that may share what they began with, and of whole curves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jaxrefine.stats import Interval

RESAMPLES = 10_000


def resampling_weights(clusters: NDArray, resamples: int = RESAMPLES, seed: int = 0) -> NDArray[np.float64]:
    """The weight of every run in each resampled mean; rows sum to 1.

    Conversations are resampled and, within each, its runs: runs of one conversation share its program, and resampling
    them alone would call that certainty. With one conversation there is nothing to resample but its runs, and an
    interval says nothing of other conversations. (Davison & Hinkley 1997, section 3.8.)

    Args:
        clusters: Shape (runs,); runs of one number share a conversation.
        resamples: How often to resample.
        seed: Seeds the resampling, so that the same runs give the same interval.

    Returns:
        Shape (resamples, runs).
    """
    generator = np.random.default_rng(seed)
    members = [np.flatnonzero(clusters == number) for number in np.unique(clusters)]
    weights = np.zeros((resamples, len(clusters)))
    for _ in members:
        drawn = generator.integers(0, len(members), resamples)
        for number, runs in enumerate(members):
            rows = np.flatnonzero(drawn == number)
            counts = generator.multinomial(len(runs), np.full(len(runs), 1 / len(runs)), size=len(rows))
            weights[np.ix_(rows, runs)] += counts / (len(runs) * len(members))
    return weights


def cluster_bootstrap(values: NDArray, clusters: NDArray, level: float = 0.95, seed: int = 0) -> Interval | None:
    """Percentile interval of the mean of runs, by `resampling_weights`; None for fewer than two runs."""
    if len(values) < 2:
        return None
    low, high = np.quantile(resampling_weights(clusters, seed=seed) @ values, _tails(level))
    return Interval(float(low), float(high), level)


def curve_means(values: NDArray, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weighted means over runs at every point, of the runs that are finite there.

    Args:
        values: Shape (runs, points); NaN where a run has failed.
        weights: Shape (resamples, runs).

    Returns:
        Shape (resamples, points); NaN where no run with any weight is finite.
    """
    finite = np.isfinite(values)
    total, weight = weights @ np.where(finite, values, 0.0), weights @ finite.astype(float)
    return np.divide(total, weight, out=np.full(total.shape, np.nan), where=weight > 1e-12)


def mean_curve(values: NDArray) -> NDArray[np.float64]:
    """Mean over runs at every point, of the runs that are finite there; shape (runs, points) -> (points,)."""
    return curve_means(values, np.full((1, len(values)), 1 / len(values)))[0]


def band(
    values: NDArray, clusters: NDArray | None = None, level: float = 0.95, resamples: int = 2_000
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pointwise percentile interval of the mean curve, resampling whole runs.

    Args:
        values: Shape (runs, points); NaN where a run has failed.
        clusters: Shape (runs,), as for `resampling_weights`; None where every run is independent.
        level: Coverage at each point, not of the curve as a whole.
        resamples: How often to resample.

    Returns:
        Its lower and upper ends, each of shape (points,); NaN at points where fewer than two runs are finite.
    """
    clusters = np.arange(len(values)) if clusters is None else clusters
    ends = np.full((2, values.shape[1]), np.nan)
    known = np.isfinite(values).sum(0) > 1
    if known.any():
        means = curve_means(values[:, known], resampling_weights(clusters, resamples))
        ends[:, known] = np.nanquantile(means, _tails(level), axis=0)
    return ends[0], ends[1]


def _tails(level: float) -> list[float]:
    return [(1 - level) / 2, (1 + level) / 2]
