"""Recorded conversations: their format, and a client that plays one back.

A transcript is a file of JSON lines: first a header, then one line for each exchange.

    {"kind": "header", "format": 1, "task": ..., "chain": ..., "date": ..., "model": ..., "provider": ..., ...}
    {"kind": "exchange", "purpose", "round", "attempt", "key", "messages": [{"role", "content"}, ...],
     "completion": {"text", "usage": {...}, "finish_reason", "latency", "model"}}
    {"kind": "unusable", "purpose", "round", "attempt", "usage": {...}, "model", "reason"}

The last kind stands for an answer that was paid for and held nothing; playing back passes over it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from jaxrefine.llm.client import (
    Completion,
    LLMError,
    Message,
    Notice,
    Request,
    Role,
    Usage,
    describe,
    messages_key,
    print_notice,
)

FORMAT = 1

T = TypeVar("T")


# a sign only where a number's own can stand, so that ranges and dashes stay words
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")


class TranscriptError(LLMError):
    """A transcript that cannot be read, written or played, and where."""


@dataclass(frozen=True)
class Exchange:
    """One recorded question and its answer; the fields are those of `Request` and `Completion`."""

    purpose: str
    round: int
    attempt: int
    key: str
    messages: tuple[Message, ...]
    completion: Completion

    @property
    def place(self) -> tuple[str, int, int]:
        """Where in the conversation it stands: purpose, round, attempt."""
        return self.purpose, self.round, self.attempt


@dataclass(frozen=True)
class Unusable:
    """An answer that was paid for and held nothing to go on with."""

    purpose: str
    round: int
    attempt: int
    usage: Usage
    model: str
    reason: str


@dataclass(frozen=True)
class Transcript:
    """A conversation as it was recorded.

    Attributes:
        header: Where it comes from: task, chain, date, model, provider, prompt_version, note.
        exchanges: Questions and answers, in order.
        records: The same with the unusable answers between them.
    """

    header: dict[str, Any]
    records: tuple[Exchange | Unusable, ...]

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Questions and answers, in order."""
        return tuple(record for record in self.records if isinstance(record, Exchange))


def exchange_of(request: Request, completion: Completion) -> Exchange:
    """The record of a question and its answer."""
    return Exchange(*request.place, key=request.key, messages=request.messages, completion=completion)


def header_line(header: dict[str, Any]) -> bytes:
    """The first line of a transcript, newline included."""
    return _line({"kind": "header", "format": FORMAT, **header})


def record_line(record: Exchange | Unusable) -> bytes:
    """One line of a transcript, newline included."""
    return _line({"kind": "exchange" if isinstance(record, Exchange) else "unusable", **asdict(record)})


def _line(fields: dict[str, Any]) -> bytes:
    # ASCII: U+2028 and its like would split the line in many readers, and a lone surrogate has no UTF-8.
    return json.dumps(fields).encode("ascii") + b"\n"


def read_transcript(path: Path) -> Transcript:
    """Reads a transcript.

    Raises:
        TranscriptError: The file is missing or damaged; the text names file and line.
    """
    return parse_transcript(read_bytes(path), path)


