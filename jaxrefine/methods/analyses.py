"""Analyses that the model writes of a round's table, run and added to what its decision is shown."""

from __future__ import annotations

from typing import Any

from jaxrefine.analysis import Limits, check_analysis, run_analysis
from jaxrefine.methods.prompting import column_list, part
from jaxrefine.methods.replies import ReplyError, find_analyses
from jaxrefine.methods.rounds import Round, RoundFailedError, Rounds
from jaxrefine.run import RunDirectory


def analyse(rounds: Rounds, current: Round) -> None:
    """Ask for analyses, roll the policy out, and run them.

    Raises:
        RoundFailedError: no module of analyses could be run.
    """
    reply, request = rounds.conversation.ask(
        "diagnose",
        current.number,
        program=current.source.strip(),
        columns=column_list(current.check["columns"]),
        battery=part("battery_note") if rounds.config.refine.battery else "",
        **rounds.table_facts(),
    )
    rounds.roll_out(current)
    run_analyses(rounds, current, reply, request)


def run_analyses(rounds: Rounds, current: Round, reply: str, request: str) -> None:
    """Run the reply's analyses on the round's table, and add their results to the round's.

    What fails goes back to the model.

    Args:
        rounds: carries the steps out.
        current: the round.
        reply: holds the module.
        request: what it answered.

    Raises:
        RoundFailedError: no module of analyses could be run.
    """
    limits = rounds.config.analysis
    problem = ""
    for attempt in range(rounds.config.refine.regenerations + 1):
        part, code, text = f"{current.analyses}" + (f"_{attempt}" if attempt else ""), "", ""
        try:
            code = find_analyses(reply)
            problem = check_analysis(code) or ""
        except ReplyError as error:
            problem = str(error)
        if not problem:
            result = _run_module(rounds, current, code, part, limits.wall_s, limits.memory_mb, limits.output_kb)
            text = result["text"]
            if result["status"] != "ok":
                problem = f"It ended with status `{result['status']}`. Its output:\n\n```text\n{text}\n```"
        if not problem or (attempt == rounds.config.refine.regenerations and text):
            current.analyses += 1
            current.analyses_text = _with_results(rounds.run, current, code, text)
            return
        if attempt == rounds.config.refine.regenerations:
            break
        current.regenerations += 1
        if code:
            columns = column_list(current.check["columns"])
            fields = {"columns": columns, "code": code.strip(), "problem": problem}
            reply, _ = rounds.conversation.ask("repair_analysis", current.number, **fields)
        else:
            fields = {"request": request, "reply": reply, "problem": problem}
            reply, _ = rounds.conversation.ask("repair_reply", current.number, **fields)
    raise RoundFailedError(f"round {current.number} has no analyses that run; the last problem: {problem}")


def _run_module(
    rounds: Rounds, current: Round, code: str, part: str, wall_s: float, memory_mb: int, output_kb: int
) -> dict[str, Any]:
    def analyse() -> dict[str, Any]:
        table = rounds.run.round_path(current.number) / "rollouts.parquet"
        limits = Limits(wall_s=wall_s, cpu_s=wall_s, memory_mb=memory_mb, output_kb=output_kb)
        found = run_analysis(code, table, limits, rounds.backend)
        lines = found.text.count("\n") + 1
        return {"status": found.status, "text": found.text, "line": f"{found.status}, {lines} lines of results"}

    return rounds.step(current, f"analyse_{part}", analyse, "run the analyses")


def _with_results(run: RunDirectory, current: Round, code: str, text: str) -> str:
    k, before = current.number, current.analyses_text
    mine = f"```python\n{code.strip()}\n```\n\ntest_results.txt:\n\n```text\n{text.strip()}\n```"
    both = f"{before}\n\nAdditional analyses:\n\n{mine}" if before else mine
    name = "" if current.analyses == 1 else f"_{current.analyses - 1}"
    run.write_text(f"round_{k}/diagnostics{name}.py", code)
    run.write_text(f"round_{k}/results{name}.txt", text)
    return both
