"""Which of the track's nodes is nearest to the car: of all of them, and mostly without looking at all of them.

A step moves the car by two metres at most, so its nearest node rarely leaves the few that follow each other round
the last one. Two bounds tell when no other node can have become nearer:

- A car within a node's ``reach``, half the distance to the closest node beyond its neighbours, is farther from all
  those. On the road that holds always.
- Where the last complete search found the nearest node to lead all beyond its window by some distance, it leads
  until the car has moved by half of that.

Where neither holds, which is far off the road, all nodes are searched, for those environments alone. Distances are
compared in float32, so two nodes that are equally near within a millimetre may be taken for each other.

Arrays carry the batch in one trailing dimension or in none.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Float, Int

from envs.batching import Leaf
from envs.car_racing.pool import COLUMNS, LEAD, MAX_NODES, NEIGHBOURS, WORD, Tracks

STEPS = 2  # nodes by which the nearest may move between two looks before all are searched
WINDOW = NEIGHBOURS + STEPS  # nodes looked at to either side
WINDOW_BITS = 15  # enough for 2 * WINDOW + 1
NODE_BITS = 511  # enough for MAX_NODES
MARGIN = 0.01  # more than float32 loses of a distance, m
BLOCK = 128  # environments that are searched completely at once, at least

Numbers = Float[jax.Array, "*batch"]
Nodes = Int[jax.Array, "*batch"]


class Search(struct.PyTreeNode):
    """What the last complete look at the track told."""

    node: Leaf  # nearest to the car then
    lead: Leaf  # by how much nodes beyond the window were farther from the car at least, m
    x: Leaf  # where the car was, m
    y: Leaf


def begin(node: Nodes, x: Numbers, y: Numbers) -> Search:
    """A search that knows the nearest node and nothing of the others."""
    return Search(node=node, lead=jnp.zeros_like(x), x=x, y=y)


def follow(tracks: Tracks, track: Nodes, search: Search, x: Numbers, y: Numbers) -> tuple[Nodes, Search]:
    """Find the node nearest to the car's position (m).

    Args:
        tracks: the pool.
        track: index in the pool.
        search: where and with what result the car was looked for before, no matter when.
        x: of the car.
        y: of the car.
    """
    shape = x.shape
    # integers are all that is wanted, and a loop whose length is found as it runs has no reverse mode
    tracks, search, x, y = jax.lax.stop_gradient((tracks, search, x, y))
    track, search, x, y = jax.tree.map(lambda leaf: leaf.reshape(-1), (track, search, x, y))
    node, search = _follow(tracks, track, search, x, y)
    return jax.tree.map(lambda leaf: leaf.reshape(shape), (node, search))


def _follow(tracks: Tracks, track: Nodes, search: Search, x: Numbers, y: Numbers) -> tuple[Nodes, Search]:
    length = take(tracks.length, track)
    offsets = jnp.arange(-WINDOW, WINDOW + 1, dtype=jnp.int32)[:, None]
    centre = jnp.where(search.node < WINDOW, search.node + length, search.node)
    keys = _packed(_squared_distance(tracks, track, centre + offsets, x, y), offsets + WINDOW, WINDOW_BITS)
    offset = (keys & WINDOW_BITS) - WINDOW
    node = _wrap(centre + offset, length)
    distance = jnp.sqrt(jax.lax.bitcast_convert_type(keys & ~WINDOW_BITS, jnp.float32)).astype(x.dtype)
    spare = take(tracks.reach, track * COLUMNS + LEAD + node) - distance - MARGIN
    within_reach = (jnp.abs(offset) <= STEPS) & (spare > 0)
    moved = jnp.sqrt((x - search.x) ** 2 + (y - search.y) ** 2)
    leads = 2 * moved < search.lead
    here = Search(node=node, lead=2 * spare, x=x, y=y)
    search = jax.tree.map(partial(jnp.where, within_reach), here, search)
    return _search_where(~within_reach & ~leads, tracks, track, node, search, x, y)


def _search_where(
    needed: jax.Array, tracks: Tracks, track: Nodes, node: Nodes, search: Search, x: Numbers, y: Numbers
) -> tuple[Nodes, Search]:
    """Search all nodes for the environments that need it, a block of them at a time."""
    size = len(x)
    block = min(size, max(BLOCK, size // 32))
    rank = jnp.cumsum(needed, dtype=jnp.int32)
    count = rank[-1]
    places = jnp.where(needed, rank - 1, size)
    chosen = jnp.zeros(size, jnp.int32).at[places].set(jnp.arange(size, dtype=jnp.int32), mode="drop")

    def search_block(carry: tuple[jax.Array, Nodes, Search]) -> tuple[jax.Array, Nodes, Search]:
        done, node, search = carry
        start = jnp.minimum(done, size - block)
        members = jax.lax.dynamic_slice(chosen, (start,), (block,))
        member_track, member_x, member_y = track[members], x[members], y[members]
        found, lead = _search_all(tracks, member_track, member_x, member_y)
        order = start + jnp.arange(block)
        members = jnp.where((order >= done) & (order < count), members, size)
        result = Search(node=found, lead=lead, x=member_x, y=member_y)
        node = node.at[members].set(found, mode="drop")
        return done + block, node, jax.tree.map(lambda a, b: a.at[members].set(b, mode="drop"), search, result)

    _, node, search = jax.lax.while_loop(lambda carry: carry[0] < count, search_block, (jnp.int32(0), node, search))
    return node, search


def _search_all(tracks: Tracks, track: Nodes, x: Numbers, y: Numbers) -> tuple[Nodes, Numbers]:
    """The nearest of all nodes, and by how much those beyond its window are farther (m)."""
    chunk = jnp.arange(WORD, dtype=jnp.int32)[:, None]
    length = take(tracks.length, track)

    def nearest(i: jax.Array, best: Nodes) -> Nodes:
        nodes = i * WORD + chunk
        return jnp.minimum(best, _packed(_squared_distance(tracks, track, nodes, x, y), nodes, NODE_BITS))

    far = jnp.full(x.shape, jnp.iinfo(jnp.int32).max)
    found = jax.lax.fori_loop(0, MAX_NODES // WORD, nearest, far) & NODE_BITS
    # what the packed distances leave open, the exact ones of the node found and of its neighbours decide
    before, here, after = _squared_distance(tracks, track, found + jnp.arange(-1, 2, dtype=jnp.int32)[:, None], x, y)
    node = _wrap(found + jnp.where((before < here) & (before <= after), -1, jnp.where(after < here, 1, 0)), length)

    def second(i: jax.Array, best: Numbers) -> Numbers:
        nodes = i * WORD + chunk
        apart = jnp.abs(nodes - node)
        beyond = jnp.minimum(apart, jnp.abs(apart - length)) > WINDOW
        squared = jnp.where(beyond, _squared_distance(tracks, track, nodes, x, y), jnp.inf)
        return jnp.minimum(best, jnp.min(squared, axis=0))

    beyond = jax.lax.fori_loop(0, MAX_NODES // WORD, second, jnp.full(x.shape, jnp.inf, x.dtype))
    closest = jnp.minimum(jnp.minimum(before, here), after)
    return node, jnp.sqrt(beyond) - jnp.sqrt(closest) - MARGIN


def _packed(squared: jax.Array, labels: jax.Array, bits: int) -> jax.Array:
    """The smallest along the leading dimension, its label in the lower bits: several times as fast as ``argmin``."""
    as_integers = jax.lax.bitcast_convert_type(squared.astype(jnp.float32), jnp.int32)
    return jnp.min((as_integers & ~bits) | labels, axis=0)


def _squared_distance(
    tracks: Tracks, track: Nodes, nodes: Int[jax.Array, "node *#batch"], x: Numbers, y: Numbers
) -> Float[jax.Array, "node *batch"]:
    columns = track * COLUMNS + LEAD + nodes
    return (take(tracks.x, columns) - x) ** 2 + (take(tracks.y, columns) - y) ** 2


def _wrap(node: Nodes, length: Nodes) -> Nodes:
    return jnp.where(node < 0, node + length, jnp.where(node >= length, node - length, node))


def take(values: jax.Array, places: Int[jax.Array, "*shape"]) -> jax.Array:
    """Elements by their place in row-major order, which the caller knows to exist."""
    return values.reshape(-1).at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)
