"""The method: generate, fit, roll out, analyse, revise, until the model has nothing left to correct.

At most ``refine.rounds`` revisions follow the first program; the last one is fitted and evaluated but not analysed.
With ``refine.accept=validate`` a revision that is worse than the best program so far, on validation episodes and beyond
noise, is set aside: the next decision is about that best one again, and the model is told. Every part is a durable
step, so a run that was killed goes on from its last finished one when this is called again.
"""

from __future__ import annotations

from functools import partial

from jaxrefine.methods import evidence
from jaxrefine.methods.analyses import run_analyses
from jaxrefine.methods.replies import Decision, ReplyError, find_decision, find_section
from jaxrefine.methods.rounds import Round, RoundFailedError, Rounds

CHANGES_KEPT = 1500  # characters of an account of changes that later prompts repeat


def refine(rounds: Rounds) -> tuple[list[Round], str | None]:
    """Carry the whole loop out.

    Returns:
        The rounds that were evaluated, and why the loop ended early if something failed.

    Raises:
        RoundFailedError: not even the first round could be evaluated.
    """
    current = rounds.first()
    done = [current]
    last = rounds.config.refine.rounds
    while True:
        if done[-1].number == last:
            done[-1].decision = "limit" if done[-1].accepted else "rejected"
            return done, None
        try:
            decision, reply = _decide(rounds, current, done)
            current.decision = decision.kind
            if decision.kind == "done":
                return done, None
            following = rounds.revised(done[-1].number + 1, reply, current)
        except RoundFailedError as failure:
            return done, str(failure)
        following.changes = " ".join(find_section(reply, "Changes").split())[:CHANGES_KEPT]
        current = rounds.judge(following, done)
        done.append(following)
        if not following.accepted:
            following.decision = "rejected"
            rounds.run.emit("round_returned", round=current.number)


def _decide(rounds: Rounds, current: Round, done: list[Round]) -> tuple[Decision, str]:
    """Evidence and a decision; asks again while the model wants more analyses of the same table."""
    if not current.evident:
        evidence.gather(rounds, current)
    for attempt in range(rounds.config.refine.more_analyses + 1):
        reply, request = rounds.conversation.ask("revise", current.number, **evidence.fields(rounds, current, done))
        rounds.run.write_text(f"round_{current.number}/decision.md", reply)
        try:
            decision = _read(rounds, reply)
        except ReplyError as error:
            current.regenerations += 1
            again = {"request": request, "reply": reply, "problem": str(error)}
            reply, _ = rounds.conversation.ask("repair_reply", current.number, **again)
            rounds.run.write_text(f"round_{current.number}/decision.md", reply)
            try:
                decision = _read(rounds, reply)
            except ReplyError as second:
                problem = (
                    f"round {current.number} has no decision: the reply could not be used, nor its repair: {second}"
                )
                raise RoundFailedError(problem) from second
        name = f"round_{current.number}/decision" + (f"_{current.decisions}" if current.decisions else "")
        current.decisions += 1
        kind = decision.kind
        rounds.run.step(name, partial(dict, decision=kind, line=kind), label="decision")
        if kind != "analysis":
            return decision, reply
        if attempt < rounds.config.refine.more_analyses:
            run_analyses(rounds, current, reply, request)
    raise RoundFailedError(
        f"round {current.number} asked for more analyses {rounds.config.refine.more_analyses + 1} times without a "
        "decision; raise refine.more_analyses to let it go on"
    )


def _read(rounds: Rounds, reply: str) -> Decision:
    decision = find_decision(reply, rounds.task.class_name)
    if decision.kind == "analysis" and rounds.config.refine.feedback != "analysis":
        raise ReplyError("no analyses can be run here; decide `program`, with the whole new program, or `done`.")
    return decision
