"""From a record to the page: what the templates are given, and how it is written."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from jaxrefine import stats
from jaxrefine.errors import UserError
from jaxrefine.report import checks, figures, numbers, source
from jaxrefine.report.ablation_figure import ablation
from jaxrefine.report.activity import tally
from jaxrefine.report.fit_figures import fit_by_round
from jaxrefine.report.graph_picture import graph_pictures
from jaxrefine.report.outcome import outcome
from jaxrefine.report.overview import overview
from jaxrefine.report.record import Record, read_run
from jaxrefine.report.rollout_pictures import rollout_pictures
from jaxrefine.report.rounds import Round, compare
from jaxrefine.report.svg import keeping_pdfs
from jaxrefine.report.templating import environment
from jaxrefine.report.training_figures import training_section

FILE_NAME = "report.html"
FIGURES = "figures"


@dataclass(frozen=True)
class RoundView:
    """A round, beside the one before it.

    Attributes:
        round: What was read.
        change: The metric's change since the last evaluated round, paired by evaluation seed.
        since: That round's number.
        interval: Bootstrap interval of the evaluation's mean, None for fewer than two episodes.
        interquartile_mean: Of the evaluation's episodes, None without them.
        diff: What changed in the program, None without an earlier program.
        diff_since: The round that earlier program is from.
        ablation: What holding each latent does, None where it was not tried.
    """

    round: Round
    change: stats.PairedDifference | None
    since: int | None
    interval: stats.Interval | None
    interquartile_mean: float | None
    diff: source.Diff | None
    diff_since: int | None
    ablation: Markup | None


def write_report(run: Path) -> Path:
    """Write RUN/report.html from what is in the run directory RUN, and say where it is.

    Each of its figures is written beside it as a PDF, RUN/figures/NAME.pdf; PDFs of an earlier report go.

    A run that failed, is still going or was killed gets a report of what there is.

    Raises:
        UserError: The folder is no run directory, or cannot be read or written.
    """
    with keeping_pdfs() as pdfs:
        html = render(read_run(run))
    target = run / FILE_NAME
    try:
        _write_whole(target, html.encode())
        if (run / FIGURES).is_symlink():
            raise UserError(f"{run / FIGURES} is a link, and figures are written into the run alone; remove it.")
        if pdfs:
            (run / FIGURES).mkdir(exist_ok=True)
        for name, pdf in pdfs.items():
            _write_whole(run / FIGURES / f"{name}.pdf", pdf)
        _remove_others(run / FIGURES, {f"{name}.pdf" for name in pdfs})
    except OSError as error:
        raise UserError(f"Cannot write {target}: {error.strerror or error}.") from error
    return target


def render(record: Record) -> str:
    """The report as one self-contained HTML page."""
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            record=record,
            outcome=outcome(record),
            overview=overview(record),
            views=_views(record),
            checks=checks.matrix(record.rounds),
            metric_figure=figures.metric_by_round(record),
            cost_figures=figures.metric_by_cost(record),
            fit_figures=fit_by_round(record),
            tallies=tally(record.exchanges),
            longest_step=max((step.wall_s or 0.0 for step in record.steps), default=0.0),
            wall_s=sum(step.wall_s or 0.0 for step in record.steps),
            training=training_section(record),
            graphs=graph_pictures(record),
            rollouts=rollout_pictures(record),
            code_style=source.style_sheet(),
        )
    )


@functools.cache
def _environment() -> jinja2.Environment:
    return environment(
        {
            "measure": _measure,
            "signed": _signed,
            "significant": numbers.significant,
            "count": numbers.count,
            "plain": numbers.plain,
            "seconds": numbers.seconds,
            "p_value": numbers.p_value,
            "coloured": source.coloured,
            "prose": source.prose,
            "marked": checks.marked,
            "verdicts": checks.tally,
        }
    )


@jinja2.pass_context
def _measure(context: jinja2.runtime.Context, value: float | None) -> str:
    return numbers.measure(value, context["record"].decimals)


@jinja2.pass_context
def _signed(context: jinja2.runtime.Context, value: float | None) -> str:
    return numbers.signed(value, context["record"].decimals)


def _views(record: Record) -> list[RoundView]:
    views = []
    evaluated: Round | None = None
    written: Round | None = None
    for entry in record.rounds:
        values = [episode.value for episode in entry.episodes]
        earlier_program = written.program if written else None
        views.append(
            RoundView(
                round=entry,
                change=compare(evaluated, entry) if evaluated else None,
                since=evaluated.index if evaluated else None,
                interval=stats.bootstrap_interval(values) if len(values) > 1 else None,
                interquartile_mean=stats.interquartile_mean(values) if values else None,
                diff=source.diff(earlier_program, entry.program)
                if earlier_program is not None and entry.program is not None
                else None,
                diff_since=written.index if written else None,
                ablation=ablation(entry, record.metric),
            )
        )
        evaluated = entry if entry.episodes else evaluated
        written = entry if entry.program is not None else written
    return views


def _remove_others(folder: Path, written: Collection[str]) -> None:
    """Remove the PDFs that an earlier report left; what is elsewhere and only linked to here stays."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in folder.glob("*.pdf"):
        if path.name not in written and path.is_file() and not path.is_symlink():
            path.unlink()


def _write_whole(target: Path, content: bytes) -> None:
    """Replace the file at once, so that nobody ever reads half a page."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.chmod(0o644)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
