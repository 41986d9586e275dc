"""A drawn graph as a matplotlib figure, for its PDF."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from jaxrefine.report.graph_drawing import LINE_HEIGHT, Drawing, DrawnBox
from jaxrefine.report.svg import BLUE, GREEN, INK, MUTED, ORANGE, plain, style

_TINTS = {"observation": MUTED, "operation": MUTED, "latent": BLUE, "action": GREEN, "weight": ORANGE}
_STATES = {"added": GREEN, "rewired": ORANGE}
_FONT_SIZE = 10.5  # DejaVu's letters are wider than those that the boxes are made for


def graph_figure(drawing: Drawing, name: str) -> Figure:
    """The drawing in the colours of `svg`, a point for a pixel.

    Args:
        drawing: What to draw.
        name: The figure's, as it is saved.
    """
    with mpl.rc_context(style(name)):  # type: ignore[arg-type]
        figure = Figure(figsize=(drawing.width / 72, drawing.height / 72))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.set_xlim(0, drawing.width)
        axes.set_ylim(drawing.height, 0)
        for new, colour, width in ((False, MUTED, 0.75), (True, GREEN, 1.6)):
            wires = [wire for wire in drawing.wires if wire.new == new]
            axes.add_collection(LineCollection([wire.corners for wire in wires], colors=colour, linewidths=width))
            axes.add_collection(PolyCollection([wire.head for wire in wires], facecolors=colour, edgecolors="none"))
        axes.scatter([x for x, _ in drawing.forks], [y for _, y in drawing.forks], s=10, color=MUTED, linewidths=0)
        for box in drawing.boxes:
            axes.add_patch(_patch(box))
            for i, line in enumerate(box.lines):
                middle = box.y + box.height / 2 + LINE_HEIGHT * (i - (len(box.lines) - 1) / 2)
                axes.text(
                    box.x + box.width / 2,
                    middle,
                    plain(line.replace("…", "..")),
                    ha="center",
                    va="center_baseline",
                    size=_FONT_SIZE,
                    color=INK if box.used else MUTED,
                )
        return figure


def _patch(box: DrawnBox) -> FancyBboxPatch:
    tint = _TINTS[box.kind]
    return FancyBboxPatch(
        (box.x, box.y),
        box.width,
        box.height,
        boxstyle="round,pad=0,rounding_size=4",
        facecolor="none" if box.kind == "operation" else (tint, 0.16),
        edgecolor=_STATES.get(box.state, tint),
        linewidth=2.5 if box.state else 0.8,
        linestyle=(0, (3, 2)) if box.kind == "operation" else "-",
    )
