"""A client for OpenAI and for every server that speaks its protocol.

The package `openai` is imported with the first call only: a run that replays a transcript never loads it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from jaxrefine.llm.client import Completion, LLMError, Request, UnusableReplyError, Usage, estimated_usage

if TYPE_CHECKING:
    import openai

OPENAI_URL = "https://api.openai.com/v1"
_RESUME = "resume the run with run=PATH"


@dataclass(frozen=True)
class _Reply:
    text: str
    finish_reason: str
    model: str
    usage: Usage | None
    refusal: str


class OpenAIClient:
    """Asks a model through chat completions, or through the Responses API.

    The key is read from the environment once and never leaves this object except in the request's header: no
    message, representation, log line or chained exception holds it.
    """

    name = "openai"

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        timeout: float = 600.0,
        max_retries: int = 5,
        reasoning_effort: str | None = None,
        temperature: float | None = None,
        max_output_tokens: int | None = None,
        api: Literal["chat", "responses"] = "chat",
    ) -> None:
        """Checks the settings; nothing is sent yet. What is None is left to the server's default.

        Args:
            model: Name of the model.
            base_url: Address of a compatible server, usually ending in /v1; None for OPENAI_BASE_URL or OpenAI itself.
            api_key_env: The environment variable that holds the key.
            timeout: Seconds to wait for one answer.
            max_retries: How often to ask again after a time-out, a rate limit or a failure of the server; waits as
                long as the server says in Retry-After, else exponentially longer.
            reasoning_effort: How hard a reasoning model shall think.
            temperature: Sampling temperature.
            max_output_tokens: Limit of the reply, reasoning included.
            api: Which of the two protocols the server is asked by.

        Raises:
            LLMError: The key is missing or malformed, or a setting is.
        """
        if api not in ("chat", "responses"):
            raise LLMError(f"llm.api is {api!r}; it is either chat or responses")
        if not model:
            raise LLMError("llm.model is empty; name the model to ask, e.g. llm.model=gpt-5-mini")
        if timeout <= 0 or max_retries < 0:
            raise LLMError(
                f"llm.timeout={timeout:g} s and llm.max_retries={max_retries} cannot be; the first must be positive, "
                "the second not negative"
            )
        self.model = model
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        self.api = api
        self._server = _shown(self.base_url)
        self._api_key_env = api_key_env
        self._timeout = timeout
        self._max_retries = max_retries
        self._reasoning_effort = reasoning_effort
        self._temperature = temperature
        self._max_output_tokens = max_output_tokens
        self._key = _key_from_environment(api_key_env, self._server)

    def __repr__(self) -> str:
        return f"OpenAIClient(model={self.model!r}, server={self._server!r}, api={self.api!r})"

    def complete(self, request: Request) -> Completion:
        """Asks the model; a truncated answer is returned with the finish reason "length".

        Raises:
            UnusableReplyError: The model answered without any text.
            LLMError: There is no answer after all retries.
        """
        import openai

        started = time.monotonic()
        problem: LLMError | None = None
        body = b""
        try:
            with openai.OpenAI(
                api_key=self._key(),
                base_url=self.base_url,
                timeout=self._timeout,
                max_retries=self._max_retries,
            ) as server:
                body = self._ask(server, request)
        except openai.OpenAIError as error:
            problem = self._problem(error)
        # Raised out here, since an exception raised while handling another keeps it, the key's header included.
        if problem is not None:
            raise problem
        reply = self._read(body)
        usage = reply.usage or estimated_usage(request.messages, reply.text)
        if not reply.text.strip():
            raise UnusableReplyError(self._empty(reply, usage), usage=usage, model=reply.model)
        return Completion(reply.text, usage, reply.finish_reason, time.monotonic() - started, reply.model)

    def _ask(self, server: openai.OpenAI, request: Request) -> bytes:
        turns: Any = [{"role": message.role, "content": message.content} for message in request.messages]
        options: dict[str, Any] = {}
        if self._temperature is not None:
            options["temperature"] = self._temperature
        # The raw bodies: the package does not check what a compatible server sends.
        if self.api == "responses":
            if self._reasoning_effort is not None:
                options["reasoning"] = {"effort": self._reasoning_effort}
            if self._max_output_tokens is not None:
                options["max_output_tokens"] = self._max_output_tokens
            return server.responses.with_raw_response.create(
                model=self.model, input=turns, store=False, **options
            ).content
        if self._reasoning_effort is not None:
            options["reasoning_effort"] = self._reasoning_effort
        if self._max_output_tokens is not None:
            options["max_completion_tokens"] = self._max_output_tokens
        return server.chat.completions.with_raw_response.create(model=self.model, messages=turns, **options).content

    def _read(self, body: bytes) -> _Reply:
        try:
            fields = json.loads(body)
        except ValueError:
            fields = None
        if isinstance(fields, dict):
            if isinstance(failure := fields.get("error"), dict):
                raise LLMError(
                    f"{self._server} answered with an error: {self._redacted(str(failure.get('message') or failure))}; "
                    f"check llm.model and llm.base_url, then {_RESUME}"
                )
            try:
                return (_response if self.api == "responses" else _chat_completion)(fields, self.model)
            except (KeyError, IndexError, TypeError, AttributeError):
                pass
        raise LLMError(
            f"{self._server} did not answer in the protocol llm.api={self.api} asks for; it sent "
            f"{self._redacted(body.decode('utf-8', 'replace'))!r}. Check llm.base_url (it usually ends in /v1) and "
            "llm.api"
        )

    def _empty(self, reply: _Reply, usage: Usage) -> str:
        if reply.finish_reason == "length":
            return (
                f"{reply.model} gave no text: its {usage.output_tokens} output tokens "
                f"({usage.reasoning_tokens} of them reasoning) ended before the reply began; raise "
                f"llm.max_output_tokens or lower llm.reasoning_effort, then {_RESUME}"
            )
        refusal = f", refusing: {self._redacted(reply.refusal)}" if reply.refusal else ""
        return (
            f"{reply.model} gave an empty reply (finish reason {reply.finish_reason}{refusal}); {_RESUME} to ask once "
            "more, or choose another llm.model"
        )

    def _problem(self, error: openai.OpenAIError) -> LLMError:
        import openai

        tries = f"{self._max_retries + 1} tries" if self._max_retries else "one try"
        if isinstance(error, openai.APITimeoutError):
            return LLMError(
                f"{self._server} gave no answer within {self._timeout:g} s ({tries}); raise llm.timeout, or {_RESUME} "
                "later"
            )
        if isinstance(error, openai.APIStatusError):
            return self._status_problem(error, tries)
        if isinstance(error, openai.APIConnectionError):
            cause = self._redacted(str(error.__cause__ or error))
            return LLMError(
                f"{self._server} cannot be reached ({cause}; {tries}); check the network and llm.base_url, "
                f"then {_RESUME}"
            )
        return LLMError(
            f"asking {self._server} failed: {self._redacted(str(error))}; check the settings of llm, then {_RESUME}"
        )

    def _status_problem(self, error: openai.APIStatusError, tries: str) -> LLMError:
        status, server = error.status_code, self._server
        body = error.body
        said = body.get("message") if isinstance(body, dict) else body
        detail = f"{status}: {self._redacted(str(said or error.message))}"
        if status == 401:
            text = f"{server} refused the key in {self._api_key_env} ({detail}); put a valid key of this server there"
        elif status == 403:
            text = (
                f"{server} does not let the key in {self._api_key_env} use {self.model} ({detail}); choose another "
                "llm.model or another key"
            )
        elif status == 404:
            text = (
                f"{server} knows no model {self.model!r}, or is not the right address ({detail}); check llm.model and "
                "llm.base_url (it usually ends in /v1)"
            )
        elif status == 429 and error.code == "insufficient_quota":
            text = (
                f"the account of the key in {self._api_key_env} has no credit left ({detail}); add some, then {_RESUME}"
            )
        elif status == 429:
            wait = error.response.headers.get("retry-after")
            text = (
                f"the rate limit of {server} for {self.model} still holds after {tries} ({detail}"
                f"{f'; it asks to wait {wait} s' if wait else ''}); wait, then {_RESUME}, or raise llm.max_retries"
            )
        elif status >= 500 or status in (408, 409):
            text = f"{server} failed ({detail}; {tries}); wait, then {_RESUME}"
        else:
            text = (
                f"{server} rejected the request ({detail}); check llm.model, llm.api, llm.reasoning_effort, "
                "llm.temperature and llm.max_output_tokens"
            )
        return LLMError(text)

    def _redacted(self, text: str, width: int = 400) -> str:
        """What a server said, shortened and without the key, which some servers repeat."""
        text = text.replace(self._key(), "[key]")
        return text if len(text) <= width else text[:width] + "..."


def _key_from_environment(name: str, server: str) -> Callable[[], str]:
    key = os.environ.get(name, "").strip()
    if not key:
        raise LLMError(
            f"llm=openai needs a key for {server}, and the environment variable {name} is not set; set it (to any "
            "word if the server wants none), name another with llm.api_key_env, or take llm=transcript or "
            "llm=mailbox, which need none"
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise LLMError(f"the environment variable {name} holds characters that no key has; set it anew")
    # A closure, so that nothing that prints an object's attributes prints the key.
    return lambda: key


def _shown(url: str) -> str:
    """The address without user name, password or query, which can be secrets."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        host = parts.hostname
    except ValueError:
        host, port = None, ""
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise LLMError("llm.base_url is not an address; it reads like https://host/v1")
    return f"{parts.scheme}://{host}{port}{parts.path}"


