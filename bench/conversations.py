"""What conversations came to, round by round: results, tokens, and which feedback the model was shown.

    python -m bench.conversations RUN [RUN ...] [--best-of-n RUN ...] [--figure PATH.svg] [--json PATH]

Prints a table with a row per round of every run, and one with a row per feedback: thousands of tokens that a refinement
took (the paper's Table 2), and its result by round (the paper's Figure 4). The figure has a panel for each condition
and feedback: every conversation is a line, every fit seed a thin one, revisions that were set aside are hollow, beside
the demonstrator and the best of N first programs.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from bench.bridge import read_summary
from jaxrefine.errors import UserError
from jaxrefine.llm import Exchange, read_transcript
from jaxrefine.stats import describe


@dataclass(frozen=True)
class Step:
    """One round of one run.

    Attributes:
        number: of the round.
        mean: of the metric over the test episodes, of the policy that validation chose.
        fits: the same of every fit seed.
        accepted: whether it was kept.
        best: whether it is the run's.
        input_tokens: of all requests of the round.
        output_tokens: of their answers.
    """

    number: int
    mean: float | None
    fits: tuple[float, ...]
    accepted: bool
    best: bool
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Told:
    """One run as it is shown."""

    name: str
    task: str
    condition: str
    text: str
    feedback: str
    metric: Mapping[str, Any]
    demonstrator: float | None
    steps: tuple[Step, ...]


def read(run: Path) -> Told:
    """Read a finished run.

    Raises:
        UserError: it is not finished, or a file is missing.
    """
    summary = read_summary(run)
    header = summary["provenance"]["transcript"]
    spent: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for record in read_transcript(run / "transcript.jsonl").records:
        usage = record.completion.usage if isinstance(record, Exchange) else record.usage
        spent[record.round][0] += usage.input_tokens
        spent[record.round][1] += usage.output_tokens
    steps = tuple(
        Step(
            entry["round"],
            entry["metric"]["mean"],
            tuple(math.nan if mean is None else mean for mean in entry["fit_seeds"]["means"]),
            entry["accepted"],
            entry["round"] == summary["best_round"],
            *spent[entry["round"]],
        )
        for entry in summary["rounds"]
    )
    if not any(step.best for step in steps):
        raise UserError(f"{run} has no round that could be evaluated")
    tested = summary["demonstration"]["test"]
    return Told(
        str(header.get("chain", run.name)), summary["task"], summary["condition"], header.get("text", "accurate"),
        header.get("feedback", "analysis"), summary["metric"], tested and tested["mean"], steps,
    )  # fmt: skip


def by_feedback(runs: Sequence[Told]) -> list[dict[str, Any]]:
    """Tokens and results of each feedback, over the runs of one task and condition."""
    groups: dict[tuple[str, str, str, str], list[Told]] = defaultdict(list)
    for run in runs:
        groups[run.task, run.condition, run.text, run.feedback].append(run)
    rows = []
    for (task, condition, text, feedback), mine in groups.items():
        # rounds that asked for a decision; the last one of a run may be evaluated only
        decided = [step for run in mine for step in run.steps if step.output_tokens]
        reached = [step.mean for run in mine for step in run.steps if step.best]
        rounds: dict[int, list[float]] = defaultdict(list)
        for run in mine:
            for step in run.steps:
                if step.mean is not None:
                    rounds[step.number].append(step.mean)
        rows.append(
            {
                "task": task,
                "condition": condition,
                "text": text,
                "feedback": feedback,
                "runs": len(mine),
                "input_tokens_per_run": _summed(mine, "input_tokens"),
                "output_tokens_per_run": _summed(mine, "output_tokens"),
                "input_tokens_per_round": float(np.mean([step.input_tokens for step in decided])),
                "output_tokens_per_round": float(np.mean([step.output_tokens for step in decided])),
                "first": describe([run.steps[0].mean for run in mine if run.steps[0].mean is not None]).mean,
                "chosen": describe([mean for mean in reached if mean is not None]).mean,
                "by_round": {str(number): rounds[number] for number in sorted(rounds)},
            }
        )
    return rows


def _summed(runs: Sequence[Told], name: str) -> dict[str, float]:
    found = describe([float(sum(getattr(step, name) for step in run.steps)) for run in runs])
    return {"mean": found.mean, "std": found.std, "n": found.n}


def draw(runs: Sequence[Told], pools: Sequence[Told], path: Path) -> None:
    """The figure; see the module."""
    groups: dict[tuple[str, str, str, str], list[Told]] = defaultdict(list)
    for run in runs:
        groups[run.task, run.condition, run.text, run.feedback].append(run)
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "jaxrefine"
    columns = min(4, len(groups))
    lines = -(-len(groups) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.7 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for panel, ((task, condition, text, feedback), mine) in zip(panels, groups.items(), strict=False):
        pool = next((p for p in pools if (p.task, p.condition) == (task, condition)), None)
        _panel(panel, mine, pool)
        words = [task.replace("_", " "), condition]
        words += ["the paper's text"] if text == "paper" else []
        words += [f"feedback: {feedback}"] if feedback != "analysis" else []
        panel.set_title(", ".join(words), fontsize=8)
    for panel in panels[len(groups) :]:
        panel.set_axis_off()
    figure.savefig(path, metadata={"Date": None})


def _panel(panel: Axes, runs: Sequence[Told], pool: Told | None) -> None:
    colours = mpl.colormaps["tab10"].colors  # type: ignore[attr-defined]
    for colour, run in zip(colours, runs, strict=False):
        numbers = [step.number for step in run.steps]
        for fit in range(len(run.steps[0].fits)):
            panel.plot(numbers, [step.fits[fit] for step in run.steps], color=colour, linewidth=0.4, alpha=0.45)
        panel.plot(numbers, [step.mean for step in run.steps], color=colour, linewidth=1.3, label=run.name)
        for step in run.steps:
            face = colour if step.accepted else "white"
            marker = "*" if step.best else "o"
            size = 60 if step.best else 18
            panel.scatter(step.number, step.mean, s=size, marker=marker, edgecolor=colour, facecolor=face, zorder=3)
    if runs[0].demonstrator is not None:
        panel.axhline(runs[0].demonstrator, color="black", linestyle="--", linewidth=0.8)
        panel.annotate("demonstrator", (1, runs[0].demonstrator), xycoords=("axes fraction", "data"), fontsize=6,
                       ha="right", va="bottom")  # fmt: skip
    if pool is not None:
        reached = next(step.mean for step in pool.steps if step.best)
        panel.axhline(reached, color="tab:green", linestyle=":", linewidth=1)
        panel.annotate(f"best of {len(pool.steps)} first programs", (0, reached), xycoords=("axes fraction", "data"),
                       fontsize=6, va="bottom", color="tab:green")  # fmt: skip
    if runs[0].metric["better"] == "higher":
        # a fit that failed would flatten everything else
        panel.set_ylim(bottom=max(panel.get_ylim()[0], 400.0), top=960.0)
    else:
        panel.set_yscale("log")
    panel.set_xticks(range(max(step.number for run in runs for step in run.steps) + 1))
    panel.tick_params(which="both", labelsize=6)
    panel.set_xlabel("round", fontsize=7)
    panel.set_ylabel(f"{runs[0].metric['name']} {runs[0].metric['unit']}".strip(), fontsize=7)
    panel.legend(fontsize=5.5, loc="lower right", frameon=False, title="conversation", title_fontsize=5.5)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.conversations", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="finished runs of refinement")
    parser.add_argument("--best-of-n", nargs="*", type=Path, default=[], help="finished runs of method=best_of_n")
    parser.add_argument("--figure", type=Path, help="where the figure is written (.svg, .pdf, .png)")
    parser.add_argument("--json", type=Path, help="where the numbers are written")
    chosen = parser.parse_args(arguments)
    try:
        runs, pools = [read(run) for run in chosen.runs], [read(run) for run in chosen.best_of_n]
    except (UserError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    console = Console()
    shown = Table(title="rounds")
    for column in ("conversation", "round", "result", "every fit seed", "kept", "tokens in", "tokens out"):
        shown.add_column(column, justify="left" if column == "conversation" else "right")
    for run in runs:
        for step in run.steps:
            kept = "*" if step.best else "yes" if step.accepted else "no"
            fits = " ".join(f"{value:.4g}" for value in step.fits)
            mean = "-" if step.mean is None else f"{step.mean:.4g}"
            tokens = (f"{step.input_tokens:,}", f"{step.output_tokens:,}")
            shown.add_row(f"{run.task} {run.name}", str(step.number), mean, fits, kept, *tokens)
        shown.add_section()
    console.print(shown)
    groups = by_feedback(runs)
    told = Table(title="by feedback; thousands of tokens of a whole refinement, mean +- population deviation")
    for column in (
        "task",
        "feedback",
        "runs",
        "tokens in",
        "tokens out",
        "in / out a round",
        "first program",
        "chosen",
    ):
        told.add_column(column, justify="left" if column in ("task", "feedback") else "right")
    for row in groups:
        both = [row[f"{kind}_tokens_per_run"] for kind in ("input", "output")]
        told.add_row(
            f"{row['task']} {row['condition']}" + (" (paper's text)" if row["text"] == "paper" else ""),
            row["feedback"],
            str(row["runs"]),
            *(f"{x['mean'] / 1000:.1f} +- {x['std'] / 1000:.1f}" for x in both),
            f"{row['input_tokens_per_round'] / 1000:.1f} / {row['output_tokens_per_round'] / 1000:.1f}",
            f"{row['first']:.4g}",
            f"{row['chosen']:.4g}",
        )
    console.print(told)
    if chosen.json:
        written = {
            "command": "python -m bench.conversations",
            "runs": [asdict(run) for run in runs],
            "feedback": groups,
        }
        chosen.json.write_text(json.dumps(written, indent=1) + "\n")
    if chosen.figure:
        draw(runs, pools, chosen.figure)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
