from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from bench import door_parity
from bench.door_parity import HAND_LIMITS, RECORDED, STEPS_LIMIT, Trace, closed_loop, drive, open_loop
from envs.door.schema import HAND, HANDLE, TARGET
from envs.door.scripted import scripted

CLOSED = json.loads((RECORDED / "closed_loop.json").read_text())
NO_FLOOR = {"hand_m": 0.0, "angle_rad": 0.0, "reward": 0.0}
STEPS = 500


@pytest.fixture(scope="module")
def episodes():
    return {motion: dict(np.load(RECORDED / f"{motion}.npz")) for motion in HAND_LIMITS}


def as_recorded(episodes):
    """The trace of an environment that does what Meta-World did."""
    after = episodes["observations"][:, 1:]
    return Trace(
        after[..., HAND],
        episodes["qpos"][:, 1:, 9],
        episodes["rewards"],
        episodes["successes"],
        np.linalg.norm(after[..., HANDLE] - after[..., TARGET], axis=-1),
    )


def as_summed_up(about, steps_late=0):
    """A trace with the outcomes of ``closed_loop.json``."""
    reward, distance = (np.tile([[episode[key]] for episode in about], STEPS) for key in ("return", "least_distance"))
    first = np.array([episode["steps_to_success"] or STEPS + 1 for episode in about]) + steps_late
    success = np.arange(1, STEPS + 1) >= first[:, None]
    return Trace(np.zeros((*reward.shape, 3)), np.zeros_like(reward), reward / STEPS, success, distance)


def test_the_scripted_policy_does_as_meta_worlds(episodes):
    recorded = episodes["scripted"]
    for seen, done in zip(recorded["observations"], recorded["actions"], strict=True):
        np.testing.assert_allclose(jax.vmap(scripted)(seen[:-1].astype(np.float32)), done, atol=1e-4)


def test_errors_are_means_over_episodes_and_steps(episodes):
    recorded = episodes["mixed"]
    trace = as_recorded(recorded)
    same = open_loop("mixed", trace, recorded, NO_FLOOR)
    assert (same.episodes, same.hand, same.angle, same.reward) == (10, 0.0, 0.0, 0.0)
    half = np.where(np.arange(10) < 5, 1.0, 0.0)[:, None]
    off = Trace(
        trace.hand + half[..., None] * [0.03, 0.0, 0.04],
        trace.angle - 0.2 * half,
        trace.reward + half,
        trace.success,
        trace.distance,
    )
    compared = open_loop("mixed", off, recorded, NO_FLOOR)
    assert (compared.hand, compared.angle, compared.reward) == pytest.approx((0.025, 0.1, 0.5))
    assert compared.misses() == []
    (missed,) = open_loop("noisy", off, recorded, NO_FLOOR).misses()
    assert missed == "noisy: hand 25 mm, wanted 20 mm"
    assert len(open_loop("scripted", off, recorded, NO_FLOOR).misses()) == 2


def test_a_closed_loop_misses_what_differs():
    about = CLOSED["per_episode"]
    same = closed_loop(as_summed_up(about), CLOSED)
    assert same.misses() == []
    assert same.ours.mean_return == pytest.approx(same.metaworld.mean_return, rel=1e-4)
    assert same.ours.mean_steps == pytest.approx(same.metaworld.mean_steps, abs=1e-3)
    assert same.nearest_difference == 0
    (missed,) = closed_loop(as_summed_up(about, steps_late=STEPS_LIMIT + 1), CLOSED).misses()
    assert "steps to success: differs by 3" in missed
    # three doors of 200 fewer are allowed, a fourth is not
    opened = [i for i, episode in enumerate(about) if episode["steps_to_success"] and i >= 10]
    for count, misses in ((3, 0), (4, 1)):
        closed = [{**e, "steps_to_success": None} if i in opened[:count] else e for i, e in enumerate(about)]
        assert sum("success: differs" in miss for miss in closed_loop(as_summed_up(closed), CLOSED).misses()) == misses
    farther = [{**about[0], "least_distance": about[0]["least_distance"] + 0.003}, *about[1:]]
    (missed,) = closed_loop(as_summed_up(farther), CLOSED).misses()
    assert "smallest distance" in missed


def test_given_actions_and_the_policy_drive_side_by_side(episodes):
    recorded, steps = episodes["scripted"], 100
    actions = recorded["actions"][[0, 3, 0], :steps]
    actions[2] = 0
    ours = drive([0, 3, 0], actions, np.array([False, False, True]))
    expected = as_recorded(recorded)
    for here, there in enumerate((0, 3, 0)):
        # free of the door, then about as far on as there; in a closed loop one may be a step ahead
        np.testing.assert_allclose(ours.hand[here, :30], expected.hand[there, :30], atol=5e-4)
        for mine, other, error in (
            (ours.hand, expected.hand, 0.006),
            (ours.distance, expected.distance, 0.006),
            (ours.angle, expected.angle, 0.02),
        ):
            assert np.abs(mine[here] - other[there, :steps]).mean() < error
        assert ours.reward[here].sum() == pytest.approx(expected.reward[there, :steps].sum(), rel=0.1)
        assert abs(int(ours.success[here].sum()) - int(expected.success[there, :steps].sum())) <= 2


@pytest.mark.parametrize(("shift", "status"), [(0.0, 0), (0.05, 1)])
def test_the_command_prints_and_writes(monkeypatch, episodes, tmp_path, capsys, shift, status):
    def driven(seeds, actions, by_script):
        assert [*seeds] == [*range(10)] * 4 + [*range(1000, 1200)]
        np.testing.assert_array_equal(by_script, np.arange(240) >= 40)
        np.testing.assert_array_equal(actions[:40], np.concatenate([e["actions"] for e in episodes.values()]))
        parts = [*map(as_recorded, episodes.values()), as_summed_up(CLOSED["per_episode"])]
        whole = [np.concatenate(arrays) for arrays in zip(*(vars(part).values() for part in parts), strict=True)]
        return Trace(whole[0] + [shift, 0, 0], *whole[1:])

    monkeypatch.setattr(door_parity, "drive", driven)
    path = tmp_path / "parity.json"
    assert door_parity.main(["--json", str(path)]) == status
    written = json.loads(path.read_text())
    assert [row["motion"] for row in written["open_loop"]] == list(HAND_LIMITS)
    assert [row["hand"] for row in written["open_loop"]] == pytest.approx([shift] * 4)
    assert written["open_loop"][3]["floor"]["hand_m"] == 0.00427
    assert written["closed_loop"]["metaworld"]["success"] == 0.955
    assert written["reference"]["metaworld"] == "3.1.1"
    assert len(written["missed"]) == (4 if shift else 0)
    printed = capsys.readouterr().out
    assert "closed loop, Meta-World's policy on 200 doors" in printed
    assert ("MISSED mixed: hand 50 mm" in printed) == bool(status)
