"""PASS, FAIL and WARN where a round's analyses say so, and the matrix of all checks by round."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

from jaxrefine.report.rounds import Round

Verdict = Literal["pass", "fail", "warn"]

# In capitals anywhere; in small letters only where they can be no verb: set off at the start or the end of a line.
_WORD = r"PASS(?:ED|ES)?|FAIL(?:ED|S|URE)?|WARN(?:ING)?|SUCCESS"
_CAPITALS = re.compile(rf"(?<![\w/])(?:{_WORD})(?![\w/])")
_LEADING = re.compile(rf"^[ \t*#>\-\[(]*({_WORD})(?=[ \t]*[:\])|])", re.IGNORECASE)
_TRAILING = re.compile(rf"(?:[:=|>\[(][ \t*]*)({_WORD})(?=[\])*.!]*\s*$)", re.IGNORECASE)
_NAMED_CHARACTERS = 80
_ROWS = 60


@dataclass(frozen=True)
class Said:
    """A line that gives a verdict; the name is what it is on, empty where the line does not tell."""

    verdict: Verdict
    name: str


@dataclass(frozen=True)
class Cell:
    """A check in one round: its verdict, and how many things it found where it counts them."""

    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Row:
    """A check in every round; None in those without it."""

    name: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Matrix:
    """Checks by round: those that the model's analyses name, and the built-in ones.

    Attributes:
        rounds: The columns.
        written: The model's.
        builtin: Ours.
        left_out: How many of the model's found no room.
    """

    rounds: tuple[int, ...]
    written: tuple[Row, ...]
    builtin: tuple[Row, ...]
    left_out: int


def verdicts(text: str) -> list[Said]:
    """The lines that give one verdict, in order; a line with several, such as a legend, gives none."""
    found = []
    for line in text.split("\n"):
        spans = _spans(line)
        if len(spans) == 1:
            start, end = spans[0]
            found.append(Said(_kind(line[start:end]), _name(line[:start], line[end:])))
    return found


def tally(text: str) -> list[tuple[Verdict, int]]:
    """How many lines give each verdict, for those that any line gives."""
    counts = Counter(said.verdict for said in verdicts(text))
    order: tuple[Verdict, ...] = ("pass", "warn", "fail")
    return [(verdict, counts[verdict]) for verdict in order if counts[verdict]]


def marked(text: str) -> Markup:
    """The text, escaped, with its verdicts as tags."""
    pieces: list[Markup | str] = []
    for line in text.split("\n"):
        done = 0
        for start, end in _spans(line):
            pieces += [
                escape(line[done:start]),
                Markup('<span class="verdict {}">{}</span>').format(_kind(line[start:end]), line[start:end]),
            ]
            done = end
        pieces += [escape(line[done:]), "\n"]
    return Markup("").join(pieces[:-1])


def matrix(rounds: Sequence[Round]) -> Matrix | None:
    """All checks by round; None where no round has any."""
    shown = tuple(entry for entry in rounds if entry.program is not None or entry.analyses)
    said = [_worst(entry) for entry in shown]
    names = dict.fromkeys(name for column in said for name in column)
    written = tuple(Row(name, tuple(_said(column.get(name)) for column in said)) for name in names)
    counted = [_counted(entry) for entry in shown]
    builtin = tuple(
        Row(name, tuple(_count(column.get(name)) for column in counted))
        for name in dict.fromkeys(name for column in counted for name in column)
    )
    builtin = tuple(row for row in builtin if any(row.cells))
    if not written and not builtin:
        return None
    return Matrix(tuple(entry.index for entry in shown), written[:_ROWS], builtin, max(len(written) - _ROWS, 0))


def _spans(line: str) -> list[tuple[int, int]]:
    found = {match.span() for match in _CAPITALS.finditer(line)}
    found |= {match.span(1) for pattern in (_LEADING, _TRAILING) if (match := pattern.search(line))}
    return sorted(found)


def _kind(word: str) -> Verdict:
    start = word.lower()[:4]
    return "fail" if start == "fail" else "warn" if start == "warn" else "pass"


def _name(before: str, after: str) -> str:
    """What a verdict is on: the words beside it, without the numbers that follow them."""
    text = before if re.search(r"\w", before) else after
    text = text.strip(" \t*#>-|[]():=.,;")
    name = re.split(r"[:=(|;,]| - | -> ", text)[0].strip()
    return " ".join(name.split())[:_NAMED_CHARACTERS] if re.search(r"[^\W\d_]{3}", name) else ""


def _worst(entry: Round) -> dict[str, Verdict]:
    """A round's named checks; the worse verdict where one name has several."""
    order = ("pass", "warn", "fail")
    found: dict[str, Verdict] = {}
    for analysis in entry.analyses:
        for said in verdicts(analysis.result or ""):
            if said.name:
                found[said.name] = max(found.get(said.name, said.verdict), said.verdict, key=order.index)
    return found


def _counted(entry: Round) -> dict[str, int | None]:
    found: dict[str, int | None] = {"the program passes its checks at once": entry.regenerations}
    return found | {finding.name: finding.count for finding in entry.findings.findings}


def _said(verdict: Verdict | None) -> Cell | None:
    return None if verdict is None else Cell(verdict, verdict)


def _count(count: int | None) -> Cell | None:
    if count is None:
        return None
    return Cell("warn", f"{count} not") if count else Cell("pass", "yes")
