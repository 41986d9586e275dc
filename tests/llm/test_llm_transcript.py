from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxrefine.llm import (
    Completion,
    Exchange,
    Message,
    Recorder,
    Request,
    ScriptedClient,
    TranscriptClient,
    TranscriptError,
    read_transcript,
)
from jaxrefine.llm.transcript import first_difference, same_but_for_numbers

HEADER = {"task": "car_racing", "chain": "0", "model": "m", "prompt_version": "1"}


def request(purpose: str, round_: int = 0, attempt: int = 0, text: str = "line one\nline two") -> Request:
    return Request(purpose, round_, "0", (Message("system", "be brief"), Message("user", text)), attempt)


ASKED = [request("generate"), request("repair_program", attempt=1), request("diagnose"), request("revise")]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "chain.jsonl"
    recorder = Recorder(ScriptedClient(["first", "second", "third", "fourth"]), path, HEADER)
    for asked in ASKED:
        recorder.complete(asked)
    return path


def edited(path: Path, line: int, **changes: Any) -> None:
    lines = path.read_text("utf-8").splitlines()
    lines[line - 1] = json.dumps({**json.loads(lines[line - 1]), **changes})
    path.write_text("\n".join(lines) + "\n", "utf-8")


def test_a_key_depends_on_the_messages_alone() -> None:
    assert request("generate").key == request("revise", 3, 2).key
    assert request("generate").key != request("generate", text="line one\nline 2").key
    turned = Request("generate", 0, "0", (Message("user", "be brief"), Message("system", "line one\nline two")))
    assert turned.key != request("generate").key
    split = Request("generate", 0, "0", (Message("user", "a"), Message("user", "b")))
    joined = Request("generate", 0, "0", (Message("user", "ab"),))
    assert split.key != joined.key
    # Recorded transcripts depend on this value for ever.
    assert Request("x", 0, "0", (Message("user", "é"),)).key == (
        "ece78b3b9933a98a94127ecce561e4fc91805a5e3910df21d38d5b4bc06e6c60"
    )


def test_the_file_is_as_documented(recording: Path) -> None:
    header, first, *_ = [json.loads(line) for line in recording.read_text("utf-8").splitlines()]
    assert header == {"kind": "header", "format": 1, **HEADER}
    assert first == {
        "kind": "exchange",
        "purpose": "generate",
        "round": 0,
        "attempt": 0,
        "key": ASKED[0].key,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "line one\nline two"}],
        "completion": {
            "text": "first",
            "usage": {"input_tokens": 7, "output_tokens": 2, "reasoning_tokens": 0, "estimated": True},
            "finish_reason": "stop",
            "latency": 0.0,
            "model": "scripted",
        },
    }


def test_reading(recording: Path) -> None:
    transcript = read_transcript(recording)
    assert transcript.header == HEADER
    assert [exchange.completion.text for exchange in transcript.exchanges] == ["first", "second", "third", "fourth"]
    assert [exchange.place for exchange in transcript.exchanges] == [asked.place for asked in ASKED]


def test_playing_in_order_says_nothing(recording: Path) -> None:
    notices: list[str] = []
    player = TranscriptClient(recording, strict=True, on_notice=notices.append)
    assert [player.complete(asked).text for asked in ASKED] == ["first", "second", "third", "fourth"]
    assert notices == []


def test_the_end_says_what_was_asked_and_how_to_go_on(recording: Path) -> None:
    player = TranscriptClient(recording)
    for asked in ASKED:
        player.complete(asked)
    with pytest.raises(TranscriptError, match="the transcript ends here") as caught:
        player.complete(request("revise", 2))
    text = str(caught.value)
    for part in (str(recording), "4 exchanges", "`revise` of round 2", "llm=mailbox", "llm=openai"):
        assert part in text


@pytest.mark.parametrize("asked", [request("diagnose"), request("generate", 1), request("generate", 0, 1)])
def test_another_place_than_the_recorded_one(recording: Path, asked: Request) -> None:
    player = TranscriptClient(recording)
    with pytest.raises(TranscriptError) as caught:
        player.complete(asked)
    assert "goes on with `generate` of round 0, attempt 0" in str(caught.value)
    assert f"`{asked.purpose}` of round {asked.round}, attempt {asked.attempt}" in str(caught.value)
    # The failed question uses nothing up.
    assert player.complete(ASKED[0]).text == "first"


def test_a_drifted_prompt_is_a_notice(recording: Path) -> None:
    notices: list[str] = []
    player = TranscriptClient(recording, on_notice=notices.append)
    assert player.complete(request("generate", text="line one\nline 2")).text == "first"
    assert len(notices) == 1
    for part in ("`generate` of round 0, attempt 0", "message 2 (user), line 2: recorded 'line two', now 'line 2'"):
        assert part in notices[0]


