from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jaxrefine import stats

values = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30)
# whole numbers, so that ties occur and no reference loses digits
uneven = st.lists(st.integers(-20, 20), min_size=2, max_size=12).filter(lambda x: len(set(x)) > 1)
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def matrices(runs: st.SearchStrategy[int], cases: int) -> st.SearchStrategy[np.ndarray]:
    return runs.flatmap(lambda n: arrays(np.float64, (n, cases), elements=st.integers(-3, 3).map(float)))


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


@given(values)
def test_interquartile_mean_is_scipys_trimmed_mean(x: list[float]) -> None:
    assert stats.interquartile_mean(x) == pytest.approx(scipy.stats.trim_mean(x, 0.25), rel=1e-9, abs=1e-9)


def test_interquartile_mean_of_a_matrix_counts_all_its_entries_alike() -> None:
    x = np.random.default_rng(2).normal(size=(5, 7))
    assert stats.interquartile_mean(x) == pytest.approx(scipy.stats.trim_mean(x, 0.25, axis=None))
    assert stats.interquartile_mean(x) != pytest.approx(np.mean(scipy.stats.trim_mean(x, 0.25, axis=0)), rel=1e-3)
    with pytest.raises(ValueError, match="finite"):
        stats.interquartile_mean([[1.0, np.nan]])


# R's `sleep`: hours of sleep gained with either drug
DRUG_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
DRUG_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def test_welch_gives_what_r_publishes_for_its_sleep_data() -> None:
    """What `t.test(extra ~ group, data = sleep)` prints, with the other sign."""
    result = stats.welch(DRUG_1, DRUG_2)
    assert result.mean == pytest.approx(1.58)
    assert result.degrees_of_freedom == pytest.approx(17.776, abs=5e-4)
    assert result.p_value == pytest.approx(0.07939, abs=5e-6)
    assert result.interval is not None
    assert result.interval.low == pytest.approx(-0.2054832, abs=5e-8)
    assert result.interval.high == pytest.approx(3.3654832, abs=5e-8)
    assert result.n == (10, 10)


@given(uneven, uneven, st.sampled_from([0.5, 0.9, 0.95]))
def test_welch_agrees_with_scipy(a: list[int], b: list[int], level: float) -> None:
    reference = scipy.stats.ttest_ind(b, a, equal_var=False)
    low, high = reference.confidence_interval(level)
    result = stats.welch(a, b, level=level)
    assert result.p_value == pytest.approx(reference.pvalue, rel=1e-9)
    assert result.degrees_of_freedom == pytest.approx(reference.df, rel=1e-9)
    assert result.interval is not None
    assert (result.interval.low, result.interval.high) == pytest.approx((low, high), rel=1e-9, abs=1e-9)
    assert result.interval.level == level


@given(values, values)
def test_welch_turned_round_differs_in_sign_alone(a: list[float], b: list[float]) -> None:
    there, back = stats.welch(a, b), stats.welch(b, a)
    assert there.mean == -back.mean
    assert there.p_value == pytest.approx(back.p_value, rel=1e-12)
    assert there.interval is not None
    assert back.interval is not None
    assert (there.interval.low, there.interval.high) == (-back.interval.high, -back.interval.low)
    if there.degrees_of_freedom is not None:
        smallest, largest = min(len(a), len(b)) - 1, len(a) + len(b) - 2
        assert smallest * (1 - 1e-12) <= there.degrees_of_freedom <= largest * (1 + 1e-12)


def test_welch_of_single_or_constant_values() -> None:
    assert stats.welch([1.0], [4.0, 6.0]) == stats.UnpairedDifference(4.0, None, None, None, (1, 2))
    # the sum of three times 0.1 is not three times 0.1
    alike = stats.welch([0.1] * 3, [0.1] * 10)
    assert alike == stats.UnpairedDifference(0.0, stats.Interval(0.0, 0.0, 0.95), 1.0, None, (3, 10))
    assert stats.welch([1.0, 1.0], [3.0, 3.0]).p_value == 0.0
    one_sided = stats.welch([1.0, 1.0, 1.0], [1.0, 2.0, 6.0])
    assert one_sided.degrees_of_freedom == pytest.approx(2)
    assert one_sided.p_value == pytest.approx(scipy.stats.ttest_1samp([1.0, 2.0, 6.0], 1.0).pvalue)
    with pytest.raises(ValueError, match="finite"):
        stats.welch([1.0, 2.0], [np.nan, 1.0])


