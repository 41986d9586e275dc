"""One page that compares several runs, from their run directories alone."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from jaxrefine.errors import UserError
from jaxrefine.report import numbers
from jaxrefine.report.alignment import Alignment, alignment, shortened
from jaxrefine.report.feedback import Kind, kinds
from jaxrefine.report.feedback_figure import rounds_figures
from jaxrefine.report.groups import Case, Gathered, chain, demonstrated, gather
from jaxrefine.report.numbers import decimals_for
from jaxrefine.report.resets import Panel, resets_figure, resets_panel
from jaxrefine.report.results import Results, results, results_figure
from jaxrefine.report.svg import keeping_pdfs
from jaxrefine.report.templating import environment
from jaxrefine.run.files import write_whole

FILE_NAME = "comparison.html"


@dataclass(frozen=True)
class CaseView:
    """What the page shows of one task under one condition; None and empty where no run has data for it.

    Attributes:
        name: Of its place on the page.
        decimals: To write the metric's values with.
        kinds: Refinements by kind of feedback.
        alignments: The weights of every refined conversation, by its name.
    """

    case: Case
    name: str
    title: str
    level: float | None
    decimals: int
    results: Results
    results_figure: Markup | None
    kinds: tuple[Kind, ...]
    rounds_figures: tuple[Markup, ...]
    panel: Panel | None
    resets_figure: Markup | None
    alignments: tuple[tuple[str, str, Alignment], ...]


def comparison_target(runs: Sequence[Path]) -> Path:
    """Where a comparison goes unless it is told: `comparison.html` in the folder that holds all the runs."""
    parents = [set(run.resolve().parents) for run in runs]
    shared = set.intersection(*parents)
    return max(shared, key=lambda folder: len(folder.parts)) / FILE_NAME


def figures_folder(target: Path) -> Path:
    """Where the figures of a comparison go whose page is `target`."""
    return target.with_name(f"{target.stem}_figures")


def write_comparison(runs: Sequence[Path], target: Path | None = None) -> Path:
    """Write one self-contained page that compares runs, and its figures as PDF, in a folder beside it.

    Runs are sorted by task, condition, method and the options in which they differ; several runs in one place are
    independent repetitions. Runs that failed or are not finished are listed with the reason and are in no table.

    Args:
        runs: Run directories, of any tasks, conditions and methods. One is enough, and has little to be compared with.
        target: The page's file; `comparison_target(runs)` by default.

    Returns:
        Where the page is.

    Raises:
        UserError: None of the folders is a run directory, or the page cannot be written.
    """
    target = comparison_target(runs) if target is None else target
    if target.is_dir():
        raise UserError(f"{target} is a folder: give the name of a file, such as {target / FILE_NAME}.")
    with keeping_pdfs() as pdfs:
        page = render_comparison(runs)
    write_whole(target, page.encode())
    if pdfs:
        folder = figures_folder(target)
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(f"Cannot make {folder}: {error.strerror or error}.") from error
        for name, pdf in pdfs.items():
            write_whole(folder / f"{name}.pdf", pdf)
    return target


def render_comparison(runs: Sequence[Path]) -> str:
    """The page as text.

    Raises:
        UserError: None of the folders is a run directory.
    """
    gathered = gather(runs)
    gaps: list[str] = []
    views = [_view(case, f"case-{number}", gaps) for number, case in enumerate(gathered.cases)]
    return (
        _environment()
        .get_template("comparison.html.j2")
        .render(
            views=views,
            gathered=gathered,
            gaps=[*dict.fromkeys([*gathered.gaps, *gaps])],
            runs=_count(gathered),
            chain=chain,
        )
    )


def _count(gathered: Gathered) -> int:
    return sum(len(group.runs) for case in gathered.cases for group in case.groups)


def _view(case: Case, name: str, gaps: list[str]) -> CaseView:
    found, level, by_feedback = results(case), demonstrated(case), kinds(case)
    panel = resets_panel(case, gaps)
    values = [row.mean for row in found.rows if row.mean is not None]
    aligned = [
        (kind.name, journey.name, alignment(journey.rounds)) for kind in by_feedback for journey in kind.journeys
    ]
    return CaseView(
        case,
        name,
        case.task.replace("_", " ") + f", {case.condition}",
        level,
        decimals_for(values if level is None else [*values, level]),
        found,
        results_figure(case, found, f"{name}-results"),
        by_feedback,
        rounds_figures(case, by_feedback, f"{name}-rounds"),
        panel,
        resets_figure([panel], f"{name}-resets") if panel else None,
        tuple((kind, journey, entry) for kind, journey, entry in aligned if entry is not None),
    )


@functools.cache
def _environment() -> jinja2.Environment:
    return environment(
        {
            "measure": numbers.measure,
            "signed": numbers.signed,
            "significant": numbers.significant,
            "count": numbers.count,
            "p_value": numbers.p_value,
            "shortened": shortened,
        }
    )
