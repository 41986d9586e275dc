"""Whether a revision replaces the program before it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from jaxrefine.methods.acceptance import compare

BEFORE = [900.0, 880.0, 910.0, 870.0, 905.0, 890.0, 895.0, 885.0]


@pytest.mark.parametrize(
    ("change", "better", "verdict"),
    [
        ([-30, -25, -35, -31, -28, -22, -40, -33], "higher", "worse than"),
        ([-30, -25, -35, -31, -28, -22, -40, -33], "lower", "better than"),
        ([30, 25, 35, 31, 28, 22, 40, 33], "higher", "better than"),
        ([-200, 30, 25, 10, -15, 40, 20, 30], "higher", "not different from"),  # one bad episode is not certain
        ([-0.1] * 7 + [-0.2], "higher", "not different from"),  # certain, and too small to count
        ([0] * 8, "higher", "not different from"),
    ],
)
def test_a_revision_is_judged_episode_by_episode(change: list[float], better, verdict: str) -> None:
    after = [value + more for value, more in zip(BEFORE, change, strict=True)]
    found = compare(BEFORE, after, better)
    assert found["verdict"] == verdict
    assert found["mean"] == pytest.approx(np.mean(change))
    if any(change):
        assert found["p_value"] == pytest.approx(scipy.stats.ttest_rel(after, BEFORE).pvalue)


def test_what_is_not_finite_is_worse_than_what_is() -> None:
    broken = [*BEFORE[:-1], None]
    assert compare(BEFORE, broken, "higher")["verdict"] == "worse than"
    assert compare(broken, BEFORE, "higher")["verdict"] == "better than"
    assert compare(broken, broken, "lower")["verdict"] == "not different from"
