"""Text that a language model, a program or a stranger wrote, made fit to be shown.

Markup is the template's business (everything is escaped there); this is about characters that would make the text
look like something it is not.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

MAX_CHARACTERS = 400_000

# Control characters but for tab and newline; and the marks that make text run backwards, with which code can be made
# to read differently from what it does ("Trojan Source", Boucher & Anderson 2021).
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


# folders in a run directory
_RUNS_OWN = re.compile(r"round_\d+|rl|\d+")


def visible(text: str) -> str:
    """Write characters that cannot be seen as backslash escapes, and shorten what no one could read."""
    cut = len(text) - MAX_CHARACTERS
    if cut > 0:
        text = text[:MAX_CHARACTERS] + f"\n[... {cut} more characters are in the file]\n"
    text = text.replace("\r\n", "\n")
    return _HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def is_regular(path: Path) -> bool:
    """Whether a file is there that is no link, which may lead out of the run, nor a pipe, which may wait for ever.

    Nor may one of a run's own folders be a link; the run itself may.
    """
    if any(_RUNS_OWN.fullmatch(folder.name) and folder.is_symlink() for folder in list(path.parents)[:2]):
        return False
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def read_bytes(path: Path) -> bytes:
    """What is in a regular file.

    Raises:
        FileNotFoundError: There is none; what else is there in its place is told by `irregular`.
        OSError: It cannot be read.
    """
    if not is_regular(path):
        raise FileNotFoundError(path)
    # where it was exchanged since, neither followed nor waited for
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read()


def irregular(run: Path) -> list[str]:
    """What lies in a run directory, three levels deep, and is neither a file nor a folder of its own."""
    found = []
    for depth in ("*", "*/*", "*/*/*"):
        for path in run.glob(depth):
            try:
                mode = path.lstat().st_mode
            except OSError:
                continue
            # none of a run's own folders is called like a file
            if not (stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and not path.suffix)):
                found.append(visible(str(path.relative_to(run))))
    return sorted(found)


def read_text(path: Path) -> str | None:
    """The file's text, made visible; None if there is no such file.

    Raises:
        OSError: The file is there and cannot be read.
    """
    try:
        return visible(read_bytes(path).decode("utf-8", errors="backslashreplace"))
    except FileNotFoundError:
        return None
