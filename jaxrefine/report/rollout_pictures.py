"""The part of the page on a round's episodes: traces, top views and film."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from jaxrefine.report.record import Record
from jaxrefine.report.rollouts import Driven, Rollouts, read_rollouts
from jaxrefine.report.scenes import Scene, film, scene
from jaxrefine.report.traces import Column, traces


@dataclass(frozen=True)
class RolloutPictures:
    """What is shown of one round.

    Attributes:
        rollouts: The episodes, None where nothing is known of any.
        progress: How each came along, step by step: the figure and what it is of.
        traces: Actions and latents.
        since: The round whose traces stand beside, None without one.
        scene: The top views.
        film: A `data:` address.
        gaps: A sentence for every file that could not be used.
    """

    rollouts: Rollouts | None
    progress: Markup | None
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
                found[entry.index] = RolloutPictures(None, None, (), None, None, moving, tuple(gaps))
            continue
        now = Column(entry.index, rollouts)
        found[entry.index] = RolloutPictures(
            rollouts,
            _progress(now, before),
            traces(f"traces-{entry.index}", now, before),
            before.round if before else None,
            scene(folder, rollouts, gaps),
            moving,
            tuple(gaps),
        )
        # a rejected revision is no round's start
        before = now if entry.accepted is not False else before
    return found


def _progress(now: Column, before: Column | None) -> Markup | None:
    """What the metric is of over time: a distance as it is, rewards summed up to each step."""
    after = _with_progress(now)
    if after is None:
        return None
    earlier = None if before is None else _with_progress(before)
    if earlier is not None and earlier.rollouts.actions != after.rollouts.actions:
        earlier = None
    return traces(f"progress-{now.round}", after, earlier)[0]


def _with_progress(column: Column) -> Column | None:
    episodes = [_progressing(driven) for driven in column.rollouts.episodes]
    kept = [driven for driven in episodes if driven is not None]
    if len(kept) != len(episodes):
        return None
    names = [name for name in kept[0].table.columns if name != "t"]
    return Column(column.round, Rollouts(tuple(kept), column.rollouts.source, tuple(names), (), False))


def _progressing(driven: Driven) -> Driven | None:
    table = driven.table
    measured = next((name for name in table.columns if name.startswith("value_") and name != "value_reward"), None)
    axes = [axis for axis in "xyz" if {f"obs_handle_{axis}", f"obs_target_{axis}"} <= set(table.columns)]
    shown = table[["t"]]
    if measured is not None:
        shown = shown.assign(**{measured.removeprefix("value_"): table[measured]})
    elif axes:
        handle, target = (table[[f"obs_{what}_{axis}" for axis in axes]].to_numpy() for what in ("handle", "target"))
        shown = shown.assign(handle_distance=np.linalg.norm(handle - target, axis=1))
    elif "reward" in table.columns:
        shown = shown.assign(return_so_far=table["reward"].cumsum())
    else:
        return None
    return Driven(driven.role, driven.episode, driven.reward, shown)
