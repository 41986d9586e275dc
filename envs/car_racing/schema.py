"""The columns of Car Racing's observation and action.

The car's frame has its origin at the hull's position, x to the car's right and y forward. Positions are in
metres times 0.03, so the road's edge lies at ``|tile_x| = 0.2``.
"""

from __future__ import annotations

import math

from envs.base import Column, Schema

TILES = 12
# metres to the observation's length unit: the reference's SCALE of 6, over 200
LENGTH_SCALE = 0.03


def _tile_columns(i: int) -> tuple[Column, ...]:
    ahead = 0.35 * i + 0.5
    return (
        Column(
            f"tile{i:02d}_x",
            "m * 0.03",
            "rightward offset of the tile; positive: the tile is to the car's right, so the"
            " car is left of the centre line",
            -1.0,
            1.0,
            "tiles",
            (i, 0),
        ),
        Column(f"tile{i:02d}_y", "m * 0.03", "forward offset of the tile", -0.3, ahead, "tiles", (i, 1)),
        Column(
            f"tile{i:02d}_theta",
            "rad / pi",
            "heading of the road at the tile relative to the car; positive: the road turns left",
            -1.0,
            1.0,
            "tiles",
            (i, 2),
        ),
        Column(
            f"tile{i:02d}_border",
            "0 or 1",
            "1 if the tile carries a kerb, which marks a sharp bend",
            0.0,
            1.0,
            "tiles",
            (i, 3),
        ),
    )


def _wheel_column(position: int, name: str, where: str) -> Column:
    return Column(
        f"wheel_speed_{name}",
        "rad/s / 200",
        f"rotation speed of the {where} wheel (radius 0.54 m)",
        -0.1,
        1.0,
        "indicators",
        (position,),
    )


SCHEMA = Schema(
    observation=(
        *(column for i in range(TILES) for column in _tile_columns(i)),
        Column("speed", "m/s / 100", "speed of the car's hull, without sign", 0.0, 1.0, "indicators", (0,)),
        Column(
            "front_wheel_angle", "rad / pi", "steering angle of the front left wheel relative to the hull;"
            " positive: the wheels point left", -0.146, 0.146, "indicators", (1,),
        ),
        Column(
            "angular_velocity", "rad/s / 10", "yaw rate of the hull; positive: the car turns left",
            -math.pi / 5, math.pi / 5, "indicators", (2,),
        ),
        _wheel_column(3, "fl", "front left"),
        _wheel_column(4, "fr", "front right"),
        _wheel_column(5, "rl", "rear left"),
        _wheel_column(6, "rr", "rear right"),
    ),
    action=(
        Column("steer", "", "steering command: -1 full left, +1 full right", -1.0, 1.0, "", (0,)),
        Column("gas", "", "throttle: 0 none, 1 full", 0.0, 1.0, "", (1,)),
        Column("brake", "", "brake: 0 none, 1 full; from 0.9 the wheels lock", 0.0, 1.0, "", (2,)),
    ),
)  # fmt: skip
