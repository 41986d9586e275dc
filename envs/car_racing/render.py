"""Pictures of an episode: the road from above, turning with the car, and the whole track with the path driven.

Pillow and NumPy only; no display is needed. What is to be seen is a list of polygons (``Ground.shapes``,
``car_shapes``), so that a window on a screen can draw the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from envs.car_racing.dynamics import CENTRE, TIME_STEP, WHEEL_HALF_WIDTH, WHEEL_POSITIONS, WHEEL_RADIUS
from envs.car_racing.pool import LEAD, Tracks
from envs.car_racing.track import Track

if TYPE_CHECKING:
    from envs.car_racing.env import EnvParams, EnvState

Colour = tuple[int, int, int]
Points = list[tuple[float, float]]

SIZE = 400  # of a frame's sides, pixels
SPAN = 50.0  # of a frame's sides, m
CAR_HEIGHT = 0.72  # the car's place in the frame, share of the way down
MAP_SIZE = 96
TRAJECTORY_SIZE = 800
FINE = 2  # pictures are drawn this much larger, then reduced, which smooths their edges
PATCH = 12.0  # side of the squares of dark grass, by which one sees that one moves, m
MEADOW = 348.0  # how far they go, m from the origin; the playfield ends at 333
GRASS, DARK_GRASS = (108, 184, 92), (101, 176, 86)
ROAD = ((104, 104, 108), (107, 107, 111), (110, 110, 114))
KERBS = ((235, 235, 235), (214, 52, 48))
HULL, GLASS, TYRE, TRAIL, INK = (204, 28, 36), (44, 50, 62), (22, 22, 24), (248, 206, 70), (250, 250, 250)
SCALE_COLOURS = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)])  # viridis
SHADE = (0, 0, 0, 90)  # under text and chart, with its opacity
# outlines, m rightward and forward of the hull's position (the hull's: Gymnasium CarRacing-v3)
HULL_PARTS = (
    ((-1.2, 2.6), (1.2, 2.6), (1.2, 2.2), (-1.2, 2.2)),
    ((-0.3, 2.4), (0.3, 2.4), (0.4, 0.4), (-0.4, 0.4)),
    ((0.5, 0.4), (1.0, -0.2), (1.0, -0.8), (0.4, -1.8), (-0.4, -1.8), (-1.0, -0.8), (-1.0, -0.2), (-0.5, 0.4)),
    ((-1.0, -2.4), (1.0, -2.4), (1.0, -1.8), (-1.0, -1.8)),
)
COCKPIT = ((-0.35, 0.2), (0.35, 0.2), (0.3, -0.9), (-0.3, -0.9))
TYRE_OUTLINE = np.array([(-1, 1), (1, 1), (1, -1), (-1, -1)]) * (WHEEL_HALF_WIDTH, WHEEL_RADIUS)


class Pose(NamedTuple):
    """Where the hull is, m, and how it and its front wheels are turned, rad; numbers, or arrays over time."""

    x: Any
    y: Any
    angle: Any
    steering: Any


def pose_of(car: Any) -> Pose:
    """The pose in a ``dynamics.Car``, of one state or of a sequence."""
    x, y, angle, steering = (np.asarray(v, np.float64) for v in (car.x, car.y, car.angle, car.front_angle))
    return Pose(x + np.sin(angle) * CENTRE, y - np.cos(angle) * CENTRE, angle, steering)


@dataclass(frozen=True)
class Camera:
    """Looks down on a square of the world.

    Attributes:
        x, y: the point looked at, m.
        angle: the heading that points up in the picture, rad, as a hull's angle.
        size: of the picture's sides, pixels.
        span: of the picture's sides, m.
        height: where the point looked at lies, share of the way from the picture's upper edge to its lower.
    """

    x: float
    y: float
    angle: float
    size: int
    span: float
    height: float = 0.5

    @classmethod
    def behind(cls, pose: Pose, size: int, span: float = SPAN) -> Camera:
        """Moves and turns with the car."""
        return cls(float(pose.x), float(pose.y), float(pose.angle), size, span, CAR_HEIGHT)

    @classmethod
    def above(cls, track: Track, size: int, margin: float) -> Camera:
        """Sees the whole track and ``margin`` metres round it, y upwards."""
        low, high = track.nodes[:, 2:].min(axis=0), track.nodes[:, 2:].max(axis=0)
        x, y = ((low + high) / 2).tolist()
        return cls(x, y, 0.0, size, float((high - low).max()) + 2 * margin)

    @property
    def reach(self) -> float:
        """Nothing further than this from the point looked at is in the picture, m."""
        return self.span * math.hypot(0.5, max(self.height, 1 - self.height))

    def pixels(self, points: Float[np.ndarray, "*shape 2"]) -> Float[np.ndarray, "*shape 2"]:
        """World coordinates (m) to the picture's, rightward and downward."""
        scale = self.size / self.span
        sin, cos = scale * math.sin(self.angle), scale * math.cos(self.angle)
        offset = points - np.array([self.x, self.y])
        return offset @ np.array([(cos, sin), (sin, -cos)]) + np.array([0.5, self.height]) * self.size


