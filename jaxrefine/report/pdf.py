"""Matplotlib figures as PDF for a paper: vectors, the fonts within, in colours of their own, the same every time."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
import numpy as np
from fontTools import subset  # type: ignore[import-untyped]
from matplotlib import font_manager
from matplotlib.artist import Artist
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

# What may be coloured, by the names of matplotlib's getters and setters.
_PROPERTIES = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")

# Latin, Greek, punctuation, arrows and operators: of its 6,253 glyphs the font is cut down to these once, because
# matplotlib cuts it to a figure's own for every figure, which takes longer than all else about that figure.
_CHARACTERS = (*range(0x20, 0x250), *range(0x370, 0x400), *range(0x2010, 0x2070), *range(0x2190, 0x2270))


@dataclass
class Printer:
    """Makes a PDF of each figure it is given.

    Attributes:
        folder: Where its font may lie; it must last as long as the printer.
        colours: What each colour of a figure is to become.
        pdfs: What it made, by the figures' names.
    """

    folder: Path
    colours: Mapping[str, str]
    pdfs: dict[str, bytes] = field(default_factory=dict)

    def add(self, figure: Figure, name: str, description: str, settings: Mapping[str, object]) -> None:
        """Make a PDF of a figure that has been laid out and is not drawn again: its colours and its font change.

        Args:
            figure: The figure.
            name: What it will be called.
            description: The document's title.
            settings: Matplotlib's, under which it was drawn.
        """
        figure.set_layout_engine("none")
        font = self._font(str(settings["font.family"]))
        for artist in figure.findobj():
            _recolour(artist, self.colours)
            if isinstance(artist, Text):
                properties = artist.get_fontproperties().copy()
                properties.set_file(font)
                artist.set_fontproperties(properties)
        buffer = io.BytesIO()
        metadata = {"Title": description, "CreationDate": None, "Creator": None, "Producer": None}
        with mpl.rc_context(dict(settings)):  # type: ignore[arg-type]
            figure.savefig(buffer, format="pdf", metadata=metadata)
        self.pdfs[name] = buffer.getvalue()

    def _font(self, family: str) -> Path:
        target = self.folder / "font.ttf"
        if not target.exists():
            options = subset.Options(glyph_names=True, layout_features=[])
            options.drop_tables += ["GSUB", "GPOS", "GDEF", "MATH", "FFTM"]
            cutter = subset.Subsetter(options)
            cutter.populate(unicodes=_CHARACTERS)
            with subset.load_font(font_manager.findfont(family), options) as font:
                cutter.subset(font)
                subset.save_font(font, str(target), options)
        return target


def _recolour(artist: Artist, colours: Mapping[str, str]) -> None:
    for part in (artist, getattr(artist, "arrow_patch", None), getattr(artist, "get_bbox_patch", lambda: None)()):
        for name in _PROPERTIES:
            getter, setter = getattr(part, f"get_{name}", None), getattr(part, f"set_{name}", None)
            if getter is None or setter is None:
                continue
            after = _replaced(getter(), colours)
            if after is not None:
                setter(after)


def _replaced(colour: object, colours: Mapping[str, str]) -> object | None:
    """A colour, or an array of them as rows, with those that are to change changed; None if none is."""
    if isinstance(colour, str):
        return colours.get(colour)
    try:
        rows = np.array(colour, dtype=float)
    except (TypeError, ValueError):
        return None
    if rows.ndim not in (1, 2) or rows.shape[-1] not in (3, 4):
        return None
    found = False
    for before, after in colours.items():
        same = (np.abs(rows[..., :3] - to_rgb(before)) < 1e-6).all(axis=-1, keepdims=True)
        rows[..., :3] = np.where(same, to_rgb(after), rows[..., :3])
        found = found or bool(same.any())
    if not found:
        return None
    return rows if rows.ndim == 2 else tuple(rows)
