from __future__ import annotations

import copy
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rich.console

from jaxrefine.run import Console, RunDirectory, print_summary

SPREAD = {"std": 29.3, "std_sample": 30.9, "n": 10, "over": "episodes"}
ROUND = {
    "round": 0,
    "metric": {"mean": 872.0, **SPREAD},
    "nll": {"train": -2.5, "validation": -2.3125},
    "decision": "program",
    "parameters": 45,
}
SUMMARY: dict[str, Any] = {
    "task": "car_racing",
    "method": "refine",
    "status": "finished",
    "reason": None,
    "best_round": 1,
    "metric": {"name": "return", "better": "higher", "unit": ""},
    "demonstration": {
        "name": "human-like", "source": "gymnasium", "metric": 871.04, "steps": 1000,
        "test": {"mean": 877.443, "std": 23.472, "std_sample": 24.742, "n": 10, "over": "episodes"},
    },
    "rounds": [ROUND, {**ROUND, "round": 1, "metric": {"mean": 911.26, **SPREAD, "std": 9.34}, "decision": "done"}],
    "rl": [],
    "resources": {
        "llm_calls": 9, "input_tokens": 12345, "output_tokens": 3210, "reasoning_tokens": 0, "cost": None,
        "refinement_resets": 4, "training_resets": 0, "env_steps": 40000, "wall_s": 133.2,
    },
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory.create(tmp_path / "run") as run:
        yield run


def play(run: RunDirectory) -> None:
    run.emit("run_started", task="car_racing", method="refine", seed=0)
    run.emit("round_started", round=1)

    def fit() -> dict[str, str]:
        run.progress(1, 4)
        return {"line": "nll -2.31"}

    run.step("round_1/fit", fit, label="fit 4 seeds")
    run.notice("the prompt differs\nfrom the recorded one")
    with pytest.raises(ValueError, match="no such"):
        run.step("round_1/rollout", lambda: float_of("no such"), label="roll out")
    run.step("round_1/fit", pytest.fail, label="fit 4 seeds")


def float_of(text: str) -> float:
    raise ValueError(text + " [bold]\x1b[31m name\nmore")


def test_plain_output_is_one_line_for_each_step_and_notice(run: RunDirectory) -> None:
    stream = io.StringIO()
    with Console(run, stream) as console:
        assert console.plain
        play(run)
    head, finished, note, failed, reused = stream.getvalue().splitlines()
    assert head == f"car_racing  refine  {run.path}"
    assert re.fullmatch(r"round 1  fit 4 seeds +0\.\d s   nll -2\.31", finished)
    assert note == "note: the prompt differs from the recorded one"
    assert re.fullmatch(r"round 1  roll out +0\.\d s   failed: no such \[bold\]\?\[31m name", failed)
    assert re.fullmatch(r"round 1  fit 4 seeds +earlier   nll -2\.31", reused)
    assert stream.getvalue().isprintable() or set(stream.getvalue()) - set(map(chr, range(32, 127))) == {"\n"}


def test_a_terminal_shows_the_running_step_and_is_left_clean(run: RunDirectory) -> None:
    stream = io.StringIO()
    with Console(run, stream, plain=False) as console:
        run.emit("round_started", round=2)

        def roll_out() -> dict[str, str]:
            run.progress(16, 64)
            console._progress.refresh()
            return {"line": "64 episodes"}

        run.step("round_2/rollout", roll_out, label="roll out")
    shown = stream.getvalue()
    assert "\x1b[?25l" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert "16/64" in shown
    assert "0:00:00" in shown
    assert re.search(r"round 2  roll out +0\.\d s   64 episodes", shown)
    # What is left on the screen after the display is wiped ends with the finished step.
    assert "16/64" not in shown[shown.rindex("64 episodes") :]


def test_ctrl_c_gives_the_cursor_back(run: RunDirectory) -> None:
    stream = io.StringIO()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Console(run, stream, plain=False):
        run.step("a", interrupted)
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")
    run.step("b", lambda: 1)
    assert " b " not in stream.getvalue()


def test_notices_found_on_opening_are_shown(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"event": "half')
    stream = io.StringIO()
    with RunDirectory.open(tmp_path) as run, Console(run, stream):
        pass
    assert stream.getvalue().startswith("note: events.jsonl: the last line was cut short")


@pytest.mark.parametrize("plain", [True, False])
def test_the_summary_is_a_table_of_rounds(run: RunDirectory, plain: bool) -> None:
    stream = io.StringIO()
    run.write_text("report.html", "")
    console = Console(run, stream, plain=plain)
    if not plain:
        console._rich = rich.console.Console(file=stream, force_terminal=True, width=120)
    print_summary(SUMMARY, console)
    shown = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())
    rows = [re.split(r" {2,}", line.strip()) for line in shown.splitlines()]
    assert ["0", "872.0 ± 29.3", "-2.312", "45", "program"] in rows
    assert ["* 1", "911.3 ± 9.3", "-2.312", "45", "done"] in rows
    assert ["demonstrator", "877.4 ± 23.5"] in rows
    assert ["demonstrated episode", "871.0"] in rows
    assert "best round: 1 (*)" in shown
    assert "9 model calls, 12,345 tokens in, 3,210 out, 40,000 environment steps, 2 min 13 s" in shown
    assert f"{run.path}/report.html" in shown
    if plain:
        assert "\x1b" not in stream.getvalue()


def test_the_summary_of_a_failed_run_says_why(run: RunDirectory) -> None:
    summary = copy.deepcopy(SUMMARY)
    summary |= {"status": "failed", "reason": "no program passed its checks", "best_round": None}
    summary["rounds"] = [{**ROUND, "metric": None, "nll": None, "parameters": None}]
    summary["resources"]["cost"] = 1.25
    stream = io.StringIO()
    print_summary(summary, Console(run, stream))
    assert "failed: no program passed its checks" in stream.getvalue()
    assert "best round" not in stream.getvalue()
    assert "$1.25" in stream.getvalue()
    assert "report.html" not in stream.getvalue()
    assert re.search(r"0 +- +- +- +program", stream.getvalue())


def test_a_stream_without_the_characters_gets_others(run: RunDirectory) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    console = Console(run, stream)
    console.print("größer")
    print_summary(SUMMARY, console)
    stream.flush()
    assert b"gr??er\n" in raw.getvalue()
    assert b"911.3 +- 9.3" in raw.getvalue()
