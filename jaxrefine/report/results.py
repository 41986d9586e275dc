"""The results of a comparison: a row for every method and stage, and differences episode by episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import fill

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxrefine import stats
from jaxrefine.report.groups import Case, Group, demonstrated
from jaxrefine.report.paper import MEANS
from jaxrefine.report.stages import Row, Stage, combine, rows
from jaxrefine.report.svg import BLUE, GREEN, INK, ORANGE, PAPER, plain, style, to_markup


@dataclass(frozen=True)
class Pair:
    """How a stage differs from the yardstick's, episode by episode.

    Attributes:
        difference: The method minus the yardstick, each the mean over its runs on every episode both were tested on;
            the p-value is Holm-adjusted over all pairs of the case.
    """

    method: str
    stage: str
    difference: stats.PairedDifference


@dataclass(frozen=True)
class Results:
    """Table 1 of a case.

    Attributes:
        rows: In the order of stages, then groups.
        paper: What the paper has in place of each row, None where it has nothing that compares.
        against: The yardstick's name, None where there is none.
    """

    rows: tuple[Row, ...]
    stages: tuple[Stage, ...]
    paper: tuple[float | None, ...]
    against: str | None
    pairs: tuple[Pair, ...]


def results(case: Case) -> Results:
    """Summarise the runs of a case."""
    found = [
        (group, stage) for group in case.groups for stage in combine(group.name, [run.parts for run in group.runs])
    ]
    found.sort(key=lambda pair: -1 if pair[1].stage == "IL" else int(pair[1].stage.split()[1]))
    stages = [stage for _, stage in found]
    against = case.yardstick.name if case.yardstick else None
    known = MEANS.get((case.task, case.condition), {})
    return Results(
        tuple(rows(stages, against or "")),
        tuple(stages),
        tuple(_published(known, group, stage) for group, stage in found),
        against,
        _pairs(stages, against) if against else (),
    )


def _published(known: Mapping[str, Mapping[str, float]], group: Group, stage: Stage) -> float | None:
    # of a name with options in it, what stands before them
    return known.get(group.name.split(" (")[0], {}).get(stage.stage) if group.published else None


def _pairs(stages: Sequence[Stage], against: str) -> tuple[Pair, ...]:
    yardsticks = {stage.stage: stage for stage in stages if stage.method == against}
    pairs = [
        Pair(stage.method, stage.stage, difference)
        for stage in stages
        if stage.method != against and stage.stage in yardsticks
        if (difference := _difference(yardsticks[stage.stage], stage)) is not None
    ]
    p_values = {i: pair.difference.p_value for i, pair in enumerate(pairs) if pair.difference.p_value is not None}
    adjusted = stats.holm(p_values) if p_values else {}
    return tuple(
        replace(pair, difference=replace(pair.difference, p_value=adjusted.get(i))) for i, pair in enumerate(pairs)
    )


def _difference(yardstick: Stage, other: Stage) -> stats.PairedDifference | None:
    a, b = (dict(zip(stage.seeds, stage.by_episode, strict=True)) for stage in (yardstick, other))
    shared = [seed for seed in a if seed in b and np.isfinite([a[seed], b[seed]]).all()]
    return stats.paired_difference([a[seed] for seed in shared], [b[seed] for seed in shared]) if shared else None


def results_figure(case: Case, found: Results, name: str) -> Markup | None:
    """Every run a dot, every row's mean and interval; None where no run has a finite value."""
    shown = [(row, stage) for row, stage in zip(found.rows, found.stages, strict=True) if row.mean is not None]
    if not shown:
        return None
    metric, level = case.record.metric, demonstrated(case)
    with mpl.rc_context(style(name)):  # type: ignore[arg-type]
        figure = Figure(figsize=(4.9, 0.46 * len(shown) + 1.3), layout="constrained")
        axes = figure.add_subplot()
        for place, (row, stage) in enumerate(shown):
            values = stage.by_run[stage.finite]
            assert row.mean is not None
            spread = np.linspace(-0.22, 0.22, len(values)) if len(values) > 1 else np.zeros(1)
            axes.plot(values, place + spread, "o", color=BLUE, alpha=0.6, ms=4, markeredgecolor=PAPER, mew=0.4)
            colour = GREEN if row.method == found.against else INK
            if row.interval:
                axes.plot([row.interval.low, row.interval.high], [place, place], color=colour, linewidth=2.2)
            axes.plot([row.mean], [place], "D", color=colour, ms=6, markeredgecolor=PAPER, mew=0.6)
        if level is not None:
            axes.axvline(level, color=ORANGE, linestyle=(0, (5, 3)), linewidth=1.6)
        axes.set_yticks(
            range(len(shown)), [fill(f"{plain(row.method)}, {row.stage}", 22) for row, _ in shown], fontsize=9
        )
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        unit = f" ({plain(metric.unit)})" if metric.unit else ""
        axes.set_xlabel(f"{plain(metric.name)}{unit}, {'higher' if metric.higher_is_better else 'lower'} is better")
        handles = [
            Line2D([], [], color=BLUE, marker="o", linestyle="", ms=4, label="run"),
            Line2D([], [], color=INK, marker="D", ms=5, label="mean, 95 %"),
        ]
        if level is not None:
            handles.append(Line2D([], [], color=ORANGE, linestyle=(0, (5, 3)), label="demonstrator"))
        figure.legend(handles=handles, loc="outside upper left", ncols=3, columnspacing=1.2)
        said = "; ".join(f"{row.method}, {row.stage}: {row.mean:.4g}" for row, _ in shown)
        return to_markup(figure, name, f"{metric.name} of every run by method; means: {said}")
