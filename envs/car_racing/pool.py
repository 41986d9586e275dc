"""A pool of tracks as arrays, shared by every environment of a batch.

The nodes of a track are repeated round the loop to a common length, so that a window of consecutive nodes is a
contiguous slice whatever its start, and pools of any size give states of the same shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct

from envs.car_racing import contact
from envs.car_racing.batching import Leaf
from envs.car_racing.schema import TILES
from envs.car_racing.start import Start, start_of
from envs.car_racing.track import Track, generate

WORD = 32
WORDS = 13
MAX_NODES = WORDS * WORD  # the generator's longest tracks have about 390 nodes
LEAD = -contact.FIRST_NODE  # columns before node 0
COLUMNS = LEAD + MAX_NODES + TILES + 1


class Starts(struct.PyTreeNode):
    """States of the episodes at their first observation, one per track (``start.Start``)."""

    x: Leaf  # (track,), m
    y: Leaf
    angle: Leaf  # (track,), rad
    wheel_angle: Leaf
    nearest: Leaf  # (track,), node
    on_road: Leaf  # (track,), bits as in the environment's state
    touching: Leaf
    visited: Leaf  # (13, track)


class Tracks(struct.PyTreeNode):
    """A pool of tracks.

    Column ``LEAD + i`` of a row belongs to node ``i`` modulo the track's length.
    """

    length: Leaf  # (track,), nodes
    x: Leaf  # (track, column), m
    y: Leaf
    beta: Leaf  # (track, column), heading of the road, rad
    kerbs: Leaf  # (track, column); bit k: node i + k carries a kerb, k = 0..12
    starts: Starts

    @property
    def count(self) -> int:
        """Number of tracks."""
        return int(self.length.shape[0])


def build(tracks: Sequence[Track]) -> Tracks:
    """Put tracks into one pool, in JAX's default precision.

    Raises:
        ValueError: there is no track, or one is longer than ``MAX_NODES``.
    """
    if not tracks:
        raise ValueError("a pool needs at least one track; give at least one seed")
    longest = max(len(track) for track in tracks)
    if longest > MAX_NODES:
        raise ValueError(f"a track of {longest} nodes is too long: states hold {MAX_NODES} visited tiles")
    real = jnp.result_type(float)
    wrapped = [(np.arange(COLUMNS) - LEAD) % len(track) for track in tracks]
    rows = np.stack([track.nodes[index] for track, index in zip(tracks, wrapped, strict=True)])
    starts = [start_of(track) for track in tracks]
    return Tracks(
        length=jnp.asarray([len(track) for track in tracks], jnp.int32),
        x=jnp.asarray(rows[..., 2], real),
        y=jnp.asarray(rows[..., 3], real),
        beta=jnp.asarray(rows[..., 1], real),
        kerbs=jnp.asarray(np.stack([_kerb_masks(track)[index] for track, index in zip(tracks, wrapped, strict=True)])),
        starts=_stack_starts(starts, real),
    )


def from_seeds(seeds: Sequence[int]) -> Tracks:
    """The tracks that CarRacing-v3 builds for these seeds, in order."""
    return build([generate(seed) for seed in seeds])


def _kerb_masks(track: Track) -> np.ndarray:
    ahead = (np.arange(len(track))[:, None] + np.arange(TILES + 1)) % len(track)
    return _bits(track.kerbs[ahead].T)


def _stack_starts(starts: list[Start], real: np.dtype) -> Starts:
    visited = np.zeros((len(starts), MAX_NODES), bool)
    for row, start in zip(visited, starts, strict=True):
        row[start.visited] = True
    return Starts(
        x=jnp.asarray([start.x for start in starts], real),
        y=jnp.asarray([start.y for start in starts], real),
        angle=jnp.asarray([start.angle for start in starts], real),
        wheel_angle=jnp.asarray([start.wheel_angle for start in starts], real),
        nearest=jnp.asarray([start.nearest for start in starts], jnp.int32),
        on_road=jnp.asarray(_bits(np.stack([start.on_road for start in starts], axis=1))),
        touching=jnp.asarray(_bits(np.stack([start.touching.ravel() for start in starts], axis=1))),
        visited=jnp.asarray(np.stack([_bits(word) for word in np.split(visited.T, WORDS)])),
    )


def _bits(flags: np.ndarray) -> np.ndarray:
    """Packs the leading dimension, bit 0 first."""
    weights = np.left_shift(np.uint32(1), np.arange(len(flags), dtype=np.uint32))
    return (flags.astype(np.uint32) * weights.reshape(-1, *(1,) * (flags.ndim - 1))).sum(0, dtype=np.uint32)
