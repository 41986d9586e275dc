"""Which wheels touch which tiles.

Box2D calls a wheel and a tile in contact when the gap between them is below the sum of their polygon radii. Both
are convex, so that is a separating-axis test with a margin. Only a window of tiles round the car's nearest node is
tested; along the narrowest bend the car still reaches none outside it.

The functions take NumPy or JAX arrays and keep the batch in the trailing dimensions (see ``dynamics``).
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from envs.car_racing.dynamics import WHEEL_HALF_WIDTH, WHEEL_RADIUS
from envs.car_racing.track import HALF_WIDTH
from envs.car_racing.trigonometry import sin_cos

Array = jax.Array | np.ndarray

# tiles of the window, relative to the car's nearest node; tile i spans from node i - 1 to node i
FIRST_TILE = -2
WINDOW = 6
FIRST_NODE = FIRST_TILE - 1
MARGIN = 0.02  # twice Box2D's polygon radius, m


def touching(
    node_x: Float[Array, " 7 *batch"],
    node_y: Float[Array, " 7 *batch"],
    heading: Float[Array, " 7 *batch"],
    wheel_x: Float[Array, " 4 *#batch"],
    wheel_y: Float[Array, " 4 *#batch"],
    steering: Float[Array, " 4 *#batch"],
) -> Bool[Array, " 4 6 *batch"]:
    """Whether each wheel touches each tile of the window.

    Args:
        node_x: the window's nodes, rightward of the car (m).
        node_y: forward of the car (m).
        heading: direction of the road at the nodes relative to the car (rad).
        wheel_x: centres of the wheels, rightward of the car (m).
        wheel_y: forward of the car (m).
        steering: angles of the wheels relative to the car (rad).
    """
    xp: Any = node_x.__array_namespace__()
    road_sin, road_cos = (values[None] for values in sin_cos(heading))
    wheel_sin, wheel_cos = (values[:, None] for values in sin_cos(steering))
    # nodes from each wheel's centre
    x = node_x[None] - wheel_x[:, None]
    y = node_y[None] - wheel_y[:, None]
    # the road's axes seen from the wheel's
    sin = road_sin * wheel_cos - road_cos * wheel_sin
    cos = road_cos * wheel_cos + road_sin * wheel_sin

    apart = _across_edges(xp, x, y, road_sin, road_cos, sin, cos)
    apart = apart | _wheel_axis(xp, x * wheel_cos + y * wheel_sin, HALF_WIDTH * xp.abs(cos), WHEEL_HALF_WIDTH + MARGIN)
    apart = apart | _wheel_axis(xp, y * wheel_cos - x * wheel_sin, HALF_WIDTH * xp.abs(sin), WHEEL_RADIUS + MARGIN)
    for side in (-HALF_WIDTH, HALF_WIDTH):
        apart = apart | _side_edges(xp, x + side * road_cos, y + side * road_sin, wheel_sin, wheel_cos, np.sign(side))
    return ~apart


def _across_edges(xp: Any, x: Array, y: Array, road_sin: Array, road_cos: Array, sin: Array, cos: Array) -> Array:
    """Apart along the normal of the tile's front or rear edge, which lies across the road at a node."""
    ahead = road_cos * y - road_sin * x  # of the wheel, along the road's direction
    reach = WHEEL_HALF_WIDTH * xp.abs(sin) + WHEEL_RADIUS * xp.abs(cos) + MARGIN
    return (ahead[:, 1:] < -reach[:, 1:]) | (ahead[:, :-1] > reach[:, :-1])


def _wheel_axis(xp: Any, centre: Array, half_width: Array, reach: float) -> Array:
    """Apart along one of the wheel's own axes, on which a node's cross-section covers ``centre +- half_width``."""
    low, high = centre - half_width, centre + half_width
    return (xp.minimum(low[:, 1:], low[:, :-1]) > reach) | (xp.maximum(high[:, 1:], high[:, :-1]) < -reach)


def _side_edges(xp: Any, x: Array, y: Array, wheel_sin: Array, wheel_cos: Array, side: float) -> Array:
    """Apart along the normal of the tile's left (-1) or right (+1) edge; corners are seen from the wheel."""
    edge_x, edge_y = x[:, 1:] - x[:, :-1], y[:, 1:] - y[:, :-1]
    # the outward normal is side * (edge_y, -edge_x), not normalised
    inside = side * (edge_y * x[:, 1:] - edge_x * y[:, 1:])
    length = xp.sqrt(edge_x**2 + edge_y**2)
    reach = (
        WHEEL_HALF_WIDTH * xp.abs(edge_y * wheel_cos - edge_x * wheel_sin)
        + WHEEL_RADIUS * xp.abs(edge_x * wheel_cos + edge_y * wheel_sin)
        + MARGIN * length
    )
    return inside < -reach
