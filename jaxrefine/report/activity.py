"""What a run did and what it cost: the steps of its event log and the exchanges of its conversation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxrefine.report.fields import JSON, get, integer, number, string


@dataclass(frozen=True)
class Step:
    """One durable step.

    Attributes:
        name: Such as `round_0/fit`.
        label: What a person saw while it ran.
        wall_s: How long it took, in seconds; None if it did not finish.
        starts: How often it was begun: more than once if a process was killed in the middle of it.
        decision: The decision its result names, if it names one.
        line: What came of it, in the run's own words.
        resets: The episodes it spent on refining a program, those of the final evaluation not counted; None where it
            spent some and the log does not say how many.
    """

    name: str
    label: str
    wall_s: float | None
    starts: int
    decision: str | None = None
    line: str | None = None
    resets: int | None = 0

    @property
    def round(self) -> int | None:
        """The round it belongs to."""
        found = re.match(r"round_(\d{1,4})/", self.name)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Exchange:
    """One request to the model and its cost; latency in seconds, `estimated` where nobody counted the tokens."""

    purpose: str
    round: int | None
    attempt: int | None
    model: str
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    latency: float | None
    finish_reason: str
    estimated: bool = False

    @property
    def step(self) -> str:
        """The name of the step that made it."""
        return f"round_{self.round}/{self.purpose}" + (f"_{self.attempt}" if self.attempt else "")


@dataclass(frozen=True)
class Tally:
    """Calls and tokens of one purpose, or of all of them."""

    purpose: str
    calls: int
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    latency: float


def read_steps(events: Sequence[dict[str, JSON]]) -> tuple[Step, ...]:
    """The steps in the order in which they were first begun."""
    steps: dict[str, Step] = {}
    for event in events:
        name, kind = string(get(event, "step")), get(event, "event")
        if name is None or kind not in ("step_started", "step_finished"):
            continue
        step = steps.get(name) or Step(name, string(get(event, "label")) or name, None, 0)
        if kind == "step_started":
            steps[name] = replace(step, starts=step.starts + 1)
        else:
            result = get(event, "result")
            steps[name] = replace(
                step,
                wall_s=number(get(event, "wall_s")),
                decision=string(get(result, "decision")) or string(get(result, "kind")),
                line=string(get(result, "line")),
                resets=_resets(name, result),
            )
    return tuple(steps.values())


def _resets(name: str, result: JSON) -> int | None:
    kind = re.match(r"round_\d{1,4}/(evaluate|rollout|battery)(_\d+)?$", name)
    if kind is None or get(result, "problem") is not None:
        return 0
    episodes = integer(get(result, "episodes"))
    tested = integer(get(result, "test_episodes")) if kind[1] == "evaluate" else 0
    return None if episodes is None or tested is None else episodes - tested


def rejected_rounds(events: Sequence[dict[str, JSON]]) -> set[int]:
    """The rounds after which the run went back to an earlier one."""
    rejected: set[int] = set()
    latest: int | None = None
    for event in events:
        kind = get(event, "event")
        if kind == "round_started":
            latest = integer(get(event, "round"))
        elif kind == "round_returned" and latest is not None:
            rejected.add(latest)
    return rejected


def read_notices(events: Sequence[dict[str, JSON]]) -> tuple[str, ...]:
    """What the run told the person who watched it."""
    texts = (string(get(event, "text")) for event in events if get(event, "event") == "notice")
    return tuple(text for text in texts if text)


def read_exchanges(lines: Sequence[dict[str, JSON]]) -> tuple[Exchange, ...]:
    """The exchanges of a transcript."""
    return tuple(_exchange(line) for line in lines if get(line, "kind") == "exchange")


def _exchange(line: JSON) -> Exchange:
    completion, usage = get(line, "completion"), get(line, "completion", "usage")
    return Exchange(
        purpose=string(get(line, "purpose")) or "unnamed",
        round=integer(get(line, "round")),
        attempt=integer(get(line, "attempt")),
        model=string(get(completion, "model")) or "unknown",
        input_tokens=integer(get(usage, "input_tokens")) or 0,
        output_tokens=integer(get(usage, "output_tokens")) or 0,
        reasoning_tokens=integer(get(usage, "reasoning_tokens")) or 0,
        latency=number(get(completion, "latency")),
        finish_reason=string(get(completion, "finish_reason")) or "unknown",
        estimated=get(usage, "estimated") is True,
    )


def tally(exchanges: Sequence[Exchange]) -> tuple[Tally, ...]:
    """Cost by purpose, in the order of first use, and last the sum of all."""
    purposes = dict.fromkeys(exchange.purpose for exchange in exchanges)
    lines = [_sum(name, [exchange for exchange in exchanges if exchange.purpose == name]) for name in purposes]
    return (*lines, _sum("all", exchanges))


def _sum(purpose: str, exchanges: Sequence[Exchange]) -> Tally:
    return Tally(
        purpose,
        len(exchanges),
        sum(exchange.input_tokens for exchange in exchanges),
        sum(exchange.output_tokens for exchange in exchanges),
        sum(exchange.reasoning_tokens for exchange in exchanges),
        sum(exchange.latency or 0.0 for exchange in exchanges),
    )