# statsmodels checks its own with these, which R's package multtest computed
RAW = [
    0.838541367553,
    0.642193923795,
    0.680845947633,
    0.967833824309,
    0.71626938238,
    0.177096952723,
    5.23656777208e-005,
    0.0202732688798,
    0.00028140506198,
    0.0149877310796,
]
HOLM = [1, 1, 1, 1, 1, 1, 5.2365677720800005e-04, 1.4191288215860001e-01, 2.53264555782e-03, 1.1990184863680001e-01]


def test_holm_gives_what_multtest_does() -> None:
    assert stats.holm(RAW) == pytest.approx(HOLM, abs=1e-15)
    by_name = stats.holm({f"test {i}": p for i, p in enumerate(RAW)})
    assert by_name == pytest.approx({f"test {i}": p for i, p in enumerate(HOLM)}, abs=1e-15)
    assert list(by_name)[6] == "test 6"


@given(p_values, st.floats(0.001, 0.5))
def test_holm_rejects_what_the_procedure_step_by_step_does(p: list[float], alpha: float) -> None:
    """As Holm describes it: from the smallest on, until one is not small enough for how many are left."""
    rejected = set()
    for step, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        if p[i] * (len(p) - step) > alpha:
            break
        rejected.add(i)
    assert {i for i, adjusted in enumerate(stats.holm(p)) if adjusted <= alpha} == rejected


@given(p_values, st.randoms())
def test_holm_keeps_the_order_and_lies_between_the_p_value_and_bonferroni(p: list[float], random) -> None:
    adjusted = stats.holm(p)
    assert all(raw <= one <= min(1, raw * len(p)) for raw, one in zip(p, adjusted, strict=True))
    for (raw, one), (other_raw, other) in itertools.combinations(zip(p, adjusted, strict=True), 2):
        assert (one <= other) if raw <= other_raw else (other <= one)
    shuffled = random.sample(range(len(p)), len(p))
    assert stats.holm([p[i] for i in shuffled]) == [adjusted[i] for i in shuffled]


@pytest.mark.parametrize("bad", [[], {}, [0.5, float("nan")], [-0.1], [0.2, 1.1], {"one": 2.0}])
def test_holm_refuses_what_is_no_p_value(bad) -> None:
    with pytest.raises(ValueError, match="expected"):
        stats.holm(bad)


@pytest.mark.parametrize(
    ("aggregate", "scipy_aggregate"),
    [(np.mean, np.mean), (stats.interquartile_mean, lambda x, axis: scipy.stats.trim_mean(x, 0.25, axis=axis))],
)
def test_stratified_bootstrap_agrees_with_scipy_resampling_every_case_by_itself(aggregate, scipy_aggregate) -> None:
    x = np.random.default_rng(5).gamma(2.0, [10.0, 50.0, 200.0], size=(6, 3))
    reference = scipy.stats.bootstrap(
        tuple(x.T),
        lambda *cases, axis: scipy_aggregate(np.concatenate(cases, axis=-1), axis),
        n_resamples=10_000,
        method="percentile",
        rng=1,
    ).confidence_interval
    interval = stats.stratified_bootstrap_interval(x, aggregate)
    width = reference.high - reference.low
    assert interval.low == pytest.approx(reference.low, abs=0.04 * width)
    assert interval.high == pytest.approx(reference.high, abs=0.04 * width)
    assert interval == stats.stratified_bootstrap_interval(x, aggregate)
    assert interval != stats.stratified_bootstrap_interval(x, aggregate, seed=1)


def test_stratified_bootstrap_keeps_the_cases_and_may_mix_the_runs() -> None:
    """Cases that differ alone say nothing of runs; that a run is good at one of them says nothing of the others."""
    cases = np.tile([1.0, 10.0, 100.0], (4, 1))
    assert stats.stratified_bootstrap_interval(cases, resamples=50) == stats.Interval(37.0, 37.0, 0.95)
    runs = np.tile([[0.0], [1.0]], (1, 400))
    interval = stats.stratified_bootstrap_interval(runs, resamples=200)
    # 400 coins, where resampling whole runs would give 0 to 1
    assert 0.4 < interval.low < 0.5 < interval.high < 0.6


