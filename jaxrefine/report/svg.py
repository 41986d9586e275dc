"""Matplotlib figures as SVG that sits inside an HTML page and follows its light or dark colours."""

from __future__ import annotations

import io
import re

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure

# Matplotlib draws in these colours, which nothing else uses; in the SVG each becomes a variable of the page's style
# sheet, so that one figure serves both colour schemes.
INK = "#010203"
MUTED = "#010204"
GRID = "#010205"
BLUE = "#010206"
ORANGE = "#010207"
GREEN = "#010208"
PAPER = "#010209"
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    BLUE: "--blue",
    ORANGE: "--orange",
    GREEN: "--green",
    PAPER: "--paper",
}

# CSS pixels for a point at most: larger, the labels would dwarf the text around them.
_LARGEST = 1.4

_STYLE = {
    "svg.fonttype": "none",
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


def style(name: str) -> dict[str, object]:
    """Settings to draw and save the figure `name` under; the same figure gives the same bytes."""
    return {**_STYLE, "svg.hashsalt": name}


def plain(text: str) -> str:
    """A label as printable ASCII of bounded length: what any font has and no label can misuse."""
    return re.sub(r"[^ -~]", "?", text)[:40]


def to_markup(figure: Figure, name: str, description: str) -> Markup:
    """Save a figure as an inline SVG element.

    Args:
        figure: Drawn in the colours of this module.
        name: Unique on its page: identifiers start with it.
        description: What a person who cannot see the figure is told.
    """
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
        f'<svg class="figure" viewBox="0 0 {width:g} {height:g}" style="max-width: {_LARGEST * width:.0f}px" '
        f'role="img" aria-label="{escape(description)}" '
        'stroke-linejoin="round" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return Markup(opening + text[text.index(">") + 1 :])
