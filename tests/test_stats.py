from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrefine import stats

values = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30)


def test_describe_gives_both_deviations() -> None:
    sample = stats.describe([2, 4, 4, 4, 5, 5, 7, 9])
    assert (sample.mean, sample.std, sample.n) == (5, 2, 8)
    assert sample.std_sample == pytest.approx(np.sqrt(32 / 7))


def test_a_single_value_has_no_sample_deviation() -> None:
    assert stats.describe([3.5]) == stats.Sample(3.5, 0.0, None, 1)


@pytest.mark.parametrize("bad", [[], [[1.0, 2.0]], [1.0, float("nan")], [float("inf")]])
def test_what_is_no_row_of_finite_values_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        stats.describe(bad)


@pytest.mark.parametrize(
    ("given_values", "expected"),
    [([1, 2, 3, 4], 2.5), ([100, 2, 3, -100], 2.5), ([7], 7), ([0, 0, 10, 10, 10, 10, 10, 1000], 10)],
)
def test_interquartile_mean_drops_a_quarter_at_either_end(given_values: list[float], expected: float) -> None:
    assert stats.interquartile_mean(given_values) == pytest.approx(expected)


def test_bootstrap_interval_agrees_with_scipy() -> None:
    x = np.random.default_rng(3).gamma(2.0, 50.0, size=12)
    reference = scipy.stats.bootstrap((x,), np.mean, n_resamples=20_000, method="percentile", rng=1)
    interval = stats.bootstrap_interval(x, resamples=20_000)
    width = reference.confidence_interval.high - reference.confidence_interval.low
    assert interval.low == pytest.approx(reference.confidence_interval.low, abs=0.03 * width)
    assert interval.high == pytest.approx(reference.confidence_interval.high, abs=0.03 * width)
    assert interval.level == 0.95


def test_bootstrap_interval_takes_other_statistics_and_repeats_itself() -> None:
    x = [1.0, 2.0, 3.0, 4.0, 1000.0]

    def median(samples: np.ndarray) -> np.ndarray:
        return np.median(samples, axis=-1)

    first = stats.bootstrap_interval(x, median, seed=5)
    assert first == stats.bootstrap_interval(x, median, seed=5)
    assert 1.0 <= first.low <= 3.0 <= first.high <= 1000.0
    wide, narrow = stats.bootstrap_interval(x), stats.bootstrap_interval(x, level=0.5)
    assert wide.low <= narrow.low <= narrow.high <= wide.high
    with pytest.raises(ValueError, match="at least two"):
        stats.bootstrap_interval([1.0])


@settings(deadline=None)
@given(values)
def test_bootstrap_interval_stays_within_the_values(x: list[float]) -> None:
    interval = stats.bootstrap_interval(x, resamples=50)
    assert min(x) - 1e-9 <= interval.low <= interval.high <= max(x) + 1e-9


def test_bootstrap_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(300):
        interval = stats.bootstrap_interval(rng.normal(size=40), seed=trial, level=0.9, resamples=400)
        hits += interval.low <= 0.0 <= interval.high
    assert 0.84 <= hits / 300 <= 0.95


def test_paired_difference_agrees_with_scipys_paired_t_test() -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(850, 40, size=10)
    b = a + rng.normal(12, 8, size=10)
    result = stats.paired_difference(a, b)
    assert result.mean == pytest.approx(float(np.mean(b) - np.mean(a)))
    assert result.p_value == pytest.approx(scipy.stats.ttest_rel(b, a).pvalue, rel=1e-9)
    assert result.interval is not None
    assert result.interval.low < result.mean < result.interval.high
    assert result.n == 10


def test_paired_difference_of_one_pair_or_of_equal_differences() -> None:
    assert stats.paired_difference([1.0], [4.0]) == stats.PairedDifference(3.0, None, None, 1)
    assert stats.paired_difference([1.0, 2.0], [1.0, 2.0]).p_value == 1.0
    shifted = stats.paired_difference([1.0, 2.0], [3.0, 4.0])
    assert shifted.p_value == 0.0
    assert shifted.interval == stats.Interval(2.0, 2.0, 0.95)
    with pytest.raises(ValueError, match="as many"):
        stats.paired_difference([1.0], [1.0, 2.0])
