"""A round's episodes from above, and its film, from files that a jailed process wrote.

A path is drawn once, in short pieces; each piece has a class for its shade by speed and one for its shade by every
latent, and the style sheet shows those of the quantity whose radio button is chosen.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxrefine.report.archive import read_arrays
from jaxrefine.report.lines import spaced
from jaxrefine.report.rollouts import Driven, Rollouts
from jaxrefine.report.svg import plain
from jaxrefine.report.untrusted import is_regular

SIDE, MARGIN = 300.0, 14.0  # of a picture, CSS pixels
POINTS = 220  # of a path, and of an outline
SHADES = 12  # the style sheet has as many
LETTERS = "abcdefghi"  # of the quantities, in the style sheet
NARROWEST, WIDEST = 1e-6, 1e9  # of all pictures, metres: beyond them a scale is no number of pixels
MOST_FILM = 2_000_000  # bytes
# how a file begins -> what it is
_KINDS = {rb"GIF8[79]a": "image/gif", rb"RIFF....WEBP": "image/webp"}

Point = tuple[float, float]
Pair = tuple[str, str]


@dataclass(frozen=True)
class Quantity:
    """What paths may be coloured by, and the values at the scale's ends, which all pictures of a round share."""

    label: str
    low: float
    high: float


@dataclass(frozen=True)
class Panel:
    """One episode from above, in CSS pixels.

    Attributes:
        driven: The episode.
        value: Of the metric, None where it is not known.
        outlines: Paths of what stands still.
        marks: Points with their names.
        pieces: Of the ways driven, each with its classes.
        starts: Where each thing that moves began, with its name.
    """

    driven: Driven
    value: float | None
    outlines: tuple[str, ...]
    marks: tuple[tuple[Point, str], ...]
    pieces: tuple[tuple[str, str], ...]
    starts: tuple[tuple[Point, str], ...]


@dataclass(frozen=True)
class Scene:
    """A round's episodes from above, all to one scale, in pictures as wide as `SIDE` and of this height."""

    quantities: tuple[Quantity, ...]
    panels: tuple[Panel, ...]
    height: float


@dataclass(frozen=True)
class _View:
    """From metres to pixels, y upwards."""

    centre: np.ndarray
    scale: float
    height: float

    def at(self, points: np.ndarray) -> np.ndarray:
        moved = (points - self.centre) * (self.scale, -self.scale) + (SIDE / 2, self.height / 2)
        return np.asarray(moved.round(1))


def scene(folder: Path, rollouts: Rollouts, gaps: list[str]) -> Scene | None:
    """The top views of a round's episodes; None where their places are not known.

    Args:
        folder: The round's, with the outlines that are drawn under the paths.
        rollouts: Its episodes.
        gaps: Receives a sentence for a file that is there and cannot be read.
    """
    episodes = [driven.table for driven in rollouts.episodes]
    things = _things(list(episodes[0].columns))
    if not things:
        return None
    arrays = read_arrays(folder / "scene.npz", gaps)
    known = arrays.get("values", np.empty(0)).ravel()
    values = [float(value) if np.isfinite(value) else None for value in known]
    outlines = [_outlines(arrays, place) for place in range(len(episodes))]
    paths = [{name: table[list(pair)].to_numpy() for name, pair in things.items()} for table in episodes]
    corners = [_corners([*p.values(), *lines.values()]) for p, lines in zip(paths, outlines, strict=True)]
    with np.errstate(over="ignore"):
        spans = np.array([np.ptp(points, axis=0) for points in corners])
    if not NARROWEST < spans.max() < WIDEST:
        return None
    scale = (SIDE - 2 * MARGIN) / float(spans.max())
    height = round(float(spans[:, 1].max()) * scale + 2 * MARGIN, 1)
    series = _series(rollouts, next(iter(things.values())))
    ranges = {label: _range(columns) for label, columns in series.items()}
    panels = []
    for place, driven in enumerate(rollouts.episodes):
        low, high = corners[place].min(axis=0), corners[place].max(axis=0)
        view = _View((low + high) / 2, scale, height)
        shades = [_shades(columns[place], *ranges[label]) for label, columns in series.items()]
        lines = {name: view.at(_thinned(line)) for name, line in outlines[place].items()}
        ways = {name: view.at(path) for name, path in paths[place].items()}
        panels.append(
            Panel(
                driven=driven,
                value=values[place] if place < len(values) else None,
                outlines=tuple(_path(line) for line in lines.values() if len(line) > 1),
                marks=tuple((_point(line[0]), plain(name)) for name, line in lines.items() if len(line) == 1),
                pieces=tuple(piece for way in ways.values() for piece in _pieces(way, shades)),
                starts=tuple((_point(way[0]), plain(name)) for name, way in ways.items() if np.isfinite(way[0]).all()),
            )
        )
    return Scene(tuple(Quantity(label, *ranges[label]) for label in series), tuple(panels), height)


