"""Where the hand touches handle, door and cabinet, and the door its frame.

Five boxes move with the hand and share its axes: claw and pad of each finger, and the palm, which has round edges.
Against the handle's cylinders the nearest points are found; against door panel and cabinet, which are upright boxes
that the hand meets almost square on, the hand's boxes are taken as large as they are along the other's axes. There is
one contact a pair, as the reference has of boxes and cylinders.

Every array may carry trailing batch dimensions.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from envs.door import model
from envs.door.vectors import about_z, constant, dot, keep, rotate, rotate_back

BOXES = ("right_claw", "right_pad", "left_claw", "left_pad", "palm")
CYLINDERS = ("stem", "bar", "grip")
UPRIGHT = ("panel", "cabinet")
OBJECTS = (*CYLINDERS, *UPRIGHT)
TOUCHING = len(BOXES) * len(OBJECTS)  # contacts of the hand
PALM_ROUNDING = 0.02  # radius of the palm's edges, m
FLAT = 0.02  # what leans less on an upright box than this lies flat, rad
SEARCH_STEPS = 6


class Contacts(NamedTuple):
    """The hand's contacts box by box, each with `OBJECTS` in their order, then two of the door with its frame.

    Attributes:
        distance: between the surfaces, negative when they overlap, m; shape (contacts,).
        normal: away from what the hand touches, or the door; shape (3, contacts).
        point: half way between the surfaces, m; shape (3, contacts).
    """

    distance: Array
    normal: Array
    point: Array


class _Shapes(NamedTuple):
    box_centre: np.ndarray  # in the hand's frame, slides at 0, m (3, boxes)
    box_size: np.ndarray  # half, without the rounding (3, boxes)
    box_rounding: np.ndarray  # (boxes,)
    cylinder_centre: np.ndarray  # in the door's frame (3, cylinders)
    cylinder_half: np.ndarray  # half the axis (3, cylinders)
    cylinder_radius: np.ndarray  # (cylinders,)
    upright_centre: np.ndarray  # in the door's frame, or from the hinge (3, uprights)
    upright_size: np.ndarray  # half (3, uprights)


@cache
def _shapes() -> _Shapes:
    m = model.load()
    boxes, cylinders, uprights = ([m.geom(name).id for name in names] for names in (BOXES, CYLINDERS, UPRIGHT))
    hand = m.body("hand").id
    centres = []
    for geom in boxes:
        centre, body = m.geom_pos[geom].copy(), m.geom_bodyid[geom]
        while body != hand:
            centre, body = centre + m.body_pos[body], m.body_parentid[body]
        centres.append(centre)
    rounding = np.array([PALM_ROUNDING if name == "palm" else 0.0 for name in BOXES])
    axes = np.stack([model.rotation(m.geom_quat[geom])[:, 2] for geom in cylinders])
    return _Shapes(
        box_centre=np.stack(centres, 1),
        box_size=m.geom_size[boxes].T - rounding,
        box_rounding=rounding,
        cylinder_centre=m.geom_pos[cylinders].T.copy(),
        cylinder_half=(axes * m.geom_size[cylinders, 1:2]).T,
        cylinder_radius=m.geom_size[cylinders, 0].copy(),
        upright_centre=m.geom_pos[uprights].T.copy(),
        upright_size=m.geom_size[uprights].T.copy(),
    )


def find(
    hand: Float[Array, "3 *batch"],
    axes: Float[Array, "3 3 *batch"],
    fingers: Float[Array, "2 *batch"],
    hinge: Float[Array, "3 *batch"],
    angle: Float[Array, "*batch"],
) -> Contacts:
    """Find all contacts of the hand.

    Args:
        hand: position of the hand's frame, m.
        axes: its axes as columns, in the world.
        fingers: positions of the right and the left finger's slides, m.
        hinge: position of the door's hinge, m.
        angle: of the door, rad.
    """
    zero = jnp.zeros_like(fingers[:1])
    slides = jnp.concatenate([fingers[:1], fingers[:1], fingers[1:], fingers[1:], zero])
    still = jnp.zeros_like(slides)
    centres = constant(_shapes().box_centre, hand) + jnp.stack([still, slides, still])
    centres, turn = keep((centres, about_z(angle)), hand)
    both = jnp.stack([turn, about_z(jnp.zeros_like(angle))], 2)  # the cabinet stays
    found = jnp.concatenate(
        [_on_cylinders(centres, hand, axes, hinge, turn), _on_uprights(centres, hand, axes, hinge, both)], 2
    )
    found = found.reshape(7, TOUCHING, *angle.shape)
    found = jnp.concatenate([found, _on_frame(hinge, angle)], 1)
    return keep(Contacts(distance=found[0], normal=found[1:4], point=found[4:7]), hand)


def _on_cylinders(centres: Array, hand: Array, axes: Array, hinge: Array, turn: Array) -> Array:
    """Distance, normal and point of boxes and cylinders; shape (7, boxes, cylinders)."""
    shapes = _shapes()
    turn, axes, hand = turn[:, :, None], axes[:, :, None], hand[:, None]
    middle = hinge[:, None] + rotate(turn, constant(shapes.cylinder_centre, hinge)) - hand
    half = rotate_back(axes, rotate(turn, constant(shapes.cylinder_half, hinge)))[:, None]
    middle = rotate_back(axes, middle)[:, None] - centres[:, :, None]  # in the frame of each box
    size = constant(shapes.box_size, hinge)[:, :, None]
    rounding = constant(shapes.box_rounding, hinge)[:, None]
    half, middle = keep((half, middle), hinge)
    square = dot(half, half)
    centre = jnp.clip(-dot(middle, half) / square, -1.0, 1.0)
    low, high = -jnp.ones_like(centre), jnp.ones_like(centre)

    def towards_nearest(bracket: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        t, low, high = bracket
        point = middle + t * half
        beyond = point - jnp.clip(point, -size, size)
        slope = dot(beyond, half)
        curvature = dot(jnp.where(beyond == 0, 0.0, half), half)
        low, high = jnp.where(slope < 0, t, low), jnp.where(slope > 0, t, high)
        t = t - slope / jnp.maximum(curvature, 1e-12)
        return (jnp.where((t >= low) & (t <= high), t, 0.5 * (low + high)), low, high), None

    (t, _, _), _ = jax.lax.scan(towards_nearest, (centre, low, high), None, length=SEARCH_STEPS)
    point = middle + t * half
    on_box = jnp.clip(point, -size, size)
    reach = jnp.sqrt(square)
    along = half / reach
    beyond = point - on_box
    # the search has an end before the line between the points is quite square to the axis, as a cylinder's normal is
    beyond = jnp.where(jnp.abs(t) < 1, beyond - dot(beyond, along) * along, beyond)
    length = jnp.sqrt(dot(beyond, beyond))
    # an axis inside the box leaves by the nearest face
    depth = jnp.abs(point) - size
    shallowest = jnp.max(depth, 0)
    face = jnp.where(depth == shallowest, jnp.where(point < 0, -1.0, 1.0), 0.0)
    inside = length < 1e-6
    outward = jnp.where(inside, face, beyond / jnp.where(inside, 1.0, length))
    on_box = jnp.where(inside, point - shallowest * face, on_box)
    distance = jnp.where(inside, shallowest, length) - constant(shapes.cylinder_radius, hinge) - rounding
    # a cylinder is a capsule cut off flat at both ends
    place = dot(middle, along)
    end = jnp.abs(place) - dot(jnp.abs(along), size) - rounding - reach
    outward = jnp.where(end > distance, jnp.where(place < 0, -1.0, 1.0) * along, outward)
    distance = jnp.maximum(distance, end)
    on_box, outward, distance = keep((on_box, outward, distance), hinge)
    axes, hand = axes[:, :, None], hand[:, None]
    point = hand + rotate(axes, centres[:, :, None] + on_box + (rounding + 0.5 * distance) * outward)
    return jnp.concatenate([distance[None], -rotate(axes, outward), point])


def _on_frame(hinge: Array, angle: Array) -> Array:
    """Distance, normal and point of the wide open door and the cabinet's wall beside the hinge; shape (7, 2).

    The panel's narrow face meets the wall's edge, then the wall's face the panel's edge. The reference takes half of
    how deep they are in each other, and finds each contact twice, at the top and at the bottom. So little depth so near
    the hinge makes a brake of its friction rather than a stop.
    """
    sine, cosine, zero = jnp.sin(angle), jnp.cos(angle), jnp.zeros_like(angle)
    wall_x, wall_y, face, edge = _frame()
    past = cosine < 0  # by then the wall's face is the one that counts
    normal = jnp.where(past, jnp.stack([zero, zero - 1, zero]), jnp.stack([cosine, sine, zero]))
    along_wall = (face - wall_x * cosine) / jnp.minimum(sine, -0.5) - wall_y
    into_face = jnp.where(past, along_wall, wall_x * cosine + wall_y * sine - face)
    corner = jnp.stack([face * cosine - edge * sine, face * sine + edge * cosine, zero])
    into_wall = corner[1] - wall_y
    depth = jnp.stack([into_face, into_wall])
    on_edge = jnp.stack([wall_x + zero, wall_y + zero, zero]) + 0.5 * into_face * jnp.where(past, -normal, normal)
    on_corner = corner - jnp.stack([zero, 0.5 * into_wall, zero])
    points = hinge[:, None] + jnp.stack([on_edge, on_corner], 1)
    return jnp.concatenate([-0.5 * depth[None], jnp.stack([normal, normal], 1), points])


@cache
def _frame() -> tuple[float, float, float, float]:
    """The wall's edge (x, y from the hinge), the panel's narrow face (x) and inner edge (y) in the door's frame."""
    m = model.load()
    side, panel = m.geom("side"), m.geom("panel")
    x, y = side.pos[0] + side.size[0], side.pos[1] - side.size[1]
    return float(x), float(y), float(panel.pos[0] - panel.size[0]), float(-panel.size[1])


