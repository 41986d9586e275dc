from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrefine.llm import (
    Budget,
    BudgetError,
    Completion,
    LLMError,
    Message,
    Recorder,
    Request,
    ScriptedClient,
    TranscriptClient,
    TranscriptError,
    UnusableReplyError,
    Usage,
    read_transcript,
)

HEADER = {"task": "car_racing", "chain": "2", "date": "2026-01-01", "note": "a test"}


class Model:
    """Answers with its count of calls, and keeps what it was asked."""

    name = "fake"
    model = "gpt-5-mini"

    def __init__(self, already: int = 0) -> None:
        self.asked: list[Request] = []
        self.already = already

    def complete(self, request: Request) -> Completion:
        self.asked.append(request)
        text = f"answer {self.already + len(self.asked)} to {request.purpose}"
        return Completion(text, Usage(1000, 100, 40), "stop", 1.5, "gpt-5-mini-2025-08-07")


def request(purpose: str, round_: int = 0, attempt: int = 0, text: str = "do it") -> Request:
    return Request(purpose, round_, "2", (Message("user", f"{purpose} {round_} {text}"),), attempt)


CHAIN = [request("generate"), request("diagnose"), request("revise"), request("diagnose", 1), request("revise", 1)]


def test_an_exchange_is_on_disk_before_it_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "transcript.jsonl"
    recorder = Recorder(Model(), path, HEADER)
    synced: list[int] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(path.stat().st_size)

    monkeypatch.setattr(os, "fsync", watched)
    completion = recorder.complete(CHAIN[0])
    assert synced == [path.stat().st_size]
    assert read_transcript(path).header == HEADER
    assert read_transcript(path).exchanges[0].completion == completion
    assert recorder.name == "fake"


def test_a_resumed_run_asks_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    first = Recorder(Model(), path, HEADER)
    before = [first.complete(asked) for asked in CHAIN[:3]]
    model = Model(already=3)
    second = Recorder(model, path, {"date": "another day"})
    after = [second.complete(asked) for asked in CHAIN]
    assert after[:3] == before
    assert model.asked == CHAIN[3:]
    assert second.replayed == 3
    assert second.header == HEADER
    whole = Recorder(Model(), tmp_path / "undisturbed.jsonl", HEADER)
    assert [whole.complete(asked) for asked in CHAIN] == after
    assert second.totals == whole.totals
    assert path.read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()


def test_killed_after_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    recorder = Recorder(Model(), path, HEADER)
    answers = [recorder.complete(asked) for asked in CHAIN[:3]]
    data = path.read_bytes()
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        notices: list[str] = []
        kept = max(data[:size].count(b"\n") - 1, 0)
        model = Model(already=kept)
        recorder = Recorder(model, path, HEADER, on_notice=notices.append)
        assert [recorder.complete(asked) for asked in CHAIN[:3]] == answers
        assert model.asked == CHAIN[kept:3]
        assert path.read_bytes() == data
        assert len(notices) == (size > 0 and data[size - 1 : size] != b"\n")


def test_a_whole_last_line_without_its_newline_was_paid_for(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    answer = Recorder(Model(), path, HEADER).complete(CHAIN[0])
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    model = Model(already=1)
    recorder = Recorder(model, path, HEADER)
    assert recorder.complete(CHAIN[0]) == answer
    recorder.complete(CHAIN[1])
    assert model.asked == CHAIN[1:2]
    assert path.read_bytes().startswith(data)
    assert len(read_transcript(path).exchanges) == 2


def test_damage_before_the_end_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    recorder = Recorder(Model(), path, HEADER)
    for asked in CHAIN[:3]:
        recorder.complete(asked)
    damaged = path.read_bytes().replace(b'"diagnose"', b'"diag', 1)
    path.write_bytes(damaged)
    with pytest.raises(TranscriptError, match=r"transcript\.jsonl is damaged in line 3"):
        Recorder(Model(), path, HEADER)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (request("diagnose", text="do something else"), "recorded 'diagnose 0 do it', now 'diagnose 0 do something"),
        (request("revise"), "recorded is `diagnose` of round 0, attempt 0"),
        (request("diagnose", attempt=1), "recorded is `diagnose` of round 0, attempt 0"),
    ],
)
def test_a_changed_run_is_told_to_start_anew(tmp_path: Path, changed: Request, said: str) -> None:
    path = tmp_path / "transcript.jsonl"
    recorder = Recorder(Model(), path, HEADER)
    for asked in CHAIN[:2]:
        recorder.complete(asked)
    model = Model()
    recorder = Recorder(model, path, HEADER)
    recorder.complete(CHAIN[0])
    with pytest.raises(TranscriptError) as caught:
        recorder.complete(changed)
    assert said in str(caught.value)
    assert "start a new run directory" in str(caught.value)
    assert model.asked == []


texts = st.text(max_size=60) | st.sampled_from(["a\u2028b\u2029c\x85d", "line\r\nline\n", '"}\n{"', "\ufeff", "é😀"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.lists(texts, min_size=1, max_size=3), texts), min_size=1, max_size=4), texts)
def test_what_it_writes_can_be_played(
    tmp_path_factory: pytest.TempPathFactory, exchanges: list[tuple[list[str], str]], note: str
) -> None:
    path = tmp_path_factory.mktemp("run") / "transcript.jsonl"
    header = {**HEADER, "note": note}
    asked = [
        Request("generate", i, "0", tuple(Message("user", text) for text in prompts))
        for i, (prompts, _) in enumerate(exchanges)
    ]
    recorder = Recorder(ScriptedClient([reply for _, reply in exchanges]), path, header)
    answers = [recorder.complete(each) for each in asked]
    assert [answer.text for answer in answers] == [reply for _, reply in exchanges]
    player = TranscriptClient(path, strict=True)
    assert player.transcript.header == header
    assert [player.complete(each) for each in asked] == answers
    resumed = Recorder(Model(), path, {})
    assert [resumed.complete(each) for each in asked] == answers


