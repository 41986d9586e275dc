"""What a table of results needs: spread, intervals and paired comparisons of a handful of values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray

_Values = NDArray[np.float64]
_Name = TypeVar("_Name", bound=Hashable)


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


@dataclass(frozen=True)
class UnpairedDifference:
    """How much larger `b` is than `a` where no value of one belongs to a value of the other.

    Attributes:
        mean: The mean of b minus the mean of a.
        interval: Interval of that difference, by Student's t. None where either side is a single value.
        p_value: Two-sided p-value of Welch's t-test. None where either side is a single value.
        degrees_of_freedom: After Welch and Satterthwaite, not a whole number. None as for the interval, and where all
            values of either side are the same.
        n: The numbers of values of a and of b.
    """

    mean: float
    interval: Interval | None
    p_value: float | None
    degrees_of_freedom: float | None
    n: tuple[int, int]


@dataclass(frozen=True)
class Improvement:
    """How probable it is that a run of `b` comes out above one of `a`.

    Attributes:
        probability: From 0 to 1, averaged over cases; 0.5 where the two are alike.
        interval: Stratified bootstrap interval of that probability. None where either side is a single run.
    """

    probability: float
    interval: Interval | None


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

    Args:
        values: n values of any shape; of a matrix (runs, cases) all entries count alike, as in that article.

    Raises:
        ValueError: There are no values, or one of them is not finite.
    """
    x = np.sort(_vector(np.ravel(values)))
    cut = x.size // 4
    return float(x[cut : x.size - cut].mean())


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
    return _percentiles(statistic(x[picks]), level)


def stratified_bootstrap_interval(
    values: ArrayLike,
    statistic: Callable[[_Values], float | np.floating] = np.mean,
    seed: int = 0,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """Percentile bootstrap interval of an aggregate over runs and cases, resampling runs within every case.

    The cases are those that there are; what varies is the run. After Agarwal et al., "Deep reinforcement learning at
    the edge of the statistical precipice", 2021. It takes what happens in different cases to be independent, as where
    every task has trainings of its own. One policy on several test episodes is not: its values rise and fall together,
    and the interval comes out too narrow; there, use `bootstrap_interval` of each run's mean over its episodes.

    Args:
        values: Shape (runs, cases), at least two runs.
        statistic: Of ONE resampled matrix (runs, cases), such as `numpy.mean` or `interquartile_mean`.
        seed: Seeds the resampling, so that the same values give the same interval.
        level: Coverage, between 0 and 1.
        resamples: How often to resample.

    Raises:
        ValueError: The values are no matrix, one of them is not finite, or there is but one run.
    """
    x = _matrix(values)
    if len(x) < 2:
        raise ValueError("a stratified bootstrap interval needs at least two runs")
    rng = np.random.default_rng(seed)
    resampled = [
        statistic(np.take_along_axis(x, rng.integers(0, len(x), size=x.shape), axis=0)) for _ in range(resamples)
    ]
    return _percentiles(np.array(resampled, np.float64), level)


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


def welch(a: ArrayLike, b: ArrayLike, *, level: float = 0.95) -> UnpairedDifference:
    """Compare two conditions measured apart, such as the means of independent runs, by Welch's t-test.

    Welch, "The generalization of 'Student's' problem when several different population variances are involved", 1947;
    the degrees of freedom are his and Satterthwaite's. The two may differ in number and in spread.

    Args:
        a: The first condition's values, shape (n,).
        b: The second's, shape (m,).
        level: Coverage of the interval.

    Raises:
        ValueError: As for `describe`, for either side.
    """
    x, y = _vector(a), _vector(b)
    n = (x.size, y.size)
    mean_x, mean_y = _exact_mean(x), _exact_mean(y)
    mean = mean_y - mean_x
    if min(n) == 1:
        return UnpairedDifference(mean, None, None, None, n)
    squares = np.array([np.mean((x - mean_x) ** 2) / (x.size - 1), np.mean((y - mean_y) ** 2) / (y.size - 1)])
    error = float(np.sqrt(squares.sum()))
    if error == 0:
        return UnpairedDifference(mean, Interval(mean, mean, level), 0.0 if mean else 1.0, None, n)
    shares = squares / squares.sum()
    freedom = float(1 / np.sum(shares**2 / (np.array(n) - 1)))
    reach = error * float(scipy.stats.t.ppf((1 + level) / 2, freedom))
    p_value = float(2 * scipy.stats.t.sf(abs(mean) / error, freedom))
    return UnpairedDifference(mean, Interval(mean - reach, mean + reach, level), p_value, freedom, n)


@overload
def holm(p_values: Mapping[_Name, float]) -> dict[_Name, float]: ...
@overload
def holm(p_values: Sequence[float] | _Values) -> list[float]: ...
def holm(p_values: Mapping[_Name, float] | Sequence[float] | _Values) -> dict[_Name, float] | list[float]:
    """Adjust the p-values of several tests, so that each may be held against alpha as if it were the only one.

    That any true hypothesis is rejected then has at most probability alpha, however the tests depend on each other.
    Holm, "A simple sequentially rejective multiple test procedure", 1979: the i-th smallest of m is multiplied by
    m - i + 1, is no less than any smaller one's, and no more than 1.

    Args:
        p_values: One for each test, in any order or by name.

    Returns:
        The adjusted p-values in the same order, or by the same names.

    Raises:
        ValueError: There are no p-values, or one of them is not a number from 0 to 1.
    """
    if isinstance(p_values, Mapping):
        return dict(zip(p_values, holm(list(p_values.values())), strict=True))
    p = _vector(p_values)
    if p.min() < 0 or p.max() > 1:
        raise ValueError("expected p-values from 0 to 1")
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)), 1)
    return adjusted.tolist()


