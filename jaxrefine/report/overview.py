"""What stands at the top of the page: what was run, what held it, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

from jaxrefine.report import numbers
from jaxrefine.report.costs import resets_so_far
from jaxrefine.report.record import Fact, Record

_VERSIONS = ("jaxrefine", "python", "jax", "flax")

# What holds code that a model wrote, by the names of a run's provenance; another name is shown without a verdict.
_HELD = {
    "bubblewrap": ("walled off from files and network", True),
    "landlock": ("walled off from files and network", True),
    "limits": ("limits on time and memory, no walls", False),
    "none": ("no walls", False),
}


@dataclass(frozen=True)
class Entry:
    """A named value; `good` says whether it is to be praised or warned of, None for neither."""

    name: str
    value: str
    good: bool | None = None


@dataclass(frozen=True)
class Overview:
    """The entries by what they are about; `so_far` where the costs are counted from the logs of an unfinished run."""

    about: tuple[Entry, ...]
    cost: tuple[Entry, ...]
    so_far: bool


def overview(record: Record) -> Overview:
    """Put together the overview of a run."""
    about = (
        Entry("task", record.task),
        Entry("condition", record.condition or "not recorded"),
        Entry("method", record.method),
        Entry("model", _model(record)),
        Entry("status", record.status, {"finished": True, "unfinished": None}.get(record.status, False)),
        *_sandbox(record),
        Entry("versions", _versions(record)),
    )
    resources = {fact.name: fact.value for fact in record.resources}
    if resources:
        return Overview(about, _summed(record, resources), so_far=False)
    return Overview(about, _counted(record), so_far=True)


def _model(record: Record) -> str:
    """Every model that answered; of a run that asked none, the one its transcript names."""
    named = list(dict.fromkeys(exchange.model for exchange in record.exchanges))
    if not named:
        header = _find(record.provenance, "transcript")
        named = [str(fact.value) for fact in header.parts if fact.name == "model" and fact.value] if header else []
    return ", ".join(named) or "none was asked"


def _sandbox(record: Record) -> tuple[Entry, ...]:
    """The verdict on what held the model's code: in older runs one name, in newer ones one for each kind of code."""
    fact = _find(record.provenance, "sandbox")
    if fact is None:
        return (_held("sandbox", record.sandbox or "not recorded"),)
    if not fact.parts:
        return (_held("sandbox", str(fact.value or "not recorded")),)
    return tuple(
        _held(f"sandbox, {part.name}", str(part.value or "not recorded"))
        for part in fact.parts
        if (part.name, part.value) != ("earlier", "[]")
    )


def _held(name: str, backend: str) -> Entry:
    verdict, good = _HELD.get(backend.split(":")[0].strip("[']"), (None, None))
    return Entry(name, f"{backend}: {verdict}" if verdict else backend, good)


def _versions(record: Record) -> str:
    fact = _find(record.provenance, "versions")
    found = {part.name: part.value for part in fact.parts} if fact else {}
    return ", ".join(f"{name} {found[name]}" for name in _VERSIONS if found.get(name)) or "not recorded"


def _summed(record: Record, resources: dict[str, str | int | float | None]) -> tuple[Entry, ...]:
    about = "about " if any(exchange.estimated for exchange in record.exchanges) else ""
    entries = []
    for name, value in resources.items():
        shown = numbers.count(value)
        if name == "wall_s" and isinstance(value, int | float):
            name, shown = "wall time", numbers.seconds(value)
        elif name.endswith("_tokens") and value:
            shown = about + shown
        elif name == "cost" and value is None:
            name, shown = "money", "unknown"
        elif name == "cost":
            name, shown = "money", f"{value} $"
        entries.append(Entry(name.replace("_", " ").replace("llm", "model"), shown))
    return tuple(entries)


def _counted(record: Record) -> tuple[Entry, ...]:
    about = "about " if any(exchange.estimated for exchange in record.exchanges) else ""
    calls = record.exchanges
    resets = resets_so_far(record.steps)
    return (
        Entry("model calls", numbers.count(len(calls))),
        Entry("input tokens", about + numbers.count(sum(call.input_tokens for call in calls))),
        Entry("output tokens", about + numbers.count(sum(call.output_tokens for call in calls))),
        Entry("reasoning tokens", about + numbers.count(sum(call.reasoning_tokens for call in calls))),
        Entry("refinement resets", numbers.count(resets)),
        Entry("wall time", numbers.seconds(sum(step.wall_s or 0.0 for step in record.steps))),
    )


def _find(facts: tuple[Fact, ...], name: str) -> Fact | None:
    return next((fact for fact in facts if fact.name == name), None)
