from __future__ import annotations

import contextlib
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrefine.methods.replies import Decision, ReplyError, find_analyses, find_decision, find_program

PROGRAM = "import jax\n\n\nclass P(nnx.Module):\n    pass\n"
ANALYSES = "import numpy as np\n\n\ndef run_all(df):\n    pass\n"


def fenced(code: str, fence: str = "```", language: str = "python") -> str:
    return f"{fence}{language}\n{code}{fence}\n"


@pytest.mark.parametrize(
    "reply",
    [
        fenced(PROGRAM),
        "Some prose.\n\n" + fenced(PROGRAM) + "\nMore prose with `code`.",
        fenced("x = 1\n") + "and then\n" + fenced(PROGRAM, language="py"),
        fenced(PROGRAM, fence="````"),
        fenced(PROGRAM, fence="~~~", language=""),
        "[Program]\n  ```python\n" + PROGRAM + "  ```",
        PROGRAM,
        "```python\n" + PROGRAM,  # cut off behind the code
        fenced(PROGRAM).replace("\n", "\r\n") + "prose behind it",
        "1. The program:\n\n" + textwrap.indent(fenced(PROGRAM), "   "),
    ],
)
def test_a_program_is_found_whatever_stands_around_it(reply: str) -> None:
    assert find_program(reply, "P") == PROGRAM


def test_the_last_program_counts() -> None:
    assert "second" in find_program(fenced(PROGRAM) + fenced(PROGRAM + "# second\n"), "P")


@pytest.mark.parametrize("reply", ["", "no code", fenced("class Q: pass\n"), fenced(ANALYSES), "class P without code"])
def test_a_reply_without_the_program_says_what_is_missing(reply: str) -> None:
    with pytest.raises(ReplyError, match="class P"):
        find_program(reply, "P")


def test_a_cut_reply_is_named_as_such() -> None:
    with pytest.raises(ReplyError, match="cut off"):
        find_program("```python\nimport jax\n\nclass Other", "P")


@pytest.mark.parametrize(
    ("reply", "decision"),
    [
        ("[Decision]\nprogram\n\n[Program]\n" + fenced(PROGRAM), Decision("program", PROGRAM)),
        ("**Decision:** analysis\n" + fenced(ANALYSES), Decision("analysis", ANALYSES)),
        ("Decision: `analyses`\n" + fenced(ANALYSES), Decision("analysis", ANALYSES)),
        ("[Analysis of results]\nAll good.\n\n[Decision]\ndone", Decision("done")),
        ("## Decision\n\nDONE.", Decision("done")),
        ("My decision is clear.\n\n[Decision] done", Decision("done")),
        ("[Program]\n" + fenced(PROGRAM), Decision("program", PROGRAM)),
        ("More tests:\n" + fenced(ANALYSES), Decision("analysis", ANALYSES)),
        ("No further action is needed.", Decision("done")),
        (
            "[Decision]\nprogram\n" + fenced(PROGRAM + '"""Decision: done"""\n'),
            Decision("program", PROGRAM + '"""Decision: done"""\n'),
        ),
        (
            "[Decision]\nprogram\n" + fenced(PROGRAM) + "Decision: done would be premature.",
            Decision("program", PROGRAM),
        ),
        ("[Decision]\r\ndone\r\n", Decision("done")),
        # code of the wrong kind beside the stated decision
        (fenced(ANALYSES) + "[Decision]\nprogram\n" + fenced(PROGRAM), Decision("program", PROGRAM)),
    ],
)
def test_a_decision_is_read_or_inferred(reply: str, decision: Decision) -> None:
    assert find_decision(reply, "P") == decision


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("", "no \\[Decision\\]"),
        ("I am not sure.", "no \\[Decision\\]"),
        ("[Decision]\nprogram", "class P"),
        ("[Decision]\nanalysis\n" + fenced(PROGRAM), "run_all"),
    ],
)
def test_a_reply_that_decides_nothing_says_so(reply: str, says: str) -> None:
    with pytest.raises(ReplyError, match=says):
        find_decision(reply, "P")


def test_text_that_no_parser_survives_is_just_no_code() -> None:
    with pytest.raises(ReplyError):
        find_program("-" * 20_000 + "x", "P")


@given(st.text(), st.text())
def test_any_text_is_read_without_a_crash(before: str, after: str) -> None:
    for reply in (before, before + fenced(PROGRAM) + after, "```" + before):
        with contextlib.suppress(ReplyError):
            assert find_decision(reply, "P").kind in ("program", "analysis", "done")
    with contextlib.suppress(ReplyError):
        assert "def run_all" in find_analyses(before)