class Ground:
    """Grass, road and kerbs of one track, as quadrilaterals in the order in which they cover one another."""

    def __init__(self, track: Track) -> None:
        steps = np.arange(-MEADOW, MEADOW, PATCH)
        corner = np.array([(0, 0), (1, 0), (1, 1), (0, 1)]) * PATCH
        odd = [(x, y) for i, x in enumerate(steps) for y in steps[i % 2 :: 2]]
        grass = np.array(odd)[:, None] + corner
        kerb_colours = [KERBS[i % 2] for i in np.flatnonzero(track.kerbs).tolist()]
        self._corners = np.concatenate([grass, track.tiles, track.kerb_tiles])
        self._colours = [*[DARK_GRASS] * len(grass), *(ROAD[i % 3] for i in range(len(track))), *kerb_colours]
        self._centres = self._corners.mean(axis=1)
        self._radius = float(np.linalg.norm(self._corners - self._centres[:, None], axis=2).max())

    def shapes(self, camera: Camera) -> Iterator[tuple[Points, Colour]]:
        """What the camera sees of it, on a picture filled with ``GRASS``: polygons in pixels."""
        away = np.square(self._centres - (camera.x, camera.y)).sum(axis=1)
        seen = np.flatnonzero(away < (camera.reach + self._radius) ** 2)
        for i, corners in zip(seen.tolist(), camera.pixels(self._corners[seen]).tolist(), strict=True):
            yield list(map(tuple, corners)), self._colours[i]


def car_shapes(pose: Pose, camera: Camera) -> Iterator[tuple[Points, Colour]]:
    """The car from above: polygons in pixels."""
    turned = TYRE_OUTLINE @ _rotation(float(pose.steering))
    wheels = [(turned if forward > 0 else TYRE_OUTLINE) + (right, forward) for right, forward in WHEEL_POSITIONS]
    parts = [*wheels, *HULL_PARTS, COCKPIT]
    world = np.concatenate(parts) @ _rotation(float(pose.angle)) + (float(pose.x), float(pose.y))
    corners = iter(map(tuple, camera.pixels(world).tolist()))
    for part, colour in zip(parts, [*[TYRE] * 4, *[HULL] * 4, GLASS], strict=True):
        yield list(islice(corners, len(part))), colour


def path_lines(path: Float[np.ndarray, "time 2"], camera: Camera) -> Iterator[Points]:
    """The stretches of a path (m) that the camera sees: lines in pixels."""
    seen = np.flatnonzero(np.square(path - (camera.x, camera.y)).sum(axis=1) < (camera.reach + 2.0) ** 2)
    for stretch in np.split(seen, np.flatnonzero(np.diff(seen) > 1) + 1):
        if len(stretch) > 1:
            yield list(map(tuple, camera.pixels(path[stretch]).tolist()))


def render(states: EnvState, params: EnvParams) -> UInt8[np.ndarray, "time 400 400 3"]:
    """Draw the states of one episode, stacked along their leading dimension, one frame each.

    Raises:
        ValueError: the states are not a sequence, or lie on different tracks.
    """
    track = _track_of_episode(states, params)
    ground, poses = Ground(track), pose_of(states.car)
    path = np.stack([poses.x, poses.y], axis=1)
    chart, to_chart = _chart(track)
    chart_at = (SIZE - MAP_SIZE - 8, 8)
    plate = Image.new("RGBA", (190, 22), SHADE)
    dots = to_chart.pixels(path) + np.array(chart_at)
    speed = np.hypot(np.asarray(states.car.velocity_x), np.asarray(states.car.velocity_y))
    visited, time = np.asarray(states.tiles_visited), np.asarray(states.time)
    frames = np.empty((len(path), SIZE, SIZE, 3), np.uint8)
    for t, frame in enumerate(frames):
        pose = Pose(*(values[t] for values in poses))
        view = _view(ground, pose, path[: t + 1])
        view.paste(chart, chart_at, chart)
        view.paste(plate, (8, 8), plate)
        pen = ImageDraw.Draw(view)
        pen.ellipse((*(dots[t] - 3), *(dots[t] + 3)), fill=HULL, outline=INK)
        text = f"{time[t] * TIME_STEP:5.1f} s   {3.6 * speed[t]:3.0f} km/h   tiles {visited[t]}/{len(track)}"
        pen.text((14, 12), text, fill=INK, font=_font())
        frame[:] = np.asarray(view)
    return frames


