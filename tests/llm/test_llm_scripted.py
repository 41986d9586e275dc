from __future__ import annotations

from pathlib import Path

import pytest

from jaxrefine.llm import LLMError, Message, Recorder, Request, ScriptedClient, Usage


def request(purpose: str, text: str = "abcd") -> Request:
    return Request(purpose, 0, "0", (Message("user", text),))


def test_replies_in_order_then_an_error() -> None:
    client = ScriptedClient(["one", "two two"])
    first = client.complete(request("generate"))
    assert (first.text, first.usage, first.finish_reason) == ("one", Usage(1, 1, estimated=True), "stop")
    assert client.complete(request("diagnose")).usage.output_tokens == 2
    with pytest.raises(LLMError, match="end after 2, and the run asked for `revise` of round 0"):
        client.complete(request("revise"))


def test_a_function_sees_the_request() -> None:
    client = ScriptedClient(lambda asked: f"{asked.purpose}: {asked.messages[-1].content}")
    assert client.complete(request("revise", "x")).text == "revise: x"


def test_resuming_skips_what_was_given(tmp_path: Path) -> None:
    replies = ["one", "two"]
    Recorder(ScriptedClient(replies), tmp_path / "t.jsonl", {}).complete(request("generate"))
    resumed = Recorder(ScriptedClient(replies), tmp_path / "t.jsonl", {})
    assert [resumed.complete(request(purpose)).text for purpose in ("generate", "diagnose")] == replies


def test_a_file_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    path.write_text('"one\\n"\n\n{"text": "two\u2028"}\n', "utf-8")
    client = ScriptedClient.from_path(path)
    assert [client.complete(request("generate")).text for _ in range(2)] == ["one\n", "two\u2028"]


def test_a_folder_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    for name, text in {"10.md": "last", "2.md": "middle\r\n", "01.md": "first", "notes.md": "not a reply"}.items():
        (tmp_path / name).write_bytes(text.encode())
    client = ScriptedClient.from_path(tmp_path)
    assert [client.complete(request("generate")).text for _ in range(3)] == ["first", "middle\r\n", "last"]


def test_wrong_paths_and_lines_are_named(tmp_path: Path) -> None:
    with pytest.raises(LLMError, match=r"nothing\.jsonl cannot be read.*llm\.path"):
        ScriptedClient.from_path(tmp_path / "nothing.jsonl")
    with pytest.raises(LLMError, match="there are no scripted replies"):
        ScriptedClient.from_path(tmp_path)
    path = tmp_path / "replies.jsonl"
    path.write_text('"one"\n{"reply": "two"}\n')
    with pytest.raises(LLMError, match="in line 2 of"):
        ScriptedClient.from_path(path)
    path.write_text('"one"\n"two\n')
    with pytest.raises(LLMError, match=r"line 2 of .* is not JSON"):
        ScriptedClient.from_path(path)
    path.unlink()
    (tmp_path / "1.md").write_bytes(b"\xff")
    with pytest.raises(LLMError, match=r"1\.md is not UTF-8"):
        ScriptedClient.from_path(tmp_path)
