"""The metric by round under each kind of feedback: every conversation and every fit seed."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from jaxrefine.report.feedback import Journey, Kind
from jaxrefine.report.groups import Case, demonstrated
from jaxrefine.report.rounds import Round
from jaxrefine.report.svg import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, plain, style, to_markup

_DASHES = (0, (5, 3))
# Lines of several conversations in one panel are told apart by their markers too.
_MARKERS = "osD^v<>"
_COLOURS = (BLUE, GREEN, INK, MUTED)


def rounds_figure(case: Case, kinds: Sequence[Kind], name: str) -> Markup:
    """A panel for each kind of feedback, on shared axes.

    Args:
        case: Whose metric and demonstrator are shown.
        kinds: At least one.
        name: Unique on its page.
    """
    metric, level = case.record.metric, demonstrated(case)
    columns = min(2, len(kinds))
    lines = -(-len(kinds) // columns)
    with mpl.rc_context(style(name)):  # type: ignore[arg-type]
        size = (6.4, 3.8) if len(kinds) == 1 else (4.2 * columns, 2.9 * lines + 0.6)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, kind in zip(grid, kinds, strict=False):
            for number, journey in enumerate(kind.journeys):
                _draw(axes, journey, number)
            if level is not None:
                axes.axhline(level, color=ORANGE, linestyle=_DASHES, linewidth=1.6)
            axes.set_title(plain(kind.shown if len({k.shown for k in kinds}) == len(kinds) else kind.name), loc="left")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.tick_params(labelbottom=True, labelleft=True)
            axes.legend(loc="best", title="conversation", title_fontsize=8, fontsize=8)
        for axes in grid[len(kinds) :]:
            axes.set_axis_off()
        figure.supxlabel("round", fontsize=10)
        unit = f" ({plain(metric.unit)})" if metric.unit else ""
        figure.supylabel(f"{plain(metric.name)}{unit}", fontsize=10)
        figure.legend(handles=_legend(level), loc="outside upper left", ncols=4, columnspacing=1.2)
        said = "; ".join(f"{kind.name}, {entry.name}: {_spoken(entry)}" for kind in kinds for entry in kind.journeys)
        return to_markup(figure, name, f"{metric.name} by round; {said}")


def _draw(axes: Axes, journey: Journey, number: int) -> None:
    colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
    places = [entry.index for entry in journey.rounds]
    means = [entry.evaluation.mean if entry.evaluation else np.nan for entry in journey.rounds]
    axes.plot(places, means, color=colour, linewidth=1.8, label=plain(journey.name), marker=marker, ms=5)
    for entry in journey.rounds:
        fits = _fits(entry)
        axes.plot(np.full(len(fits), entry.index), fits, ".", color=colour, alpha=0.4, ms=4)
        if entry.accepted is False and entry.evaluation:
            axes.plot(entry.index, entry.evaluation.mean, marker, color=colour, markerfacecolor=PAPER, ms=5.5, zorder=4)


def _spoken(journey: Journey) -> str:
    return ", ".join(f"{entry.evaluation.mean:.4g}" for entry in journey.rounds if entry.evaluation)


def _fits(entry: Round) -> tuple[float, ...]:
    return entry.fits.means if entry.fits else ()


def _legend(level: float | None) -> list[Line2D]:
    handles = [
        Line2D([], [], color=BLUE, marker="o", ms=5, label="policy of the round"),
        Line2D([], [], color=BLUE, marker="o", linestyle="", markerfacecolor=PAPER, ms=5.5, label="set aside"),
        Line2D([], [], color=BLUE, marker=".", linestyle="", alpha=0.5, label="fit seed"),
    ]
    if level is not None:
        handles.append(Line2D([], [], color=ORANGE, linestyle=_DASHES, label="demonstrator"))
    return handles
