"""The report's figures, each from a record to inline SVG."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from jaxrefine.report.record import Record
from jaxrefine.report.rounds import Curves, Round
from jaxrefine.report.svg import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, plain, style, to_markup


def metric_by_round(record: Record) -> Markup | None:
    """Every evaluation episode, their mean and deviation, by round; None if no round was evaluated."""
    rounds = [entry for entry in record.rounds if entry.evaluation]
    if not rounds:
        return None
    with mpl.rc_context(style("metric")):  # type: ignore[arg-type]
        figure = Figure(figsize=(max(4.7, 0.62 * len(rounds) + 1.0), 3.5), layout="constrained")
        axes = figure.add_subplot()
        for place, entry in enumerate(rounds):
            _draw_round(axes, place, entry, entry.index == record.best_round)
        level = record.demonstration.level
        if level is not None:
            axes.axhline(level, color=ORANGE, linestyle=(0, (5, 3)), linewidth=1.6)
        axes.set_xlim(-0.6, len(rounds) - 0.4)
        axes.set_xticks(range(len(rounds)), [_label(entry) for entry in rounds])
        unit = f" ({plain(record.metric.unit)})" if record.metric.unit else ""
        better = "higher" if record.metric.higher_is_better else "lower"
        axes.set_ylabel(f"{plain(record.metric.name)}{unit}, {better} is better")
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.tick_params(axis="x", length=0)
        figure.legend(handles=_legend(rounds, level), loc="outside upper left", ncols=2, columnspacing=1.4)
        said = ", ".join(f"round {entry.index}: {_spoken(entry)}" for entry in rounds)
        return to_markup(figure, "metric", f"{record.metric.name} by round; {said}")


def fit_by_round(record: Record) -> tuple[Markup, ...]:
    """Negative log-likelihood while fitting: one small figure for each round that kept its curves, on shared axes."""
    rounds = [(entry.index, entry.curves) for entry in record.rounds if entry.curves]
    if not rounds:
        return ()
    limits = _shared_limits([curves for _, curves in rounds])
    return tuple(_fit_figure(index, curves, limits) for index, curves in rounds)


def _draw_round(axes: Axes, place: int, entry: Round, best: bool) -> None:
    values = [episode.value for episode in entry.episodes]
    if entry.other_fits:
        axes.plot(place + _spread(len(entry.other_fits), 0.2), entry.other_fits, ".", color=MUTED, alpha=0.45, ms=4)
    axes.plot(
        place + _spread(len(values), 0.2), values, "o", color=BLUE, alpha=0.75, ms=5, markeredgecolor=PAPER, mew=0.6
    )
    sample = entry.evaluation
    assert sample is not None
    axes.errorbar(place + 0.36, sample.mean, sample.std, color=GREEN if best else INK, capsize=4, linewidth=1.6)
    axes.plot(place + 0.36, sample.mean, "D", color=GREEN if best else INK, ms=7 if best else 5)


def _spread(count: int, half_width: float) -> np.ndarray:
    """Horizontal offsets that keep dots apart, the same for the same episode in every round."""
    return np.linspace(-half_width, half_width, count) if count > 1 else np.zeros(count)


def _label(entry: Round) -> str:
    rejected = "\nrejected" if entry.accepted is False else ""
    return f"round {entry.index}\nn = {entry.evaluation.n if entry.evaluation else 0}{rejected}"


def _spoken(entry: Round) -> str:
    sample = entry.evaluation
    return f"mean {sample.mean:.4g}, n = {sample.n}" if sample else "not evaluated"


def _legend(rounds: Sequence[Round], level: float | None) -> list[Line2D]:
    handles = [
        Line2D([], [], color=BLUE, marker="o", linestyle="", ms=5, label="episode"),
        Line2D([], [], color=INK, marker="D", ms=5, label="mean ± deviation"),
    ]
    if any(entry.other_fits for entry in rounds):
        handles.append(Line2D([], [], color=MUTED, marker=".", linestyle="", label="episode, other fit seed"))
    if level is not None:
        handles.append(Line2D([], [], color=ORANGE, linestyle=(0, (5, 3)), label=f"demonstrator {level:,.4g}"))
    return handles


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
