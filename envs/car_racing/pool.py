"""A pool of tracks as arrays, shared by every environment of a batch.

The nodes of a track are repeated round the loop to a common length, so that a window of consecutive nodes is a
contiguous slice whatever its start, and pools of any size give states of the same shape. A track takes 9 kB in
float32. ``from_seeds`` builds Gymnasium's own tracks on the host; ``generator`` makes new ones on the device.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Bool, Float, Int
from rich.console import Console
from rich.progress import track as progress

from envs.batching import Leaf
from envs.car_racing import cache as disk
from envs.car_racing import contact
from envs.car_racing.contact import Array
from envs.car_racing.schema import TILES
from envs.car_racing.start import starts_on
from envs.car_racing.track import Track, generate

WORD = 32
WORDS = 13
MAX_NODES = WORDS * WORD  # the generator's longest tracks have about 390 nodes
LEAD = -contact.FIRST_NODE  # columns before node 0
COLUMNS = LEAD + MAX_NODES + TILES + 1
NEIGHBOURS = 4  # nodes to either side of a node that are its own stretch of the road
TRACKS_AT_ONCE = 64  # whose distances fit into a processor's cache
MANY = 1000  # seeds whose tracks take seconds: they are shown at work, and kept on disk


class Starts(struct.PyTreeNode):
    """States of the episodes at their first observation, one per track (``start.Starts``)."""

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
    reach: Leaf  # (track, column): half the distance from the node to the closest beyond its neighbours, m
    kerbs: Leaf  # (track, column); bit k: node i + k carries a kerb, k = 0..12
    starts: Starts

    @property
    def count(self) -> int:
        """Number of tracks."""
        return int(self.length.shape[0])


def from_seeds(seeds: Sequence[int], cache: bool | str | Path | None = None) -> Tracks:
    """The tracks that CarRacing-v3 builds for these seeds, in order, in JAX's default precision.

    Args:
        seeds: what Gymnasium's ``reset(seed=...)`` would be given.
        cache: whether to keep the tracks in a file and to take them from there the next time: True for
            ``$XDG_CACHE_HOME/jaxrefine/car_racing``, another folder, or False. None keeps pools of 1,000 tracks
            and more.

    Raises:
        ValueError: there is no seed, or a negative one.
    """
    seeds = [int(seed) for seed in seeds]
    if not seeds:
        raise ValueError("a pool needs at least one track; give at least one seed")
    if cache is None:
        cache = len(seeds) >= MANY
    if cache is False:
        return build(_generate(seeds))
    folder = disk.default_folder() if cache is True else Path(cache)
    path = disk.path_for(folder, seeds, jnp.result_type(float).name)
    tracks = disk.load(path, build(_generate(seeds[:1])), len(seeds), _check)
    if tracks is not None:
        return jax.tree.map(jnp.asarray, tracks)
    tracks = build(_generate(seeds))
    disk.store(path, tracks)
    return tracks


def build(tracks: Sequence[Track]) -> Tracks:
    """Put tracks into one pool, in JAX's default precision.

    Raises:
        ValueError: there is no track, or one is longer than ``MAX_NODES``.
    """
    if not tracks:
        raise ValueError("a pool needs at least one track")
    length = np.array([len(track) for track in tracks], np.int32)
    if length.max() > MAX_NODES:
        raise ValueError(f"a track of {length.max()} nodes is too long: states hold {MAX_NODES} visited tiles")
    inside = np.arange(MAX_NODES) < length[:, None]
    beta, x, y = reals = np.zeros((3, *inside.shape))
    reals[:, inside] = np.concatenate([track.nodes for track in tracks]).T[1:]
    kerbs = inside.copy()
    kerbs[inside] = np.concatenate([track.kerbs for track in tracks])
    real = jnp.result_type(float)
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, real if np.issubdtype(leaf.dtype, np.floating) else leaf.dtype),
        lay_out(length, x, y, beta, kerbs),
    )


def lay_out(
    length: Int[Array, " track"],
    x: Float[Array, "track node"],
    y: Float[Array, "track node"],
    beta: Float[Array, "track node"],
    kerbs: Bool[Array, "track node"],
) -> Tracks:
    """Repeat nodes, given up to each track's length, round their loops, and find where the episodes start.

    Takes and gives NumPy or JAX arrays.
    """
    xp: Any = x.__array_namespace__()
    loop = (xp.arange(COLUMNS + TILES) - LEAD) % length[:, None]
    row_x, row_y, row_beta = (xp.take_along_axis(nodes, loop[:, :COLUMNS], axis=1) for nodes in (x, y, beta))
    flags = xp.take_along_axis(kerbs, loop, axis=1).astype(np.uint32)
    starts: Any = starts_on(*(row[:, : contact.WINDOW + 1].T for row in (row_x, row_y, row_beta)))
    return Tracks(
        length=xp.asarray(length),
        x=row_x,
        y=row_y,
        beta=row_beta,
        reach=xp.take_along_axis(xp.asarray(_reach(length, x, y)), loop[:, :COLUMNS], axis=1),
        kerbs=reduce(operator.or_, (flags[:, k : k + COLUMNS] << np.uint32(k) for k in range(TILES + 1))),
        starts=Starts(
            x=starts.x,
            y=starts.y,
            angle=starts.angle,
            wheel_angle=starts.wheel_angle,
            nearest=xp.zeros_like(length),
            on_road=_bits(starts.on_road),
            touching=_bits(starts.touching.reshape(-1, len(length))),
            visited=_words(xp, starts.visited, length),
        ),
    )


@jax.jit
def _reach(
    length: Int[jax.Array, " track"], x: Float[jax.Array, "track node"], y: Float[jax.Array, "track node"]
) -> Float[jax.Array, "track node"]:
    nodes = jnp.arange(MAX_NODES, dtype=jnp.int32)

    def of_track(track: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        length, x, y = track

        # node by node: as one reduction over all pairs it takes ten times as long on a CPU
        def nearer(j: jax.Array, closest: jax.Array) -> jax.Array:
            apart = jnp.abs(nodes - j)
            beyond = (apart > NEIGHBOURS) & (apart < length - NEIGHBOURS) & (j < length)
            return jnp.where(beyond, jnp.minimum(closest, (x - x[j]) ** 2 + (y - y[j]) ** 2), closest)

        return jnp.sqrt(jax.lax.fori_loop(0, MAX_NODES, nearer, jnp.full_like(x, jnp.inf))) / 2

    return jax.lax.map(of_track, (length, x, y), batch_size=TRACKS_AT_ONCE)


def _check(tracks: Tracks) -> None:
    """Raises ``ValueError`` for arrays that would lead a step out of their bounds, or that are no tracks."""
    length, x, y = (np.asarray(leaf) for leaf in (tracks.length, tracks.x, tracks.y))
    if length.min() < 1 or length.max() > MAX_NODES or (np.asarray(tracks.starts.nearest) != 0).any():
        raise ValueError("a track has too many nodes or none")
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((tracks.x, tracks.y, tracks.beta))):
        raise ValueError("a node is nowhere")
    for row in (x, y):
        if (np.take_along_axis(row, length[:, None] + LEAD, axis=1)[:, 0] != row[:, LEAD]).any():
            raise ValueError("a loop does not have the length it should")


def _generate(seeds: list[int]) -> list[Track]:
    console = Console(stderr=True)
    shown = progress(
        seeds, "Tracks", console=console, transient=True, disable=len(seeds) < MANY or not console.is_terminal
    )
    return [generate(seed) for seed in shown]


def _words(xp: Any, visited: Bool[Array, "tile track"], length: Int[Array, " track"]) -> Any:
    """The set of tiles, one bit each, from flags of the tiles of the window round node 0."""
    tiles = (xp.arange(contact.WINDOW)[:, None] + contact.FIRST_TILE) % length
    flags = ((xp.arange(MAX_NODES)[:, None, None] == tiles) & visited).any(axis=1)
    return _bits(flags.reshape(WORDS, WORD, -1).swapaxes(0, 1))


def _bits(flags: Any) -> Any:
    """Packs the leading dimension, bit 0 first."""
    weights = np.left_shift(np.uint32(1), np.arange(len(flags), dtype=np.uint32))
    return (flags.astype(np.uint32) * weights.reshape(-1, *(1,) * (flags.ndim - 1))).sum(axis=0, dtype=np.uint32)
