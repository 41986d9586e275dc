"""A run directory read into plain values, whatever state the run left it in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxrefine.errors import UserError
from jaxrefine.report.activity import Exchange, Step, read_exchanges, read_notices, read_steps, rejected_rounds
from jaxrefine.report.fields import JSON, get, integer, items, number, read_json, read_json_lines, string
from jaxrefine.report.numbers import decimals_for
from jaxrefine.report.rounds import Logged, Round, read_round, read_sample, round_folders
from jaxrefine.report.untrusted import irregular, read_text, visible
from jaxrefine.stats import Sample

MOST_ROUNDS = 10_000


@dataclass(frozen=True)
class Metric:
    """What the evaluation measures."""

    name: str
    higher_is_better: bool
    unit: str


@dataclass(frozen=True)
class Demonstration:
    """The demonstration the program was fitted to.

    Attributes:
        value: What the demonstrated episode reached.
        tested: What the demonstrator reached on the episodes that rounds are evaluated on, where that is known.
    """

    name: str | None
    source: str | None
    value: float | None
    steps: int | None
    tested: Sample | None = None

    @property
    def level(self) -> float | None:
        """What rounds are compared with: the demonstrator's mean on the same episodes, else his one episode."""
        return self.value if self.tested is None else self.tested.mean


@dataclass(frozen=True)
class Fact:
    """A named value to be shown as it is, perhaps with others under it."""

    name: str
    value: str | int | float | None
    parts: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class Record:
    """Everything a report tells of one run.

    Attributes:
        path: The run directory.
        name: Its name.
        sandbox: What the event log says was chosen to hold the model's code, None where it does not.
        condition: The task's condition, None where it was not recorded.
        status: `finished`, `failed` or `stopped`, as the summary says; `unfinished` if there is no summary.
        reason: Why it failed or stopped.
        best_round: The number of the round the run chose, if it got so far.
        gaps: A sentence for everything that could not be read.
    """

    path: Path
    name: str
    task: str
    condition: str | None
    method: str
    status: str
    reason: str | None
    best_round: int | None
    metric: Metric
    demonstration: Demonstration
    rounds: tuple[Round, ...]
    steps: tuple[Step, ...]
    notices: tuple[str, ...]
    exchanges: tuple[Exchange, ...]
    resources: tuple[Fact, ...]
    provenance: tuple[Fact, ...]
    sandbox: str | None
    config: str | None
    gaps: tuple[str, ...]

    @property
    def title(self) -> str:
        """The task's name, with its condition where that is not the stock one."""
        return self.task if self.condition in (None, "stock") else f"{self.task} ({self.condition})"

    @property
    def decimals(self) -> int:
        """The decimals to write the metric's values with."""
        levels = [entry.evaluation.mean for entry in self.rounds if entry.evaluation]
        level = self.demonstration.level
        return decimals_for(levels if level is None else [*levels, level])

    @property
    def best(self) -> Round | None:
        """The round the run chose."""
        return next((entry for entry in self.rounds if entry.index == self.best_round), None)


def read_run(run: Path) -> Record:
    """Read a run directory.

    Raises:
        UserError: The folder is missing, is no run directory, or may not be read.
    """
    try:
        if not run.is_dir():
            raise UserError(f"There is no folder {run}. Give the folder of a run, as jaxrefine printed it.")
        return _read(run)
    except OSError as error:
        raise UserError(f"Cannot read {error.filename or run}: {error.strerror or error}.") from error


def _read(run: Path) -> Record:
    folders = round_folders(run)
    if not folders and not any((run / name).is_file() for name in ("summary.json", "events.jsonl")):
        raise UserError(
            f"{run} is no run directory: it has no summary.json, events.jsonl or round_0 in it. "
            "Give the folder of one run, not the one that holds several."
        )
    gaps = [f"{name} is a link, a pipe or the like and was passed over." for name in irregular(run)]
    summary = read_json(run / "summary.json", gaps)
    events = read_json_lines(run / "events.jsonl", gaps)
    transcript = read_json_lines(run / "transcript.jsonl", gaps)
    begun = next((event for event in events if get(event, "event") == "run_started"), None)
    steps = read_steps(events)
    rejected = rejected_rounds(events)
    entries = {
        index: entry
        for entry in items(get(summary, "rounds"))
        if (index := integer(get(entry, "round"))) is not None and 0 <= index < MOST_ROUNDS
    }
    rounds = tuple(
        read_round(index, run / f"round_{index}", entries.get(index), _logged(index, steps, rejected), gaps)
        for index in sorted(folders.keys() | entries.keys())
    )
    header = next((line for line in transcript if get(line, "kind") == "header"), None)
    return Record(
        path=run,
        name=visible(run.resolve().name),
        task=string(get(summary, "task")) or string(get(begun, "task")) or "unknown task",
        condition=string(get(summary, "condition")) or string(get(begun, "condition")),
        method=string(get(summary, "method")) or string(get(begun, "method")) or "unknown method",
        status=string(get(summary, "status")) or "unfinished",
        reason=string(get(summary, "reason")),
        best_round=integer(get(summary, "best_round")),
        metric=Metric(
            string(get(summary, "metric", "name")) or "return",
            get(summary, "metric", "better") != "lower",
            string(get(summary, "metric", "unit")) or "",
        ),
        demonstration=Demonstration(
            string(get(summary, "demonstration", "name")),
            string(get(summary, "demonstration", "source")),
            number(get(summary, "demonstration", "metric")),
            integer(get(summary, "demonstration", "steps")),
            read_sample(get(summary, "demonstration", "test")),
        ),
        rounds=rounds,
        steps=steps,
        notices=read_notices(events),
        exchanges=read_exchanges(transcript),
        resources=facts(get(summary, "resources")),
        provenance=facts(get(summary, "provenance") or ({"transcript": header} if header else None)),
        sandbox=next((string(get(event, "name")) for event in events if get(event, "event") == "sandbox_chosen"), None),
        config=read_text(run / "config.yaml"),
        gaps=tuple(gaps),
    )


def _logged(index: int, steps: tuple[Step, ...], rejected: set[int]) -> Logged:
    mine = [step for step in steps if step.round == index]
    judged = next((step for step in reversed(mine) if step.name == f"round_{index}/judge"), None)
    return Logged(
        next((step.decision for step in reversed(mine) if step.decision), None),
        False if index in rejected else True if judged is not None and judged.wall_s is not None else None,
        judged.line if judged else None,
    )


def facts(value: JSON, depth: int = 0) -> tuple[Fact, ...]:
    """A JSON object's entries, in their order; nothing for anything else."""
    if not isinstance(value, dict):
        return ()
    return tuple(_fact(visible(str(name)), entry, depth) for name, entry in value.items())


def _fact(name: str, value: JSON, depth: int) -> Fact:
    if isinstance(value, dict) and depth < 3:
        return Fact(name, "", facts(value, depth + 1))
    if value is None or isinstance(value, bool):
        return Fact(name, value)
    if isinstance(value, int | float):
        return Fact(name, value if number(value) is not None else visible(str(value)[:40]))
    return Fact(name, visible(str(value)))
