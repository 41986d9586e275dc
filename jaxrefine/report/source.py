"""Source text as safe markup: syntax colours and diffs."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

_FENCED = re.compile(r"^[ \t]*(([`~])\2{2,})[^\n]*\n(.*?)(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)

_LIGHT, _DARK = "default", "github-dark"


@dataclass(frozen=True)
class DiffLine:
    """One line of a unified diff; `kind` is one of `added`, `removed`, `same` and `place`."""

    kind: str
    text: str


@dataclass(frozen=True)
class Diff:
    """What changed from one program to the next."""

    lines: tuple[DiffLine, ...]

    @property
    def added(self) -> int:
        """The number of lines that are new."""
        return sum(line.kind == "added" for line in self.lines)

    @property
    def removed(self) -> int:
        """The number of lines that are gone."""
        return sum(line.kind == "removed" for line in self.lines)


def coloured(source: str, language: str) -> Markup:
    """Source with line numbers and syntax colours; Pygments escapes what it is given.

    Args:
        source: Any text: what is not valid in the language is shown all the same.
        language: A Pygments lexer's name.
    """
    lexer = get_lexer_by_name(language, stripnl=False)
    return Markup(highlight(source, lexer, HtmlFormatter(cssclass="code", linenos="inline", wrapcode=True)))


def style_sheet() -> Markup:
    """The syntax colours for both of the page's colour schemes."""
    light, dark = (
        "\n".join(HtmlFormatter(style=name, nobackground=True).get_token_style_defs(".code"))
        for name in (_LIGHT, _DARK)
    )
    return Markup(f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}")


def prose(reply: str) -> str:
    """A model's reply without its blocks of code, of which it says how long they are.

    A block that nothing closes ends with the reply.
    """
    return _FENCED.sub(lambda found: f"[{found[3].count(chr(10))} lines of code]", reply)


def diff(before: str, after: str) -> Diff:
    """The unified diff of two sources, three lines of context around each change; empty if they are the same."""
    kinds = {"+": "added", "-": "removed", "@": "place"}
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=3, lineterm=""))[2:]
    return Diff(tuple(DiffLine(kinds.get(line[:1], "same"), line) for line in lines))
