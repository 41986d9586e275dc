"""Whether a revision is worse than the program it would replace, beyond noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from jaxrefine.stats import paired_difference

SIGNIFICANCE = 0.05
# of the mean before; a difference that is certain and smaller still counts for nothing
MARGIN = 0.005


def compare(
    before: Sequence[float | None], after: Sequence[float | None], better: Literal["higher", "lower"]
) -> dict[str, Any]:
    """Compare two programs' values on the same episodes, in the same order.

    A revision is worse when its mean is, by more than half a per cent of the other's, and the two-sided p-value of the
    paired t-test is below 0.05; also when a value of its own is not finite and the other program's are.

    Returns:
        ``{"verdict": "worse than" | "better than" | "not different from", "mean": after - before, "low", "high": ends
        of its 95 % bootstrap interval, "p_value", "n": int, "line": str}``; numbers that there are not are None.
    """
    a, b = ([math.nan if value is None else value for value in values] for values in (before, after))
    sound = [all(map(math.isfinite, values)) for values in (a, b)]
    unknown: dict[str, Any] = {"mean": None, "low": None, "high": None, "p_value": None, "n": len(b)}
    if not all(sound):
        verdict = "worse than" if sound[0] else "better than" if sound[1] else "not different from"
        return {"verdict": verdict, **unknown, "line": "a value is not finite"}
    found = paired_difference(a, b)
    gain = found.mean if better == "higher" else -found.mean
    large = abs(gain) > MARGIN * abs(sum(a) / len(a))
    certain = found.p_value is not None and found.p_value < SIGNIFICANCE and large
    verdict = "not different from" if not certain else "better than" if gain > 0 else "worse than"
    low, high = (found.interval.low, found.interval.high) if found.interval else (None, None)
    line = f"{found.mean:+.4g} over {found.n} episodes"
    if found.interval is not None and found.p_value is not None:
        line += f", 95 % interval {low:+.3g} to {high:+.3g}, p = {found.p_value:.2g}"
    return {
        "verdict": verdict,
        "mean": found.mean,
        "low": low,
        "high": high,
        "p_value": found.p_value,
        "n": found.n,
        "line": line,
    }


def recorded_course(
    ahead: tuple[str, int, int] | None, revision: int, aside: int | None
) -> tuple[int | None, str | None]:
    """How a recorded conversation goes on after a revision.

    Args:
        ahead: purpose, round and attempt of what is recorded next; None when nothing is.
        revision: the round that was judged.
        aside: the earlier round that it is set aside for by this run's own judgement; None when it is kept.

    Returns:
        The same by the recording, and words for it where the two differ.
    """
    if ahead is None or ahead[1] > revision:
        return aside, None
    recorded = None if ahead[1] == revision else ahead[1]
    if recorded == aside:
        return aside, None
    course = "kept it" if recorded is None else f"set it aside for round {recorded}"
    return recorded, f"the recorded conversation {course}, which is followed"
