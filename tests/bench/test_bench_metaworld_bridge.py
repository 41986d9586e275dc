from __future__ import annotations

import json
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest

from bench import metaworld_bridge
from bench.bridge import load_policy
from envs.door.reference import Episode, Reference, default_environment, run_episode
from envs.door.schema import SCHEMA
from jaxrefine import task as tasks

POLICY = """
import jax.numpy as jnp
from flax import nnx


class OpenDoorPolicy(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.gain = nnx.Param(jnp.array(1.0))

    def __call__(self, features):
        error = features[4:7] - features[0:3]
        mean = jnp.concatenate([self.gain[...] * error, jnp.ones(1)])
        return mean, 0.3 * jnp.eye(4), {"latent_error_x": error[0], "weight_gain": self.gain[...]}
"""
GAIN = 8.0
SEEDS = (0, 3)


def by_hand(moment):
    return np.append(GAIN * (moment.observation[4:7] - moment.observation[:3]), 1.0)


@pytest.fixture(scope="module")
def driven():
    """The same policy written by hand, on two seeds of Meta-World."""
    if not default_environment().exists():
        pytest.skip("Meta-World is not installed; `python -m envs.door.reference` does it")
    with Reference() as reference:
        return [run_episode(by_hand, seed, reference, steps=100) for seed in SEEDS]


@pytest.fixture
def task(monkeypatch):
    task = tasks.get("door")
    task = replace(task, protocol=replace(task.protocol, steps=100, sampled=False))
    monkeypatch.setattr(metaworld_bridge.tasks, "get", lambda name: task)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "round_1"
    folder.mkdir()
    (folder / "policy.py").write_text(POLICY)
    np.savez(folder / "weights.npz", gain=np.float32(GAIN))
    write_evaluation(tmp_path)
    write_summary(tmp_path)
    return tmp_path


def write_summary(run, **changes):
    summary = {"task": "door", "best_round": 1, "rounds": [{"round": 1, "fit_seeds": {"chosen": 1}}]}
    (run / "summary.json").write_text(json.dumps(summary | changes))


def write_evaluation(run, **columns):
    """Of two fits; the columns are the second's, which the summary names."""
    values = {key: [0.5, 0.5] for key in ("value", "success", "final_distance", "return")} | columns
    table = {"fit_seed": np.repeat([0, 1], 2), "seed": SEEDS[::-1] * 2, "steps": 100}
    table |= {name: [9.0, 9.0, *second[::-1]] for name, second in values.items()}
    pd.DataFrame(table).to_parquet(run / "round_1" / "evaluation.parquet")


def metrics(episodes):
    """As the evaluation's columns have them."""
    return {
        "value": [e.distances[1:].min() for e in episodes],
        "success": [float(e.successes.any()) for e in episodes],
        "final_distance": [e.distances[-1] for e in episodes],
        "return": [e.total for e in episodes],
    }


