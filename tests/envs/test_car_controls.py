"""Keys and sticks become what the car takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.car_racing import controls
from envs.car_racing.schema import SCHEMA


@given(stick=st.floats(-1, 1), gas=st.floats(0, 1), brake=st.floats(0, 1))
def test_a_gamepad_asks_for_what_the_car_takes(stick, gas, brake):
    steer, pedal, stop = controls.from_gamepad(stick, gas, brake)
    for value, column in zip((steer, pedal, stop), SCHEMA.action, strict=True):
        assert column.low <= value <= column.high
    assert steer == -controls.from_gamepad(-stick, 0.0, 0.0)[0]
    assert steer == 0 if abs(stick) < controls.DEAD_STICK else steer * stick >= 0


def test_a_gamepad_at_rest_is_still_and_at_its_stops_full():
    assert controls.from_gamepad(0.05, 0.02, 0.01).tolist() == [0, 0, 0]
    assert controls.from_gamepad(-1.0, 1.0, 1.0).tolist() == [-1, 1, 1]
    halves = np.array([controls.from_gamepad(x, x, 0.0) for x in np.linspace(0.1, 1, 10).tolist()])
    assert (np.diff(halves[:, :2], axis=0) > 0).all()
    assert halves[4, 0] < 0.5 * halves[-1, 0]  # finer near the middle


@pytest.mark.parametrize("side", [-1, 1])
def test_a_held_key_turns_the_wheels_as_far_as_the_tyres_can_use_even_against_a_pull(side):
    held = {"left" if side < 0 else "right", "gas"}
    for pull in (0.0, 0.25):
        for speed, useful in ((1.0, 0.4), (50.0, math.atan(controls.WHEELBASE * controls.GRIP / 2500))):
            now, wheels = np.zeros(3), pull
            for _ in range(100):
                now = controls.assisted(now, held, speed, wheels)
                wheels = float(np.clip(now[0] + pull, -0.4, 0.4))
            assert wheels == pytest.approx(side * useful, abs=1e-6)
            assert 0 < now[1] < 1  # the throttle gives way
