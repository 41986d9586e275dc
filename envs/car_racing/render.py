"""Pictures of an episode: the road from above, turning with the car, and a map of the whole track.

Pillow and NumPy only; no display is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from envs.car_racing.dynamics import CENTRE, TIME_STEP, WHEEL_HALF_WIDTH, WHEEL_POSITIONS, WHEEL_RADIUS
from envs.car_racing.pool import LEAD, Tracks
from envs.car_racing.track import Track

if TYPE_CHECKING:
    from envs.car_racing.env import EnvParams, EnvState

SIZE = 400  # of a frame's sides, pixels
ZOOM = 8.0  # pixels per metre, near the car
CAR_AT = (SIZE / 2, 0.72 * SIZE)  # the car's place in the frame, pixels
MAP_SIZE = 96
MARGIN = 60.0  # of grass painted round the track, m
FINE = 4  # the car is drawn this much larger, then reduced
GRASS, DARK_GRASS = (108, 184, 92), (101, 176, 86)
ROAD = ((104, 104, 108), (107, 107, 111), (110, 110, 114))
KERBS = ((235, 235, 235), (214, 52, 48))
HULL, GLASS, TYRE, TRAIL, INK = (204, 28, 36), (44, 50, 62), (22, 22, 24), (248, 206, 70), (250, 250, 250)
# the hull's outline, m rightward and forward of its position (Gymnasium CarRacing-v3)
HULL_PARTS = (
    ((-1.2, 2.6), (1.2, 2.6), (1.2, 2.2), (-1.2, 2.2)),
    ((-0.3, 2.4), (0.3, 2.4), (0.4, 0.4), (-0.4, 0.4)),
    ((0.5, 0.4), (1.0, -0.2), (1.0, -0.8), (0.4, -1.8), (-0.4, -1.8), (-1.0, -0.8), (-1.0, -0.2), (-0.5, 0.4)),
    ((-1.0, -2.4), (1.0, -2.4), (1.0, -1.8), (-1.0, -1.8)),
)
COCKPIT = ((-0.35, 0.2), (0.35, 0.2), (0.3, -0.9), (-0.3, -0.9))


def render(states: EnvState, params: EnvParams) -> UInt8[np.ndarray, "time 400 400 3"]:
    """Draw the states of one episode, stacked along their leading dimension, one frame each.

    Raises:
        ValueError: the states are not a sequence, or lie on different tracks.
    """
    indices = np.asarray(states.track)
    if indices.ndim != 1 or len(indices) == 0 or (indices != indices[0]).any():
        raise ValueError("render draws one episode: stack its states along one leading dimension, all on one track")
    track = _track(params.tracks, int(indices[0]))
    angle = np.asarray(states.car.angle, np.float64)
    x = np.asarray(states.car.x, np.float64) + np.sin(angle) * CENTRE
    y = np.asarray(states.car.y, np.float64) - np.cos(angle) * CENTRE
    speed = np.hypot(np.asarray(states.car.velocity_x), np.asarray(states.car.velocity_y))
    steering, visited, time = (np.asarray(v) for v in (states.car.front_angle, states.tiles_visited, states.time))

    low = track.nodes[:, 2:].min(axis=0) - MARGIN
    ground = _ground(track, low)
    brush = ImageDraw.Draw(ground)
    chart, to_chart = _map(track)
    path = list(zip(((x - low[0]) * ZOOM).tolist(), ((y - low[1]) * ZOOM).tolist(), strict=True))
    frames = np.empty((len(x), SIZE, SIZE, 3), np.uint8)
    for t, frame in enumerate(frames):
        if t:
            brush.line(path[t - 1 : t + 1], fill=TRAIL, width=2)
        view = _view(ground, path[t], float(angle[t]))
        view.paste(*_car(float(steering[t])))
        pen = ImageDraw.Draw(view)
        view.paste(chart, (SIZE - MAP_SIZE - 8, 8), chart)
        dot = to_chart(np.array([x[t], y[t]])) + np.array([SIZE - MAP_SIZE - 8, 8])
        pen.ellipse((*(dot - 3), *(dot + 3)), fill=HULL, outline=INK)
        text = f"{time[t] * TIME_STEP:5.1f} s   {3.6 * speed[t]:3.0f} km/h   tiles {visited[t]}/{len(track)}"
        pen.text((10, 8), text, fill=INK, stroke_width=1, stroke_fill=TYRE)
        frame[:] = np.asarray(view)
    return frames


def _track(tracks: Tracks, index: int) -> Track:
    """The index-th track of the pool; polar angles, which nothing draws, are left 0."""
    nodes = slice(LEAD, LEAD + int(tracks.length[index]))
    beta, x, y = (np.asarray(values[index, nodes], np.float64) for values in (tracks.beta, tracks.x, tracks.y))
    kerbs = (np.asarray(tracks.kerbs[index, nodes]) & 1).astype(bool)
    return Track(np.stack([np.zeros_like(x), beta, x, y], axis=1), kerbs)


def _ground(track: Track, low: np.ndarray) -> Image.Image:
    """Grass, road and kerbs in world axes, y downwards in the image as it grows."""
    width, height = np.ceil((track.nodes[:, 2:].max(axis=0) + MARGIN - low) * ZOOM).astype(int).tolist()
    image = Image.new("RGB", (width, height), GRASS)
    pen = ImageDraw.Draw(image)
    patch = int(12 * ZOOM)
    for row in range(0, height, patch):
        for column in range((row // patch % 2) * patch, width, 2 * patch):
            pen.rectangle((column, row, column + patch - 1, row + patch - 1), fill=DARK_GRASS)
    for i, tile in enumerate((track.tiles - low) * ZOOM):
        pen.polygon(list(map(tuple, tile.tolist())), fill=ROAD[i % 3])
    for i, kerb in zip(np.flatnonzero(track.kerbs).tolist(), (track.kerb_tiles - low) * ZOOM, strict=True):
        pen.polygon(list(map(tuple, kerb.tolist())), fill=KERBS[i % 2])
    return image


def _view(ground: Image.Image, position: tuple[float, float], angle: float) -> Image.Image:
    """The ground round the car, the car's forward direction up."""
    sin, cos = np.sin(angle), np.cos(angle)
    # a pixel (u, v) of the frame lies u - CAR_AT[0] to the right of the car and CAR_AT[1] - v ahead of it
    across, along = (cos, sin, sin, -cos), CAR_AT
    offset_x = position[0] - across[0] * along[0] - across[1] * along[1]
    offset_y = position[1] - across[2] * along[0] - across[3] * along[1]
    return ground.transform(
        (SIZE, SIZE),
        Image.Transform.AFFINE,
        (across[0], across[1], offset_x, across[2], across[3], offset_y),
        Image.Resampling.BILINEAR,
        fillcolor=GRASS,
    )


