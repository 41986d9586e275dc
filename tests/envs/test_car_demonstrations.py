"""The demonstrations: what their files hold, that they replay, and that their drivers cope with their cars."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import envs
from envs.car_racing import reference
from envs.car_racing.conditions import CONDITIONS
from envs.car_racing.demonstrations import record
from envs.car_racing.schema import SCHEMA

FOLDER = Path(record.__file__).parent
ACTIONS = [f"action_{c.name}" for c in SCHEMA.action]


@pytest.fixture(scope="module", params=sorted(record.DRIVERS))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def demonstration(name):
    return pd.read_parquet(FOLDER / f"{name}.parquet")


@pytest.fixture(scope="module")
def provenance(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def env(provenance):
    return reference.make_reference(condition=provenance["condition"]["name"])


def test_the_demonstration_has_the_schemas_columns_and_ranges(demonstration, provenance):
    observed = [f"obs_{c.name}" for c in SCHEMA.observation]
    acted = [f"action_{c.name}" for c in SCHEMA.action]
    assert list(demonstration.columns) == ["t", *observed, *acted, "reward"]
    assert set(demonstration.dtypes) == {np.dtype(np.float32)}
    assert np.isfinite(demonstration.to_numpy()).all()
    np.testing.assert_array_equal(demonstration["t"], np.arange(provenance["steps"]))
    for column in SCHEMA.action:
        values = demonstration[f"action_{column.name}"]
        assert values.min() >= column.low
        assert values.max() <= column.high
        assert values.std() > 0.02
    for column in ("tile00_x", "tile05_y", "tile05_theta", "speed"):
        assert demonstration[f"obs_{column}"].std() > 0.01


def test_the_demonstration_replays_in_the_reference(env, demonstration, provenance):
    actions = iter(demonstration[ACTIONS].to_numpy())
    episode = reference.run_episode(
        lambda o: next(actions), provenance["track_seed"], max_steps=len(demonstration), env=env
    )
    replayed = record.to_table(episode)
    assert episode.terminated == provenance["terminated"]
    # equal bit for bit where it was recorded; another processor's sine may round differently
    pd.testing.assert_frame_equal(replayed, demonstration, rtol=0, atol=1e-5)


def test_the_demonstration_earns_the_same_in_jax(demonstration, provenance):
    car, _ = envs.make("car_racing", condition=provenance["condition"]["name"])
    params = car.params_for_seeds([provenance["track_seed"]])

    @jax.jit
    def replay(params, actions):
        def body(state, action):
            _, state, reward, _, _ = car.step_env(jax.random.key(0), state, action, params)
            return state, reward

        return jax.lax.scan(body, car.reset_to(params, 0)[1], actions)[1]

    rewards = np.asarray(replay(params, jnp.asarray(demonstration[ACTIONS])))
    # open loop, rounding alone may let a wheel touch a tile a step earlier or later
    paid = np.cumsum(rewards) - np.cumsum(demonstration["reward"])
    assert np.abs(paid).max() < 2.1 * 1000 / provenance["track_nodes"]
    assert np.mean(np.abs(rewards - demonstration["reward"]) > 1e-3) < 0.01


def test_the_demonstration_is_good_and_no_test_track(demonstration, provenance):
    assert demonstration["reward"].sum() == pytest.approx(provenance["return"], abs=1e-2)
    assert provenance["return"] >= 800
    assert 0 <= provenance["track_seed"] < 100
    own = provenance["own_results"]
    assert [entry["seed"] for entry in own["per_episode"]] == list(range(1000, 1010))
    values = [entry["value"] for entry in own["per_episode"]]
    assert own["mean"] == pytest.approx(np.mean(values), abs=1e-3)
    assert own["std"] == pytest.approx(np.std(values), abs=1e-3)
    assert own["std_sample"] == pytest.approx(np.std(values, ddof=1), abs=1e-3)


def test_steering_follows_what_is_seen_but_is_no_function_of_it(demonstration, provenance):
    tiles = demonstration[[c for c in demonstration if c.startswith("obs_tile")]].to_numpy(np.float64)
    inputs = np.column_stack([tiles, np.ones(len(tiles))])
    steer = demonstration["action_steer"].to_numpy(np.float64)
    residual = steer - inputs @ np.linalg.lstsq(inputs, steer, rcond=None)[0]
    explained = 1 - residual.var() / steer.var()
    assert explained == pytest.approx(provenance["linear_r_squared_on_tiles"]["steer"], abs=2e-3)
    assert 0.6 < explained < 0.95


def test_a_driver_who_expects_the_stock_car_fails_where_this_one_copes(env, provenance):
    if provenance["condition"]["name"] == "stock":
        pytest.skip("this is the stock car")
    stranger = record.drive("human_like", provenance["track_seed"], env)
    assert stranger.total < provenance["return"] - 300


def test_every_condition_has_a_demonstration_recorded_under_it():
    recorded = {name: json.loads((FOLDER / f"{name}.json").read_text())["condition"] for name in record.DRIVERS}
    for condition, changes in CONDITIONS.items():
        name = "human_like" if condition == "stock" else condition
        assert recorded[name] == {"name": condition, "changes": changes}


def test_the_stock_drivers_differ_in_style():
    tables = {name: pd.read_parquet(FOLDER / f"{name}.parquet") for name in ("cautious", "human_like", "racing_line")}
    fast = {name: table["obs_speed"].max() for name, table in tables.items()}
    aside = {name: table["obs_tile00_x"].abs().mean() for name, table in tables.items()}
    jerky = {name: table["action_steer"].diff().abs().mean() for name, table in tables.items()}
    inside = {name: inside_of_bends(table) for name, table in tables.items()}
    assert fast["cautious"] + 0.05 < fast["human_like"] < fast["racing_line"] - 0.1
    assert aside["cautious"] < 0.5 * min(aside["human_like"], aside["racing_line"])
    assert jerky["cautious"] < 0.8 * min(jerky["human_like"], jerky["racing_line"])
    assert inside["racing_line"] > 0.02 + max(inside["human_like"], inside["cautious"])


def inside_of_bends(table):
    """How far the car is inside the centre line, on average over the sharper bends, in the observation's units."""
    turn = np.mod(table["obs_tile02_theta"] - table["obs_tile00_theta"] + 1, 2) - 1
    sharp = turn.abs() > 0.05
    return (np.sign(turn) * table["obs_tile00_x"])[sharp].mean()


