from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from bench import metaworld_bridge
from envs.door.reference import Reference, default_environment, run_episode

POLICY = """
import jax.numpy as jnp
from flax import nnx


class DoorPolicy(nnx.Module):
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
    task = SimpleNamespace(class_name="DoorPolicy", protocol=SimpleNamespace(steps=100, sampled=False))
    monkeypatch.setattr(metaworld_bridge.tasks, "get", lambda name: task)
    return task


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "round_1"
    folder.mkdir()
    (folder / "policy.py").write_text(POLICY)
    np.savez(folder / "weights.npz", gain=np.float32(GAIN))
    write_evaluation(tmp_path, [0.5, 0.5])
    write_summary(tmp_path)
    return tmp_path


def write_summary(run, **changes):
    summary = {"task": "door", "best_round": 1, "rounds": [{"round": 1, "fit_seeds": {"chosen": 1}}]}
    (run / "summary.json").write_text(json.dumps(summary | changes))


def write_evaluation(run, values):
    columns = {"fit_seed": np.repeat([0, 1], 2), "seed": SEEDS * 2, "value": [9.0, 9.0, *values], "steps": 100}
    pd.DataFrame(columns).to_parquet(run / "round_1" / "evaluation.parquet")


def test_a_policy_does_in_meta_world_what_was_recorded(run, task, driven, capsys):
    write_evaluation(run, [e.distances.min() for e in driven])
    out = run / "parity.json"
    assert metaworld_bridge.main([str(run), "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["agrees"]
    assert [row["seed"] for row in result["rows"]] == list(SEEDS)
    for row, episode in zip(result["rows"], driven, strict=True):
        assert row["metaworld"] == pytest.approx(episode.distances.min(), abs=1e-3)
        assert row["final"] == pytest.approx(episode.distances[-1], abs=1e-3)
        assert row["success"] == episode.successes.any()
    assert result["reference"]["metaworld"] == "3.1.1"
    assert "agree within the tolerance of 0.002 m" in capsys.readouterr().out


def test_a_difference_beyond_the_tolerance_fails(run, task, driven, capsys):
    write_evaluation(run, [e.distances.min() + 0.01 for e in driven])
    assert metaworld_bridge.main([str(run)]) == 1
    assert "DISAGREE" in capsys.readouterr().out


def test_sampled_actions_scatter_about_the_mean_and_repeats_differ(run):
    act = metaworld_bridge.load_policy(run / "round_1", "DoorPolicy", sampled=True)
    mean = metaworld_bridge.load_policy(run / "round_1", "DoorPolicy", sampled=False)
    seen = np.linspace(0, 1, 39)
    keys = metaworld_bridge.jax.random.split(metaworld_bridge.jax.random.key(0), 400)
    drawn = np.stack([act(seen, key) for key in keys]) - mean(seen, keys[0])
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
