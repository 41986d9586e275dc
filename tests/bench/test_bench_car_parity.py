from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bench import car_parity
from bench.car_gymnasium import Trace
from bench.car_parity import STEPS, ClosedLoop, closed_loop, open_loop, tiles_missed


def trace(off=0.0, other_tiles=0, episodes=10):
    """Episodes that stand still ``off`` metres from the origin; so many of their steps touch another tile."""
    still = np.zeros((episodes, STEPS))
    tiles = np.zeros((episodes, STEPS, 4, 6), np.int16)
    tiles[:, :other_tiles, 0, 0] = 1
    x = np.broadcast_to(np.reshape(off, (-1, 1)), still.shape)
    return Trace(x, still, still, still, still, still, tiles, still, still.astype(bool))


def test_a_comparison_meets_its_targets_or_names_those_it_misses():
    compared = open_loop("steady", trace(), trace(0.004), trace(0.002))
    assert compared.ours[STEPS] == pytest.approx([0.004] * 4)
    assert compared.misses() == []
    (missed,) = open_loop("steady", trace(), trace(0.006), trace(0.003)).misses()
    assert "median" in missed
    assert "quantile 0.5 is 4.0 times" in " ".join(open_loop("random", trace(), trace(0.008), trace(0.002)).misses())
    # the largest tenth is the floor's to lose
    thrown_off = trace([0.004] * 19 + [50.0], episodes=20)
    assert open_loop("steady", trace(episodes=20), thrown_off, trace(0.002, episodes=20)).misses() == []


def test_other_tiles_may_be_touched_half_again_as_often_as_by_the_turned_world():
    def rows(ours, floor):
        return [open_loop("steady", trace(), trace(other_tiles=ours), trace(other_tiles=floor))]

    assert rows(20, 10)[0].our_tiles == 0.02
    assert tiles_missed(rows(15, 10)) == []
    assert tiles_missed(rows(25, 10)) == ["tiles: 2.5 times the floor's"]


def test_returns_count_until_the_end_of_the_episode():
    one = trace()
    ended = np.zeros_like(one.terminated)
    ended[0, 9:] = True
    paid = replace(one, reward=np.ones_like(one.x), terminated=ended)
    assert paid.returns[:2].tolist() == [10, STEPS]
    assert paid.lengths[:2].tolist() == [10, STEPS]


def test_a_closed_loop_misses_where_steps_or_returns_differ():
    same = ClosedLoop(
        [1, 2], [900.0, 800.0], [900.001, 800.0], [900.0, 800.0], [900, 1000], [900, 1000], [0, 0], [0, 0]
    )
    assert same.misses() == []
    assert replace(same, ours=[900.02, 800.0]).misses() == ["closed loop: track 1"]
    assert replace(same, our_steps=[900, 999]).misses() == ["closed loop: track 2"]


def test_the_command_prints_and_writes(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(car_parity, "MEDIANS", {"bang-bang": 0.005})
    monkeypatch.setattr(car_parity, "closed_loop", lambda seeds: closed_loop(seeds, steps=60))
    path = tmp_path / "parity.json"
    assert car_parity.main(["--seeds", "1000", "1001", "--json", str(path)]) in (0, 1)
    written = json.loads(path.read_text())
    assert written["open_loop"][0]["ours"]["50"][0] < 1e-3
    assert written["closed_loop"]["steps"] == written["closed_loop"]["our_steps"]
    assert written["reference"]["name"] == "CarRacing-v3"
    assert "bang-bang, 2 episodes" in capsys.readouterr().out
