"""The metric by round, and against what it cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from jaxrefine.report.costs import Spent, spent_by_round
from jaxrefine.report.paper import Published, refined
from jaxrefine.report.record import Record
from jaxrefine.report.rounds import Round
from jaxrefine.report.svg import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, RED, plain, style, to_markup

_DEMONSTRATOR = (0, (5, 3))
_PAPER = (0, (1, 2))
# The share of the whole range below which the means are drawn enlarged too.
_PRESSED = 0.2


@dataclass(frozen=True)
class Priced:
    """The metric against one cost: a figure, or a sentence that says why there is none."""

    figure: Markup | None
    missing: str | None


def metric_by_round(record: Record) -> Markup | None:
    """Every evaluation episode of every fit seed, and their means, by round; None if no round was evaluated."""
    rounds = [entry for entry in record.rounds if entry.evaluation]
    if not rounds:
        return None
    published = refined(record.task, record.condition, record.metric.name)
    with mpl.rc_context(style("metric")):  # type: ignore[arg-type]
        enlarged = _enlarged(rounds, record.demonstration.level, published)
        width, parts = min(max(5.2, 0.95 * len(rounds) + 1.2), 12), 1 if enlarged is None else 2
        figure = Figure(figsize=(width, 4.2 if parts == 1 else 6), layout="constrained")
        for axes, limits in zip(
            figure.subplots(parts, sharex=True, squeeze=False)[:, 0], (enlarged, None), strict=False
        ):
            for place, entry in enumerate(rounds):
                _draw_round(axes, place, entry, entry.index == record.best_round)
            _draw_levels(axes, record.demonstration.level, published)
            axes.set_xlim(-0.6, len(rounds) - 0.4)
            axes.set_xticks(range(len(rounds)), [_label(entry, entry.index == record.best_round) for entry in rounds])
            if limits is not None:
                axes.set_ylim(*limits)
                axes.set_title("enlarged: where the means are", loc="left", color=MUTED)
            axes.set_ylabel(_quantity(record, short=parts > 1))
            axes.yaxis.set_major_locator(MaxNLocator(6))
            axes.tick_params(axis="x", length=0)
        handles = _legend(record, rounds, published)
        figure.legend(handles=handles, loc="outside upper left", ncols=3, columnspacing=1.4)
        said = ", ".join(f"round {entry.index}: {_spoken(entry)}" for entry in rounds)
        return to_markup(figure, "metric", f"{record.metric.name} by round; {said}")


def metric_by_cost(record: Record) -> tuple[Priced, ...]:
    """The metric against resets, model calls and tokens spent until then; nothing if no round was evaluated."""
    rounds = [entry for entry in record.rounds if entry.evaluation]
    if not rounds:
        return ()
    spent = spent_by_round(record.steps, record.exchanges)
    costs: tuple[tuple[str, str, Callable[[Spent], int | None]], ...] = (
        ("resets", "resets", lambda found: found.resets),
        ("calls", "model calls", lambda found: found.calls),
        ("tokens", "tokens, in and out", lambda found: found.tokens),
    )
    return tuple(_priced(record, rounds, spent, *cost) for cost in costs)


def _priced(
    record: Record,
    rounds: Sequence[Round],
    spent: dict[int, Spent],
    name: str,
    label: str,
    amount: Callable[[Spent], int | None],
) -> Priced:
    amounts = [amount(spent[entry.index]) if entry.index in spent else None for entry in rounds]
    known = [(entry, value) for entry, value in zip(rounds, amounts, strict=True) if value is not None]
    if not known:
        return Priced(None, f"What each round cost in {label} cannot be known: the logs do not tell.")
    with mpl.rc_context(style(f"cost-{name}")):  # type: ignore[arg-type]
        figure = Figure(figsize=(3.5, 2.6), layout="constrained")
        axes = figure.add_subplot()
        kept = [(value, entry) for entry, value in known if entry.accepted is not False]
        axes.plot([x for x, _ in kept], [_mean(entry) for _, entry in kept], color=MUTED, linewidth=1, zorder=1)
        for entry, value in known:
            _draw_mean(axes, value, entry, entry.index == record.best_round, with_deviation=False)
            offset = (5, -11) if entry.accepted is False else (5, 5)
            axes.annotate(str(entry.index), (value, _mean(entry)), offset, textcoords="offset points", fontsize=8)
        _draw_levels(axes, record.demonstration.level, refined(record.task, record.condition, record.metric.name))
        axes.set_xlim(left=0)
        axes.margins(0.12)
        axes.set_xlabel(label)
        axes.set_ylabel(_quantity(record, short=True))
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        said = ", ".join(f"round {entry.index}: {value:,} for {_mean(entry):.4g}" for entry, value in known)
        lost = len(rounds) - len(known)
        return Priced(
            to_markup(figure, f"cost-{name}", f"{record.metric.name} against {label}; {said}"),
            f"For {lost} of the rounds the logs do not tell the {label}." if lost else None,
        )


def _enlarged(
    rounds: Sequence[Round], demonstrator: float | None, published: Published | None
) -> tuple[float, float] | None:
    """The range of the means and levels, where a few episodes would press it together; else None."""
    values = [value for entry in rounds for fit in entry.other_fits for value in fit]
    values += [episode.value for entry in rounds for episode in entry.episodes]
    middle = [_mean(entry) for entry in rounds]
    middle += [level for level in (demonstrator, published.mean if published else None) if level is not None]
    span, whole = max(middle) - min(middle), max([*values, *middle]) - min([*values, *middle])
    if not 0 < span < _PRESSED * whole:
        return None
    return min(middle) - 0.3 * span, max(middle) + 0.3 * span


def _draw_round(axes: Axes, place: int, entry: Round, best: bool) -> None:
    """The chosen fit's episodes to the left, their mean in the middle, the other fits to the right, a column each."""
    values = [episode.value for episode in entry.episodes]
    fits = len(entry.other_fits)
    for episodes, x in zip(entry.other_fits, place + _spread(fits, 0.14, 0.28), strict=True):
        axes.plot(np.full(len(episodes), x), episodes, ".", color=MUTED, alpha=0.6, ms=3.4, mew=0)
        half = 0.11 / max(fits, 2)
        axes.plot([x - half, x + half], [np.mean(episodes)] * 2, color=MUTED, linewidth=1.8)
    kept = entry.accepted is not False
    axes.plot(
        place + _spread(len(values), 0.14, -0.24),
        values,
        "o",
        color=BLUE,
        alpha=0.8,
        ms=4.5,
        markerfacecolor=BLUE if kept else "none",
        markeredgecolor=PAPER if kept else BLUE,
        mew=0.5 if kept else 0.9,
    )
    _draw_mean(axes, place, entry, best)


