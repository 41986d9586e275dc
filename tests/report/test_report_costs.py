"""What a run had spent when each round was evaluated, counted from a log written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report_reader import page_of

from jaxrefine.report.activity import read_exchanges, read_steps, rejected_rounds
from jaxrefine.report.costs import Spent, resets_so_far, spent_by_round

Edit = Callable[[Path, Callable[[dict[str, Any]], None]], None]


def finished(name: str, **result: Any) -> dict[str, Any]:
    return {"event": "step_finished", "step": name, "wall_s": 1.0, "result": result}


def exchange(purpose: str, index: int, attempt: int, tokens: int) -> dict[str, Any]:
    usage = {"input_tokens": tokens, "output_tokens": 1}
    return {"kind": "exchange", "purpose": purpose, "round": index, "attempt": attempt, "completion": {"usage": usage}}


LOG = [
    finished("round_0/generate"),
    finished("round_0/evaluate", problem="not finite"),
    finished("round_0/repair_program"),
    finished("round_0/evaluate_1", episodes=26, test_episodes=10),
    finished("round_0/diagnose"),
    finished("round_0/rollout", episodes=64, rows=5),
    finished("round_0/battery", episodes=8),
    finished("round_0/revise"),
    finished("round_1/evaluate", episodes=26, test_episodes=10),
    finished("round_0/revise_1"),
    finished("round_2/evaluate", episodes=26, test_episodes=10),
    finished("rl/400/evaluate", episodes=26, test_episodes=10),
]
CALLS = [
    exchange("generate", 0, 0, 100),
    exchange("repair_program", 0, 0, 10),
    exchange("diagnose", 0, 0, 1000),
    exchange("revise", 0, 0, 5),
    exchange("revise", 0, 1, 7),
]


def test_costs_add_up_to_each_evaluation() -> None:
    steps, calls = read_steps(LOG), read_exchanges(CALLS)
    assert spent_by_round(steps, calls) == {
        0: Spent(16, 2, 112),
        1: Spent(16 + 64 + 8 + 16, 4, 1119),
        2: Spent(104 + 16, 5, 1127),
    }
    assert resets_so_far(steps) == 120


def test_what_the_log_does_not_tell_is_unknown_from_there_on() -> None:
    log = [event if event["step"] != "round_0/battery" else finished("round_0/battery") for event in LOG]
    calls = read_exchanges([*CALLS, exchange("diagnose", 7, 0, 1)])
    spent = spent_by_round(read_steps(log), calls)
    assert (spent[0], spent[1]) == (Spent(16, None, None), Spent(None, None, None))
    assert resets_so_far(read_steps(log)) is None


def test_a_round_after_which_the_run_went_back_is_rejected() -> None:
    started = [{"event": "round_started", "round": index} for index in range(4)]
    back = {"event": "round_returned", "round": 0}
    assert rejected_rounds([started[0], started[1], back, started[2], started[3], back]) == {1, 3}


def test_the_metric_against_each_cost_or_why_not(finished_run: Path) -> None:
    page = page_of(finished_run)
    assert page.has("rounds", "What each round cost in resets cannot be known: the logs do not tell.")
    events = [json.loads(line) for line in (finished_run / "events.jsonl").read_text().splitlines()]
    for event in events:
        if event["event"] == "step_finished" and event["step"].endswith("/evaluate"):
            event["result"] |= {"episodes": 40, "test_episodes": 30}
        if event["event"] == "step_finished" and event["step"].endswith("/rollout"):
            event["result"] |= {"episodes": 50}
    for index, purpose in ((0, "generate"), (0, "diagnose"), (1, "revise"), (1, "diagnose"), (2, "revise")):
        at = next(i for i, event in enumerate(events) if event.get("step") == f"round_{index}/fit")
        step = f"round_{index}/{purpose}"
        events[at:at] = [{"event": "step_started", "step": step}, finished(step)]
    events.append(finished("round_2/diagnose"))
    (finished_run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    labels = [attributes.get("aria-label") or "" for _, attributes in page_of(finished_run).elements]
    (resets,) = [label for label in labels if "against resets" in label]
    assert "round 0: 60 for 905, round 1: 120 for 880, round 2: 180 for 917.5" in resets
    (calls,) = [label for label in labels if "against model calls" in label]
    assert "round 0: 2 for 905, round 1: 4 for 880, round 2: 5 for 917.5" in calls
    assert any("round 1: 8,800 for 880" in label for label in labels if "against tokens" in label)


def test_the_paper_s_level_stands_only_beside_the_stock_environment(finished_run: Path, edit_summary: Edit) -> None:
    edit_summary(finished_run, lambda summary: summary.update(condition="stock"))
    assert page_of(finished_run).has("rounds", "paper, refined 882")
    edit_summary(finished_run, lambda summary: summary.update(condition="slick"))
    assert "paper, refined" not in page_of(finished_run).sections["rounds"]


def test_costs_of_an_unfinished_run_are_counted(finished_run: Path) -> None:
    (finished_run / "summary.json").unlink()
    page = page_of(finished_run)
    assert page.has("overview", "Cost so far, counted from the logs", "model calls 6", "input tokens 9,000")
    assert page.has("overview", "refinement resets unknown", "wall time 1 min 48 s", "versions not recorded")


def test_the_overview_says_what_held_the_model_s_code(finished_run: Path, edit_summary: Edit) -> None:
    assert page_of(finished_run).has("overview", "model a-model", "status finished", "sandbox process", "jax 0.10.2")

    def held(summary: dict[str, Any]) -> None:
        summary["provenance"]["sandbox"] = {"analyses": "bubblewrap", "programs": "none: in the command's process"}

    edit_summary(finished_run, held)
    page = page_of(finished_run)
    assert page.has("overview", "sandbox, analyses bubblewrap: walled off from files and network")
    assert page.has("overview", "sandbox, programs none: in the command's process: no walls")
    classes = {attributes.get("class") for tag, attributes in page.elements if tag == "dd"}
    assert {"good", "bad"} <= classes
