"""Return against resets of reinforcement learning: who reaches the demonstrator, and after how many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from jaxrefine.report.groups import Case, Group, Run, demonstrated
from jaxrefine.report.record import Metric
from jaxrefine.report.resampling import band, curve_means, mean_curve, resampling_weights
from jaxrefine.report.svg import BLUE, GREEN, MUTED, ORANGE, RED, plain, style, to_markup
from jaxrefine.report.training import Line, read_looks

_COLOURS = {"refine": GREEN, "zero_shot": BLUE, "mlp": MUTED, "best_of_n": RED}
_DASHES = (0, (5, 3))
_RESAMPLES = 2_000


@dataclass(frozen=True)
class LearningCurve:
    """The looks of one method's trainings with one budget.

    Attributes:
        budget: Resets of one seed.
        resets: Of one seed, at each look, shape (looks,); the first is before training.
        values: Mean over test episodes, shape (runs, looks); NaN where a run failed.
        clusters: Shape (runs,); runs of one number share a conversation.
        before: Resets that one policy took before its training, mean over conversations; None where not known.
    """

    name: str
    method: str
    budget: int
    resets: NDArray[np.float64]
    values: NDArray[np.float64]
    clusters: NDArray[np.intp]
    before: float | None


@dataclass(frozen=True)
class Reach:
    """How many resets a method's mean curve needs to reach a level, linearly interpolated between looks.

    Attributes:
        resets: Of training; None if it never reaches the level.
        interval: The 95 % interval of that number, resampling runs as means are; an end is None where it is never.
            None for a single run.
        ratio: How many times the yardstick's resets that is; None where either never reaches it, or the yardstick
            needs none.
    """

    curve: LearningCurve
    resets: float | None
    interval: tuple[float | None, float | None] | None
    ratio: float | None

    @property
    def first(self) -> float | None:
        """The mean before training."""
        return _finite(mean_curve(self.curve.values)[0])

    @property
    def last(self) -> float | None:
        """The mean at the last look."""
        return _finite(mean_curve(self.curve.values)[-1])

    @property
    def in_all(self) -> float | None:
        """With the resets before training."""
        return None if self.resets is None or self.curve.before is None else self.resets + self.curve.before


@dataclass(frozen=True)
class Panel:
    """The curves of one task and condition, and what they reach."""

    title: str
    metric: Metric
    level: float | None
    reaches: tuple[Reach, ...]


def resets_panel(case: Case, gaps: list[str]) -> Panel | None:
    """Learning curves of every method of a case with any; None where there are none.

    Args:
        case: Whose runs.
        gaps: Receives a sentence for everything that cannot be read.
    """
    curves = [curve for group in case.groups for curve in _curves(group, gaps)]
    if not curves:
        return None
    level, better = demonstrated(case), case.record.metric.higher_is_better
    yardstick = case.yardstick.name if case.yardstick else None
    reached = [] if level is None else [(curve, reach(curve, level, better)) for curve in curves]
    needed = {curve.budget: resets for curve, resets in reached if curve.name == yardstick}
    reaches = [
        Reach(curve, resets, reach_interval(curve, level, better), _ratio(resets, needed.get(curve.budget)))
        for curve, resets in reached
        if level is not None
    ]
    title = case.task.replace("_", " ") + f", {case.condition}"
    return Panel(title, case.record.metric, level, tuple(reaches) or tuple(Reach(c, None, None, None) for c in curves))


def _curves(group: Group, gaps: list[str]) -> list[LearningCurve]:
    """A curve for every budget, of the runs whose looks are those of the first."""
    budgets = sorted({int(name.split()[1]) for run in group.runs for name in run.parts.parts if name != "IL"})
    conversations = {name: i for i, name in enumerate(dict.fromkeys(run.parts.conversation for run in group.runs))}
    curves = []
    for budget in budgets:
        found: list[tuple[Run, Line]] = []
        for run in group.runs:
            looks = read_looks(run.record.path / "rl" / str(budget), gaps, f"{run.record.name}/rl/{budget}")
            if looks is None:
                continue
            if found and not np.array_equal(looks.resets, found[0][1].resets):
                gaps.append(f"{run.record.name}: its looks are after other numbers of resets; it has no curve.")
                continue
            found.append((run, looks))
        if found:
            before = [run.parts.parts["IL"].resets if "IL" in run.parts.parts else None for run, _ in found]
            known = [value for value in before if value is not None]
            sizes = [len(looks.values) for _, looks in found]
            curves.append(
                LearningCurve(
                    group.name,
                    group.method,
                    budget,
                    found[0][1].resets,
                    np.concatenate([looks.values for _, looks in found]),
                    np.repeat([conversations[run.parts.conversation] for run, _ in found], sizes),
                    float(np.mean(known)) if len(known) == len(before) else None,
                )
            )
    return curves


def reach(curve: LearningCurve, level: float, higher_is_better: bool) -> float | None:
    """Resets after which the mean over runs first is as good as a level; None if it never is."""
    found = _first(curve.resets, mean_curve(curve.values)[None], level, higher_is_better)[0]
    return float(found) if np.isfinite(found) else None


def reach_interval(
    curve: LearningCurve, level: float, higher_is_better: bool
) -> tuple[float | None, float | None] | None:
    """The 95 % interval of `reach`, resampling conversations and their runs; None for a single run."""
    if len(curve.values) < 2:
        return None
    means = curve_means(curve.values, resampling_weights(curve.clusters, _RESAMPLES))
    ordered = np.sort(_first(curve.resets, means, level, higher_is_better))
    # order statistics: there is no interpolating between a number and never
    tail = round(0.025 * _RESAMPLES)
    low, high = (float(end) if np.isfinite(end) else None for end in (ordered[tail], ordered[-1 - tail]))
    return low, high


def _first(
    resets: NDArray[np.float64], means: NDArray[np.float64], level: float, higher_is_better: bool
) -> NDArray[np.float64]:
    """Where each row first reaches the level, infinite if it does not; shape (rows, looks) -> (rows,)."""
    sign = 1.0 if higher_is_better else -1.0
    gain = sign * (means - level)
    there = gain >= 0  # false where a mean is NaN
    at = there.argmax(1)
    row = np.arange(len(means))
    before = np.maximum(at - 1, 0)
    left, right = gain[row, before], gain[row, at]
    share = np.divide(-left, right - left, out=np.ones(len(means)), where=np.isfinite(left) & (right > left))
    found = resets[before] + np.where(at > 0, share, 0.0) * (resets[at] - resets[before])
    return np.where(there.any(1), found, np.inf)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _ratio(resets: float | None, yardstick: float | None) -> float | None:
    return resets / yardstick if resets is not None and yardstick else None


def resets_figure(panels: Sequence[Panel], name: str) -> Markup:
    """A panel for each condition: mean curves of the largest budget with intervals, of smaller ones as dots.

    Args:
        panels: At least one.
        name: Unique on its page.
    """
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    with mpl.rc_context(style(name)):  # type: ignore[arg-type]
        size = (4.9, 3.6) if len(panels) == 1 else (4.4 * columns, 3.0 * lines + 0.6)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            _draw(axes, panel)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        figure.legend(handles=_legend(panels), loc="outside upper left", ncols=5 if columns > 1 else 2)
        said = "; ".join(
            f"{panel.title}: {r.curve.name} with {r.curve.budget} resets "
            + ("never" if r.resets is None else f"after {r.resets:.0f}")
            for panel in panels
            for r in panel.reaches
        )
        return to_markup(figure, name, f"test results against resets; the demonstrator's level is reached: {said}")


def _draw(axes: Axes, panel: Panel) -> None:
    largest = max(r.curve.budget for r in panel.reaches)
    for curve, style_of in ((r.curve, _line(r.curve, panel)) for r in panel.reaches):
        means = mean_curve(curve.values)
        if curve.budget == largest:
            if len(curve.values) > 1:
                low, high = band(curve.values, curve.clusters)
                axes.fill_between(curve.resets, low, high, color=style_of[0], alpha=0.18, linewidth=0)
            axes.plot(curve.resets, means, color=style_of[0], linestyle=style_of[1], linewidth=2)
        else:
            axes.plot(curve.resets, means, color=style_of[0], marker=".", ms=3.5, linestyle=":", linewidth=1)
    if panel.level is not None:
        axes.axhline(panel.level, color=ORANGE, linestyle=_DASHES, linewidth=1.6)
    axes.set_title(plain(panel.title), loc="left")
    unit = f" ({plain(panel.metric.unit)})" if panel.metric.unit else ""
    axes.set_ylabel(f"test {plain(panel.metric.name)}{unit}")
    axes.set_xlabel("resets of training, one seed")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _line(curve: LearningCurve, panel: Panel) -> tuple[str, object]:
    """Colour by method; the second group of one method, with other options, is dashed."""
    same = list(dict.fromkeys(r.curve.name for r in panel.reaches if r.curve.method == curve.method))
    return _COLOURS.get(curve.method, MUTED), ("-", (0, (6, 2)), (0, (2, 1.5)))[min(same.index(curve.name), 2)]


def _legend(panels: Sequence[Panel]) -> list[Line2D]:
    handles: dict[str, Line2D] = {}
    for panel in panels:
        for curve in (r.curve for r in panel.reaches):
            colour, dashes = _line(curve, panel)
            label = plain(curve.name)
            handles.setdefault(label, Line2D([], [], color=colour, linestyle=dashes, linewidth=2, label=label))  # type: ignore[arg-type]
    if any(panel.level is not None for panel in panels):
        handles["demonstrator"] = Line2D([], [], color=ORANGE, linestyle=_DASHES, label="demonstrator")
    if any(len({r.curve.budget for r in panel.reaches}) > 1 for panel in panels):
        handles["smaller"] = Line2D([], [], color=MUTED, marker=".", linestyle=":", label="smaller budgets")
    return list(handles.values())