def test_replaying_a_transcript_through_a_killed_run(tmp_path: Path) -> None:
    recording, own = tmp_path / "chain.jsonl", tmp_path / "transcript.jsonl"
    recorder = Recorder(Model(), recording, HEADER)
    answers = [recorder.complete(asked) for asked in CHAIN]
    first = Recorder(TranscriptClient(recording, strict=True), own, HEADER)
    assert [first.complete(asked) for asked in CHAIN[:2]] == answers[:2]
    second = Recorder(TranscriptClient(recording, strict=True), own, HEADER)
    assert [second.complete(asked) for asked in CHAIN] == answers
    assert second.replayed == 2
    # The run's own record is as good as the recording, tokens and model included.
    assert own.read_bytes() == recording.read_bytes()
    assert second.totals == recorder.totals


def test_going_on_with_a_model_where_the_recording_ends(tmp_path: Path) -> None:
    recording, own = tmp_path / "chain.jsonl", tmp_path / "transcript.jsonl"
    source = Recorder(Model(), recording, HEADER)
    for asked in CHAIN[:2]:
        source.complete(asked)
    replay = Recorder(TranscriptClient(recording), own, HEADER)
    for asked in CHAIN[:2]:
        replay.complete(asked)
    with pytest.raises(TranscriptError, match="ends here"):
        replay.complete(CHAIN[2])
    model = Model(already=2)
    resumed = Recorder(model, own, HEADER)
    assert [resumed.complete(asked).text for asked in CHAIN[:3]][2] == "answer 3 to revise"
    assert model.asked == CHAIN[2:3]


def test_totals(tmp_path: Path) -> None:
    recorder = Recorder(Model(), tmp_path / "t.jsonl", HEADER)
    assert recorder.totals.cost == 0.0
    recorder.complete(CHAIN[0])
    recorder.complete(CHAIN[1])
    totals = recorder.totals
    assert (totals.calls, totals.input_tokens, totals.output_tokens, totals.reasoning_tokens) == (2, 2000, 200, 80)
    # 1,000 tokens in at $0.25 and 100 out at $2.00 a million, twice.
    assert totals.cost == pytest.approx(2 * (1000 * 0.25 + 100 * 2.00) / 1e6)
    assert not totals.estimated


def test_a_budget_stops_before_the_call_and_survives_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    model = Model()
    recorder = Recorder(model, path, HEADER, Budget(max_calls=2))
    recorder.complete(CHAIN[0])
    recorder.complete(CHAIN[1])
    with pytest.raises(BudgetError, match=r"llm\.max_calls of 2 calls is used up"):
        recorder.complete(CHAIN[2])
    assert len(model.asked) == 2
    resumed = Recorder(model, path, HEADER, Budget(max_calls=2))
    assert [resumed.complete(asked).text for asked in CHAIN[:2]] == ["answer 1 to generate", "answer 2 to diagnose"]
    with pytest.raises(BudgetError):
        resumed.complete(CHAIN[2])
    assert len(model.asked) == 2
    raised = Recorder(model, path, HEADER, Budget(max_calls=3))
    assert [raised.complete(asked).text for asked in CHAIN[:3]][2] == "answer 3 to revise"


def test_money_without_a_price_stops_before_the_first_call(tmp_path: Path) -> None:
    model = Model()
    model.model = "house-model"
    recorder = Recorder(model, tmp_path / "t.jsonl", HEADER, Budget(max_cost=1.0))
    with pytest.raises(BudgetError, match="no price for 'house-model'"):
        recorder.complete(CHAIN[0])
    assert model.asked == []


class EmptyOnce(Model):
    def complete(self, request: Request) -> Completion:
        if not self.asked:
            self.asked.append(request)
            raise UnusableReplyError("an empty reply", usage=Usage(500, 60, 60), model="gpt-5-mini")
        return super().complete(request)


def test_a_useless_answer_is_counted_for_good(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    recorder = Recorder(EmptyOnce(), path, HEADER)
    with pytest.raises(UnusableReplyError):
        recorder.complete(CHAIN[0])
    assert recorder.totals.output_tokens == 60
    resumed = Recorder(Model(), path, HEADER)
    answer = resumed.complete(CHAIN[0])
    assert (resumed.totals.calls, resumed.totals.output_tokens, resumed.replayed) == (2, 160, 0)
    assert [json.loads(line)["kind"] for line in path.read_text("utf-8").splitlines()] == [
        "header",
        "unusable",
        "exchange",
    ]
    assert TranscriptClient(path, strict=True).complete(CHAIN[0]) == answer


def test_an_error_of_the_model_leaves_the_record_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    recorder = Recorder(ScriptedClient([]), path, HEADER)
    before = path.read_bytes()
    with pytest.raises(LLMError):
        recorder.complete(CHAIN[0])
    assert path.read_bytes() == before
    assert recorder.totals.calls == 0


def test_a_full_disk_is_a_clear_error_and_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    recorder = Recorder(Model(), path, HEADER)
    recorder.complete(CHAIN[0])
    before = path.read_bytes()
    write, room = os.write, [10]

    def nearly_full(descriptor: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: room.pop()])

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(TranscriptError, match=r"t\.jsonl cannot be written \(No space left on device\); make room"):
        recorder.complete(CHAIN[1])
    monkeypatch.undo()
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="cannot be written"):
        Recorder(Model(), tmp_path / "no" / "t.jsonl", HEADER)
    with pytest.raises(TranscriptError, match="cannot be read"):
        Recorder(Model(), tmp_path, HEADER)
