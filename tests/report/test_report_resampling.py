"""Intervals over runs that share a conversation, and of curves."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from jaxrefine.report.resampling import band, cluster_bootstrap, mean_curve, resampling_weights


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_every_resample_weighs_one_in_all_and_is_fair_to_conversations(clusters: list[int]) -> None:
    weights = resampling_weights(np.array(clusters), resamples=2_000)
    assert weights.min() >= 0
    np.testing.assert_allclose(weights.sum(1), 1)
    # a conversation counts once, however many runs it has
    for number in set(clusters):
        share = weights[:, np.array(clusters) == number].sum(1).mean()
        assert share == pytest.approx(1 / len(set(clusters)), abs=0.06)


def test_of_independent_runs_it_is_the_ordinary_bootstrap() -> None:
    values = np.random.default_rng(1).normal(900, 20, 12)
    interval = cluster_bootstrap(values, np.arange(12))
    reference = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", random_state=np.random.default_rng(0)
    ).confidence_interval
    assert interval is not None
    assert interval.low == pytest.approx(reference.low, abs=0.6)
    assert interval.high == pytest.approx(reference.high, abs=0.6)


def test_runs_of_one_conversation_are_not_taken_for_independent() -> None:
    values = np.repeat([900.0, 920.0], 50) + np.random.default_rng(0).normal(size=100)
    together = cluster_bootstrap(values, np.zeros(100, int))
    apart = cluster_bootstrap(values, np.repeat([0, 1], 50))
    assert together is not None
    assert apart is not None
    assert apart.high - apart.low > 2 * (together.high - together.low)
    assert cluster_bootstrap(values[:1], np.zeros(1, int)) is None


def test_a_curve_s_band_is_each_point_s_interval() -> None:
    values = np.random.default_rng(2).normal(size=(9, 3))
    low, high = band(values, resamples=20_000)
    for point in range(3):
        alone = cluster_bootstrap(values[:, point], np.arange(9))
        assert alone is not None
        assert (low[point], high[point]) == (pytest.approx(alone.low, abs=0.03), pytest.approx(alone.high, abs=0.03))


def test_points_at_which_runs_failed() -> None:
    values = np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan], [5.0, 7.0, 9.0]])
    np.testing.assert_array_equal(mean_curve(values), [3.0, 6.0, 9.0])
    low, high = band(values)
    assert np.isnan([low[2], high[2]]).all()
    assert 5.0 <= low[1] < 6.0 < high[1] <= 7.0
