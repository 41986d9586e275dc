"""What other viewers are given of a run: the report's own numbers, in a folder that is whole or absent."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jaxrefine.errors import UserError
from jaxrefine.report.record import Record
from jaxrefine.report.rounds import Round
from jaxrefine.report.training import Budget, Line, read_training
from jaxrefine.run.files import TEMPORARY_PREFIX


@dataclass(frozen=True)
class Curves:
    """Named numbers over one axis; what is not finite is left out.

    Attributes:
        name: Such as `rounds` or `rl/400/seed_0`.
        axis: What is counted: `round`, or `resets` of one seed.
        points: At each step of the axis, the numbers by name, such as `metric/mean`.
    """

    name: str
    axis: str
    points: tuple[tuple[int, Mapping[str, float]], ...]


def curves_of(record: Record) -> tuple[Curves, ...]:
    """Rounds first, then every seed of every training budget; none where there are no numbers."""
    found = [Curves("rounds", "round", _finite({entry.index: _round(record, entry) for entry in record.rounds}))]
    for budget in read_training(record.path).budgets:
        found += _seeds(budget)
    return tuple(curves for curves in found if curves.points)


def _round(record: Record, entry: Round) -> dict[str, float | None]:
    fits = entry.fits.means if entry.fits else ()
    # as the report counts: all calls up to this round's last one
    asked = [call for call in record.exchanges if call.round is not None and call.round <= entry.index]
    return {
        "metric/mean": entry.evaluation.mean if entry.evaluation else None,
        "metric/std": entry.evaluation.std if entry.evaluation else None,
        **{f"metric/fit_seed_{seed}": mean for seed, mean in enumerate(fits)},
        "validation/mean": entry.validation.mean if entry.validation else None,
        "nll/train": entry.nll_train,
        "nll/validation": entry.nll_validation,
        "model/calls": float(len(asked)),
        "model/input_tokens": float(sum(call.input_tokens for call in asked)),
        "model/output_tokens": float(sum(call.output_tokens for call in asked)),
        "model/reasoning_tokens": float(sum(call.reasoning_tokens for call in asked)),
    }


def _seeds(budget: Budget) -> Iterator[Curves]:
    lines: dict[str, Line] = {**budget.curves, **({"test": budget.looks} if budget.looks else {})}
    ends = budget.final.by_seed if budget.final else ()
    for seed in range(max([len(ends), *(len(line.values) for line in lines.values())])):
        points: dict[int, dict[str, float | None]] = {}
        for name, line in lines.items():
            for resets, value in zip(line.resets, line.values[seed : seed + 1].ravel(), strict=False):
                points.setdefault(int(resets), {})[name] = float(value)
        if seed < len(ends):
            points.setdefault(int(budget.name), {})["evaluation"] = float(ends[seed])
        yield Curves(f"rl/{budget.name}/seed_{seed}", "resets", _finite(points))


def _finite(points: Mapping[int, Mapping[str, float | None]]) -> tuple[tuple[int, Mapping[str, float]], ...]:
    kept = (
        (step, {name: value for name, value in points[step].items() if value is not None and math.isfinite(value)})
        for step in sorted(points)
    )
    return tuple((step, values) for step, values in kept if values)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder beside `target` to write to; on success it replaces `target`, on any exception it goes.

    Raises:
        UserError: The folder cannot be written, or the disk is full.
    """
    fresh, old = (target.with_name(f"{TEMPORARY_PREFIX}{target.name}{end}") for end in ("", "-old"))
    try:
        _restore(old, target)  # of a process that was killed between its two renames
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)
        fresh.mkdir()
        try:
            yield fresh
            if target.exists():
                target.rename(old)
            try:
                fresh.rename(target)
            except BaseException:
                _restore(old, target)
                raise
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise UserError(f"Cannot write {target}: {error.strerror or error}.") from error


def _restore(old: Path, target: Path) -> None:
    if old.exists() and not target.exists():
        old.rename(target)
