"""What a decision is shown of a round: results of analyses, one rollout's table, returns, or nothing."""

from __future__ import annotations

from typing import Any

from jaxrefine.methods import prompting
from jaxrefine.methods.analyses import analyse
from jaxrefine.methods.rounds import Round, Rounds

FEEDBACK = ("analysis", "table", "return_only", "none")


def gather(rounds: Rounds, current: Round) -> None:
    """Make what the decision on a round will be shown, once; it stays with the round.

    Raises:
        RoundFailedError: no module of analyses could be run.
    """
    match rounds.config.refine.feedback:
        case "analysis":
            analyse(rounds, current)
        case "table":
            rounds.roll_out(current)
            rounds.excerpt(current)
        case "return_only":
            rounds.roll_out(current)
    current.evident = True


def fields(rounds: Rounds, current: Round, done: list[Round]) -> dict[str, str]:
    """What the template of the decision asks for, beside the task and the options."""
    feedback = rounds.config.refine.feedback
    by_analysis = feedback == "analysis"
    return {
        "program": current.source.strip(),
        "evidence": _evidence(rounds, current, feedback),
        "history": _history(rounds, current, done),
        "job": prompting.part(f"job_{feedback}"),
        "forms": "three" if by_analysis else "two",
        "more_analyses": prompting.part("more_analyses") if by_analysis else "",
    }


def _evidence(rounds: Rounds, current: Round, feedback: str) -> str:
    known = {**rounds.table_facts(), "instances": rounds.task.episodes_differ_in}
    match feedback:
        case "analysis":
            battery = ""
            if rounds.config.refine.battery:
                battery = prompting.part("evidence_battery", checks=rounds.battery(current))
            return prompting.part("evidence_analysis", **known, battery=battery, analyses=current.analyses_text)
        case "table":
            found = rounds.excerpt(current)
            thinned = "" if found["every"] == 1 else f", one step of every {found['every']}"
            weights = ", ".join(f"{name} = {value:.4g}" for name, value in found["weights"].items())
            table = rounds.run.read_text(f"round_{current.number}/excerpt.csv").strip()
            return prompting.part("evidence_table", **known, thinned=thinned, weights=weights, table=table)
        case "return_only":
            return prompting.part("evidence_return_only", **known, returns=_returns(current.rolled_out))
    return prompting.part("evidence_none")


def _returns(rolled_out: dict[str, Any]) -> str:
    lines = []
    for how, key in (("by the mean action", "returns_by_mean"), ("by sampled actions", "returns_sampled")):
        values = rolled_out[key]
        if values["n"]:
            lines.append(
                f"- {how}, {values['n']} episodes: {_number(values['mean'])} +- {_number(values['std'])}, from "
                f"{_number(values['min'])} to {_number(values['max'])}"
            )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.5g}"


def _history(rounds: Rounds, current: Round, done: list[Round]) -> str:
    """What was tried and how it fared; nothing where every revision is kept, for then the program says it all."""
    if rounds.config.refine.accept != "validate" or len(done) < 2:
        return ""
    metric = rounds.task.metric
    lines = []
    for entry in done:
        value = entry.evaluation["validation"]
        score = "not finite" if value["mean"] is None else f"{value['mean']:.4g} +- {value['std']:.2g}"
        what = "the first program" if entry.number == 0 else entry.changes or "no account of the changes was given"
        verdict = ""
        if (found := entry.against_best) is not None:
            verdict = f"; {'kept' if entry.accepted else 'not kept'} ({found['line']}, against program {found['best']})"
        lines.append(f"- Program {entry.number}: {what}\n  Score: {score}{verdict}")
    lines.append(f"\nThe current program, above, is program {current.number}.")
    unit = f" in {metric.unit}" if metric.unit else ""
    episodes = str(done[0].evaluation["validation"]["n"])
    return prompting.part(
        "history", episodes=episodes, metric=f"{metric.name}{unit}", better=metric.better, attempts="\n".join(lines)
    )
