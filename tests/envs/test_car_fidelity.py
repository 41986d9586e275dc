"""Car Racing over whole episodes: ours must not be further from Gymnasium than float32's rounding makes it.

The noise floor is Gymnasium against itself in a world turned by 0.3 rad, under the same scripts. Track seeds are the
evaluation's 1000, 1001, ... in order, none left out; ``bench.car_parity`` has the same with more of them.
"""

from __future__ import annotations

import numpy as np
import pytest

import envs
from bench import car_parity
from bench.car_gymnasium import (
    NO_TILE,
    Live,
    Turned,
    distance,
    driven_in_gymnasium,
    driven_in_jax,
    in_gymnasium,
    in_jax,
)
from bench.car_parity import MEDIANS, STEPS, WORST_QUANTILE, steady

pytestmark = pytest.mark.slow
EPISODES = {"steady": 6, "noisy": 6, "random": 12, "bang-bang": 12}
CLOSED_LOOP = (*range(1000, 1010), *range(3000, 3010))


def seeds(kind):
    return range(1000, 1000 + EPISODES[kind])


@pytest.fixture(scope="module")
def car():
    env, _ = envs.make("car_racing")
    return env


@pytest.fixture(scope="module")
def live():
    return Live()


@pytest.fixture(scope="module")
def replays(car, live, laps):
    """By kind of script: Gymnasium, ours, Gymnasium turned."""
    turned, found = Turned(), {}
    for kind in MEDIANS:
        steady_actions = laps[2][: EPISODES[kind]]
        actions = steady_actions if kind == "steady" else car_parity.scripts(live, kind, seeds(kind))
        found[kind] = (
            in_gymnasium(live, seeds(kind), actions),
            in_jax(car, car.params_for_seeds(seeds(kind)), actions),
            in_gymnasium(turned, seeds(kind), actions),
        )
    return found


@pytest.fixture(scope="module")
def laps(car, live):
    """The steady driver's episodes: Gymnasium, ours, and his actions in Gymnasium."""
    theirs, actions = driven_in_gymnasium(live, CLOSED_LOOP, steady, STEPS)
    return theirs, driven_in_jax(car, car.params_for_seeds(CLOSED_LOOP), steady, STEPS), actions


@pytest.mark.parametrize("kind", MEDIANS)
def test_open_loop_the_median_after_twenty_seconds(replays, kind):
    theirs, ours, _ = replays[kind]
    assert np.median(distance(ours, theirs)[:, -1]) < MEDIANS[kind]


@pytest.mark.parametrize("kind", MEDIANS)
@pytest.mark.parametrize("step", [200, 500, STEPS])
def test_open_loop_within_three_times_the_noise_floor(replays, kind, step):
    theirs, ours, turned = replays[kind]
    for quantile in (0.5, 0.75):
        error, floor = (np.quantile(distance(trace, theirs)[:, step - 1], quantile) for trace in (ours, turned))
        assert error < WORST_QUANTILE * floor, quantile


@pytest.mark.parametrize("step", [200, 500, STEPS])
def test_open_loop_the_ninetieth_quantile_within_three_times_the_noise_floor(replays, step):
    # of all scripts together: in so few episodes of one kind, one or two that a contact threw off decide it
    errors, floor = (
        np.concatenate([distance(traces[i], traces[0])[:, step - 1] for traces in replays.values()]) for i in (1, 2)
    )
    assert np.quantile(errors, 0.9) < WORST_QUANTILE * np.quantile(floor, 0.9)


def test_open_loop_the_wheels_touch_the_same_tiles(replays):
    rows = [car_parity.open_loop(kind, *traces) for kind, traces in replays.items()]
    assert car_parity.tiles_missed(rows) == []
    # and the comparison is one: the wheels touch several tiles, and they change
    theirs = replays["steady"][0]
    assert ((theirs.tiles[:, 1:] != theirs.tiles[:, :-1]).any(axis=(2, 3)).mean()) > 0.1


def test_open_loop_the_returns_are_the_same(replays):
    for theirs, ours, _ in replays.values():
        close = distance(ours, theirs).max(axis=1) < 0.1
        assert close.mean() > 0.8
        np.testing.assert_allclose(ours.returns[close], theirs.returns[close], atol=1e-2)


def test_at_the_engines_limit_of_100_metres_a_second(car, live):
    """Box2D limits the speed of every body, the wheels and the hull, not that of the car as a whole."""
    tracks = range(1000, 1006)
    script = np.zeros((len(tracks), 500, 3), np.float32)
    # what the tyres still hold on grass; with more the car spins, and the floor itself is metres
    script[:, :, 1] = np.minimum(0.05 + np.arange(500) / 150, 0.6)
    theirs, ours = in_gymnasium(live, tracks, script), in_jax(car, car.params_for_seeds(tracks), script)
    assert (theirs.speed > 99.9).mean() > 0.5
    # leaving the playfield ends the episodes, but not the motion
    assert theirs.terminated[:, -1].all()
    assert distance(ours, theirs).max() < 0.05
    np.testing.assert_array_equal(ours.lengths, theirs.lengths)
    np.testing.assert_allclose(ours.returns, theirs.returns, atol=1e-2)


def test_closed_loop_one_driver_takes_as_many_steps_and_earns_the_same(laps):
    theirs, ours, _ = laps
    np.testing.assert_array_equal(ours.lengths, theirs.lengths)
    np.testing.assert_allclose(ours.returns, theirs.returns, atol=0.01)
    assert (theirs.lengths < STEPS).sum() > 5, "some laps are to be finished"


def test_two_policies_score_here_what_they_score_in_gymnasium(car, live, laps):
    def sloppy(tiles, indicators, xp):
        """Cuts the bends, over the grass."""
        steer = xp.clip(xp.arctan2(tiles[9, 0], tiles[9, 1]), -1, 1)
        gas = xp.where(indicators[0] < 0.45, 0.3, 0.0)
        return xp.stack([steer, gas, xp.zeros_like(gas)]).astype(np.float32)

    test_seeds = range(1000, 1010)
    theirs, _ = driven_in_gymnasium(live, test_seeds, sloppy, STEPS)
    ours = driven_in_jax(car, car.params_for_seeds(test_seeds), sloppy, STEPS)
    assert (theirs.tiles == NO_TILE).all(axis=(2, 3)).mean() > 0.03, "no shortcut over the grass"
    steady_mean, sloppy_mean = laps[0].returns[:10].mean(), theirs.returns.mean()
    assert steady_mean - sloppy_mean > 100, "they are to be told apart"
    assert ours.returns.mean() == pytest.approx(sloppy_mean, rel=0.02)
    assert laps[1].returns[:10].mean() == pytest.approx(steady_mean, rel=0.02)