def test_the_recorder_makes_the_demonstration_again(tmp_path, monkeypatch, name, demonstration, provenance, capsys):
    monkeypatch.setattr(record, "TEST_SEEDS", range(1008, 1010))
    out = tmp_path / "again.csv"
    assert record.main(["--driver", name, "--seed", str(provenance["track_seed"]), "--out", str(out)]) == 0
    again = pd.read_csv(out, dtype=np.float32)
    # closed-loop driving lets a difference in rounding grow, on a machine that rounds differently
    pd.testing.assert_frame_equal(again[:300], demonstration[:300], rtol=0, atol=1e-3)
    assert again["reward"].sum() == pytest.approx(provenance["return"], abs=10)
    about = json.loads(out.with_suffix(".json").read_text())
    expected = np.mean([entry["value"] for entry in provenance["own_results"]["per_episode"][8:]])
    assert about["own_results"]["mean"] == pytest.approx(expected, abs=10)
    assert "return" in capsys.readouterr().out


def test_the_recorder_refuses_other_formats(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        record.main(["--seed", "6", "--out", str(tmp_path / "demonstration.npz")])
    assert stop.value.code == 2
    assert ".parquet or .csv" in capsys.readouterr().err


def test_the_recorder_says_when_there_is_no_such_folder(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        record.main(["--seed", "6", "--out", str(tmp_path / "nowhere" / "demonstration.csv")])
    assert stop.value.code == 2
    assert "there is no folder" in capsys.readouterr().err
