"""What revisions came to under each kind of feedback: results by round, their cost, and what they put right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from jaxrefine import stats
from jaxrefine.report.activity import Exchange
from jaxrefine.report.groups import Case, Group, Run, chain, demonstrated
from jaxrefine.report.record import Record
from jaxrefine.report.rounds import Round

_WORDS = {
    "analysis": "analyses",
    "table": "table of one rollout",
    "return_only": "returns only",
    "none": "nothing",
}
_AROUND = (-0.05, 0.0, 0.05)


@dataclass(frozen=True)
class Journey:
    """One conversation from its first program to its last.

    Attributes:
        name: Of the conversation.
        rounds: Those that were evaluated, in order.
        fall: The largest loss from one round to the next, in the metric's own direction; 0 if it never lost.
        chosen: The mean of the round that was chosen.
    """

    name: str
    rounds: tuple[Round, ...]
    lowest: float | None
    fall: float
    chosen: float | None


@dataclass(frozen=True)
class Cost:
    """Tokens of one request for a revision and all that led to it, over all of a kind of feedback.

    Attributes:
        decisions: How many there were: each ends in a revision, in `done`, or in a wish for more analyses.
        calls: Mean number of calls for one.
        input, output: Tokens, None where there was no decision.
    """

    decisions: int
    calls: float | None
    input: stats.Sample | None
    output: stats.Sample | None


@dataclass(frozen=True)
class Needed:
    """Revisions until a round first reached a level, of every conversation; None for one that never did."""

    level: float
    revisions: tuple[int | None, ...]


@dataclass(frozen=True)
class Kind:
    """One kind of feedback, with the other options it was used with."""

    name: str
    shown: str
    group: Group
    journeys: tuple[Journey, ...]
    cost: Cost
    needed: tuple[Needed, ...]


def kinds(case: Case) -> tuple[Kind, ...]:
    """The refinements of a case by what the model was shown; those without a second round too."""
    level, better = demonstrated(case), case.record.metric.higher_is_better
    levels = () if level is None else tuple(level + share * abs(level) * (1 if better else -1) for share in _AROUND)
    return tuple(
        _kind(group, levels, better)
        for group in case.groups
        if group.method == "refine" and any(_evaluated(run.record) for run in group.runs)
    )


def _kind(group: Group, levels: Sequence[float], better: bool) -> Kind:
    journeys = tuple(_journey(run, better) for run in group.runs if _evaluated(run.record))
    return Kind(
        group.name,
        _WORDS.get(group.feedback or "analysis", group.feedback or "analyses"),
        group,
        journeys,
        cost([run.record.exchanges for run in group.runs]),
        tuple(Needed(level, tuple(_revisions(journey, level, better) for journey in journeys)) for level in levels),
    )


def _evaluated(record: Record) -> tuple[Round, ...]:
    return tuple(entry for entry in record.rounds if entry.evaluation)


def _journey(run: Run, better: bool) -> Journey:
    rounds = _evaluated(run.record)
    means = [entry.evaluation.mean for entry in rounds if entry.evaluation]
    sign = 1 if better else -1
    falls = [sign * (before - after) for before, after in itertools.pairwise(means)]
    best = run.record.best
    return Journey(
        chain(run),
        rounds,
        sign * min(sign * mean for mean in means[1:]) if len(means) > 1 else None,
        max(0.0, *falls) if falls else 0.0,
        best.evaluation.mean if best and best.evaluation else None,
    )


def cost(conversations: Sequence[Sequence[Exchange]]) -> Cost:
    """What a decision takes: analyses, repairs and the request itself; the first program is not among them."""
    decisions = [part for exchanges in conversations for part in split_decisions(exchanges)]
    if not decisions:
        return Cost(0, None, None, None)
    return Cost(
        len(decisions),
        sum(map(len, decisions)) / len(decisions),
        stats.describe([float(sum(exchange.input_tokens for exchange in part)) for part in decisions]),
        stats.describe([float(sum(exchange.output_tokens for exchange in part)) for part in decisions]),
    )


def split_decisions(exchanges: Sequence[Exchange]) -> list[list[Exchange]]:
    """A list for every `revise`, from what prepares it to the repairs that follow it."""
    parts: list[list[Exchange]] = []
    for exchange in exchanges:
        if exchange.purpose == "generate" or (not parts and exchange.purpose == "repair_program"):
            continue
        begins = exchange.purpose in ("diagnose", "revise")
        asked = parts and any(earlier.purpose == "revise" for earlier in parts[-1])
        if not parts or (begins and asked):
            parts.append([])
        parts[-1].append(exchange)
    # analyses that no decision followed, in a run that ended
    return [part for part in parts if any(exchange.purpose == "revise" for exchange in part)]


def _revisions(journey: Journey, level: float, better: bool) -> int | None:
    for entry in journey.rounds:
        mean = entry.evaluation.mean if entry.evaluation else None
        if mean is not None and (mean >= level if better else mean <= level):
            return entry.index
    return None