def _on_uprights(centres: Array, hand: Array, axes: Array, hinge: Array, turns: Array) -> Array:
    """Distance, normal and point of boxes and upright boxes; shape (7, boxes, uprights)."""
    shapes = _shapes()
    middle, size = (constant(x, hinge)[:, None] for x in (shapes.upright_centre, shapes.upright_size))
    world = hand[:, None] + rotate(axes[:, :, None], centres)
    offset = rotate_back(turns[:, :, None], (world - hinge[:, None])[:, :, None]) - middle
    frame = jnp.stack([rotate_back(turns, axes[:, i, None]) for i in range(3)], 1)  # (3, 3, uprights)
    box = constant(shapes.box_size, hinge)[:, :, None]
    frame, offset = keep((frame, offset), hinge)
    reach = rotate(jnp.abs(frame)[:, :, None], box) + constant(shapes.box_rounding, hinge)[:, None]
    gap = jnp.abs(offset) - reach - size
    distance = jnp.max(gap, 0)
    normal = jnp.where(gap == distance, jnp.where(offset < 0, -1.0, 1.0), 0.0)
    # the box's corner that is deepest; of an edge or a face that lies flat, the middle
    lean = rotate_back(frame[:, :, None], normal)
    corner = offset - rotate(frame[:, :, None], box * jnp.clip(lean / FLAT, -1.0, 1.0))
    point = jnp.where(normal == 0, jnp.clip(corner, -size, size), normal * (size + 0.5 * distance)) + middle
    distance, normal, point = keep((distance, normal, point), hinge)
    turns = turns[:, :, None]
    return jnp.concatenate([distance[None], rotate(turns, normal), hinge[:, None, None] + rotate(turns, point)])
