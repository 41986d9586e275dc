"""How the fits of a run's programs went, as one small figure for each round."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxrefine.report.record import Record
from jaxrefine.report.rounds import Curves
from jaxrefine.report.svg import BLUE, ORANGE, style, to_markup


def fit_by_round(record: Record) -> tuple[Markup, ...]:
    """Negative log-likelihood while fitting: one small figure for each round that kept its curves, on shared axes."""
    rounds = [(entry.index, entry.curves) for entry in record.rounds if entry.curves]
    if not rounds:
        return ()
    limits = _shared_limits([curves for _, curves in rounds])
    return tuple(_fit_figure(index, curves, limits) for index, curves in rounds)


def _shared_limits(curves: Sequence[Curves]) -> tuple[float, float] | None:
    """The range of all curves but for the steep fall at their start, which would flatten the rest."""
    values = np.concatenate(
        [rows[:, rows.shape[1] // 50 :].ravel() for c in curves for rows in (c.train, c.validation)]
    )
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    low, high = float(values.min()), float(np.quantile(values, 0.995))
    margin = 0.06 * (high - low) or 1.0
    return low - margin, high + margin


def _fit_figure(index: int, curves: Curves, limits: tuple[float, float] | None) -> Markup:
    name = f"fit{index}"
    with mpl.rc_context(style(name)):  # type: ignore[arg-type]
        figure = Figure(figsize=(3.9, 2.5), layout="constrained")
        axes = figure.add_subplot()
        for rows, colour, label in ((curves.train, BLUE, "train"), (curves.validation, ORANGE, "validation")):
            for seed, row in enumerate(rows):
                shown = curves.chosen is None or seed == curves.chosen or len(rows) == 1
                axes.plot(curves.steps, row, color=colour, alpha=1 if shown else 0.3, linewidth=1.5 if shown else 0.8)
            if len(rows):
                axes.plot([], [], color=colour, label=label)
        if limits:
            axes.set_ylim(*limits)
        axes.set_title(f"round {index}", loc="left")
        axes.set_xlabel("update")
        axes.set_ylabel("NLL per action")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.legend(loc="upper right")
        seeds = max(len(curves.train), len(curves.validation))
        return to_markup(figure, name, f"negative log-likelihood while fitting in round {index}, {seeds} fit seeds")
