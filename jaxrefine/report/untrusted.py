"""Text that a language model, a program or a stranger wrote, made fit to be shown.

Markup is the template's business (everything is escaped there); this is about characters that would make the text
look like something it is not.
"""

from __future__ import annotations

import re
from pathlib import Path

MAX_CHARACTERS = 400_000

# Control characters but for tab and newline; and the marks that make text run backwards, with which code can be made
# to read differently from what it does ("Trojan Source", Boucher & Anderson 2021).
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    """Write characters that cannot be seen as backslash escapes, and shorten what no one could read."""
    cut = len(text) - MAX_CHARACTERS
    if cut > 0:
        text = text[:MAX_CHARACTERS] + f"\n[... {cut} more characters are in the file]\n"
    text = text.replace("\r\n", "\n")
    return _HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def read_text(path: Path) -> str | None:
    """The file's text, made visible; None if there is no such file.

    Raises:
        OSError: The file is there and cannot be read.
    """
    try:
        return visible(path.read_bytes().decode("utf-8", errors="backslashreplace"))
    except FileNotFoundError:
        return None