def trajectory(
    states: EnvState, params: EnvParams, values: Float[np.ndarray, " time"] | None = None, label: str = "speed, m/s"
) -> UInt8[np.ndarray, "800 800 3"]:
    """Draw the whole track, y upwards, and the path of one episode coloured by a value of every state.

    Args:
        states: of one episode, stacked along their leading dimension; the car is drawn as it stands in the last.
        params: hold the track.
        values: one for every state; the speed (m/s) when absent.
        label: what the values are, for the legend.

    Raises:
        ValueError: the states are not a sequence or lie on different tracks, or the values do not match them or are
            not finite.
    """
    track = _track_of_episode(states, params)
    poses = pose_of(states.car)
    if values is None:
        values = np.hypot(np.asarray(states.car.velocity_x), np.asarray(states.car.velocity_y))
    values = np.asarray(values, np.float64)
    if values.shape != poses.x.shape or not np.isfinite(values).all():
        raise ValueError(f"trajectory needs a finite value for each of {len(poses.x)} states; got {values.shape}")
    camera = Camera.above(track, FINE * TRAJECTORY_SIZE, margin=25.0)
    image, pen = _paper(camera.size)
    for corners, colour in Ground(track).shapes(camera):
        pen.polygon(corners, fill=colour)
    low, high = float(values.min()), float(values.max())
    points = camera.pixels(np.stack([poses.x, poses.y], axis=1))
    colours = _on_scale((values - low) / max(high - low, 1e-12))
    for t in range(1, len(points)):
        pen.line([tuple(points[t - 1]), tuple(points[t])], fill=tuple(colours[t].tolist()), width=3 * FINE)
    for corners, colour in car_shapes(Pose(*(v[-1] for v in poses)), camera):
        pen.polygon(corners, fill=colour)
    image = image.reduce(FINE)
    bar = np.repeat(_on_scale(np.linspace(0, 1, 160))[None], 12, axis=0)
    image.paste(Image.fromarray(bar), (16, 16))
    pen = ImageDraw.Draw(image)
    pen.text((16, 32), f"{low:.3g}", fill=TYRE, font=_font())
    pen.text((176, 32), f"{high:.3g}", fill=TYRE, font=_font(), anchor="ra")
    pen.text((96, 32), label, fill=TYRE, font=_font(), anchor="ma")
    return np.asarray(image)


def track_of(tracks: Tracks, index: int) -> Track:
    """The index-th track of the pool; polar angles, which nothing draws, are left 0."""
    nodes = slice(LEAD, LEAD + int(tracks.length[index]))
    beta, x, y = (np.asarray(values[index, nodes], np.float64) for values in (tracks.beta, tracks.x, tracks.y))
    kerbs = (np.asarray(tracks.kerbs[index, nodes]) & 1).astype(bool)
    return Track(np.stack([np.zeros_like(x), beta, x, y], axis=1), kerbs)


def _track_of_episode(states: EnvState, params: EnvParams) -> Track:
    indices = np.asarray(states.track)
    if indices.ndim != 1 or len(indices) == 0 or (indices != indices[0]).any():
        raise ValueError("one episode is drawn: stack its states along one leading dimension, all on one track")
    return track_of(params.tracks, int(indices[0]))


def _view(ground: Ground, pose: Pose, path: np.ndarray) -> Image.Image:
    """The ground round the car, the path so far and the car, its forward direction up."""
    camera = Camera.behind(pose, FINE * SIZE)
    image, pen = _paper(camera.size)
    for corners, colour in ground.shapes(camera):
        pen.polygon(corners, fill=colour)
    for line in path_lines(path, camera):
        pen.line(line, fill=TRAIL, width=2 * FINE)
    for corners, colour in car_shapes(pose, camera):
        pen.polygon(corners, fill=colour)
    return image.reduce(FINE)


def _paper(size: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (size, size), GRASS)
    return image, ImageDraw.Draw(image)


def _chart(track: Track) -> tuple[Image.Image, Camera]:
    """The whole track as a line on a darkened ground, and the camera that sees it so."""
    camera = Camera.above(track, MAP_SIZE, margin=25.0)
    image = Image.new("RGBA", (MAP_SIZE * FINE,) * 2, SHADE)
    line = list(map(tuple, (FINE * camera.pixels(track.nodes[:, 2:])).tolist()))
    ImageDraw.Draw(image).line([*line, line[0]], fill=INK, width=3 * FINE, joint="curve")
    return image.reduce(FINE), camera


def _on_scale(shares: Float[np.ndarray, " n"]) -> UInt8[np.ndarray, "n 3"]:
    knots = np.linspace(0, 1, len(SCALE_COLOURS))
    return np.stack([np.interp(shares, knots, channel) for channel in SCALE_COLOURS.T], axis=1).astype(np.uint8)


def _rotation(angle: float) -> Float[np.ndarray, "2 2"]:
    """Turns row vectors counter-clockwise."""
    sin, cos = math.sin(angle), math.cos(angle)
    return np.array([(cos, sin), (-sin, cos)])


@cache
def _font() -> Any:
    return ImageFont.load_default()  # which reads it anew at every call
