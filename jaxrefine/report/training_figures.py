"""Learning curves: every seed, their mean, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from jaxrefine.report.numbers import count
from jaxrefine.report.record import Metric, Record
from jaxrefine.report.resampling import band, mean_curve
from jaxrefine.report.svg import BLUE, ORANGE, plain, style, to_markup
from jaxrefine.report.training import Budget, Line, Training, level_reached, read_training

# What a curve shows: its label, and whether it goes over orders of magnitude.
_LABELS = {
    "episode_return": ("return of the batch, sampled actions", False),
    "kl": ("KL divergence, nats", True),
    "clip_fraction": ("share of clipped ratios", False),
    "entropy": ("entropy of the policy, nats", False),
    "gradient_norm": ("norm of the gradient", True),
}
_DASHES = (0, (5, 3))
_FEW_SEEDS = 40


@dataclass(frozen=True)
class TrainingSection:
    """What the page shows of training.

    Attributes:
        view: What was read.
        reached: How many seeds reach the demonstrator, in a sentence.
        figures: For each budget its test means on the way, None without them, and its curves.
    """

    view: Training
    reached: str | None
    figures: tuple[tuple[Budget, Markup | None, tuple[Markup, ...]], ...]


def training_section(record: Record) -> TrainingSection:
    """The section of a run's report on reinforcement learning; empty where there was none."""
    training, level = read_training(record.path), record.demonstration.level
    return TrainingSection(
        training,
        level_reached(training, level, record.metric.higher_is_better),
        tuple(
            (budget, look_figure(budget, record.metric, level), curve_figures(budget)) for budget in training.budgets
        ),
    )


def look_figure(budget: Budget, metric: Metric, level: float | None) -> Markup | None:
    """The metric on the test episodes against resets; None where nobody looked."""
    if budget.looks is None:
        return None
    name = f"rl{budget.name}-looks"
    with mpl.rc_context(style(name)):  # type: ignore[arg-type]
        figure = Figure(figsize=(4.9, 3.4), layout="constrained")
        axes = figure.add_subplot()
        draw_seeds(axes, budget.looks, BLUE)
        if level is not None:
            axes.axhline(level, color=ORANGE, linestyle=_DASHES, linewidth=1.6, label="demonstrator")
        unit = f" ({plain(metric.unit)})" if metric.unit else ""
        axes.set_ylabel(f"test {plain(metric.name)}{unit}")
        axes.set_xlabel("resets of one seed")
        figure.legend(loc="outside upper left", ncols=2, columnspacing=1.2)
        means = mean_curve(budget.looks.values)
        spoken = f"from {means[0]:.4g} to {means[-1]:.4g}" if np.isfinite(means[[0, -1]]).all() else "not finite"
        return to_markup(
            figure,
            name,
            f"{metric.name} on the test episodes over {count(int(budget.name))} resets, {len(budget.looks.values)} "
            f"seeds, mean {spoken}",
        )


def curve_figures(budget: Budget) -> tuple[Markup, ...]:
    """A small figure for everything that is logged at each update."""
    return tuple(_curve(budget, column, line) for column, line in budget.curves.items() if line.values.size)


def _curve(budget: Budget, column: str, line: Line) -> Markup:
    name = f"rl{budget.name}-{column.replace('_', '-')}"
    label, scaled = _LABELS[column]
    with mpl.rc_context(style(name)):  # type: ignore[arg-type]
        figure = Figure(figsize=(3.9, 2.5), layout="constrained")
        axes = figure.add_subplot()
        draw_seeds(axes, line, BLUE)
        if scaled and (line.values[np.isfinite(line.values)] > 0).any():
            axes.set_yscale("log", nonpositive="mask")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(label, loc="left")
        axes.set_xlabel("resets of one seed")
        return to_markup(figure, name, f"{label} over {count(int(budget.name))} resets, {len(line.values)} seeds")


def draw_seeds(axes: Axes, line: Line, colour: str) -> None:
    """Every seed thin, their mean thick, its pointwise 95 % bootstrap interval over seeds shaded."""
    seeds = len(line.values)
    for row in line.values:
        axes.plot(line.resets, row, color=colour, alpha=0.35 if seeds <= _FEW_SEEDS else 0.12, linewidth=0.8)
    axes.plot([], [], color=colour, alpha=0.5, linewidth=0.8, label=f"{seeds} seeds" if seeds > 1 else "one seed")
    if seeds > 1:
        low, high = band(line.values)
        axes.fill_between(line.resets, low, high, color=colour, alpha=0.22, linewidth=0, label="95 % of the mean")
    axes.plot(line.resets, mean_curve(line.values), color=colour, linewidth=2.2, label="mean")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
