from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxrefine.llm import Completion, LLMError, MailboxClient, Message, Recorder, Request, Usage

REQUEST = Request("revise", 2, "0", (Message("system", "Write JAX."), Message("user", "Look:\n  x\u2028 = 1\n")), 1)
FOLDER = "001_revise_round2_attempt1"


def asking(
    folder: Path, notices: list[str] | None = None, poll_s: float = 0.01, timeout_s: float = 5.0
) -> MailboxClient:
    told: list[str] = [] if notices is None else notices
    return MailboxClient(folder, poll_s, timeout_s, on_notice=told.append)


def while_asking(client: MailboxClient, request: Request, act: Callable[[], None]) -> Completion:
    """Runs `act` in a thread, as somebody with an editor would, while the client waits."""
    thread = threading.Thread(target=act)
    thread.start()
    try:
        return client.complete(request)
    finally:
        thread.join()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 5
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def put_old(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (time.time() - 60, time.time() - 60))


def test_the_request_holds_the_messages_alone_and_the_reply_is_unedited(tmp_path: Path) -> None:
    notices: list[str] = []
    reply = "\n  ```python\r\nx = 1\u2028\n```\n\n"

    def act() -> None:
        wait_for(tmp_path / FOLDER / "request.md")
        (tmp_path / FOLDER / "reply.md").write_bytes(reply.encode())

    completion = while_asking(asking(tmp_path, notices), REQUEST, act)
    assert (tmp_path / FOLDER / "request.md").read_bytes().decode() == "Write JAX.\n\nLook:\n  x\u2028 = 1\n"
    assert completion.text == reply
    assert completion.model == "unknown (mailbox)"
    assert completion.finish_reason == "stop"
    assert completion.usage == Usage(7, 7, 0, estimated=True)
    assert completion.latency > 0
    assert len(notices) == 1
    assert str(tmp_path / FOLDER / "request.md") in notices[0]
    assert str(tmp_path / FOLDER / "reply.md") in notices[0]
    assert sorted(file.name for file in (tmp_path / FOLDER).iterdir()) == ["reply.md", "request.md"]


def test_longer_conversations_name_who_speaks(tmp_path: Path) -> None:
    put_old(tmp_path / "001_repair_reply_round0_attempt0" / "reply.md", b"ok")
    (tmp_path / "001_repair_reply_round0_attempt0" / "request.md").write_text(
        "# User\n\na\n\n# Assistant\n\nb\n\n# User\n\nc"
    )
    turns = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    assert asking(tmp_path).complete(Request("repair_reply", 0, "0", turns)).text == "ok"


def test_a_reply_still_being_written_is_not_taken(tmp_path: Path) -> None:
    def act() -> None:
        wait_for(tmp_path / FOLDER / "request.md")
        with (tmp_path / FOLDER / "reply.md").open("w") as file:
            for _ in range(30):
                file.write("part ")
                file.flush()
                time.sleep(0.01)

    assert while_asking(asking(tmp_path, poll_s=0.1), REQUEST, act).text == "part " * 30


def test_an_empty_reply_is_no_reply_yet(tmp_path: Path) -> None:
    put_old(tmp_path / FOLDER / "reply.md", b" \n")
    (tmp_path / FOLDER / "request.md").write_bytes(b"Write JAX.\n\nLook:\n  x\xe2\x80\xa8 = 1\n")

    def act() -> None:
        time.sleep(0.1)
        (tmp_path / FOLDER / "reply.md").write_text("now")

    assert while_asking(asking(tmp_path), REQUEST, act).text == "now"


def test_a_reply_from_an_earlier_start_is_taken_at_once(tmp_path: Path) -> None:
    with pytest.raises(LLMError):
        asking(tmp_path, timeout_s=0.02).complete(REQUEST)
    put_old(tmp_path / FOLDER / "reply.md", b"written meanwhile")
    notices: list[str] = []
    started = time.monotonic()
    client = asking(tmp_path, notices, poll_s=3.0)
    assert client.complete(REQUEST).text == "written meanwhile"
    assert time.monotonic() - started < 1
    assert notices == []


def test_a_reply_to_another_request_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(LLMError):
        asking(tmp_path, timeout_s=0.02).complete(REQUEST)
    put_old(tmp_path / FOLDER / "reply.md", b"an answer to REQUEST")
    changed = Request("revise", 2, "0", (Message("user", "another prompt"),), 1)
    with pytest.raises(LLMError, match=f"{FOLDER} holds a reply to another request.*Move"):
        asking(tmp_path).complete(changed)


def test_an_unanswered_request_is_replaced_when_the_prompt_changes(tmp_path: Path) -> None:
    with pytest.raises(LLMError):
        asking(tmp_path, timeout_s=0.02).complete(REQUEST)
    changed = Request("revise", 2, "0", (Message("user", "another prompt"),), 1)
    with pytest.raises(LLMError):
        asking(tmp_path, timeout_s=0.02).complete(changed)
    assert (tmp_path / FOLDER / "request.md").read_text() == "another prompt"


def test_waiting_in_vain(tmp_path: Path) -> None:
    with pytest.raises(LLMError, match=r"no reply came to `revise` of round 2, attempt 1 within 0\.05 s.*run=PATH"):
        asking(tmp_path, timeout_s=0.05).complete(REQUEST)


def test_ctrl_c_ends_the_wait(tmp_path: Path) -> None:
    timer = threading.Timer(0.15, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        asking(tmp_path, timeout_s=10.0).complete(REQUEST)
    timer.join()


def test_a_reply_in_another_encoding_is_named(tmp_path: Path) -> None:
    put_old(tmp_path / FOLDER / "reply.md", "é".encode("latin-1"))
    (tmp_path / FOLDER / "request.md").write_bytes(b"Write JAX.\n\nLook:\n  x\xe2\x80\xa8 = 1\n")
    with pytest.raises(LLMError, match=r"reply\.md is not UTF-8"):
        asking(tmp_path).complete(REQUEST)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LLMError, match=r"cannot be used \(Not a directory\)"):
        asking(tmp_path / "file").complete(REQUEST)


def test_a_resumed_run_goes_on_with_the_numbers(tmp_path: Path) -> None:
    other = Request("diagnose", 2, "0", (Message("user", "analyse"),))
    box, record = tmp_path / "mailbox", tmp_path / "transcript.jsonl"
    for number, answered in enumerate([REQUEST, other], start=1):
        recorder = Recorder(asking(box), record, {})
        if number == 2:
            assert recorder.complete(REQUEST).text == "reply 1"
        folder = box / f"{number:03d}_{answered.purpose}_round2_attempt{answered.attempt}"

        def act(folder: Path = folder, number: int = number) -> None:
            wait_for(folder / "request.md")
            (folder / "reply.md").write_text(f"reply {number}")

        thread = threading.Thread(target=act)
        thread.start()
        assert recorder.complete(answered).text == f"reply {number}"
        thread.join()
    assert sorted(folder.name for folder in box.iterdir()) == [FOLDER, "002_diagnose_round2_attempt0"]