def _draw_mean(axes: Axes, x: float, entry: Round, best: bool, with_deviation: bool = True) -> None:
    colour = GREEN if best else RED if entry.accepted is False else INK
    sample = entry.evaluation
    assert sample is not None
    if with_deviation:
        axes.errorbar(x, sample.mean, sample.std, color=colour, capsize=4, linewidth=1.4)
    marker, size = ("*", 13) if best else ("X", 7) if entry.accepted is False else ("D", 5)
    face = PAPER if entry.accepted is False else colour
    axes.plot(x, sample.mean, marker, color=colour, ms=size, markerfacecolor=face, mew=1.2, zorder=3)


def _draw_levels(axes: Axes, demonstrator: float | None, published: Published | None) -> None:
    if demonstrator is not None:
        axes.axhline(demonstrator, color=ORANGE, linestyle=_DEMONSTRATOR, linewidth=1.6)
    if published is not None:
        axes.axhline(published.mean, color=INK, linestyle=_PAPER, linewidth=1.4)


def _spread(count: int, half_width: float, middle: float) -> np.ndarray:
    """Horizontal places that keep dots apart, the same for the same episode in every round."""
    return middle + (np.linspace(-half_width, half_width, count) if count > 1 else np.zeros(count))


def _quantity(record: Record, short: bool = False) -> str:
    unit = f" ({plain(record.metric.unit)})" if record.metric.unit else ""
    better = "higher" if record.metric.higher_is_better else "lower"
    return f"{plain(record.metric.name)}{unit}" + ("" if short else f", {better} is better")


def _label(entry: Round, best: bool) -> str:
    fate = "\nrejected" if entry.accepted is False else "\nbest" if best else ""
    return f"round {entry.index}\nn = {entry.evaluation.n if entry.evaluation else 0}{fate}"


def _mean(entry: Round) -> float:
    assert entry.evaluation is not None
    return entry.evaluation.mean


def _spoken(entry: Round) -> str:
    sample = entry.evaluation
    rejected = ", rejected" if entry.accepted is False else ""
    return f"mean {sample.mean:.4g}, n = {sample.n}{rejected}" if sample else "not evaluated"


def _legend(record: Record, rounds: Sequence[Round], published: Published | None) -> list[Line2D]:
    handles = [
        Line2D([], [], color=BLUE, marker="o", linestyle="", ms=5, label="episode"),
        Line2D([], [], color=INK, marker="D", ms=5, label="mean ± deviation"),
    ]
    if record.best in rounds:
        handles.append(Line2D([], [], color=GREEN, marker="*", linestyle="", ms=11, label="the best round's"))
    if any(entry.accepted is False for entry in rounds):
        cross = Line2D([], [], color=RED, marker="X", linestyle="", ms=7, markerfacecolor=PAPER)
        cross.set_label("a rejected round's")
        handles.append(cross)
    if any(entry.other_fits for entry in rounds):
        handles.append(Line2D([], [], color=MUTED, marker=".", ms=4, label="other fits: episodes, mean"))
    level = record.demonstration.level
    if level is not None:
        handles.append(Line2D([], [], color=ORANGE, linestyle=_DEMONSTRATOR, label=f"demonstrator {level:,.4g}"))
    if published is not None:
        handles.append(Line2D([], [], color=INK, linestyle=_PAPER, label=f"paper, refined {published.mean:,.4g}"))
    return handles