def test_a_policy_does_in_meta_world_what_was_recorded(run, task, driven, capsys):
    expected = metrics(driven)
    write_evaluation(run, **expected)
    out = run / "parity.json"
    assert metaworld_bridge.main([str(run), "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["agrees"]
    assert [row["seed"] for row in result["rows"]] == list(SEEDS)
    for i, row in enumerate(result["rows"]):
        for key, column in {"smallest_distance": "value", "final_distance": "final_distance"}.items():
            assert row["metaworld"][key] == pytest.approx(expected[column][i], abs=1e-3)
            assert row["recorded"][key] == expected[column][i]
        assert row["metaworld"]["success"] == expected["success"][i]
        assert row["metaworld"]["return"] == pytest.approx(expected["return"][i], rel=1e-2)
    assert result["reference"]["metaworld"] == "3.1.1"
    assert "agree within the tolerances of 0.002 m and 0.1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("column", "shift", "looser"),
    [("value", 0.01, ["--tolerance", "0.02"]), ("success", -1.0, ["--success-tolerance", "1"])],
)
def test_a_difference_beyond_a_tolerance_fails(run, task, driven, capsys, column, shift, looser):
    values = metrics(driven)
    values[column] = [value + shift for value in values[column]]
    write_evaluation(run, **values)
    assert metaworld_bridge.main([str(run)]) == 1
    assert "DISAGREE" in capsys.readouterr().out
    assert metaworld_bridge.main([str(run), *looser]) == 0


def comparison(recorded, metaworld):
    rows = [metaworld_bridge.Row(seed, *sides) for seed, sides in enumerate(zip(recorded, metaworld, strict=True))]
    return metaworld_bridge.Comparison("run", 0, True, 1, tuple(rows), {})


def test_the_means_of_both_metrics_decide_and_no_others():
    def values(distances, successes, total=0.0):
        return [
            {"smallest_distance": distance, "success": success, "return": total}
            for distance, success in zip(distances, successes, strict=True)
        ]

    recorded = values([0.1, 0.3] * 5, [1.0] * 8 + [0.0] * 2)
    # one success fewer in ten is still a tenth
    other = comparison(recorded, values([0.3, 0.103] * 5, [0.0] + [1.0] * 7 + [0.0] * 2, total=100.0))
    assert other.recorded_mean == pytest.approx({"smallest_distance": 0.2, "success": 0.8, "return": 0.0})
    assert other.difference == pytest.approx({"smallest_distance": 0.0015, "success": -0.1, "return": 100.0})
    assert other.agrees(0.002, 0.1)
    assert not other.agrees(0.001, 0.1)
    assert not other.agrees(0.002, 0.05)


def test_an_episode_is_measured_after_its_steps():
    """The handle at the start, which nothing did yet, does not count."""
    observations = np.zeros((4, 39))
    observations[:, 4] = [0.0, 0.3, 0.2, 0.4]
    nothing = np.zeros((4, 10))
    episode = Episode(
        seed=0,
        door=np.zeros(3),
        actions=np.zeros((3, 4)),
        rewards=np.array([1.0, 2.0, 3.0]),
        successes=np.array([False, True, False]),
        observations=observations,
        qpos=nothing,
        qvel=nothing,
        mocap=np.zeros((4, 3)),
    )
    task = tasks.get("door")
    measured = [metaworld_bridge.measure(metric, episode) for metric in (task.metric, *task.further_metrics)]
    assert measured == [0.2, 1.0, 0.4, 6.0]


def test_with_keys_actions_scatter_about_the_mean(run):
    act = load_policy(run / "round_1", "OpenDoorPolicy", SCHEMA)
    seen = SCHEMA.unflatten(np.linspace(0, 1, 39, dtype=np.float32))
    mean = act(seen)
    np.testing.assert_array_equal(mean, act(seen))
    drawn = np.stack([act(seen, key) for key in jax.random.split(jax.random.key(0), 400)]) - mean
    np.testing.assert_allclose(drawn.std(axis=0), 0.3, rtol=0.15)
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=0.06)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"task": "car_racing"}, "'car_racing'"), ({"best_round": None}, "--round"), ({"rounds": []}, "no round 1")],
)
def test_what_cannot_be_compared_is_said(run, task, changes, message, capsys):
    write_summary(run, **changes)
    assert metaworld_bridge.main([str(run)]) == 2
    assert message in capsys.readouterr().err


def test_without_meta_world_one_is_told_how_to_get_it(run, task, tmp_path, capsys):
    assert metaworld_bridge.main([str(run), "--environment", str(tmp_path)]) == 2
    assert "python -m envs.door.reference" in capsys.readouterr().err


def test_an_evaluation_without_the_metrics_is_explained(run, task, capsys):
    path = run / "round_1" / "evaluation.parquet"
    pd.read_parquet(path).drop(columns=["success", "return"]).to_parquet(path)
    assert metaworld_bridge.main([str(run)]) == 2
    assert "it has no column success, return" in capsys.readouterr().err
