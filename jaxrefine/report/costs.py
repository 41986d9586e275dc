"""What a run had spent by the time each of its rounds was evaluated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jaxrefine.report.activity import Exchange, Step


@dataclass(frozen=True)
class Spent:
    """Cumulative costs; None where the logs do not tell them.

    Attributes:
        resets: Episodes of choosing fits, of rollouts and of the built-in checks; those of the evaluation not counted.
        calls: Requests to the model.
        tokens: In and out together.
    """

    resets: int | None
    calls: int | None
    tokens: int | None


def spent_by_round(steps: Sequence[Step], exchanges: Sequence[Exchange]) -> dict[int, Spent]:
    """For every evaluated round what was spent until then: on its program and its fit, not on what followed.

    Args:
        steps: In the order in which they were begun.
        exchanges: Of the whole run; each names its step, and one whose step the log lacks makes the calls unknown.
    """
    by_step: dict[str, list[Exchange]] = {}
    for exchange in exchanges:
        by_step.setdefault(exchange.step, []).append(exchange)
    told = by_step.keys() <= {step.name for step in steps}
    found: dict[int, Spent] = {}
    resets: int | None = 0
    calls = tokens = 0
    for step in steps:
        resets = None if resets is None or step.resets is None else resets + step.resets
        for exchange in by_step.get(step.name, []):
            calls += 1
            tokens += exchange.input_tokens + exchange.output_tokens
        if step.round is not None and step.wall_s is not None and re.search(r"/evaluate(_\d+)?$", step.name):
            found[step.round] = Spent(resets, calls if told else None, tokens if told else None)
    return found


def resets_so_far(steps: Sequence[Step]) -> int | None:
    """All episodes spent on refinement; None where a step does not say how many it took."""
    told = [step.resets for step in steps]
    return None if None in told else sum(count or 0 for count in told)
