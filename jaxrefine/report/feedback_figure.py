"""The metric by round under each kind of feedback: every conversation and every fit seed."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxrefine.report.feedback import Journey, Kind
from jaxrefine.report.groups import Case, demonstrated
from jaxrefine.report.rounds import Round
from jaxrefine.report.svg import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, plain, style, to_markup

_DASHES = (0, (5, 3))
# Lines of several conversations in one panel are told apart by their markers too.
_MARKERS = "osD^v<>"
_COLOURS = (BLUE, GREEN, INK, MUTED)


def rounds_figures(case: Case, kinds: Sequence[Kind], name: str) -> tuple[Markup, ...]:
    """A small figure for each kind of feedback, on the same axes.

    Args:
        case: Whose metric and demonstrator are shown.
        kinds: Of feedback.
        name: Unique on its page; the figures add a number to it.
    """
    limits = _limits(kinds, demonstrated(case))
    return tuple(_figure(case, kind, f"{name}-{number}", limits) for number, kind in enumerate(kinds))


def _figure(case: Case, kind: Kind, name: str, limits: tuple[float, float]) -> Markup:
    metric, level = case.record.metric, demonstrated(case)
    with mpl.rc_context(style(name)):  # type: ignore[arg-type]
        figure = Figure(figsize=(3.9, 3.0), layout="constrained")
        axes = figure.add_subplot()
        for number, journey in enumerate(kind.journeys):
            _draw(axes, journey, number)
        if level is not None:
            axes.axhline(level, color=ORANGE, linestyle=_DASHES, linewidth=1.6)
        axes.set_ylim(*limits)
        axes.set_title("\n".join(wrap(plain(kind.name), 34)), loc="left")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("round")
        unit = f" ({plain(metric.unit)})" if metric.unit else ""
        axes.set_ylabel(f"{plain(metric.name)}{unit}")
        axes.legend(loc="best", fontsize=8)
        said = "; ".join(f"{kind.name}, {entry.name}: {_spoken(entry)}" for entry in kind.journeys)
        return to_markup(figure, name, f"{metric.name} by round; {said}")


def _limits(kinds: Sequence[Kind], level: float | None) -> tuple[float, float]:
    shown = [] if level is None else [level]
    for entry in (entry for kind in kinds for journey in kind.journeys for entry in journey.rounds):
        shown += [*_fits(entry), *([entry.evaluation.mean] if entry.evaluation else [])]
    margin = 0.06 * (max(shown) - min(shown)) or 1.0
    return min(shown) - margin, max(shown) + margin


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
