"""Text of any length, of which a bounded head and tail are kept."""

from __future__ import annotations

import re

_SLACK = 1 << 16
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Excerpt:
    """Keeps the first and last bytes of what it is fed, in constant memory.

    Attributes:
        total: Bytes fed so far, the mark not counted.
        marked: Whether the mark came first.
    """

    def __init__(self, limit: int, mark: bytes = b"") -> None:
        """Keep at most `limit` bytes.

        Args:
            limit: Bytes to keep.
            mark: One byte that, if it comes first, is noted and not kept.
        """
        self.total = 0
        self.marked = False
        self._mark = mark
        self._limit = limit
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes at the end."""
        if data and self._mark:
            self.marked = data.startswith(self._mark)
            data = data.removeprefix(self._mark)
            self._mark = b""
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > self._half + _SLACK:
            del self._tail[: len(self._tail) - self._half]

    def text(self, limit: int | None = None) -> str:
        """What was kept, as readable text.

        Args:
            limit: Bytes to keep, if fewer than at the start; the line that tells of the cut is not counted.

        Returns:
            Text without control characters but newlines and tabs; a line in its middle says how much is left out.
        """
        limit = self._limit if limit is None else min(self._limit, limit)
        kept = bytes(self._head + self._tail)
        if self.total <= limit:
            return _readable(kept)
        half = limit // 2
        head, tail = kept[:half], kept[len(kept) - half :]
        # The cut may fall inside a character.
        first, last = _readable(head).rstrip("\ufffd"), _readable(tail).lstrip("\ufffd")
        return f"{first}\n[... {self.total - 2 * half:,} bytes left out ...]\n{last}"


def _readable(data: bytes) -> str:
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("\ufffd", text)
