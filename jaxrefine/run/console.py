"""What a person sees while a run goes on, and the table at its end."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, TextIO

import rich.console
from rich import box
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from jaxrefine.run.directory import RunDirectory
from jaxrefine.run.events import Event

LABEL_WIDTH = 40
TABLE_WIDTH = 118

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Console:
    """Shows the events of a run as they happen; use as a context manager.

    On a terminal: the running step below (round, label, time, a bar where the step tells its progress), finished
    steps scrolling above. Elsewhere: one plain line for each finished step and each notice.

    Attributes:
        run: The run that is shown.
        plain: Whether it writes plain lines.
    """

    def __init__(self, run: RunDirectory, stream: TextIO | None = None, plain: bool | None = None) -> None:
        """Make a console that is silent until entered.

        Args:
            run: The run to show.
            stream: Where to write; standard output if absent.
            plain: Plain lines or a live display; by what the stream is if absent.
        """
        self.run = run
        self._stream = stream if stream is not None else sys.stdout
        self.plain = plain if plain is not None else not rich.console.Console(file=self._stream).is_terminal
        self._rich = (
            rich.console.Console(
                file=self._stream, force_terminal=False, color_system=None, width=TABLE_WIDTH, legacy_windows=False
            )
            if self.plain
            else rich.console.Console(file=self._stream, force_terminal=True)
        )
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            _BarOfKnownTotal(bar_width=24),
            console=self._rich,
            transient=True,
            disable=self.plain,
        )
        self._task: TaskID | None = None
        self._round: int | None = None
        self._unsubscribe = lambda: None

    def __enter__(self) -> Self:
        for text in self.run.notices:
            self._notice(text)
        self._unsubscribe = self.run.subscribe(self._hear)
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unsubscribe()
        self._end_task()
        self._progress.stop()

    def print(self, text: str) -> None:
        """Write lines of text, above the live display if there is one."""
        text = self._fit(text)
        if self.plain:
            self._stream.write(text + "\n")
            self._stream.flush()
        else:
            self._rich.print(Text(text), soft_wrap=True)

    def print_table(self, table: Table) -> None:
        """Write a rich table, without control characters where the stream is no terminal."""
        self._rich.print(table)

    def can_write(self, text: str) -> bool:
        """Whether the stream's encoding holds these characters."""
        return self._fit(text) == text

    def _fit(self, text: str) -> str:
        # What a model wrote may hold escape sequences that would drive the terminal.
        text = _CONTROL.sub("?", text)
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        return text.encode(encoding, "replace").decode(encoding)

    def _hear(self, event: Event) -> None:
        match event["event"]:
            case "run_started":
                parts = [str(event[key]) for key in ("task", "condition", "method") if key in event]
                self.print("  ".join([*parts, str(self.run.path)]))
            case "round_started" | "round_returned":
                self._round = event["round"]
            case "step_started":
                self._end_task()
                self._task = self._progress.add_task(self._fit(f"{self._where()}{event['label']}"), total=None)
            case "step_progress" if self._task is not None:
                self._progress.update(self._task, completed=event["done"], total=event["total"])
            case "step_finished":
                self._end_task()
                self._step(event, f"{event['wall_s']:.1f} s", _line_of(event["result"]))
            case "step_reused":
                self._step(event, "earlier", _line_of(event["result"]))
            case "step_failed":
                self._end_task()
                self._step(event, f"{event['wall_s']:.1f} s", f"failed: {event['error'].strip()}")
            case "notice":
                self._notice(event["text"])
            case _:
                pass

    def _where(self) -> str:
        return "" if self._round is None else f"round {self._round}  "

    def _step(self, event: Event, duration: str, line: str) -> None:
        first, *_ = line.split("\n")
        head = f"{self._where()}{event['label']}"
        self.print(f"{head:<{LABEL_WIDTH}} {duration:>9}   {first}".rstrip())

    def _notice(self, text: str) -> None:
        self.print("note: " + " ".join(text.split("\n")))

    def _end_task(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._progress.refresh()
            self._task = None


class _BarOfKnownTotal(BarColumn):
    """A bar for steps that tell their progress, nothing for the others."""

    def render(self, task: Task) -> Any:
        if task.total is None:
            return Text("")
        grid = Table.grid(padding=(0, 1))
        grid.add_row(super().render(task), Text(f"{task.completed:g}/{task.total:g}"))
        return grid


def _line_of(result: Any) -> str:
    return str(result.get("line", "")) if isinstance(result, dict) else ""


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Print the table of rounds, the best round, what the run cost and where the report is.

    Args:
        summary: The contents of `summary.json`.
        console: Where to print; its run's directory holds the report.
    """
    metric, demonstration = summary["metric"], summary["demonstration"]
    unit = f" {metric['unit']}" if metric["unit"] else ""
    pm = "±" if console.can_write("±") else "+-"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("round", justify="right")
    further = summary.get("further_metrics", [])
    titles = [f"{m['name']}{' ' if m['unit'] else ''}{m['unit']}" for m in further]
    for title in (f"{metric['name']}{unit}", *titles, "validation NLL", "parameters"):
        table.add_column(title, justify="right")
    table.add_column("decision")
    for entry in summary["rounds"]:
        chosen = entry["round"] == summary["best_round"]
        table.add_row(
            f"{'* ' if chosen else ''}{entry['round']}",
            _spread(entry["metric"], pm),
            *(_number(entry["further_metrics"][m["key"]]["mean"]) for m in further),
            _number((entry["nll"] or {}).get("validation"), digits=3),
            _number(entry["parameters"], digits=0),
            str(entry["decision"]),
        )
    if summary["rl"]:
        table.add_section()
    for entry in summary["rl"]:
        # of the seeds' means; a round's row is of one policy's episodes
        table.add_row(
            f"RL {int(entry['budget']):,}",
            _spread({**entry["seeds"], "std": entry["seeds"]["std_sample"]}, pm),
            *("" for _ in further),
            "",
            "",
            f"{entry['seeds']['n']} seeds",
        )
    table.add_section()
    if demonstration.get("test"):
        table.add_row("demonstrator", _spread(demonstration["test"], pm))
    table.add_row("demonstrated episode", _number(demonstration["metric"]))
    console.print("")
    console.print_table(table)
    console.print(
        f"{metric['name']}: {metric['better']} is better; mean {pm} population deviation over {_over(summary)}"
    )
    if summary["best_round"] is not None:
        console.print(f"best round: {summary['best_round']} (*)")
    if summary["status"] != "finished" or summary["reason"]:
        console.print(f"{summary['status']}: {summary['reason'] or 'no reason given'}")
    console.print(_cost(summary["resources"]))
    report = console.run.path / "report.html"
    console.print(f"report:  {report}" if report.exists() else f"results: {console.run.path}")


def _over(summary: Mapping[str, Any]) -> str:
    return next((f"{m['n']} {m['over']}" for entry in summary["rounds"] if (m := entry["metric"])), "episodes")


def _spread(metric: Mapping[str, Any] | None, pm: str) -> str:
    if not metric or metric["mean"] is None:
        return "-"
    digits = _digits(metric["mean"])
    return f"{_number(metric['mean'], digits)} {pm} {_number(metric['std'], digits)}"


def _digits(value: float) -> int:
    return 1 if abs(value) >= 10 else 3


def _number(value: float | None, digits: int | None = None) -> str:
    """A number for a table: as many digits as asked for, else as its size needs."""
    return "-" if value is None else f"{value:,.{_digits(value) if digits is None else digits}f}"


def _cost(resources: Mapping[str, Any]) -> str:
    minutes, seconds = divmod(resources["wall_s"], 60)
    parts = [
        f"{resources['llm_calls']} model calls",
        f"{resources['input_tokens']:,} tokens in, {resources['output_tokens']:,} out",
        f"{resources['env_steps']:,} environment steps",
        f"{minutes:.0f} min {seconds:.0f} s",
    ]
    if resources["cost"] is not None:
        parts.insert(2, f"${resources['cost']:.2f}")
    return ", ".join(parts)
