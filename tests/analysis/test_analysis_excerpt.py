from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from jaxrefine.analysis.excerpt import Excerpt


@given(data=st.binary(max_size=400), pieces=st.integers(1, 50), limit=st.integers(0, 450))
def test_whole_or_cut_in_the_middle(data: bytes, pieces: int, limit: int) -> None:
    data = bytes(byte % 26 + 97 for byte in data)
    excerpt = Excerpt(300)
    for start in range(0, len(data), pieces):
        excerpt.feed(data[start : start + pieces])
    text, most = excerpt.text(limit), min(limit, 300)
    assert excerpt.total == len(data)
    if len(data) <= most:
        assert text == data.decode()
    else:
        half = most // 2
        left_out = len(data) - 2 * half
        middle = f"\n[... {left_out:,} bytes left out ...]\n"
        assert text == data[:half].decode() + middle + data[len(data) - half :].decode()


def test_memory_stays_bounded() -> None:
    excerpt = Excerpt(1000)
    for number in range(20_000):
        excerpt.feed(b"%07d\n" % number * 100)
    assert len(excerpt._head) + len(excerpt._tail) < 1 << 18
    text = excerpt.text()
    assert text.startswith("0000000\n")
    assert text.endswith("0019999\n")
    assert "[... 15,999,000 bytes left out ...]" in text


def test_a_cut_inside_a_character_leaves_no_half() -> None:
    excerpt = Excerpt(21)
    excerpt.feed("é√".encode() * 50)
    assert re.fullmatch(r"[é√]+\n\[\.\.\. 230 bytes left out \.\.\.\]\n[é√]+", excerpt.text())


def test_control_characters_do_not_come_through() -> None:
    excerpt = Excerpt(100)
    excerpt.feed(b"a\r\nb\tc\x1b[31m\0\xff\n")
    assert excerpt.text() == "a\nb\tc\ufffd[31m\ufffd\ufffd\n"
