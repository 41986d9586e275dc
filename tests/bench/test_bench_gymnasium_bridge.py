from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from bench import gymnasium_bridge
from envs.car_racing.reference import make_reference, run_episode

POLICY = """
import jax.numpy as jnp
from flax import nnx


class RacecarPolicy(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.steering_gain = nnx.Param(jnp.array(0.0))
        self.gas = nnx.Param(jnp.array(0.1))

    def __call__(self, tiles, indicators):
        offset = tiles[4, 0]
        mean = jnp.stack([self.steering_gain[...] * offset, self.gas[...], jnp.zeros(())])
        info = {
            "latent_offset": offset,
            "weight_steering_gain": self.steering_gain[...],
            "weight_gas": self.gas[...],
        }
        return mean, 0.1 * jnp.eye(3), info
"""
GAIN, GAS = 1.5, 0.06
SEEDS = (1000, 1003)


@pytest.fixture(scope="module")
def driven():
    """The same policy written by hand, on two tracks of the reference."""
    env = make_reference()
    return [
        run_episode(lambda o: [np.float32(GAIN) * o["tiles"][4, 0], np.float32(GAS), 0.0], seed, env=env)
        for seed in SEEDS
    ]


@pytest.fixture
def run(tmp_path, driven):
    folder = tmp_path / "round_1"
    folder.mkdir()
    (folder / "policy.py").write_text(POLICY)
    np.savez(folder / "weights.npz", steering_gain=np.float32(GAIN), gas=np.float32(GAS))
    values = [e.total for e in driven]
    pd.DataFrame(
        {
            "fit_seed": np.repeat([0, 1], 2),
            "seed": SEEDS * 2,
            "value": [-1.0, -2.0, *values],
            "steps": [1000, 1000, *(e.steps for e in driven)],
            "terminated": False,
        }
    ).to_parquet(folder / "evaluation.parquet")
    write_summary(tmp_path)
    return tmp_path


def write_summary(run, **changes):
    summary = {"task": "car_racing", "best_round": 1, "rounds": [{"round": 1, "fit_seeds": {"chosen": 1}}]}
    (run / "summary.json").write_text(json.dumps(summary | changes))


def test_a_policy_scores_in_gymnasium_what_was_recorded(run, driven, capsys):
    out = run / "parity.json"
    assert gymnasium_bridge.main([str(run), "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["round"] == 1
    assert result["agrees"]
    assert [row["seed"] for row in result["rows"]] == list(SEEDS)
    for row, episode in zip(result["rows"], driven, strict=True):
        assert row["gymnasium"] == pytest.approx(episode.total, abs=5)
        assert row["recorded"] == episode.total
    printed = capsys.readouterr().out
    assert "1003" in printed
    assert "agree within the tolerance of 2%" in printed


def test_a_difference_beyond_the_tolerance_fails(run, capsys):
    table = pd.read_parquet(run / "round_1" / "evaluation.parquet")
    table["value"] *= 1.1
    table.to_parquet(run / "round_1" / "evaluation.parquet")
    assert gymnasium_bridge.main([str(run), "--round", "1"]) == 1
    assert "DISAGREE" in capsys.readouterr().out
    assert gymnasium_bridge.main([str(run), "--tolerance", "20"]) == 0


def test_a_run_under_a_condition_is_driven_under_it(run, driven, capsys):
    write_summary(run, condition="slick")
    assert gymnasium_bridge.main([str(run)]) == 1
    assert "round 1, slick:" in capsys.readouterr().out
    comparison = gymnasium_bridge.compare(run)
    env = make_reference(condition="slick")
    for row, stock in zip(comparison.rows, driven, strict=True):
        slid = run_episode(
            lambda o: [np.float32(GAIN) * o["tiles"][4, 0], np.float32(GAS), 0.0], row.seed, env=env
        ).total
        assert row.gymnasium == pytest.approx(slid, abs=5)
        assert abs(slid - stock.total) > 50
    assert gymnasium_bridge.main([str(run), "--condition", "stock"]) == 0


def spoil_condition(run):
    write_summary(run, condition="icy")


def spoil_summary(run):
    (run / "summary.json").unlink()


def spoil_task(run):
    write_summary(run, task="door")


def spoil_best(run):
    write_summary(run, best_round=None)


def spoil_weights(run):
    np.savez(run / "round_1" / "weights.npz", steering_gain=np.float32(1.0))


def spoil_program(run):
    (run / "round_1" / "policy.py").write_text("import os\n")


def spoil_evaluation(run):
    (run / "round_1" / "evaluation.parquet").write_bytes(b"not a table")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_summary, "summary.json cannot be read"),
        (spoil_condition, "there are: stock, slick"),
        (spoil_task, "this bench is for car_racing"),
        (spoil_best, "choose one with --round"),
        (spoil_weights, "only policy.py has the parameter 'gas'"),
        (spoil_program, "imports `os`"),
        (spoil_evaluation, "cannot be read as a round's evaluation"),
    ],
)
def test_what_cannot_be_compared_is_explained(run, capsys, spoil, message):
    spoil(run)
    assert gymnasium_bridge.main([str(run)]) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_round_is_explained(run, capsys):
    assert gymnasium_bridge.main([str(run), "--round", "7"]) == 2
    assert "has no round 7 that was evaluated; it has: 1" in capsys.readouterr().err
