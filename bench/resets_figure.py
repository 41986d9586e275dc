"""Test returns against resets of reinforcement learning, a panel for each condition, from finished runs.

    python -m bench.resets_figure RUN [RUN ...] --figure PATH.svg --json PATH

Prints, for each condition, method and budget, how many resets the mean over trainings needs to reach the demonstrator's
mean return on the same episodes, linearly interpolated between looks, and how many times as many that is as the refined
program needs. Thick lines are of the largest budget, with 95 % bootstrap intervals that resample conversations and
their trainings; dotted ones are of smaller budgets, each a training of its own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxrefine.errors import UserError
from jaxrefine.report.groups import gather
from jaxrefine.report.resampling import mean_curve
from jaxrefine.report.resets import Panel, Reach, resets_figure, resets_panel
from jaxrefine.report.standalone import standalone_svg


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.resets_figure", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories, of any conditions")
    parser.add_argument("--figure", type=Path, help="where the figure is written (.svg)")
    parser.add_argument("--json", type=Path, help="where the numbers are written")
    chosen = parser.parse_args(arguments)
    try:
        panels, gaps = read(chosen.runs)
    except UserError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    _print(panels, gaps)
    if chosen.figure:
        chosen.figure.write_text(standalone_svg(resets_figure(panels, "resets")), encoding="utf-8")
    if chosen.json:
        # of runs, their names alone: where they are is of no use to others
        command = " ".join(["python -m bench.resets_figure", *(run.name for run in chosen.runs)])
        written = {"command": command, "conditions": [_plain(panel) for panel in panels], "gaps": gaps}
        chosen.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0


def read(runs: Sequence[Path]) -> tuple[list[Panel], list[str]]:
    """The panels of every task and condition with trained runs, and a sentence for every run that is in none.

    Raises:
        UserError: none of the folders is a run directory, or none was trained.
    """
    gathered = gather(runs)
    gaps = [*gathered.gaps, *(f"{run.name} is left out: {run.why}" for run in gathered.left_out)]
    panels = [panel for case in gathered.cases if (panel := resets_panel(case, gaps)) is not None]
    if not panels:
        raise UserError(" ".join(["none of these runs has looks at the test episodes while it was trained.", *gaps]))
    return panels, gaps


def _print(panels: Sequence[Panel], gaps: Sequence[str]) -> None:
    console = Console()
    for panel in panels:
        level = "unknown" if panel.level is None else f"{panel.level:.4g}"
        shown = Table(title=f"{panel.title}: resets to the demonstrator's {level}")
        shown.add_column("method")
        for column in ("budget", "trainings (conversations)", "before", "after", "resets [95 %]", "in all", "ratio"):
            shown.add_column(column, justify="right")
        for found in panel.reaches:
            curve = found.curve
            shown.add_row(
                curve.name,
                f"{curve.budget:,}",
                f"{len(curve.values)} ({len(set(curve.clusters.tolist()))})",
                "-" if found.first is None else f"{found.first:.4g}",
                "-" if found.last is None else f"{found.last:.4g}",
                _resets(found.resets) + _between(found),
                "-" if found.in_all is None else f"{found.in_all:,.0f}",
                "-" if found.ratio is None else f"{found.ratio:.2f}",
            )
        console.print(shown)
    for gap in gaps:
        console.print(gap, markup=False)


def _resets(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}"


def _between(found: Reach) -> str:
    return "" if found.interval is None else f" [{_resets(found.interval[0])}, {_resets(found.interval[1])}]"


def _plain(panel: Panel) -> dict[str, Any]:
    return {
        "condition": panel.title,
        "demonstrator": panel.level,
        "methods": [
            {
                "method": found.curve.name,
                "budget": found.curve.budget,
                "trainings": len(found.curve.values),
                "conversations": len(set(found.curve.clusters.tolist())),
                "resets": found.curve.resets.tolist(),
                "means": [float(mean) if np.isfinite(mean) else None for mean in mean_curve(found.curve.values)],
                "resets_to_demonstrator": found.resets,
                "interval": found.interval,
                "with_resets_before_training": found.in_all,
                "times_those_of_refined": found.ratio,
            }
            for found in panel.reaches
        ],
    }


if __name__ == "__main__":
    raise SystemExit(main())
