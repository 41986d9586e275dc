"""The method: generate, fit, roll out, analyse, revise, until the model has nothing left to correct.

At most ``refine.rounds`` revisions follow the first program; the last one is fitted and evaluated but not analysed.
Every part is a durable step, so a run that was killed goes on from its last finished one when this is called again.
"""

from __future__ import annotations

from functools import partial

from jaxrefine.methods.replies import Decision, ReplyError, find_decision
from jaxrefine.methods.rounds import Round, RoundFailedError, Rounds


def refine(rounds: Rounds) -> tuple[list[Round], str | None]:
    """Carry the whole loop out.

    Returns:
        The rounds that were evaluated, and why the loop ended early if something failed.

    Raises:
        RoundFailedError: not even the first round could be evaluated.
    """
    done = [rounds.first()]
    last = rounds.config.refine.rounds
    while True:
        current = done[-1]
        if current.number == last:
            current.decision = "limit"
            return done, None
        try:
            decision, reply = _decide(rounds, current)
            current.decision = decision.kind
            if decision.kind == "done":
                return done, None
            following = rounds.revised(current.number + 1, reply)
        except RoundFailedError as failure:
            return done, str(failure)
        done.append(following)


def _decide(rounds: Rounds, current: Round) -> tuple[Decision, str]:
    """Analyses and a decision; asks again while the model wants more analyses of the same table."""
    analyses = rounds.analyse(current)
    for attempt in range(rounds.config.refine.more_analyses + 1):
        fields = {"program": current.source.strip(), "analyses": analyses, **rounds.table_facts()}
        reply, request = rounds.conversation.ask("revise", current.number, **fields)
        rounds.run.write_text(f"round_{current.number}/decision.md", reply)
        try:
            decision = find_decision(reply, rounds.task.class_name)
        except ReplyError as error:
            current.regenerations += 1
            again = {"request": request, "reply": reply, "problem": str(error)}
            reply, _ = rounds.conversation.ask("repair_reply", current.number, **again)
            rounds.run.write_text(f"round_{current.number}/decision.md", reply)
            try:
                decision = find_decision(reply, rounds.task.class_name)
            except ReplyError as second:
                problem = (
                    f"round {current.number} has no decision: the reply could not be used, nor its repair: {second}"
                )
                raise RoundFailedError(problem) from second
        name = f"round_{current.number}/decision" + (f"_{attempt}" if attempt else "")
        kind = decision.kind
        rounds.run.step(name, partial(dict, decision=kind, line=kind), label="decision")
        if kind != "analysis":
            return decision, reply
        if attempt < rounds.config.refine.more_analyses:
            analyses = rounds.run_analyses(current, reply, request, analyses)
    raise RoundFailedError(
        f"round {current.number} asked for more analyses {rounds.config.refine.more_analyses + 1} times without a "
        "decision; raise refine.more_analyses to let it go on"
    )
