"""Actions and latents of a round's episodes over time, beside the round before, on shared axes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxrefine.report.lines import compact, thin
from jaxrefine.report.rollouts import Rollouts
from jaxrefine.report.svg import BLUE, GREEN, GRID, MUTED, ORANGE, plain, style, to_markup

COLOURS = {"best": GREEN, "median": BLUE, "worst": ORANGE}
POINTS = 160  # of a line
_WIDTH, _ROW, _HEAD, _FOOT = 4.9, 0.72, 0.3, 0.42  # inches
_TOP, _BOTTOM = 0.24, 0.96  # of a row, where its signal is drawn


@dataclass(frozen=True)
class Column:
    """One column of panels: a round's number and its episodes."""

    round: int
    rollouts: Rollouts


def traces(name: str, after: Column, before: Column | None) -> tuple[Markup, ...]:
    """Small multiples of what a round's metric is of, its actions and its latents: a row for each, a column a round.

    Args:
        name: Unique on the page.
        after: The round.
        before: The round that it revises, None where there is none.
    """
    found = []
    latents = after.rollouts.latents
    half = (len(latents) + 1) // 2
    for part, signals in enumerate(
        ((after.rollouts.progress, *after.rollouts.actions), latents[:half], latents[half:])
    ):
        if signals:
            found.append(_figure(f"{name}-{part}", signals, after, before))
    return tuple(found)


def _figure(name: str, signals: Sequence[str], after: Column, before: Column | None) -> Markup:
    columns = [after] if before is None else [before, after]
    height = _HEAD + _ROW * len(signals) + _FOOT
    ranges = [_range([column.rollouts for column in columns], signal) for signal in signals]
    with mpl.rc_context(style(name)):  # type: ignore[arg-type]
        figure = Figure(figsize=(_WIDTH, height))
        # one pair of axes for all rows: axes of their own, or a layout of matplotlib's, would take most of the time
        grid = figure.subplots(1, len(columns), sharex=True, sharey=True, squeeze=False)[0]
        figure.subplots_adjust(left=0.1, right=0.985, top=1 - _HEAD / height, bottom=_FOOT / height, wspace=0.06)
        for axes, column in zip(grid, columns, strict=True):
            axes.set_ylim(len(signals), 0)
            axes.grid(visible=False)
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.tick_params(labelsize=7, length=2, pad=1)
            axes.set_xlabel("step", fontsize=8, labelpad=1)
            if len(columns) > 1:
                axes.set_title(f"round {column.round}", loc="right", fontsize=9, pad=3)
            for row, (signal, limits) in enumerate(zip(signals, ranges, strict=True)):
                _lines(axes, row, signal, limits, column.rollouts)
        for row, (signal, (low, high)) in enumerate(zip(signals, ranges, strict=True)):
            label = plain(re.sub("^(progress|action|latent)_", "", signal).replace("_", " "))
            side = {"transform": grid[0].get_yaxis_transform(), "fontsize": 7, "color": MUTED, "ha": "right"}
            grid[0].text(0.0, row + 0.1, label, transform=grid[0].get_yaxis_transform(), fontsize=8, va="center")
            grid[0].text(-0.02, row + _TOP, _short(high, high - low), va="top", **side)
            grid[0].text(-0.02, row + _BOTTOM, _short(low, high - low), va="bottom", **side)
        shown = ", ".join(plain(signal) for signal in signals)
        of = " and ".join(f"round {column.round}" for column in columns)
        return compact(to_markup(figure, name, f"{shown} over time in {of}"))


def _short(value: float, scale: float) -> str:
    """A value to what can be told apart on an axis of this length."""
    return "0" if abs(value) < 0.005 * scale else f"{value:.3g}"


def _range(rollouts: Sequence[Rollouts], signal: str) -> tuple[float, float]:
    """The least and the largest value of a signal in any of the episodes."""
    tables = [driven.table for one in rollouts for driven in one.episodes if signal in driven.table.columns]
    values = np.concatenate([table[signal].to_numpy() for table in tables])
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)


def _lines(axes: Axes, row: int, signal: str, limits: tuple[float, float], rollouts: Rollouts) -> None:
    low, high = limits
    scale = (high - low) or 1.0
    axes.axhline(row + _BOTTOM, color=GRID, linewidth=0.6)
    if low < 0 < high:
        axes.axhline(row + _BOTTOM + low / scale * (_BOTTOM - _TOP), color=GRID, linewidth=0.6)
    drawn = False
    # the best on top
    for driven in reversed(rollouts.episodes):
        if signal in driven.table.columns:
            values, steps = driven.table[signal].to_numpy(), driven.table["t"].to_numpy()
            kept = thin(np.where(np.isfinite(values), values, np.nan), POINTS)
            heights = row + _BOTTOM - (values[kept] - low) / scale * (_BOTTOM - _TOP)
            axes.plot(steps[kept], heights, color=COLOURS[driven.role], linewidth=0.9)
            drawn = True
    if not drawn:
        where = axes.get_yaxis_transform()
        axes.text(
            0.5, row + 0.6, "not in its program", color=MUTED, ha="center", va="center", fontsize=7, transform=where
        )
