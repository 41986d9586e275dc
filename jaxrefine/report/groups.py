"""Which of several runs are the same method with the same options, and which cannot be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from jaxrefine.config import Config
from jaxrefine.errors import UserError
from jaxrefine.report.fields import JSON
from jaxrefine.report.outcome import outcome
from jaxrefine.report.record import Record, read_run
from jaxrefine.report.stages import RunParts, read_parts
from jaxrefine.report.untrusted import is_regular, read_bytes, visible

NAMES = {"mlp": "MLP", "zero_shot": "zero-shot", "best_of_n": "best-of-N", "refine": "refined"}
FEEDBACK = "refine.feedback"

# Sections of config.yaml whose options make another method of it, by method; and the options among them that say how
# often something is repeated, or where it is shown.
_SECTIONS = {"refine": ("refine",), "mlp": ("method",), "best_of_n": ("method",)}
_COMMON = ("fit", "rl")
_INPUTS = ("task.text", "task.demonstration")
_MODEL = "llm.model"
_REPETITION = ("method.name", "rl.seeds", "rl.looks", "rl.resets", "rl.tensorboard")
# Options of training that are the paper's by default, all that make another algorithm of it.
_ALGORITHM = tuple(f"rl.{name}" for name in (
    "keep", "learning_rate", "clip", "window", "entropy", "discount", "groups", "episodes", "epochs", "ratio",
    "grouping", "log_ratio_limit", "kl_stop", "clip_stop", "survivors",
))  # fmt: skip
_LARGEST_CONFIG = 20_000
_LONGEST_VALUE = 4096
_LONGEST_SHOWN = 40


@dataclass(frozen=True)
class Run:
    """One run: its record, and what it gives to a table."""

    record: Record
    parts: RunParts
    options: Mapping[str, str]


@dataclass(frozen=True)
class Group:
    """Runs of one method with the same options; each is a conversation of its own, or trainings of its own.

    Attributes:
        name: The method as tables name it, with the options in which it differs from most.
        method: As summaries name it.
        feedback: What revisions were shown, None for methods that make none.
        published: Whether its options are the paper's where groups differ, so that the paper's figures stand beside it.
    """

    name: str
    method: str
    feedback: str | None
    published: bool
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Case:
    """What is compared with each other: groups of runs of one task under one condition."""

    task: str
    condition: str
    groups: tuple[Group, ...]

    @property
    def record(self) -> Record:
        """A record that says what all share: the metric and the demonstrator."""
        return self.groups[0].runs[0].record

    @property
    def yardstick(self) -> Group | None:
        """The group that others are held against: refinement by analyses; the one with the most runs of several."""
        refined = [group for group in self.groups if group.method == "refine" and group.feedback in (None, "analysis")]
        return max(refined, key=lambda group: len(group.runs), default=None)


@dataclass(frozen=True)
class LeftOut:
    """A run that is in no table, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Gathered:
    """All runs, in their places.

    Attributes:
        gaps: A sentence for everything that could not be read.
        notes: A sentence for every run that is compared but did not end as it should have.
    """

    cases: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    gaps: tuple[str, ...]


def gather(paths: Sequence[Path]) -> Gathered:
    """Read runs and sort them.

    Raises:
        UserError: None of the folders is a run directory.
    """
    found: dict[tuple[str, str], list[Run]] = {}
    left_out: list[LeftOut] = []
    notes, gaps = [], []
    for path in paths:
        mine: list[str] = []
        try:
            record = read_run(path)
            run = Run(record, read_parts(path, mine), _options(path / "config.yaml", mine))
        except (UserError, OSError) as error:
            left_out.append(LeftOut(visible(path.name), visible(str(error))))
            continue
        gaps += [f"{record.name}: {gap}" for gap in _once([*record.gaps, *mine])]
        if run.parts.parts:
            found.setdefault((record.task, record.condition or "stock"), []).append(run)
            if record.status != "finished":
                notes.append(f"{record.name}: {outcome(record)}")
        else:
            left_out.append(LeftOut(record.name, outcome(record)))
    if not found and len(left_out) == len(paths) and all("no run directory" in run.why for run in left_out):
        raise UserError(" ".join(run.why for run in left_out) or "Give at least one run directory.")
    cases = []
    for (task, condition), runs in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] != "stock", item[0])):
        alike, others = _same_episodes(runs)
        left_out += [LeftOut(run.record.name, "it was tested on other episodes than most") for run in others]
        cases.append(Case(task, condition, _groups(alike)))
    return Gathered(tuple(cases), tuple(left_out), tuple(notes), tuple(gaps))


def _once(gaps: Sequence[str]) -> list[str]:
    """One sentence for each file that cannot be read: several readers of it give the reason in words of their own."""
    by_subject: dict[str, str] = {}
    for gap in gaps:
        by_subject.setdefault(gap.split(" cannot be read (")[0], gap)
    return list(by_subject.values())


