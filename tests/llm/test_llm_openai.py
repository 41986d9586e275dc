"""The client against a local server that speaks the two protocols, errors and rate limits included."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from llm_fake_server import Answer, FakeServer

from jaxrefine.errors import UserError
from jaxrefine.llm import Completion, LLMError, Message, OpenAIClient, Request, UnusableReplyError, Usage

KEY = "sk-test-0123456789abcdefSECRET"
REQUEST = Request(
    purpose="generate",
    round=0,
    chain="0",
    messages=(Message("system", "You write policies."), Message("user", "Write one.")),
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    fake = FakeServer()
    thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    fake.shutdown()
    thread.join()
    fake.server_close()


def client(server: FakeServer, **settings: Any) -> OpenAIClient:
    return OpenAIClient(**{"model": "gpt-5-mini", "base_url": server.url, "max_retries": 0, "timeout": 5.0, **settings})


def chat(text: str | None, finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5-mini-2025-08-07",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": text, **message},
            }
        ],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 700,
            "total_tokens": 711,
            "completion_tokens_details": {"reasoning_tokens": 640},
        },
    }


def failure(status: int, message: str, code: str | None = None, **headers: str) -> Answer:
    return Answer(status, {"error": {"message": message, "type": "x", "code": code}}, headers)


def error_of(call: Any) -> LLMError:
    with pytest.raises(LLMError) as caught:
        call()
    return caught.value


def test_a_chat_completion_comes_back_whole(server: FakeServer) -> None:
    server.answers = [Answer(body=chat("  class P: ...\n\u2028\n"))]
    completion = client(server).complete(REQUEST)
    assert completion.latency > 0
    assert completion == Completion(
        text="  class P: ...\n\u2028\n",
        usage=Usage(11, 700, 640),
        finish_reason="stop",
        latency=completion.latency,
        model="gpt-5-mini-2025-08-07",
    )
    path, body, authorization = server.seen[0]
    assert path == "/v1/chat/completions"
    assert authorization == f"Bearer {KEY}"
    # What was not asked for is left to the server.
    assert body == {
        "model": "gpt-5-mini",
        "messages": [
            {"role": "system", "content": "You write policies."},
            {"role": "user", "content": "Write one."},
        ],
    }


def test_settings_reach_a_chat_completion(server: FakeServer) -> None:
    server.answers = [Answer(body=chat("x"))]
    client(server, reasoning_effort="high", temperature=0.0, max_output_tokens=5000).complete(REQUEST)
    body = server.seen[0][1]
    assert (body["reasoning_effort"], body["temperature"], body["max_completion_tokens"]) == ("high", 0.0, 5000)
    assert "max_tokens" not in body


def response(status: str = "completed", text: str | None = "hello", reason: str | None = None) -> dict[str, Any]:
    output: list[dict[str, Any]] = [{"type": "reasoning", "id": "r", "summary": []}]
    if text is not None:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output.append({"type": "message", "id": "m", "role": "assistant", "content": content})
    return {
        "id": "x",
        "object": "response",
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": "gpt-5-mini-2025-08-07",
        "output": output,
        "usage": {
            "input_tokens": 3,
            "output_tokens": 9,
            "output_tokens_details": {"reasoning_tokens": 4},
            "total_tokens": 12,
        },
    }


def test_the_responses_api(server: FakeServer) -> None:
    server.answers = [Answer(body=response()), Answer(body=response("incomplete", "hel", "max_output_tokens"))]
    asker = client(server, api="responses", reasoning_effort="low", max_output_tokens=64)
    whole = asker.complete(REQUEST)
    assert (whole.text, whole.finish_reason, whole.usage) == ("hello", "stop", Usage(3, 9, 4))
    path, body, _ = server.seen[0]
    assert path == "/v1/responses"
    assert body["input"][1] == {"role": "user", "content": "Write one."}
    assert body["reasoning"] == {"effort": "low"}
    assert body["max_output_tokens"] == 64
    assert "temperature" not in body
    assert body["store"] is False
    cut = asker.complete(REQUEST)
    assert (cut.text, cut.finish_reason) == ("hel", "length")


def test_a_response_without_text_is_an_error_that_keeps_what_it_cost(server: FakeServer) -> None:
    server.answers = [Answer(body=response("incomplete", None, "max_output_tokens"))]
    error = error_of(lambda: client(server, api="responses").complete(REQUEST))
    assert isinstance(error, UnusableReplyError)
    assert error.usage == Usage(3, 9, 4)
    assert "llm.max_output_tokens" in str(error)


def test_a_failed_response_says_why(server: FakeServer) -> None:
    failed = {**response("failed", None), "error": {"code": "server_error", "message": "the model broke down"}}
    server.answers = [Answer(body=failed)]
    assert "the model broke down" in str(error_of(lambda: client(server, api="responses").complete(REQUEST)))


def test_no_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_KEY", "  ")
    error = error_of(lambda: OpenAIClient("gpt-5-mini", api_key_env="LAB_KEY"))
    assert "LAB_KEY" in str(error)
    assert "llm=transcript" in str(error)
    assert isinstance(error, UserError)


def test_a_malformed_key_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-Schlüssel")
    error = error_of(lambda: OpenAIClient("gpt-5-mini"))
    assert "OPENAI_API_KEY" in str(error)
    assert "Schl" not in str(error)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"api": "completions"}, "llm.api"),
        ({"timeout": 0.0}, "llm.timeout"),
        ({"max_retries": -1}, "llm.max_retries"),
        ({"base_url": "localhost:8000"}, "llm.base_url"),
        ({"base_url": "http://[bad"}, "llm.base_url"),
        ({"model": ""}, "llm.model"),
    ],
)
def test_impossible_settings_are_named(server: FakeServer, settings: dict[str, Any], named: str) -> None:
    assert named in str(error_of(lambda: client(server, **settings)))


def test_401_names_the_variable_and_hides_the_key_the_server_repeats(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.answers = [failure(401, f"Incorrect API key provided: {KEY}.", "invalid_api_key")]
    asker = client(server)
    error = error_of(lambda: asker.complete(REQUEST))
    assert "OPENAI_API_KEY" in str(error)
    assert "401" in str(error)
    assert "Incorrect API key provided: [key]" in str(error)
    assert len(server.seen) == 1
    chain: list[BaseException] = [error]
    for link in chain:
        chain += [other for other in (link.__cause__, link.__context__) if other is not None]
    assert chain == [error]
    shown = [str(error), repr(error), repr(asker), str(vars(asker)), caplog.text, str(error.args)]
    assert not [text for text in shown if "SECRET" in text]


def test_secrets_in_the_address_are_not_shown(server: FakeServer) -> None:
    server.answers = [failure(403, "no")]
    url = server.url.replace("http://", "http://me:hush@")
    asker = client(server, base_url=url + "?code=hush")
    assert "hush" not in repr(asker)
    assert "hush" not in str(error_of(lambda: asker.complete(REQUEST)))


def test_a_client_cannot_be_pickled_with_its_key(server: FakeServer) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(client(server))


def test_404_names_the_model(server: FakeServer) -> None:
    server.answers = [failure(404, "The model `gpt-9` does not exist", "model_not_found")]
    text = str(error_of(lambda: client(server, model="gpt-9").complete(REQUEST)))
    assert "'gpt-9'" in text
    assert "llm.model" in text
    assert "llm.base_url" in text


def test_400_gives_the_servers_reason(server: FakeServer) -> None:
    server.answers = [failure(400, "Unsupported value: 'temperature'")]
    text = str(error_of(lambda: client(server, temperature=0.5).complete(REQUEST)))
    assert "Unsupported value: 'temperature'" in text
    assert "llm.temperature" in text


def test_429_waits_as_long_as_the_server_says(server: FakeServer) -> None:
    server.answers = [failure(429, "slow down", **{"Retry-After": "0.9"}), Answer(body=chat("ok"))]
    started = time.monotonic()
    completion = client(server, max_retries=2).complete(REQUEST)
    waited = time.monotonic() - started
    assert completion.text == "ok"
    assert len(server.seen) == 2
    # Left alone, the package waits half a second at most before its first retry.
    assert waited >= 0.9
    assert completion.latency >= 0.9


def test_429_for_ever_names_the_rate_limit(server: FakeServer) -> None:
    server.answers = [failure(429, "slow down", **{"Retry-After": "0.01"})]
    text = str(error_of(lambda: client(server, max_retries=2).complete(REQUEST)))
    assert len(server.seen) == 3
    assert "rate limit" in text
    assert "3 tries" in text
    assert "0.01 s" in text
    assert "llm.max_retries" in text


def test_429_without_credit_says_so(server: FakeServer) -> None:
    server.answers = [failure(429, "You exceeded your current quota", "insufficient_quota")]
    assert "no credit left" in str(error_of(lambda: client(server).complete(REQUEST)))


def test_500_is_tried_again(server: FakeServer) -> None:
    server.answers = [failure(500, "oops", **{"Retry-After": "0.01"}), Answer(body=chat("ok"))]
    assert client(server, max_retries=1).complete(REQUEST).text == "ok"
    assert len(server.seen) == 2


def test_500_for_ever_is_one_error(server: FakeServer) -> None:
    server.answers = [failure(503, "overloaded", **{"Retry-After": "0.01"})]
    text = str(error_of(lambda: client(server, max_retries=1).complete(REQUEST)))
    assert "503: overloaded" in text
    assert "run=PATH" in text
    assert len(server.seen) == 2


def test_an_answer_that_does_not_come_in_time(server: FakeServer) -> None:
    server.answers = [Answer(body=chat("late"), delay_s=0.6)]
    text = str(error_of(lambda: client(server, timeout=0.15).complete(REQUEST)))
    assert "within 0.15 s" in text
    assert "llm.timeout" in text


def test_a_server_that_is_not_there(server: FakeServer) -> None:
    text = str(error_of(lambda: client(server, base_url="http://127.0.0.1:9/v1").complete(REQUEST)))
    assert "http://127.0.0.1:9/v1 cannot be reached" in text


def test_a_truncated_reply_is_returned(server: FakeServer) -> None:
    server.answers = [Answer(body=chat("def f(", "length"))]
    completion = client(server).complete(REQUEST)
    assert (completion.text, completion.finish_reason) == ("def f(", "length")


@pytest.mark.parametrize("text", ["", None, " \n"])
def test_an_empty_reply_is_an_error_that_keeps_what_it_cost(server: FakeServer, text: str | None) -> None:
    server.answers = [Answer(body=chat(text))]
    error = error_of(lambda: client(server).complete(REQUEST))
    assert isinstance(error, UnusableReplyError)
    assert error.usage == Usage(11, 700, 640)
    assert error.model == "gpt-5-mini-2025-08-07"
    assert "empty reply" in str(error)


def test_a_refusal_is_told(server: FakeServer) -> None:
    server.answers = [Answer(body=chat(None, refusal="I would rather not."))]
    assert "I would rather not." in str(error_of(lambda: client(server).complete(REQUEST)))


def test_a_reply_lost_in_thought_says_which_option_helps(server: FakeServer) -> None:
    server.answers = [Answer(body=chat("", "length"))]
    text = str(error_of(lambda: client(server).complete(REQUEST)))
    assert "700 output tokens (640 of them reasoning)" in text
    assert "llm.max_output_tokens" in text


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices": [',
        b"<html>Welcome</html>",
        b"\xff\xfe",
        b"",
        [],
        {"choices": []},
        {"choices": None},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": 3}}]},
    ],
)
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_body_that_is_not_the_protocol(server: FakeServer, body: Any, api: str) -> None:
    server.answers = [Answer(body=body)]
    text = str(error_of(lambda: client(server, api=api).complete(REQUEST)))
    assert f"did not answer in the protocol llm.api={api}" in text
    assert "llm.base_url" in text


def test_an_error_in_a_successful_answer(server: FakeServer) -> None:
    server.answers = [Answer(body={"error": {"message": "upstream is down", "code": 502}})]
    assert "upstream is down" in str(error_of(lambda: client(server).complete(REQUEST)))


def test_a_server_that_does_not_count_tokens(server: FakeServer) -> None:
    body = chat("12345678")
    del body["usage"], body["model"]
    server.answers = [Answer(body=body)]
    completion = client(server).complete(REQUEST)
    assert completion.usage == Usage(input_tokens=8, output_tokens=2, estimated=True)
    assert completion.model == "gpt-5-mini"


def test_half_a_surrogate_pair_becomes_writable(server: FakeServer) -> None:
    server.answers = [Answer(body=chat("a\ud83db \U0001f600"))]
    assert client(server).complete(REQUEST).text == "a\ufffdb \U0001f600"


def test_the_packages_own_variable_for_the_address(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    server.answers = [Answer(body=chat("x"))]
    assert client(server, base_url=None).complete(REQUEST).text == "x"


def test_the_package_is_not_loaded_until_a_call() -> None:
    code = (
        "import os, sys; os.environ['OPENAI_API_KEY'] = 'k'; import jaxrefine.llm as llm; "
        "llm.OpenAIClient('m'); print(sorted({'openai', 'jax', 'httpx2'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