def test_prompts_that_differ_in_numbers_only_are_told_once(tmp_path: Path) -> None:
    recorded = [
        request("revise", k, text=f"Round {k}: return 911±23, rho -0.52, loss 1.5e-03; g0-0.1:0.12") for k in (0, 1)
    ]
    path = tmp_path / "recorded.jsonl"
    recorder = Recorder(ScriptedClient(["first", "second"]), path, HEADER)
    for asked in recorded:
        recorder.complete(asked)
    notices: list[str] = []
    player = TranscriptClient(path, on_notice=notices.append)
    for k in (0, 1):
        player.complete(request("revise", k, text=f"Round {k}: return 910±24, rho +0.5, loss 1.4e+03; g0-0.1:0.13"))
    assert len(notices) == 1
    assert "in numbers only" in notices[0]


@pytest.mark.parametrize("now", ["return 911 pm 23", "returns 911±23", "return 911±23 more", "return nothing±23"])
def test_other_words_are_no_difference_of_numbers(now: str) -> None:
    assert not same_but_for_numbers((Message("user", "return 911±23"),), (Message("user", now),))


def test_a_difference_far_into_a_line_is_shown_where_it_is() -> None:
    line = "x" * 200
    said = first_difference((Message("user", line + "old" + line),), (Message("user", line + "new" + line),))
    assert "xold" in said
    assert "xnew" in said
    assert len(said) < 300


def test_a_drifted_prompt_is_an_error_when_strict(recording: Path) -> None:
    player = TranscriptClient(recording, strict=True)
    with pytest.raises(TranscriptError, match="recorded 'line two', now nothing"):
        player.complete(request("generate", text="line one"))


def test_a_prompt_of_other_length_or_roles(recording: Path) -> None:
    notices: list[str] = []
    player = TranscriptClient(recording, on_notice=notices.append)
    messages = ASKED[0].messages
    player.complete(Request("generate", 0, "0", messages[:1]))
    player.complete(Request("repair_program", 0, "0", (Message("user", "be brief"), messages[1]), 1))
    assert "recorded 2 messages, now 1" in notices[0]
    assert "message 1: recorded role system, now user" in notices[1]


def test_skipping_what_a_run_has_already(recording: Path) -> None:
    player = TranscriptClient(recording)
    exchanges = read_transcript(recording).exchanges
    for exchange in exchanges[:3]:
        player.skip(exchange)
    assert player.complete(ASKED[3]).text == "fourth"
    # A run that went on beyond the recording with another provider.
    player.skip(exchanges[0])
    with pytest.raises(TranscriptError, match="ends here"):
        player.complete(ASKED[0])


def test_skipping_refuses_another_conversation(recording: Path) -> None:
    first = read_transcript(recording).exchanges[0]
    completion = Completion("other", first.completion.usage, "stop", 0.0, "m")
    other = Exchange(*first.place, first.key, first.messages, completion)
    with pytest.raises(TranscriptError, match="started from another conversation"):
        TranscriptClient(recording).skip(other)


@pytest.mark.parametrize(
    ("line", "changes", "said"),
    [
        (1, {"kind": "exchange"}, "the first line must be the header"),
        (1, {"format": 2}, "format 2"),
        (2, {"kind": "remark"}, "unknown kind 'remark'"),
        (3, {"round": "zero"}, "'round' holds 'zero'"),
        (3, {"round": True}, "'round' holds True"),
        (3, {"messages": [{"role": "wizard", "content": "x"}]}, "unknown role 'wizard'"),
        (4, {"messages": [{"role": "user", "content": "made up"}]}, "the line has been edited"),
        (4, {"completion": {"text": "x"}}, "'usage' is missing"),
        (5, {"completion": None}, "'completion' holds None"),
    ],
)
def test_damage_names_file_and_line(recording: Path, line: int, changes: dict[str, Any], said: str) -> None:
    edited(recording, line, **changes)
    with pytest.raises(TranscriptError) as caught:
        read_transcript(recording)
    assert f"{recording} is damaged in line {line}:" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("damage", [b"not json", b"[1]", b"\xff\xfe", b"\x00\x00", b'{"kind": "exch', b"[" * 100_000])
def test_garbage_names_file_and_line(recording: Path, damage: bytes) -> None:
    lines = recording.read_bytes().split(b"\n")
    lines[2] = damage
    recording.write_bytes(b"\n".join(lines))
    with pytest.raises(TranscriptError, match="damaged in line 3:"):
        read_transcript(recording)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match=r"nowhere\.jsonl cannot be read \(No such file"):
        TranscriptClient(tmp_path / "nowhere.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(TranscriptError, match="is empty"):
        TranscriptClient(tmp_path / "empty.jsonl")