def film(folder: Path, gaps: list[str]) -> str | None:
    """The round's film as a `data:` address; None where there is none, or what is there is no film or too large."""
    for path in (folder / "film.webp", folder / "film.gif"):
        if not is_regular(path):
            continue
        said = f"{folder.name}/{path.name}"
        if path.stat().st_size > MOST_FILM:
            gaps.append(f"{said} has {path.stat().st_size:,} bytes, more than a page should; open it by itself.")
            continue
        with path.open("rb") as file:
            content = file.read(MOST_FILM)
        kinds = [kind for begin, kind in _KINDS.items() if re.match(begin, content, re.DOTALL)]
        if kinds:
            return f"data:{kinds[0]};base64,{base64.b64encode(content).decode('ascii')}"
        gaps.append(f"{said} is neither WebP nor GIF.")
    return None


def _things(columns: Sequence[str]) -> dict[str, Pair]:
    """What moves, by name (of a single thing: nothing), with the columns of its x and y."""
    names = [re.fullmatch(r"place_(?:(.*)_)?x", column) for column in columns]
    pairs = {(match[1] or ""): (match[0], match[0][:-1] + "y") for match in names if match}
    return {name: pair for name, pair in list(pairs.items())[:4] if pair[1] in columns}


def _outlines(arrays: dict[str, np.ndarray], place: int) -> dict[str, np.ndarray]:
    """What stands still in one of the episodes: names -> points of shape (n, 2), all finite."""
    begin = f"outline_{place}_"
    lines = {name.removeprefix(begin): value for name, value in arrays.items() if name.startswith(begin)}
    return {
        name: line[:, :2]
        for name, line in list(lines.items())[:16]
        if line.ndim == 2 and line.shape[0] and line.shape[1] in (2, 3) and np.isfinite(line).all()
    }


def _corners(parts: Sequence[np.ndarray]) -> np.ndarray:
    points = np.concatenate(parts)
    points = points[np.isfinite(points).all(axis=1)]
    return points if len(points) else np.zeros((1, 2))


def _series(rollouts: Rollouts, pair: Pair) -> dict[str, list[np.ndarray]]:
    """What the paths may be coloured by, over the steps of each episode: speed first, then the latents."""
    tables = [driven.table for driven in rollouts.episodes]
    found: dict[str, list[np.ndarray]] = {}
    if "place_speed" in tables[0].columns:
        found["speed, m/s"] = [table["place_speed"].to_numpy() for table in tables]
    else:
        ways = [table[list(pair)].to_numpy() for table in tables]
        found["speed, m a step"] = [np.linalg.norm(np.diff(way, axis=0, append=way[-1:]), axis=1) for way in ways]
    for name in rollouts.latents:
        label = plain(name.removeprefix("latent_").replace("_", " "))
        found.setdefault(label, [table[name].to_numpy() for table in tables])
    return dict(list(found.items())[: len(LETTERS)])


def _range(columns: Sequence[np.ndarray]) -> tuple[float, float]:
    """From a low to a high quantile, so that a single jump does not take all of the scale."""
    values = np.concatenate(columns)
    values = values[np.isfinite(values)]
    return (float(np.quantile(values, 0.01)), float(np.quantile(values, 0.99))) if values.size else (0.0, 0.0)


def _shades(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """The shade of each value, -1 where it is not finite."""
    share = np.clip((values - low) / ((high - low) or 1.0), 0.0, 1.0)
    return np.where(np.isfinite(values), np.minimum(np.nan_to_num(share) * SHADES, SHADES - 1), -1).astype(int)


def _pieces(way: np.ndarray, shades: Sequence[np.ndarray]) -> list[tuple[str, str]]:
    """A way in pieces from one of its points to the next, each with its classes; those that go nowhere joined."""
    kept = spaced(len(way), POINTS)
    found: list[tuple[str, str]] = []
    for start, end in itertools.pairwise(kept):
        ends = way[[start, end]]
        if np.isfinite(ends).all() and (ends[0] != ends[1]).any():
            of = [f"{letter}{row[start]}" for letter, row in zip(LETTERS, shades, strict=False) if row[start] >= 0]
            found.append((_path(ends), " ".join(of)))
    return found


def _thinned(line: np.ndarray) -> np.ndarray:
    return line[spaced(len(line), POINTS)]


def _path(points: np.ndarray) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points.tolist())


def _point(point: np.ndarray) -> Point:
    return float(point[0]), float(point[1])
