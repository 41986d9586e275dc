"""What a table of results needs: spread, intervals and paired comparisons of a handful of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray

_Values = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """Location and spread of `n` values.

    Attributes:
        mean: The arithmetic mean.
        std: The population deviation, divided by n: the spread of these very values.
        std_sample: The sample deviation, divided by n - 1: an estimate for the values they were drawn from.
            None for a single value, where it is undefined.
        n: The number of values.
    """

    mean: float
    std: float
    std_sample: float | None
    n: int


@dataclass(frozen=True)
class Interval:
    """A two-sided interval that covers the estimated quantity with probability `level`."""

    low: float
    high: float
    level: float


@dataclass(frozen=True)
class PairedDifference:
    """How much larger `b` is than `a`, pair by pair.

    Attributes:
        mean: The mean of b - a.
        interval: Bootstrap interval of that mean, resampling pairs. None for a single pair.
        p_value: Two-sided p-value of the paired t-test. None for a single pair.
        n: The number of pairs.
    """

    mean: float
    interval: Interval | None
    p_value: float | None
    n: int


def describe(values: ArrayLike) -> Sample:
    """Summarise a non-empty vector of finite values.

    Raises:
        ValueError: There are no values, they are not one row, or one of them is not finite.
    """
    x = _vector(values)
    return Sample(float(x.mean()), float(x.std()), float(x.std(ddof=1)) if x.size > 1 else None, x.size)


def _mean(samples: _Values) -> _Values:
    return samples.mean(axis=-1)


def interquartile_mean(values: ArrayLike) -> float:
    """Mean of what is left after dropping floor(n / 4) values at either end.

    Less swayed by one episode gone wrong than the mean, less coarse than the median; the aggregate advised by
    Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice", 2021.

    Raises:
        ValueError: As for `describe`.
    """
    return float(scipy.stats.trim_mean(_vector(values), 0.25))


def bootstrap_interval(
    values: ArrayLike,
    statistic: Callable[[_Values], _Values] = _mean,
    seed: int = 0,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """Percentile bootstrap interval of a statistic (Efron & Tibshirani 1993, chapter 13).

    Args:
        values: At least two values, shape (n,).
        statistic: Takes resampled values of shape (resamples, n), gives one number for each row.
        seed: Seeds the resampling, so that the same values give the same interval.
        level: Coverage, between 0 and 1.
        resamples: How often to resample.

    Raises:
        ValueError: As for `describe`; or a single value, which says nothing of its own spread.
    """
    x = _vector(values)
    if x.size < 2:
        raise ValueError("a bootstrap interval needs at least two values")
    picks = np.random.default_rng(seed).integers(0, x.size, size=(resamples, x.size))
    tail = (1 - level) / 2
    low, high = np.quantile(statistic(x[picks]), [tail, 1 - tail])
    return Interval(float(low), float(high), level)


def paired_difference(
    a: Sequence[float] | _Values, b: Sequence[float] | _Values, seed: int = 0, *, level: float = 0.95
) -> PairedDifference:
    """Compare two conditions measured on the same cases, such as two programs on the same episode seeds.

    Args:
        a: The first condition's values, shape (n,).
        b: The second's, in the same order of cases.
        seed: Seeds the bootstrap.
        level: Coverage of the interval.

    Raises:
        ValueError: As for `describe`; or `a` and `b` differ in length.
    """
    x, y = _vector(a), _vector(b)
    if x.size != y.size:
        raise ValueError(f"pairs need as many values on either side, not {x.size} and {y.size}")
    difference = y - x
    mean = float(difference.mean())
    if x.size == 1:
        return PairedDifference(mean, None, None, 1)
    error = float(difference.std(ddof=1)) / np.sqrt(x.size)
    # Differences that are all the same leave no error to divide by: the t statistic's limit is 0 or infinite.
    t = abs(mean) / error if error > 0 else (np.inf if mean else 0.0)
    p_value = float(2 * scipy.stats.t.sf(t, x.size - 1))
    return PairedDifference(mean, bootstrap_interval(difference, seed=seed, level=level), p_value, x.size)


def _vector(values: ArrayLike) -> _Values:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"expected a non-empty row of values, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("expected finite values only")
    return x