def test_stratified_bootstrap_of_one_case_is_the_bootstrap_of_its_runs() -> None:
    x = np.random.default_rng(8).normal(100, 10, size=9)
    one_case, plain = stats.stratified_bootstrap_interval(x[:, None]), stats.bootstrap_interval(x)
    assert (one_case.low, one_case.high) == pytest.approx((plain.low, plain.high), abs=0.4)


@settings(deadline=None)
@given(matrices(st.integers(2, 5), 3), st.floats(0.1, 0.9))
def test_stratified_bootstrap_stays_within_what_every_case_allows(x: np.ndarray, level: float) -> None:
    interval = stats.stratified_bootstrap_interval(x, level=level, resamples=40)
    assert x.min(axis=0).mean() - 1e-9 <= interval.low <= interval.high <= x.max(axis=0).mean() + 1e-9
    shifted = stats.stratified_bootstrap_interval(x + 7, level=level, resamples=40)
    assert (shifted.low, shifted.high) == pytest.approx((interval.low + 7, interval.high + 7))


def test_a_stratified_bootstrap_of_one_run_or_no_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two runs"):
        stats.stratified_bootstrap_interval([[1.0, 2.0, 3.0]])
    for bad in ([1.0, 2.0], [], [[]], np.zeros((2, 2, 2))):
        with pytest.raises(ValueError, match="matrix"):
            stats.stratified_bootstrap_interval(bad)
    with pytest.raises(ValueError, match="finite"):
        stats.stratified_bootstrap_interval([[1.0, 2.0], [np.inf, 2.0]])


def test_probability_of_improvement_gives_what_rliable_publishes() -> None:
    """The example of rliable's own tests, whose first argument is the one that should be better."""
    x = [[1, 2], [2, 2], [1, 1], [2, 1]]
    y = [[1, 1], [2, 2], [3, 3]]
    assert stats.probability_of_improvement(y, x).probability == pytest.approx(1 / 3)


@settings(max_examples=50)
@given(matrices(st.integers(1, 5), 3), matrices(st.integers(1, 5), 3))
def test_probability_of_improvement_is_the_mann_whitney_statistic(a: np.ndarray, b: np.ndarray) -> None:
    pairs = list(zip(b.T, a.T, strict=True))
    u = [scipy.stats.mannwhitneyu(y, x, method="asymptotic").statistic / (y.size * x.size) for y, x in pairs]
    counted = [np.mean([1.0 if q > p else 0.5 if q == p else 0.0 for q in y for p in x]) for y, x in pairs]
    found = stats.probability_of_improvement(a, b, resamples=20)
    assert found.probability == pytest.approx(np.mean(u)) == pytest.approx(np.mean(counted))
    assert stats.probability_of_improvement(b, a, resamples=20).probability == pytest.approx(1 - found.probability)
    assert (found.interval is None) == (min(len(a), len(b)) == 1)
    if found.interval is not None:
        assert 0 <= found.interval.low <= found.interval.high <= 1


def test_probability_of_improvements_interval_agrees_with_scipys_bootstrap_of_both_sides() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(0, 1, size=(5, 2)), rng.normal(0.7, 2, size=(7, 2))

    def probability(*runs: np.ndarray) -> float:
        return np.mean([np.mean(b_case[:, None] > a_case) for a_case, b_case in (runs[::2], runs[1::2])])

    reference = scipy.stats.bootstrap(
        (a[:, 0], a[:, 1], b[:, 0], b[:, 1]),
        probability,
        n_resamples=10_000,
        method="percentile",
        vectorized=False,
        rng=2,
    ).confidence_interval
    found = stats.probability_of_improvement(a, b)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(reference.low, abs=0.02)
    assert found.interval.high == pytest.approx(reference.high, abs=0.02)
    assert found.interval.low < found.probability < found.interval.high
    assert found == stats.probability_of_improvement(a, b)


def test_probability_of_improvement_at_its_limits() -> None:
    low, high = np.zeros((3, 1)), np.ones((2, 1))
    assert stats.probability_of_improvement(low, high) == stats.Improvement(1.0, stats.Interval(1.0, 1.0, 0.95))
    assert stats.probability_of_improvement(high, low).probability == 0.0
    assert stats.probability_of_improvement(low, low) == stats.Improvement(0.5, stats.Interval(0.5, 0.5, 0.95))
    with pytest.raises(ValueError, match="as many cases"):
        stats.probability_of_improvement(np.zeros((2, 3)), np.zeros((2, 1)))
    with pytest.raises(ValueError, match="finite"):
        stats.probability_of_improvement(low, [[np.nan]])
