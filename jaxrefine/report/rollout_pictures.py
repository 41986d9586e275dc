"""The part of the page on a round's episodes: traces, top views and film."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, TypeVar

from markupsafe import Markup

from jaxrefine.report.record import Record
from jaxrefine.report.rollouts import Rollouts, read_rollouts
from jaxrefine.report.scenes import Scene, film, scene
from jaxrefine.report.traces import Column, traces

_Drawn = TypeVar("_Drawn")


@dataclass(frozen=True)
class RolloutPictures:
    """What is shown of one round.

    Attributes:
        rollouts: The episodes, None where nothing is known of any.
        traces: How far they had come, actions and latents, over time.
        since: The round whose traces stand beside, None without one.
        scene: The top views.
        film: A `data:` address.
        gaps: A sentence for every file that could not be used.
    """

    rollouts: Rollouts | None
    traces: tuple[Markup, ...]
    since: int | None
    scene: Scene | None
    film: str | None
    gaps: tuple[str, ...]


def rollout_pictures(record: Record) -> dict[int, RolloutPictures]:
    """The pictures of every round that has some, by the round's number."""
    found = {}
    before: Column | None = None
    for entry in record.rounds:
        gaps: list[str] = []
        folder = record.path / f"round_{entry.index}"
        rollouts = read_rollouts(folder, gaps, record.metric.higher_is_better)
        moving = film(folder, gaps)
        if rollouts is None:
            if moving or gaps:
                found[entry.index] = RolloutPictures(None, (), None, None, moving, tuple(gaps))
            continue
        now = Column(entry.index, rollouts)
        # drawing PDFs takes longer than all the rest, so they are kept of the best round's figures alone
        call = _call if entry.index == record.best_round else Context().run
        found[entry.index] = RolloutPictures(
            rollouts,
            call(traces, f"traces-{entry.index}", now, before),
            before.round if before else None,
            scene(folder, rollouts, gaps),
            moving,
            tuple(gaps),
        )
        # a rejected revision is no round's start
        before = now if entry.accepted is not False else before
    return found


def _call(function: Callable[..., _Drawn], *arguments: Any) -> _Drawn:
    return function(*arguments)
