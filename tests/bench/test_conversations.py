"""What conversations came to: tokens by round and feedback, out of run directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import conversations
from jaxrefine.llm.client import messages_key


def _run(folder: Path, chain: str, feedback: str, means: list[float], best: int, tokens: list[tuple[int, int]]) -> Path:
    folder.mkdir()
    header = {"kind": "header", "format": 1, "task": "car_racing", "chain": chain, "feedback": feedback}
    lines = [header]
    for number, (given, written) in enumerate(tokens):
        usage = {"input_tokens": given, "output_tokens": written, "reasoning_tokens": 0, "estimated": True}
        place = {"purpose": "revise", "round": number, "attempt": 0}
        completion = {"text": "x", "usage": usage, "finish_reason": "stop", "latency": 0.0, "model": "m"}
        lines.append({"kind": "exchange", **place, "key": messages_key(()), "messages": [], "completion": completion})
        if number == 0:  # an answer that held nothing was paid for too
            lines.append({"kind": "unusable", **place, "usage": usage, "model": "m", "reason": "empty"})
    (folder / "transcript.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rounds = [
        {"round": i, "metric": {"mean": mean}, "fit_seeds": {"means": [mean, mean - 1]}, "accepted": i != 1}
        for i, mean in enumerate(means)
    ]
    summary = {
        "task": "car_racing", "condition": "slick", "metric": {"name": "return", "unit": "", "better": "higher"},
        "best_round": best, "rounds": rounds, "demonstration": {"test": {"mean": 811.6}},
        "provenance": {"transcript": header},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    first = _run(tmp_path / "a", "slick-0", "analysis", [600.0, 500.0, 880.0], 2, [(10, 1), (20, 2)])
    second = _run(tmp_path / "b", "slick-1", "analysis", [700.0, 800.0], 1, [(30, 3), (40, 4)])
    third = _run(tmp_path / "c", "slick-table-0", "table", [650.0, 640.0], 0, [(100, 1), (200, 2)])
    return [first, second, third]


def test_tokens_and_results_by_feedback(runs: list[Path]) -> None:
    analysis, table = conversations.by_feedback([conversations.read(run) for run in runs])
    assert (analysis["feedback"], analysis["runs"], table["runs"]) == ("analysis", 2, 1)
    # the first round of each was paid for twice
    assert analysis["input_tokens_per_run"] == {"mean": (40 + 100) / 2, "std": 30.0, "n": 2}
    assert table["output_tokens_per_run"]["mean"] == 4
    assert analysis["first"] == 650.0
    assert analysis["chosen"] == (880.0 + 800.0) / 2
    assert analysis["by_round"] == {"0": [600.0, 700.0], "1": [500.0, 800.0], "2": [880.0]}


def test_the_figure_names_every_conversation_and_level(runs: list[Path], tmp_path: Path) -> None:
    figure, written = tmp_path / "figure.svg", tmp_path / "numbers.json"
    arguments = [*map(str, runs), "--best-of-n", str(runs[2]), "--figure", str(figure), "--json", str(written)]
    assert conversations.main(arguments) == 0
    text = figure.read_text()
    for words in ("slick-0", "slick-1", "slick-table-0", "demonstrator", "best of 2 first programs", "feedback: table"):
        assert words in text
    assert len(json.loads(written.read_text())["runs"]) == 3


def test_a_run_that_is_not_finished_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        conversations.main([str(tmp_path / "none")])
    assert "none" in capsys.readouterr().err
