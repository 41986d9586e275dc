from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrefine.errors import UserError
from jaxrefine.run import RunDirectory, read_events
from jaxrefine.run.events import EventLog, new_event

TEXT = st.text(st.characters(exclude_categories=()))
FIELDS = st.dictionaries(
    TEXT.filter(lambda key: key not in ("time", "event")),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


def fill(path: Path) -> bytes:
    log = EventLog(path)
    for name in ("one", "two", "three"):
        log.append(new_event(name, {"n": 1}))
    log.close()
    return path.read_bytes()


def test_an_event_has_its_moment_first(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        run.emit("run_started", task="car_racing", seed=3)
    (event,) = read_events(tmp_path / "events.jsonl")
    assert list(event) == ["time", "event", "task", "seed"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["time"])
    assert abs(datetime.now(UTC) - datetime.fromisoformat(event["time"])) < timedelta(minutes=1)


@given(fields=FIELDS)
def test_any_event_comes_back_as_it_was(fields: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    log = EventLog(path)
    log.append(event := new_event("any", fields))
    log.close()
    assert read_events(path) == [event] == log.events
    assert event == {"time": event["time"], "event": "any", **fields}


def test_a_log_cut_anywhere_opens_with_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    content = fill(path)
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        whole = content[:size].count(b"\n")
        torn = not content[:size].endswith(b"\n") and size > 0
        assert len(read_events(path)) == whole
        assert path.stat().st_size == size
        log = EventLog(path)
        log.close()
        assert [event["event"] for event in log.events] == ["one", "two", "three"][:whole]
        assert len(log.notices) == torn
        assert path.read_bytes() == b"".join(content.splitlines(keepends=True)[:whole])


def test_opening_a_torn_log_says_so_once(tmp_path: Path) -> None:
    content = fill(tmp_path / "events.jsonl")
    (tmp_path / "events.jsonl").write_bytes(content[:-4])
    with RunDirectory.open(tmp_path) as run:
        (text,) = run.notices
        assert "cut short" in text
        assert [event["event"] for event in run.events] == ["one", "two", "notice"]
    with RunDirectory.open(tmp_path) as run:
        assert run.notices == ()


@pytest.mark.parametrize("damage", [b"\0" * 20, b'{"time": 1}', b"[1]", b"\xff\xfe", b'{"event": "x"', b""])
def test_damage_elsewhere_names_the_line_and_changes_nothing(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "events.jsonl"
    lines = fill(path).splitlines()
    lines[1] = damage
    path.write_bytes(content := b"\n".join(lines) + b"\n")
    for opener in (EventLog, read_events):
        with pytest.raises(UserError, match=r"events.jsonl, line 2 is damaged"):
            opener(path)
    assert path.read_bytes() == content


def test_a_value_without_json_form_is_named_and_not_logged(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        with pytest.raises(TypeError, match="object has no JSON form"):
            run.emit("odd", value=object())
        run.emit("even")
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line)["event"] == "even"


def test_an_unreadable_log_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        read_events(tmp_path / "nosuch.jsonl")
