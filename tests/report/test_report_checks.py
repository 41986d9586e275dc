"""What an analysis says of its checks, and what the built-in ones found, out of text and numbers written by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_reader import page_of

from jaxrefine.report.battery import read_battery
from jaxrefine.report.checks import marked, tally, verdicts

Edit = Callable[[Path, Callable[[dict[str, Any]], None]], None]

HELD = "Each latent held at its mean, 2 mean-action episodes"
BATTERY = {
    "Structure": {
        "latents that no action depends on": ["latent_spare"],
        "weights that no action depends on": [],
        "latents that are the same at every step": ["latent_constant"],
    },
    "Weights": {"gain": {"flipped": True}, "bias": {"flipped": False}},
    "Latents over all steps": {"latent_constant": {"dead": True}, "latent_flat": {"dead": True}, "latent_x": {}},
    "Observations outside the demonstration's range": {
        "speed": {"below": 0.02, "above": 0.04},
        "angle": {"below": 0.04, "above": None},
    },
    HELD: {
        "latent_heading": {"held": 0.0, "values": [100.0, 300.0]},
        "latent_speed": {"held": 0.5, "values": [900.0, 920.0]},
        "none": {"values": [900.0, 920.0]},
    },
}


@pytest.mark.parametrize(
    ("line", "verdict", "name"),
    [
        ("PASS steering follows heading: corr = 0.91", "pass", "steering follows heading"),
        ("[FAIL] brakes late in corner", "fail", "brakes late in corner"),
        ("  - Check 3 (speed below target) ... WARNING", "warn", "Check 3"),
        ("* recovery after grass: 0.31 < 0.5 -> FAILED", "fail", "recovery after grass"),
        ("stays on the road: pass", "pass", "stays on the road"),
        ("fail: overshoots", "fail", "overshoots"),
        ("RESULT | smooth gas | PASS |", "pass", "RESULT"),
        ("PASS: 3 of 5", "pass", ""),
    ],
)
def test_a_verdict_and_what_it_is_on(line: str, verdict: str, name: str) -> None:
    (said,) = verdicts(line)
    assert (said.verdict, said.name) == (verdict, name)


@pytest.mark.parametrize(
    "line",
    [
        "one way: share 0.07 speed 0.63 fail 0.555",
        "a driver may fail to brake, or pass slowly",
        "the brakes passed the test",
        "tiles passed minus tiles paid -2.6",
        "PASSAGE 3 and BYPASS and FAIL_RATE = 0.2",
        "legend: PASS / FAIL",
        "",
    ],
)
def test_no_verdict_where_the_words_are_only_words(line: str) -> None:
    assert verdicts(line) == []


def test_the_tally_counts_lines() -> None:
    assert tally("PASS a\nFAIL b\nPASS c\nWARN d\nPASS or FAIL") == [("pass", 2), ("warn", 1), ("fail", 1)]
    assert tally("nothing of that kind") == []


class Text(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: set[str] = set()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.lists(st.sampled_from(["PASS", "FAIL", "[WARN]", "<b>", "&lt;", '"', "fail:", "\n", " ", "a", "é"])))
def test_marking_adds_tags_and_changes_no_character(parts: list[str]) -> None:
    text = "".join(parts)
    found = Text(str(marked(text)))
    assert found.text == text
    assert found.tags <= {"span"}
    assert len(re.findall('<span class="verdict', str(marked(text)))) >= len(verdicts(text))


def write_battery(run: Path, index: int, numbers: Any) -> None:
    (run / f"round_{index}" / "battery.json").write_text(json.dumps(numbers))


def test_the_built_in_checks_count_what_they_find(finished_run: Path) -> None:
    write_battery(finished_run, 0, BATTERY)
    gaps: list[str] = []
    battery = read_battery(finished_run / "round_0", gaps)
    assert [finding.count for finding in battery.findings] == [1, 0, 1, 1, 1, 1]
    assert (battery.unheld, battery.episodes, gaps) == (910.0, 2, [])
    heading = next(latent for latent in battery.ablated if latent.name == "heading")
    assert (heading.score, heading.change) == (200.0, -710.0)
    assert heading.error == pytest.approx(90.0), "changes of -800 and -620: deviation 127.3 over the root of two"


def test_checks_by_round_in_one_matrix(finished_run: Path) -> None:
    write_battery(finished_run, 2, BATTERY)
    (finished_run / "round_1" / "results.txt").write_text("PASS brakes late in corner\nFAIL <b>new</b>: 1\n")
    page = page_of(finished_run)
    flat = " ".join(page.sections["overview"].split())
    assert "steering follows heading pass – pass" in flat
    assert "brakes late in corner fail pass fail" in flat
    assert "<b>new</b> – fail –" in flat
    assert "the program passes its checks at once yes 1 not 2 not" in flat
    assert "no weight changed its sign – – 1 not" in flat
    assert page.has("round-0", "What the analyses found 1 pass 1 fail")


def test_the_ablation_is_a_chart_with_the_largest_loss_on_top(finished_run: Path, edit_summary: Edit) -> None:
    many = {f"latent_l{i:02d}": {"held": 0.0, "values": [900.0 - 10 * i, 920.0]} for i in range(20)}
    write_battery(finished_run, 1, {HELD: BATTERY[HELD] | many})
    (label,) = [
        a["aria-label"] or "" for _, a in page_of(finished_run).elements if "held" in (a.get("aria-label") or "")
    ]
    shown = re.findall(r"(\w+): ", label)
    assert shown == ["heading", *(f"l{i:02d}" for i in range(19, 5, -1))], "fifteen of twenty-two"

    def lower_is_better(summary: dict[str, Any]) -> None:
        summary["metric"] = {"name": "distance", "better": "lower", "unit": "m"}

    edit_summary(finished_run, lower_is_better)
    (label,) = [
        a["aria-label"] or "" for _, a in page_of(finished_run).elements if "held" in (a.get("aria-label") or "")
    ]
    assert "heading" not in label, "its gain is the largest"


@pytest.mark.parametrize(
    "numbers", [[], "x", {}, {HELD: [1]}, {HELD: {"none": {"values": [None]}}}, {"Weights": {"a": 3}, "Structure": 1}]
)
def test_a_battery_of_another_shape(finished_run: Path, numbers: Any) -> None:
    write_battery(finished_run, 0, numbers)
    assert page_of(finished_run).has("round-0", "class RacecarPolicy")