def probability_of_improvement(
    a: ArrayLike, b: ArrayLike, seed: int = 0, *, level: float = 0.95, resamples: int = 10_000
) -> Improvement:
    """How probable it is that a run of `b` comes out above one of `a` on the same case; ties count half.

    In every case it is the Mann-Whitney statistic U over its largest value; the cases' average is the measure of
    Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice", 2021. It says how often,
    not by how much. Its interval takes cases to be independent; see `stratified_bootstrap_interval`.

    Args:
        a: The first condition's values, shape (runs, cases).
        b: The second's, shape (other runs, cases), where higher is better.
        seed: Seeds the bootstrap, which resamples the runs of either side within every case.
        level: Coverage of the interval.
        resamples: How often to resample.

    Raises:
        ValueError: Either is no matrix, holds a value that is not finite, or has other cases than the other.
    """
    x, y = _matrix(a), _matrix(b)
    cases = x.shape[1]
    if cases != y.shape[1]:
        raise ValueError(f"expected as many cases on either side, not {cases} and {y.shape[1]}")
    # of b's run j over a's run i, in the order (case, i, j)
    wins = (1 + np.sign(y.T[:, None, :] - x.T[:, :, None])) / 2
    probability = float(wins.mean())
    if min(len(x), len(y)) == 1:
        return Improvement(probability, None)
    rng = np.random.default_rng(seed)
    # resampled runs count as often as they were drawn
    of_a, of_b = (rng.multinomial(m, np.full(m, 1 / m), size=(resamples, cases)) for m in (len(x), len(y)))
    resampled = np.einsum("rci,cij,rcj->r", of_a, wins, of_b, optimize=True) / wins.size
    return Improvement(probability, _percentiles(resampled, level))


def _percentiles(resampled: _Values, level: float) -> Interval:
    """Of a resampled statistic."""
    tail = (1 - level) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(float(low), float(high), level)


def _exact_mean(x: _Values) -> float:
    """The mean; of values that are all the same, that value, which summing can miss by a rounding."""
    return float(x[0] if (x == x[0]).all() else x.mean())


def _vector(values: ArrayLike) -> _Values:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"expected a non-empty row of values, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("expected finite values only")
    return x


def _matrix(values: ArrayLike) -> _Values:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 2 or x.size == 0:
        raise ValueError(f"expected a non-empty matrix of runs and cases, got shape {x.shape}")
    _vector(x.ravel())
    return x
