"""Conditions of car and road against Gymnasium with the same change made in its own constants or to its actions."""

from __future__ import annotations

import gymnasium.envs.box2d.car_dynamics as car_dynamics
import numpy as np
import pytest

import envs
from bench import car_parity
from bench.car_gymnasium import Live, Turned, distance, in_gymnasium, in_jax
from envs.car_racing.conditions import CONDITIONS

SEEDS = range(1000, 1006)
STEPS = 300
CHANGES = {
    "half the friction": {"friction": 0.5},
    "more friction": {"friction": 1.3},
    "half the engine": {"engine_power": 0.5},
    "pull to the right": {"pull": 0.25},
    "pull to the left": {"pull": -0.2},
    "all at once": {"friction": 0.7, "engine_power": 1.2, "pull": 0.1, "delay": 3},
    **{f"preset {name}": dict(changes) for name, changes in CONDITIONS.items() if changes},
}


@pytest.fixture(scope="module")
def car():
    env, _ = envs.make("car_racing")
    return env


@pytest.fixture(scope="module")
def stock(car):
    return car.params_for_seeds(SEEDS)


@pytest.fixture(scope="module")
def script():
    return np.stack([car_parity.smooth_random(seed, STEPS) for seed in SEEDS]).astype(np.float32)


def obeyed(script, pull=0.0, delay=0, **_):
    """What the car of a stock Gymnasium must be told to do as one with these changes does by itself."""
    clipped = np.clip(script, (-1, 0, 0), (1, 1, 1)) + np.float32([pull, 0, 0])
    late = np.zeros_like(clipped)
    late[:, :, 0] = pull
    late[:, delay:] = clipped[:, : script.shape[1] - delay]
    return late


def changed(monkeypatch, friction=1.0, engine_power=1.0, **_):
    monkeypatch.setattr(car_dynamics, "FRICTION_LIMIT", car_dynamics.FRICTION_LIMIT * friction)
    monkeypatch.setattr(car_dynamics, "ENGINE_POWER", car_dynamics.ENGINE_POWER * engine_power)


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_open_loop_as_gymnasium_with_the_same_change(car, stock, script, monkeypatch, changes):
    unchanged = in_jax(car, stock, script)
    ours = in_jax(car, stock.replace(**changes), script)
    changed(monkeypatch, **changes)
    theirs, turned = (in_gymnasium(world, SEEDS, obeyed(script, **changes)) for world in (Live(), Turned()))
    assert distance(ours, theirs)[:, :50].max() < 0.01
    floor = distance(turned, theirs)[:, -1]
    assert np.median(distance(ours, theirs)[:, -1]) < car_parity.WORST_QUANTILE * np.median(floor)
    assert distance(ours, theirs)[:, -1].max() < 0.1
    # the change is one: in six seconds it carries the car elsewhere
    assert np.median(distance(ours, unchanged)[:, -1]) > 1


def test_a_delayed_car_coasts_until_the_first_action_arrives(car, stock):
    script = np.tile(np.float32([0.5, 1, 0]), (len(SEEDS), 12, 1))
    ours = in_jax(car, stock.replace(delay=6), script)
    assert (ours.speed[:, :6] < 1e-3).all()
    assert (ours.speed[:, 6] > 1).all()
    # the pull does not wait
    pulled = in_jax(car, stock.replace(delay=6, pull=0.25), script)
    assert (pulled.front_angle[:, 3] < ours.front_angle[:, 3] - 0.1).all()


def test_presets_are_what_make_gives():
    for name, changes in CONDITIONS.items():
        env, params = envs.make("car_racing", condition=name)
        for given in (params, env.params_for_seeds([1000])):
            fields = ("friction", "engine_power", "pull", "delay")
            assert {key: getattr(given, key) for key in fields} == {
                "friction": 1.0, "engine_power": 1.0, "pull": 0.0, "delay": 0, **changes,
            }  # fmt: skip
