"""Reading a report the way a browser does."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from jaxrefine.report import write_report

VOID = {"meta", "br", "link", "img", "hr", "input"}
CELLS = {"td", "th", "dt", "dd", "summary"}


class Page(HTMLParser):
    """What a browser would make of the page: elements, attributes, and the text of each section."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {}
        self._open: list[str] = []
        self._section = "head"
        self.feed(html)
        self.close()
        assert not self._open, f"unclosed elements: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self._section = dict(attrs)["id"] or ""
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag in CELLS:
            self.handle_data(" ")

    def handle_data(self, data: str) -> None:
        self.sections[self._section] = self.sections.get(self._section, "") + data

    def has(self, section: str, *texts: str) -> bool:
        flat = " ".join(self.sections[section].split())
        missing = [text for text in texts if text not in flat]
        assert not missing, f"{missing} not in {section}: {flat}"
        return True


def page_of(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))