def read_bytes(path: Path) -> bytes:
    """The bytes of a transcript.

    Raises:
        TranscriptError: The file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise TranscriptError(
            f"the transcript {path} cannot be read ({error.strerror}); check the path of the recording"
        ) from error


def parse_transcript(data: bytes, path: Path) -> Transcript:
    """Reads a transcript from its bytes; `path` only serves the messages.

    Raises:
        TranscriptError: The data is damaged; the text names file and line.
    """
    header: dict[str, Any] | None = None
    records: list[Exchange | Unusable] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            if header is None:
                header = _header(fields)
            else:
                records.append(_record(fields))
        except (ValueError, TypeError, RecursionError) as error:
            raise TranscriptError(
                f"the transcript {path} is damaged in line {number}: {error}; "
                "restore the file from a copy, or record the conversation anew"
            ) from error
    if header is None:
        raise TranscriptError(f"the transcript {path} is empty; record a conversation into it first")
    return Transcript(header=header, records=tuple(records))


def _header(fields: Any) -> dict[str, Any]:
    if _field(fields, "kind", str) != "header":
        raise ValueError("the first line must be the header, {'kind': 'header', 'format': 1, ...}")
    if (version := _field(fields, "format", int)) != FORMAT:
        raise ValueError(f"it is written in format {version}, and this program reads format {FORMAT}")
    return {key: value for key, value in fields.items() if key not in {"kind", "format"}}


def _record(fields: Any) -> Exchange | Unusable:
    kind = _field(fields, "kind", str)
    place = _field(fields, "purpose", str), _field(fields, "round", int), _field(fields, "attempt", int)
    if min(place[1:]) < 0:
        raise ValueError(f"round {place[1]}, attempt {place[2]}: neither can be negative")
    if kind == "unusable":
        usage = _usage(_field(fields, "usage", dict))
        return Unusable(*place, usage, _field(fields, "model", str), _field(fields, "reason", str))
    if kind != "exchange":
        raise ValueError(f"unknown kind {kind!r} of line; known are header, exchange and unusable")
    messages = tuple(_message(turn) for turn in _field(fields, "messages", list))
    key = _field(fields, "key", str)
    if key != messages_key(messages):
        raise ValueError("the messages do not belong to the recorded key: the line has been edited")
    answer = _field(fields, "completion", dict)
    completion = Completion(
        text=_field(answer, "text", str),
        usage=_usage(_field(answer, "usage", dict)),
        finish_reason=_field(answer, "finish_reason", str),
        latency=float(_field(answer, "latency", (int, float))),
        model=_field(answer, "model", str),
    )
    return Exchange(*place, key=key, messages=messages, completion=completion)


def _usage(fields: dict[str, Any]) -> Usage:
    return Usage(
        input_tokens=_field(fields, "input_tokens", int),
        output_tokens=_field(fields, "output_tokens", int),
        reasoning_tokens=_field({"reasoning_tokens": 0, **fields}, "reasoning_tokens", int),
        estimated=_field({"estimated": False, **fields}, "estimated", bool),
    )


def _message(fields: Any) -> Message:
    role = _field(fields, "role", str)
    if role not in get_args(Role):
        raise ValueError(f"unknown role {role!r}; known are {', '.join(get_args(Role))}")
    return Message(role=role, content=_field(fields, "content", str))


def _field(fields: Any, name: str, kind: Any) -> Any:
    if not isinstance(fields, dict):
        raise ValueError("a JSON object is expected here")
    if name not in fields:
        raise ValueError(f"the field {name!r} is missing")
    value = fields[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"the field {name!r} holds {value!r}")
    return value


class TranscriptClient:
    """Plays a recorded conversation: asked in the recorded order, it gives the recorded answers."""

    name = "transcript"

    def __init__(self, path: Path, strict: bool = False, on_notice: Notice = print_notice) -> None:
        """Reads the recording.

        Args:
            path: The transcript.
            strict: Whether a prompt that differs from the recorded one is an error rather than a notice.
            on_notice: Told where a prompt differs.

        Raises:
            TranscriptError: The file is missing or damaged.
        """
        self.transcript = read_transcript(path)
        self._path = path
        self._strict = strict
        self._on_notice = on_notice
        self._next = 0
        self._told_of_numbers = False

    @property
    def ahead(self) -> tuple[str, int, int] | None:
        """Purpose, round and attempt of the next recorded exchange; None at the end."""
        exchanges = self.transcript.exchanges
        return exchanges[self._next].place if self._next < len(exchanges) else None

    def complete(self, request: Request) -> Completion:
        """The next recorded answer.

        Raises:
            TranscriptError: The recording ends here, goes on with something else, or, if strict, was made with
                another prompt.
        """
        asked = describe(*request.place)
        exchanges = self.transcript.exchanges
        if self._next >= len(exchanges):
            raise TranscriptError(
                f"the transcript ends here: {self._path} holds {len(exchanges)} exchanges, and the run asked for "
                f"{asked}; record more with llm=mailbox or llm=openai, going on in the same run with run=PATH"
            )
        exchange = exchanges[self._next]
        if exchange.place != request.place:
            raise TranscriptError(
                f"the transcript {self._path} goes on with {describe(*exchange.place)} (exchange {self._next + 1}), "
                f"but the run asked for {asked}; play it with the task and settings it was recorded with, or record "
                "a new conversation with llm=mailbox or llm=openai"
            )
        if exchange.key != request.key:
            difference = first_difference(exchange.messages, request.messages)
            text = f"the prompt differs from the recorded one for {asked} ({difference})"
            if self._strict:
                raise TranscriptError(
                    f"{text}; {self._path} was recorded with other prompts: record the conversation anew, or play it "
                    "with llm.strict=false"
                )
            if not same_but_for_numbers(exchange.messages, request.messages):
                self._on_notice(text)
            elif not self._told_of_numbers:
                self._told_of_numbers = True
                self._on_notice(
                    f"{text}: in numbers only, as rounding differs between machines and versions. The recorded replies "
                    "answer the recorded numbers; further such differences are not told"
                )
        self._next += 1
        return exchange.completion

    def skip(self, exchange: Exchange) -> None:
        """Passes over an answer that the run already has from an earlier start.

        Raises:
            TranscriptError: The recording holds something else at this place.
        """
        exchanges = self.transcript.exchanges
        if self._next < len(exchanges):
            recorded = exchanges[self._next]
            if recorded.place != exchange.place or recorded.completion.text != exchange.completion.text:
                raise TranscriptError(
                    f"the run has another answer to {describe(*exchange.place)} than the transcript {self._path}: it "
                    "was started from another conversation. Resume it with that one, or start a new run directory"
                )
        self._next += 1


def same_but_for_numbers(recorded: tuple[Message, ...], asked: tuple[Message, ...]) -> bool:
    """Whether two prompts have the same words, and differ in the values of numbers at most."""
    return [(m.role, _NUMBER.sub("#", m.content)) for m in recorded] == [
        (m.role, _NUMBER.sub("#", m.content)) for m in asked
    ]


def first_difference(recorded: tuple[Message, ...], asked: tuple[Message, ...]) -> str:
    """Where two prompts part, in words: message, line, and both texts at that line."""
    for number, (old, new) in enumerate(zip(recorded, asked, strict=False), start=1):
        if old.role != new.role:
            return f"first difference in message {number}: recorded role {old.role}, now {new.role}"
        if old.content == new.content:
            continue
        old_lines, new_lines = old.content.split("\n"), new.content.split("\n")
        # a difference of words tells more than the rounding that stands before it
        pairs = [(i, a, b) for i, (a, b) in enumerate(zip(old_lines, new_lines, strict=False)) if a != b]
        of_words = [i for i, a, b in pairs if _NUMBER.sub("#", a) != _NUMBER.sub("#", b)]
        shorter = min(len(old_lines), len(new_lines))
        if of_words or (pairs and len(old_lines) == len(new_lines)):
            line = of_words[0] if of_words else pairs[0][0]
        else:
            line = shorter
        return (
            f"first difference in message {number} ({new.role}), line {line + 1}: "
            f"recorded {_quoted(old_lines, new_lines, line)}, now {_quoted(new_lines, old_lines, line)}"
        )
    return f"first difference: recorded {len(recorded)} messages, now {len(asked)}"


def _quoted(lines: list[str], others: list[str], index: int, width: int = 60) -> str:
    """The line from shortly before the place where it parts from the other one's."""
    if index >= len(lines):
        return "nothing"
    text, other = lines[index], others[index] if index < len(others) else ""
    parts = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    start = max(0, parts - width // 2) if len(text) > width else 0
    shown = text[start : start + width]
    return repr(f"{'...' if start else ''}{shown}{'...' if start + width < len(text) else ''}")
