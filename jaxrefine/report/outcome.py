"""What came of a run, in a sentence."""

from __future__ import annotations

from jaxrefine.report.numbers import measure
from jaxrefine.report.record import Record
from jaxrefine.report.rounds import Round


def outcome(record: Record) -> str:
    """Say how the run ended and what its program reached, beside the demonstration."""
    return f"{_ending(record)} {_reached(record)}"


def _ending(record: Record) -> str:
    reason = f": {record.reason.rstrip('.')}." if record.reason else "."
    rounds = "1 round" if len(record.rounds) == 1 else f"{len(record.rounds)} rounds"
    match record.status:
        case "finished":
            return f"Finished after {rounds}{reason}"
        case "failed" | "stopped":
            return f"This run {record.status}{reason}"
        case "unfinished":
            state = "there is no summary.json to read, so the run was killed or is still going"
            return f"Unfinished: {state}; {_last_step(record)}."
        case other:
            return f"Ended with the status {other}{reason}"


def _last_step(record: Record) -> str:
    if not record.steps:
        return "it logged no step"
    last = record.steps[-1]
    return f"its last step, {last.name}, {'did not finish' if last.wall_s is None else 'finished'}"


def _reached(record: Record) -> str:
    chosen = record.best
    if chosen and chosen.evaluation:
        return f"Round {chosen.index} was chosen: {_level(record, chosen)}"
    evaluated = [entry for entry in record.rounds if entry.evaluation]
    if not evaluated:
        return "No round was evaluated."
    return (
        f"No round was chosen; the last one evaluated is round {evaluated[-1].index}: {_level(record, evaluated[-1])}"
    )


def _level(record: Record, entry: Round) -> str:
    sample = entry.evaluation
    assert sample is not None
    decimals = record.decimals
    unit = f" {record.metric.unit}" if record.metric.unit else ""
    text = (
        f"its program has a mean {record.metric.name} of {measure(sample.mean, decimals)}{unit} "
        f"(population deviation {measure(sample.std, decimals)}, n = {sample.n} evaluation episodes)"
    )
    level = record.demonstration.level
    if level is None:
        return f"{text}."
    gain = sample.mean - level if record.metric.higher_is_better else level - sample.mean
    verdict = "better than" if gain > 0 else "worse than" if gain < 0 else "the same as"
    by = f"{measure(abs(gain), decimals)} " if gain else ""
    return f"{text}, {by}{verdict} the demonstrator's {measure(level, decimals)}."
