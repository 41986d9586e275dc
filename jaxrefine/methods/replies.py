"""Reading a model's reply: code in fences, decisions in words, whatever stands around them."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from typing import Literal

Kind = Literal["program", "analysis", "done"]

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
# the word must end its line: prose that goes on ("done would have been premature") decides nothing
_DECISION = re.compile(r"^\W*decision\W*(program|analys[ie]s|done)[^\w\n]*$", re.IGNORECASE | re.MULTILINE)
_HEADING = re.compile(r"^\s*(?:\[[^\]\n]+\]|#+ [^\n]+|\*\*[^*\n]+\*\*)\s*$", re.MULTILINE)
_DONE = re.compile(r"no further (action|change)s? (is |are )?needed", re.IGNORECASE)


class ReplyError(Exception):
    """Why a reply cannot be used, in a sentence for its author."""


@dataclass(frozen=True)
class Decision:
    """What the model wants: ``code`` is the new program or the additional analyses, empty for ``done``."""

    kind: Kind
    code: str = ""


def find_program(reply: str, class_name: str) -> str:
    """The last block of code that defines the policy class.

    Raises:
        ReplyError: there is none.
    """
    found = _last(reply, rf"^class\s+{re.escape(class_name)}\b")
    if found is None:
        raise ReplyError(f"there is no fenced block of Python code that defines `class {class_name}`{_cut(reply)}.")
    return found


def find_analyses(reply: str) -> str:
    """The last block of code that defines ``run_all``.

    Raises:
        ReplyError: there is none.
    """
    found = _last(reply, r"^def\s+run_all\b")
    if found is None:
        raise ReplyError(f"there is no fenced block of Python code that defines `run_all(df)`{_cut(reply)}.")
    return found


def find_decision(reply: str, class_name: str) -> Decision:
    """The decision that a reply states, or else the one that its code implies.

    Raises:
        ReplyError: it decides nothing, or lacks the code that its decision needs.
    """
    stated = _DECISION.findall(_FENCE.sub("", _plain(reply)))
    if stated:
        word = stated[-1].lower()
        if word == "done":
            return Decision("done")
        if word == "program":
            return Decision("program", find_program(reply, class_name))
        return Decision("analysis", find_analyses(reply))
    for kind, find in (
        ("program", lambda: find_program(reply, class_name)),
        ("analysis", lambda: find_analyses(reply)),
    ):
        try:
            code = find()
        except ReplyError:
            continue
        return Decision("program" if kind == "program" else "analysis", code)
    if _DONE.search(reply):
        return Decision("done")
    raise ReplyError("it has no [Decision] of `program`, `analysis` or `done`, and no code that would imply one.")


def find_section(reply: str, name: str) -> str:
    """The text under a heading such as ``[Changes]``, without code; empty where there is none."""
    text = _FENCE.sub("", _plain(reply))
    start = re.search(rf"^\W*{re.escape(name)}\W*$", text, re.MULTILINE | re.IGNORECASE)
    return _HEADING.split(text[start.end() :], maxsplit=1)[0].strip() if start else ""


def _last(reply: str, pattern: str) -> str | None:
    reply = _plain(reply)
    blocks = [textwrap.dedent(match.group(2)) for match in _FENCE.finditer(reply)]
    if not blocks and _parses(reply):
        blocks = [reply]  # nothing but code, without a fence
    fitting = [block for block in blocks if re.search(pattern, block, re.MULTILINE)]
    return fitting[-1].rstrip() + "\n" if fitting else None


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _plain(reply: str) -> str:
    """With one kind of line ends."""
    return reply.replace("\r\n", "\n").replace("\r", "\n")


def _cut(reply: str) -> str:
    fences = len(re.findall(r"^[ \t]*(?:`{3,}|~{3,})", reply, re.MULTILINE))
    return " (its last block of code is not closed: the reply seems to be cut off)" if fences % 2 else ""