def _groups(runs: Sequence[Run]) -> tuple[Group, ...]:
    order = [*NAMES]
    methods = sorted({run.parts.method for run in runs}, key=lambda m: (order.index(m) if m in order else 99, m))
    groups: list[Group] = []
    for method in methods:
        mine = [run for run in runs if run.parts.method == method]
        differing = _differing(mine, method)
        usual = {name: _usual([run.options.get(name) for run in mine]) for name in differing}
        by_options: dict[tuple[str | None, ...], list[Run]] = {}
        for run in mine:
            by_options.setdefault(tuple(run.options.get(name) for name in differing), []).append(run)
        for values, same in sorted(by_options.items(), key=lambda item: -len(item[1])):
            options = dict(zip(differing, values, strict=True))
            told = [f"{key.split('.')[-1]} {_shown(value)}" for key, value in options.items() if value != usual[key]]
            name = NAMES.get(method, method) + (f" ({', '.join(told)})" if told else "")
            feedback = same[0].options.get(FEEDBACK) if method == "refine" else None
            groups.append(Group(name, method, feedback, _published(same[0].options, method), tuple(same)))
    return tuple(groups)


def _published(options: Mapping[str, str], method: str) -> bool:
    """As in the paper: refinement by analyses, training by its algorithm; what was not recorded counts as such."""
    names = (*_ALGORITHM, *([FEEDBACK] if method == "refine" else []))
    return all(options.get(name, _DEFAULTS[name]) == _DEFAULTS[name] for name in names)


def _differing(runs: Sequence[Run], method: str) -> list[str]:
    """Options that make other methods of these runs; one that older runs did not record is none by that alone."""
    sections = (*_COMMON, *_SECTIONS.get(method, ()))
    names = dict.fromkeys(name for run in runs for name in run.options)
    return [
        name
        for name in names
        if (name.split(".")[0] in sections or name in _INPUTS or (name == _MODEL and method != "mlp"))
        and name not in _REPETITION
        and len({run.options[name] for run in runs if name in run.options}) > 1
    ]


def _usual(values: Sequence[str | None]) -> str | None:
    """The value that most have; `analysis` among kinds of feedback, which need not be most; None where none leads."""
    if "analysis" in values:
        return "analysis"
    ranked = Counter(value for value in values if value is not None).most_common(2)
    leads = ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1])
    return ranked[0][0] if leads else None


def _same_episodes(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The runs whose test episodes are those of most, in every stage; and the others."""

    def episodes(run: Run) -> tuple[tuple[float, ...], ...]:
        return tuple(sorted({tuple(map(float, part.values.columns)) for part in run.parts.parts.values()}))

    most = Counter(map(episodes, runs)).most_common(1)[0][0]
    if len(most) > 1:  # a run that differs within itself: nothing to hold others against
        most = most[:1]
    return [run for run in runs if episodes(run) == most], [run for run in runs if episodes(run) != most]


def _options(path: Path, gaps: list[str]) -> dict[str, str]:
    """The options of a run as `section.name` -> text; one that was not there yet has its default."""
    if not is_regular(path):
        return {}
    if path.stat().st_size > _LARGEST_CONFIG:
        gaps.append(f"{path.name} is too large to be one.")
        return {}
    try:
        read: JSON = yaml.safe_load(read_bytes(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        gaps.append(f"{path.name} cannot be read ({visible(str(error))[:200]}).")
        return {}
    given = _flat(read)
    sections = {name.split(".")[0] for name in given}
    # of a section that was not recorded nothing is known
    return {name: value for name, value in _DEFAULTS.items() if name.split(".")[0] in sections} | given


def _flat(config: JSON) -> dict[str, str]:
    return {
        f"{_text(section)}.{_text(name)}": _text(value)
        for section, entries in (config.items() if isinstance(config, dict) else ())
        for name, value in (entries.items() if isinstance(entries, dict) else ())
    }


def _text(value: JSON) -> str:
    """A scalar or a short list of them; anything deeper could be made to grow without end."""
    if isinstance(value, list) and len(value) < 20 and not any(isinstance(item, dict | list) for item in value):
        return visible(" ".join(_text(item) for item in value))[:_LONGEST_VALUE]
    if value is None or isinstance(value, str | int | float):
        return visible(str(value))[:_LONGEST_VALUE]
    return "..."


def _shown(value: str | None) -> str:
    """Of a long one, its two ends."""
    text = str(value)
    half = _LONGEST_SHOWN // 2
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: half - 1]}…{text[-half:]}"


_DEFAULTS: Mapping[str, str] = _flat(asdict(Config()))


def demonstrated(case: Case) -> float | None:
    """The demonstrator's level."""
    return case.record.demonstration.level


def chain(run: Run) -> str:
    """What its conversation is called: the recording's name, else the run's."""
    header = next((fact for fact in run.record.provenance if fact.name == "transcript"), None)
    named = next((fact.value for fact in header.parts if fact.name == "chain"), None) if header else None
    return str(named) if named not in (None, "") and run.parts.method != "mlp" else run.record.name