def _chat_completion(fields: dict[str, Any], asked: str) -> _Reply:
    choice = fields["choices"][0]
    message = choice["message"]
    return _Reply(
        text=_text(message["content"]),
        finish_reason=str(choice.get("finish_reason") or "stop"),
        model=str(fields.get("model") or asked),
        usage=_usage(fields.get("usage"), "prompt_tokens", "completion_tokens"),
        refusal=str(message.get("refusal") or ""),
    )


def _response(fields: dict[str, Any], asked: str) -> _Reply:
    parts = [part for item in fields["output"] if item["type"] == "message" for part in item["content"]]
    status = fields["status"]
    reason = (fields.get("incomplete_details") or {}).get("reason") or status
    finish = {"completed": "stop", "max_output_tokens": "length"}.get(reason, reason)
    return _Reply(
        text="".join(_text(part["text"]) for part in parts if part["type"] == "output_text"),
        finish_reason=str(finish),
        model=str(fields.get("model") or asked),
        usage=_usage(fields.get("usage"), "input_tokens", "output_tokens"),
        refusal="".join(str(part["refusal"]) for part in parts if part["type"] == "refusal"),
    )


def _text(content: Any) -> str:
    if content is None:
        return ""
    if not isinstance(content, str):
        raise TypeError("the reply's content is not text")
    # JSON can carry half a surrogate pair, which no file can.
    return content.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _usage(fields: Any, inputs: str, outputs: str) -> Usage | None:
    """The tokens the server counted; None if it does not say, as some compatible servers do not."""
    if not isinstance(fields, dict) or not all(isinstance(fields.get(side), int) for side in (inputs, outputs)):
        return None
    reasoning = (fields.get(f"{outputs}_details") or {}).get("reasoning_tokens")
    return Usage(fields[inputs], fields[outputs], reasoning if isinstance(reasoning, int) else 0)
