"""A client whose answers are written down beforehand, for tests and for trying a run out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxrefine.llm.client import Completion, LLMError, Request, describe, estimated_usage
from jaxrefine.llm.transcript import Exchange

_WHAT_PATH_IS = "llm.path names a .jsonl file or a folder of 01.md, 02.md, ..."
_NUMBERED = re.compile(r"(\d+)\.md")


class ScriptedClient:
    """Gives the replies it was given, one for each request, or what a function makes of the request."""

    name = "scripted"
    model = "scripted"

    def __init__(self, replies: Sequence[str] | Callable[[Request], str]) -> None:
        self._replies = replies
        self._next = 0

    @classmethod
    def from_path(cls, path: Path) -> ScriptedClient:
        """Reads the replies from a file of JSON lines (strings, or objects with `text`) or a folder of NN.md.

        Raises:
            LLMError: Neither is there, or a line cannot be read.
        """
        try:
            replies = _folder_replies(path) if path.is_dir() else _file_replies(path)
        except OSError as error:
            raise LLMError(f"the scripted replies {path} cannot be read ({error.strerror}); {_WHAT_PATH_IS}") from error
        if not replies:
            raise LLMError(f"there are no scripted replies in {path}; {_WHAT_PATH_IS}")
        return cls(replies)

    def complete(self, request: Request) -> Completion:
        """The next reply.

        Raises:
            LLMError: There are no more.
        """
        if callable(self._replies):
            text = self._replies(request)
        elif self._next < len(self._replies):
            text = self._replies[self._next]
        else:
            raise LLMError(
                f"the scripted replies end after {len(self._replies)}, and the run asked for "
                f"{describe(*request.place)}; add a reply"
            )
        self._next += 1
        return Completion(text, estimated_usage(request.messages, text), "stop", 0.0, self.model)

    def skip(self, exchange: Exchange) -> None:
        """Passes over a reply that a resumed run has already."""
        self._next += 1


def _folder_replies(folder: Path) -> list[str]:
    numbered = sorted((int(m[1]), file) for file in folder.iterdir() if (m := _NUMBERED.fullmatch(file.name)))
    return [_decoded(file.read_bytes(), str(file)) for _, file in numbered]


def _file_replies(path: Path) -> list[str]:
    replies = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise LLMError(f"the scripted reply in line {number} of {path} is not JSON: {error}") from error
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise LLMError(
                f'the scripted reply in line {number} of {path} is neither a string nor {{"text": "..."}}; write one'
            )
        replies.append(text)
    return replies


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LLMError(f"the scripted reply {where} is not UTF-8 ({error}); save it as UTF-8") from error
