"""The tracks of Gymnasium's CarRacing-v3: the same nodes, tiles and kerbs for the same seed, bit for bit.

A track is a closed chain of nodes. It grows like a car that steers towards twelve random checkpoints around a
circle; a later lap of that drive is cut out and closed. Everything here runs on the host in float64, in the
reference's own order of operations, because a rounding difference in an early node moves every later one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

# Gymnasium CarRacing-v3; lengths in metres, angles in radians
SCALE = 6.0
TRACK_RADIUS = 900 / SCALE
NODE_SPACING = 21 / SCALE
TURN_RATE = 0.31
HALF_WIDTH = 40 / SCALE
KERB_WIDTH = 8 / SCALE
KERB_RUN = 4
CHECKPOINTS = 12
MAX_DRIVE = 2500
DRIVE_LAPS = 5
START_ALPHA = 2 * math.pi * (-0.5) / CHECKPOINTS

Array = jax.Array | np.ndarray
Node = tuple[float, float, float, float]


@dataclass(frozen=True)
class Track:
    """One closed track.

    Attributes:
        nodes: columns alpha (polar angle, rad), beta (heading of the road: it runs along
            ``(-sin beta, cos beta)``, rad), x and y (m) of the centre line.
        kerbs: whether the tile that ends at the node carries a kerb.
    """

    nodes: Float[np.ndarray, " node 4"]
    kerbs: Bool[np.ndarray, " node"]

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def tiles(self) -> Float[np.ndarray, " node corner=4 2"]:
        """Corners (m) of each tile, which spans from the node before to its own: left, right, right, left."""
        edges = [(_beside(node, -HALF_WIDTH), _beside(node, HALF_WIDTH)) for node in self._rows()]
        return np.array([(*edges[i], edges[i - 1][1], edges[i - 1][0]) for i in range(len(edges))], np.float64)

    @property
    def kerb_tiles(self) -> Float[np.ndarray, " kerb corner=4 2"]:
        """Corners (m) of each kerb, on the inner side of its bend, in the order of the tiles."""
        rows = self._rows()
        corners = []
        for i in np.flatnonzero(self.kerbs):
            here, before = rows[i], rows[i - 1]
            side = float(np.sign(before[1] - here[1]))
            inner, outer = side * HALF_WIDTH, side * (HALF_WIDTH + KERB_WIDTH)
            corners.append((_beside(here, inner), _beside(here, outer), _beside(before, outer), _beside(before, inner)))
        return np.array(corners, np.float64).reshape(-1, 4, 2)

    def _rows(self) -> list[Node]:
        return [(alpha, beta, x, y) for alpha, beta, x, y in self.nodes.tolist()]


def generate(seed: int) -> Track:
    """The track that CarRacing-v3 builds first after ``reset(seed=seed)``, its retries included."""
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    while True:
        track = attempt(random)
        if track is not None:
            return track


def attempt(random: np.random.Generator) -> Track | None:
    """One try of the generator, or None where the drive does not close; draws 24 numbers from ``random``."""
    drive = list(_drive(_checkpoints(random)))
    crossings = [i for i in range(len(drive) - 1, 0, -1) if drive[i - 1][0] <= START_ALPHA < drive[i][0]]
    if len(crossings) < 2:
        return None
    lap = drive[crossings[1] : crossings[0] - 1]
    if _closing_gap(lap) > NODE_SPACING:
        return None
    nodes = np.array(lap, np.float64)
    return Track(nodes, np.asarray(kerbs(nodes[None, :, 1], np.array([len(lap)]))[0]))


def kerbs(beta: Float[Array, "track node"], length: Int[Array, " track"]) -> Bool[Array, "track node"]:
    """Which nodes carry a kerb: where the road has turned hard, and to one side, over four tiles.

    Args:
        beta: headings of the road (rad); what lies beyond a track's length is ignored.
        length: nodes of each track.
    """
    xp: Any = beta.__array_namespace__()
    nodes = xp.arange(beta.shape[1])
    loop = xp.take_along_axis(beta, xp.arange(-KERB_RUN, beta.shape[1]) % length[:, None], axis=1)
    turns = loop[:, 1:] - loop[:, :-1]
    left, right = True, True
    for k in range(KERB_RUN):
        turn = turns[:, k : k + len(nodes)]
        left, right = left & (turn > TURN_RATE * 0.2), right & (turn < -TURN_RATE * 0.2)
    bends = (left | right) & (nodes < length[:, None])

    # The reference spreads a bend's kerb over the three tiles before it, in place and in order: from the loop's
    # first tiles it reaches the last ones, which then spread it again.
    first, to_end = bends[:, : KERB_RUN - 1], length[:, None] - nodes
    for i in range(KERB_RUN - 1):
        bends = bends | (first[:, i, None] & (to_end >= 1) & (to_end < KERB_RUN - i))
    ahead = xp.pad(bends, ((0, 0), (0, KERB_RUN - 1)))
    spread = bends
    for k in range(1, KERB_RUN):
        spread = spread | ahead[:, k : k + len(nodes)]
    return spread


def _checkpoints(random: np.random.Generator) -> list[tuple[float, float, float]]:
    checkpoints = []
    for c in range(CHECKPOINTS):
        alpha = 2 * math.pi * c / CHECKPOINTS + random.uniform(0, 2 * math.pi * 1 / CHECKPOINTS)
        radius = random.uniform(TRACK_RADIUS / 3, TRACK_RADIUS)
        if c in (0, CHECKPOINTS - 1):
            # the stretch between the last and the first is where the cars start
            alpha, radius = 2 * math.pi * c / CHECKPOINTS, 1.5 * TRACK_RADIUS
        checkpoints.append((alpha, radius * math.cos(alpha), radius * math.sin(alpha)))
    return checkpoints


def _drive(checkpoints: list[tuple[float, float, float]]) -> Iterator[Node]:
    """Nodes of the drive from checkpoint to checkpoint, until its fifth lap ends or it takes too long."""
    x, y, beta = 1.5 * TRACK_RADIUS, 0.0, 0.0
    target, laps, on_far_side = 0, 0, False
    for _ in range(MAX_DRIVE):
        alpha = math.atan2(y, x)
        if on_far_side and alpha > 0:
            laps += 1
            on_far_side = False
        if alpha < 0:
            on_far_side = True
            alpha += 2 * math.pi
        alpha, target = _next_checkpoint(checkpoints, alpha, target)
        _, target_x, target_y = checkpoints[target % CHECKPOINTS]

        right_x, right_y = math.cos(beta), math.sin(beta)
        aside = right_x * (target_x - x) + right_y * (target_y - y)
        while beta - alpha > 1.5 * math.pi:
            beta -= 2 * math.pi
        while beta - alpha < -1.5 * math.pi:
            beta += 2 * math.pi
        before = beta
        aside *= SCALE
        if aside > 0.3:
            beta -= min(TURN_RATE, abs(0.001 * aside))
        if aside < -0.3:
            beta += min(TURN_RATE, abs(0.001 * aside))
        x += -right_y * NODE_SPACING
        y += right_x * NODE_SPACING
        yield alpha, before * 0.5 + beta * 0.5, x, y
        if laps >= DRIVE_LAPS:
            return


def _next_checkpoint(checkpoints: list[tuple[float, float, float]], alpha: float, target: int) -> tuple[float, int]:
    """The first checkpoint not yet passed; past the last of a lap, alpha starts again one turn lower."""
    while True:
        while True:
            if alpha <= checkpoints[target % CHECKPOINTS][0]:
                return alpha, target
            target += 1
            if target % CHECKPOINTS == 0:
                break
        alpha -= 2 * math.pi


def _closing_gap(lap: list[Node]) -> float:
    _, beta, first_x, first_y = lap[0]
    _, _, last_x, last_y = lap[-1]
    return float(
        np.sqrt(np.square(math.cos(beta) * (first_x - last_x)) + np.square(math.sin(beta) * (first_y - last_y)))
    )


def _beside(node: Node, rightward: float) -> tuple[float, float]:
    _, beta, x, y = node
    return x + rightward * math.cos(beta), y + rightward * math.sin(beta)
