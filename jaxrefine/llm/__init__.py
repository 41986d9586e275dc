"""Text in and text out: the providers of language models, their record and their budget."""

from jaxrefine.llm.budget import Budget, BudgetError, PriceTable, Totals, read_prices
from jaxrefine.llm.client import (
    Client,
    Completion,
    LLMError,
    Message,
    Request,
    UnusableReplyError,
    Usage,
)
from jaxrefine.llm.mailbox import MailboxClient
from jaxrefine.llm.openai import OpenAIClient
from jaxrefine.llm.recorder import Recorder
from jaxrefine.llm.scripted import ScriptedClient
from jaxrefine.llm.transcript import Exchange, Transcript, TranscriptClient, TranscriptError, read_transcript

__all__ = [
    "Budget",
    "BudgetError",
    "Client",
    "Completion",
    "Exchange",
    "LLMError",
    "MailboxClient",
    "Message",
    "OpenAIClient",
    "PriceTable",
    "Recorder",
    "Request",
    "ScriptedClient",
    "Totals",
    "Transcript",
    "TranscriptClient",
    "TranscriptError",
    "UnusableReplyError",
    "Usage",
    "read_prices",
    "read_transcript",
]
