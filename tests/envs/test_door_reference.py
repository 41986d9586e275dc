"""What was recorded of Meta-World, the demonstration, and Meta-World itself where it is installed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import envs.door.demonstrations
from envs.door.demonstrations import record as demonstrations
from envs.door.demonstrations.planner import Planner, Style
from envs.door.reference import (
    DOOR_HIGH,
    DOOR_LOW,
    TARGET_OFFSET,
    Reference,
    default_environment,
    door_positions,
    run_episode,
)
from envs.door.schema import HAND, HANDLE, SCHEMA, TARGET

RECORDED = Path(__file__).parents[1] / "reference" / "door"
DEMONSTRATION = Path(envs.door.demonstrations.__file__).parent / "planner.parquet"
MOTIONS = ("scripted", "noisy", "smooth", "mixed")
MODEL = json.loads((RECORDED / "reference_model.json").read_text())
OBSERVED = [f"obs_{c.name}" for c in SCHEMA.observation]
ACTED = [f"action_{c.name}" for c in SCHEMA.action]


@pytest.fixture(scope="module", params=MOTIONS)
def episodes(request):
    with np.load(RECORDED / f"{request.param}.npz", allow_pickle=False) as arrays:
        return dict(arrays) | {"motion": request.param}


@pytest.fixture(scope="module")
def demonstration():
    return pd.read_parquet(DEMONSTRATION)


@pytest.fixture(scope="module")
def provenance():
    return json.loads(DEMONSTRATION.with_suffix(".json").read_text())


@pytest.fixture(scope="module")
def reference():
    if not default_environment().exists():
        pytest.skip("Meta-World is not installed; `python -m envs.door.reference` does it")
    with Reference() as reference:
        yield reference


def test_doors_stand_where_meta_world_puts_them():
    about = json.loads((RECORDED / "closed_loop.json").read_text())["per_episode"]
    seeds = [entry["seed"] for entry in about]
    assert len(seeds) == 200
    np.testing.assert_array_equal(door_positions(seeds), [entry["door"] for entry in about])
    assert (door_positions(seeds) >= DOOR_LOW).all()
    assert (door_positions(seeds) <= DOOR_HIGH).all()


def test_every_episode_starts_homed_with_its_door_and_target(episodes):
    np.testing.assert_array_equal(episodes["seeds"], range(10))
    np.testing.assert_array_equal(episodes["doors"], door_positions(range(10)))
    homed = MODEL["homed"]
    for name in ("qpos", "qvel"):
        start = np.asarray(homed[name], episodes[name].dtype)
        np.testing.assert_array_equal(episodes[name][:, 0], np.broadcast_to(start, (10, 10)))
    target = episodes["doors"] + TARGET_OFFSET
    np.testing.assert_array_equal(episodes["observations"][..., TARGET], np.broadcast_to(target[:, None], (10, 501, 3)))


def test_a_moment_is_before_its_action(episodes):
    seen = episodes["observations"]
    # the hand starts in motion, and its target is moved by the action before the physics goes on
    np.testing.assert_array_equal(seen[:, 1:, 18:36], seen[:, :-1, :18])
    moved = np.diff(episodes["mocap"], axis=1)
    expected = np.clip(
        episodes["mocap"][:, :-1] + 0.01 * episodes["actions"][..., :3],
        MODEL["option"]["mocap_low"],
        MODEL["option"]["mocap_high"],
    )
    np.testing.assert_allclose(episodes["mocap"][:, :-1] + moved, expected, atol=1e-6)


def test_success_is_the_handles_nearness_along_x(episodes):
    handle, target = episodes["observations"][:, 1:, HANDLE], episodes["observations"][:, 1:, TARGET]
    near = np.abs(handle[..., 0] - target[..., 0]) <= 0.08
    np.testing.assert_array_equal(episodes["successes"], near)
    assert (episodes["rewards"][near] == 10).all()


def test_the_motions_are_what_they_say(episodes):
    opened = -episodes["qpos"][..., 9].min(axis=1)
    if episodes["motion"] == "smooth":
        reached = np.ptp(episodes["observations"][..., HAND], axis=(0, 1))
        assert (reached > [0.9, 0.5, 0.4]).all()
    else:
        assert np.mean(opened > 0.2) >= 0.9
    if episodes["motion"] == "scripted":
        assert episodes["successes"].any(axis=1).all()


def test_the_demonstration_has_the_schemas_columns_and_ranges(demonstration):
    assert list(demonstration.columns) == ["t", *OBSERVED, *ACTED, "reward"]
    assert set(demonstration.dtypes) == {np.dtype(np.float32)}
    np.testing.assert_array_equal(demonstration["t"], np.arange(500))
    for column in SCHEMA.observation:
        assert demonstration[f"obs_{column.name}"].between(column.low - 1e-3, column.high + 1e-3).all(), column.name
    assert (demonstration[ACTED].abs() <= 1).all(axis=None)
    assert (demonstration[ACTED].std() > 0.1).all()


def test_the_demonstration_opens_the_door_past_the_target_on_no_test_seed(demonstration, provenance):
    assert provenance["seed"] >= 20
    np.testing.assert_array_equal(door_positions([provenance["seed"]])[0], provenance["door"])
    assert (demonstration["reward"][-100:] == 10).all()
    assert provenance["final_angle"] > provenance["target_angle"] > 1.5
    seen = demonstration[OBSERVED].to_numpy()
    distance = np.linalg.norm(seen[:, HANDLE] - seen[:, TARGET], axis=1)
    assert distance.min() == pytest.approx(provenance["smallest_distance"], abs=1e-5)
    # past the target means that the handle is on its way from it again
    assert distance[-1] > distance.min() + 0.02


def test_the_demonstrators_own_results_are_summed_up_rightly(provenance):
    own = provenance["own_results"]
    assert [entry["seed"] for entry in own["per_episode"]] == list(range(10))
    values = [entry["value"] for entry in own["per_episode"]]
    assert own["mean"] == pytest.approx(np.mean(values), abs=1e-6)
    assert own["std_sample"] == pytest.approx(np.std(values, ddof=1), abs=1e-6)
    assert own["success"] == np.mean([entry["success"] for entry in own["per_episode"]])


def test_the_planner_answers_what_it_saw_with_the_recorded_actions(demonstration):
    planner = Planner(Style())
    answers = np.stack([planner(row) for row in demonstration[OBSERVED].to_numpy(np.float64)])
    np.testing.assert_allclose(answers, demonstration[ACTED], atol=1e-4)


@pytest.mark.slow
def test_meta_world_starts_where_it_did(reference):
    for seed in (0, 20, 1000):
        moment = reference.reset(seed)
        np.testing.assert_array_equal(moment.door, door_positions([seed])[0])
        np.testing.assert_allclose(moment.qpos, MODEL["homed"]["qpos"], atol=1e-6)


@pytest.mark.slow
def test_meta_world_does_again_what_it_did(reference, episodes):
    actions = iter(episodes["actions"][3])
    episode = run_episode(lambda moment: next(actions), 3, reference, steps=60)
    np.testing.assert_allclose(episode.observations, episodes["observations"][3, :61], atol=1e-4)
    np.testing.assert_allclose(episode.rewards, episodes["rewards"][3, :60], atol=1e-3)


@pytest.mark.slow
def test_the_recorder_makes_the_demonstration_again(tmp_path, monkeypatch, reference, demonstration, provenance):
    monkeypatch.setattr(demonstrations, "TEST_SEEDS", range(2))
    out = tmp_path / "again.csv"
    assert demonstrations.main(["--out", str(out)]) == 0
    again = pd.read_csv(out, dtype=np.float32)
    pd.testing.assert_frame_equal(again, demonstration, rtol=0, atol=1e-2)
    about = json.loads(out.with_suffix(".json").read_text())
    assert about["seed"] == provenance["seed"]
    assert about["own_results"]["per_episode"] == provenance["own_results"]["per_episode"][:2]


def test_without_meta_world_one_is_told_how_to_get_it(tmp_path, capsys):
    with pytest.raises(ImportError, match=r"python -m envs\.door\.reference"):
        Reference(tmp_path)
    out = tmp_path / "demonstration.csv"
    assert demonstrations.main(["--out", str(out), "--environment", str(tmp_path)]) == 2
    assert "nothing was recorded" in capsys.readouterr().err
    assert not out.exists()
