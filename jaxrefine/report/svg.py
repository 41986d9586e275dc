"""Matplotlib figures as SVG that follows a page's light or dark colours, and as PDF for a paper."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from jaxrefine.report.pdf import Printer

# Matplotlib draws in these colours, which nothing else uses; in the SVG each becomes a variable of the page's style
# sheet, so that one figure serves both colour schemes, and in a PDF what that variable is in the light one.
INK = "#010203"
MUTED = "#010204"
GRID = "#010205"
BLUE = "#010206"
ORANGE = "#010207"
GREEN = "#010208"
PAPER = "#010209"
RED = "#01020a"
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    BLUE: "--blue",
    ORANGE: "--orange",
    GREEN: "--green",
    PAPER: "--paper",
    RED: "--red",
}

# CSS pixels for a point: larger, the labels would dwarf the text around them; smaller, nobody could read them, and on
# a narrow screen the figure's frame is scrolled instead.
_LARGEST, _SMALLEST = 1.4, 0.8

_STYLE = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "axes.labelsize": 10,
    "axes.titlesize": 10,
}


_printer: ContextVar[Printer | None] = ContextVar("printer", default=None)


def style(name: str) -> dict[str, object]:
    """Settings to draw and save the figure `name` under; the same figure gives the same bytes."""
    return {**_STYLE, "svg.hashsalt": name}


def plain(text: str) -> str:
    """A label as printable ASCII of bounded length: what any font has and no label can misuse."""
    return re.sub(r"[^ -~]", "?", text)[:40]


@contextmanager
def keeping_pdfs() -> Iterator[dict[str, bytes]]:
    """Collect a PDF, under its figure's name, of every figure that becomes markup inside the ``with`` block."""
    with TemporaryDirectory(prefix="jaxrefine-font-") as folder:
        printer = Printer(Path(folder), _light_scheme())
        token = _printer.set(printer)
        try:
            yield printer.pdfs
        finally:
            _printer.reset(token)


def to_markup(figure: Figure, name: str, description: str) -> Markup:
    """Save a figure as an inline SVG element, and as a PDF too inside `keeping_pdfs`, for which it is recoloured.

    Args:
        figure: Drawn in the colours of this module.
        name: Unique on its page: identifiers start with it, and the PDF's file is called so. Letters, digits, `_`, `-`.
        description: What a person who cannot see the figure is told.

    Raises:
        ValueError: The name is not made of these characters.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(f"{name!r} cannot name a figure")
    buffer = io.StringIO()
    with mpl.rc_context(style(name)):  # type: ignore[arg-type]
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"font: [^;\"]*?(\d+(?:\.\d+)?)px[^;\"]*", r"font-size: \1px", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    width, height = (72 * inches for inches in figure.get_size_inches())
    opening = (
        f'<svg class="figure" viewBox="0 0 {width:g} {height:g}" '
        f'style="min-width: {_SMALLEST * width:.0f}px; max-width: {_LARGEST * width:.0f}px" '
        f'role="img" aria-label="{escape(description)}" '
        'stroke-linejoin="round" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    if printer := _printer.get():
        printer.add(figure, name, description, style(name))
    return Markup(opening + text[text.index(">") + 1 :])


@functools.cache
def _light_scheme() -> dict[str, str]:
    """The light scheme's colours, out of the first block of the page's style sheet."""
    sheet = resources.files("jaxrefine.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    values = dict(re.findall(r"(--[a-z]+): (#[0-9a-f]{6})", sheet[: sheet.index("}")]))
    return {own: values[variable] for own, variable in _VARIABLES.items()}
