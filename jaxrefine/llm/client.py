"""What every language-model provider here has in common: text in, text out."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from jaxrefine.errors import UserError

Role = Literal["system", "user", "assistant"]
Notice = Callable[[str], None]

CHARACTERS_PER_TOKEN = 4


class LLMError(UserError):
    """A call of a language model that gave no usable answer, and what to do about it."""


class UnusableReplyError(LLMError):
    """The provider answered, and was paid, but there is no text to go on with.

    Attributes:
        usage: What the answer cost in tokens.
        model: The model that answered.
    """

    def __init__(self, text: str, *, usage: Usage, model: str) -> None:
        super().__init__(text)
        self.usage = usage
        self.model = model


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True)
class Usage:
    """Tokens of one call.

    Attributes:
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the reply, those spent on reasoning included.
        reasoning_tokens: The part of `output_tokens` that went into reasoning.
        estimated: True where nobody counted and the numbers come from the length of the text.
    """

    input_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    estimated: bool = False


@dataclass(frozen=True)
class Request:
    """One question to a language model.

    Attributes:
        purpose: Why it is asked: generate | diagnose | revise | repair_program | repair_analysis | repair_reply.
        round: The refinement round it belongs to, from 0.
        chain: Name of the conversation.
        messages: The whole conversation so far; nothing else reaches the model.
        attempt: Which try of the same purpose in the same round, from 0.
    """

    purpose: str
    round: int
    chain: str
    messages: tuple[Message, ...]
    attempt: int = 0

    @property
    def key(self) -> str:
        """SHA-256 over the messages alone: equal keys mean that a model would be told the same."""
        return messages_key(self.messages)

    @property
    def place(self) -> tuple[str, int, int]:
        """Where in a conversation the request stands: purpose, round, attempt."""
        return self.purpose, self.round, self.attempt


@dataclass(frozen=True)
class Completion:
    """A model's answer.

    Attributes:
        text: The answer, unedited.
        usage: Tokens.
        finish_reason: "stop" for a whole answer, "length" for a truncated one, else the provider's own word.
        latency: Seconds from asking to answer, retries included.
        model: The model as the provider names it.
    """

    text: str
    usage: Usage
    finish_reason: str
    latency: float
    model: str


class Client(Protocol):
    """A provider of language models."""

    @property
    def name(self) -> str:
        """Name of the provider."""

    def complete(self, request: Request) -> Completion:
        """Answers a request.

        Raises:
            LLMError: There is no answer; the text says why and what to do.
        """


def messages_key(messages: Iterable[Message]) -> str:
    """SHA-256, in hexadecimal, of the messages' roles and contents."""
    turns = [[message.role, message.content] for message in messages]
    return hashlib.sha256(json.dumps(turns).encode("ascii")).hexdigest()


def estimated_usage(messages: Iterable[Message], reply: str) -> Usage:
    """Usage by the rule of thumb of four characters a token, for providers that do not count."""
    characters = sum(len(message.content) for message in messages)
    return Usage(
        input_tokens=math.ceil(characters / CHARACTERS_PER_TOKEN),
        output_tokens=math.ceil(len(reply) / CHARACTERS_PER_TOKEN),
        estimated=True,
    )


def describe(purpose: str, round_: int, attempt: int) -> str:
    """A request's place in words, for messages to a person."""
    return f"`{purpose}` of round {round_}, attempt {attempt}"


def print_notice(text: str) -> None:
    """Tells a person something on standard error: the default where nobody else listens."""
    print(text, file=sys.stderr, flush=True)