def _car(steering: float) -> tuple[Image.Image, tuple[int, int], Image.Image]:
    """The car, nose up: what ``Image.paste`` takes."""
    half = 3.2  # m, more than the hull's reach
    scale = ZOOM * FINE
    image = Image.new("RGBA", (int(2 * half * scale),) * 2)
    pen = ImageDraw.Draw(image)

    def polygon(points: np.ndarray, colour: tuple[int, int, int]) -> None:
        pen.polygon([((half + px) * scale, (half - py) * scale) for px, py in points.tolist()], fill=colour)

    tyre = np.array([(-1, 1), (1, 1), (1, -1), (-1, -1)]) * (WHEEL_HALF_WIDTH, WHEEL_RADIUS)
    for wheel, turned in zip(WHEEL_POSITIONS, (steering, steering, 0.0, 0.0), strict=True):
        sin, cos = np.sin(turned), np.cos(turned)
        polygon(tyre @ np.array([(cos, sin), (-sin, cos)]) + wheel, TYRE)
    for part in HULL_PARTS:
        polygon(np.array(part), HULL)
    polygon(np.array(COCKPIT), GLASS)
    image = image.resize((int(2 * half * ZOOM),) * 2, Image.Resampling.LANCZOS)
    return image, (int(CAR_AT[0] - half * ZOOM), int(CAR_AT[1] - half * ZOOM)), image


def _map(track: Track) -> tuple[Image.Image, _ToMap]:
    """The whole track as a line on a transparent ground, north up, and the way from metres to its pixels."""
    to_map = _ToMap(track.nodes[:, 2:])
    image = Image.new("RGBA", (MAP_SIZE * FINE,) * 2, (0, 0, 0, 70))
    line = [tuple((FINE * to_map(node)).tolist()) for node in track.nodes[:, 2:]]
    ImageDraw.Draw(image).line([*line, line[0]], fill=INK, width=3 * FINE, joint="curve")
    return image.resize((MAP_SIZE,) * 2, Image.Resampling.LANCZOS), to_map


class _ToMap:
    """Metres to pixels of the map."""

    def __init__(self, nodes: np.ndarray) -> None:
        self.middle = (nodes.max(axis=0) + nodes.min(axis=0)) / 2
        self.scale = (MAP_SIZE - 14) / float((nodes.max(axis=0) - nodes.min(axis=0)).max())

    def __call__(self, position: np.ndarray) -> np.ndarray:
        return np.asarray(MAP_SIZE / 2 + self.scale * (position - self.middle) * np.array([1.0, -1.0]))
