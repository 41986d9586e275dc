from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import SCHEMA, demonstration, make_task

from envs.base import Column, Schema
from envs.car_racing.conditions import CONDITIONS
from jaxrefine import task as tasks
from jaxrefine.config import Config
from jaxrefine.demonstration import load_demonstration
from jaxrefine.errors import UserError
from jaxrefine.methods import prompting
from jaxrefine.task import EvaluationProtocol


@pytest.fixture
def frame(tmp_path: Path) -> pd.DataFrame:
    return pd.read_parquet(demonstration(tmp_path / "good.parquet"))


def written(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        np.savez(path, **{name: frame[name].to_numpy() for name in frame})
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".npz"])
def test_a_demonstration_is_read_from_every_format(frame: pd.DataFrame, tmp_path: Path, suffix: str) -> None:
    found = load_demonstration(written(frame, tmp_path / f"mine{suffix}"), SCHEMA)
    np.testing.assert_allclose(found.observations["block"], frame[["obs_position", "obs_velocity"]], rtol=1e-6)
    np.testing.assert_allclose(found.actions, frame[["action_force"]], rtol=1e-6)
    np.testing.assert_allclose(found.rewards, frame.reward, rtol=1e-6)
    assert found.steps == 200
    assert found.actions.dtype == np.float32


def test_arrays_by_the_observations_keys_are_read_too(frame: pd.DataFrame, tmp_path: Path) -> None:
    block = frame[["obs_position", "obs_velocity"]].to_numpy()
    np.savez(tmp_path / "arrays.npz", block=block, actions=frame[["action_force"]].to_numpy())
    found = load_demonstration(tmp_path / "arrays.npz", SCHEMA)
    np.testing.assert_array_equal(found.observations["block"], block)
    assert found.rewards is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f.drop(columns="obs_velocity"), "lacks the column `obs_velocity`"),
        (lambda f: f.drop(columns="action_force"), "lacks the column `action_force`"),
        (lambda f: f.assign(obs_position=np.nan), "`obs_position` .* is not finite in row 0"),
        (lambda f: f.assign(action_force=f.action_force * 3), r"`action_force` .* must lie in \[-1, 1\]"),
        (lambda f: f.assign(t=f.t[::-1].to_numpy()), "`t` .* is not 0, 1, 2"),
        (lambda f: f.head(1), "has 1 row"),
        (lambda f: f.head(0), "has no rows"),
        (lambda f: f.assign(obs_position="left"), "`obs_position` .* must hold numbers"),
    ],
)
def test_a_wrong_table_is_refused_by_the_columns_name(frame: pd.DataFrame, tmp_path: Path, change, says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_demonstration(written(change(frame), tmp_path / "bad.csv"), SCHEMA)


def test_wrong_files_are_refused_with_what_to_do(frame: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_demonstration(tmp_path / "none.csv", SCHEMA)
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UserError, match=r"must be a \.parquet, \.csv or \.npz"):
        load_demonstration(tmp_path / "mine.txt", SCHEMA)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match="cannot be read"):
        load_demonstration(tmp_path / "broken.parquet", SCHEMA)
    np.savez(tmp_path / "pickled.npz", block=np.array([{}], object), actions=np.zeros((1, 1)))
    with pytest.raises(UserError, match="cannot be read"):
        load_demonstration(tmp_path / "pickled.npz", SCHEMA)
    np.savez(tmp_path / "shape.npz", block=np.zeros((3, 5)), actions=np.zeros((3, 1)))
    with pytest.raises(UserError, match=r"`block` .* shape \(3, 5\)"):
        load_demonstration(tmp_path / "shape.npz", SCHEMA)
    np.savez(tmp_path / "lacks.npz", actions=np.zeros((3, 1)))
    with pytest.raises(UserError, match="no array `block`"):
        load_demonstration(tmp_path / "lacks.npz", SCHEMA)
    good = written(frame, tmp_path / "good.csv")
    good.with_suffix(".json").write_text("{")
    with pytest.raises(UserError, match="provenance"):
        load_demonstration(good, SCHEMA)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "JSON object"),
        ('{"own_results": 3}', "per_episode"),
        ('{"own_results": {"per_episode": [{"seed": 1}]}}', "'value'"),
        ('{"own_results": {"per_episode": [{"seed": 1, "value": "lots"}]}}', "lots"),
        ('{"own_results": {"per_episode": [{"seed": 1, "value": NaN}]}}', "not finite"),
    ],
)
def test_a_wrong_provenance_is_told_at_once(frame: pd.DataFrame, tmp_path: Path, text: str, says: str) -> None:
    path = written(frame, tmp_path / "mine.csv")
    path.with_suffix(".json").write_text(text)
    with pytest.raises(UserError, match=says):
        load_demonstration(path, SCHEMA)


def test_the_demonstrators_own_results_are_read_by_seed(frame: pd.DataFrame, tmp_path: Path) -> None:
    path = written(frame, tmp_path / "mine.csv")
    path.with_suffix(".json").write_text('{"own_results": {"per_episode": [{"seed": 7, "value": 1.5, "steps": 3}]}}')
    assert load_demonstration(path, SCHEMA).own_results == {7: 1.5}


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 100))
def test_flatten_and_unflatten_are_inverse(rows: int, wide: int, seed: int) -> None:
    columns = [Column(f"a{i}_{j}", "", "", 0.0, 1.0, "a", (i, j)) for i in range(rows) for j in range(wide)]
    schema = Schema((*columns, Column("b", "", "", 0.0, 1.0, "b", (0,))), ())
    assert schema.observation_shapes == {"a": (rows, wide), "b": (1,)}
    rng = np.random.default_rng(seed)
    observation = {"a": rng.normal(size=(5, rows, wide)), "b": rng.normal(size=(5, 1))}
    flat = schema.flatten(observation)
    assert flat.shape == (5, rows * wide + 1)
    for key, value in schema.unflatten(flat).items():
        np.testing.assert_array_equal(value, observation[key])


def test_a_column_named_twice_is_refused() -> None:
    column = Column("x", "", "", 0.0, 1.0, "a", (0,))
    with pytest.raises(ValueError, match="twice"):
        Schema((column, column), ())


def test_seeds_for_choosing_may_not_be_test_seeds() -> None:
    with pytest.raises(ValueError, match=r"overlap the test seeds: \[3\]"):
        EvaluationProtocol((1, 2, 3), (3, 4), (5,), 10, False)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "/abs", ".", "..", ".hidden", "-x", "a\\b", "a b", "a\0", "a\n"])
@pytest.mark.parametrize("what", ["name", "condition"])
def test_a_name_that_would_lead_elsewhere_is_refused(tmp_path: Path, what: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"the task's {what} is .* letters, digits"):
        replace(make_task(tmp_path), **{what: name})
    assert getattr(replace(make_task(tmp_path), **{what: "Größe_2-b.1"}), what) == "Größe_2-b.1"


def test_car_racing_is_the_papers_protocol() -> None:
    task = tasks.get("car_racing")
    assert task.protocol.test_seeds == tuple(range(1000, 1010))
    assert task.protocol.steps == 1000
    assert not task.protocol.sampled
    assert min(task.protocol.validation_seeds) >= 2000
    assert min(task.protocol.rollout_seeds) >= 10000
    assert task.demonstration.rewards is not None
    assert task.demonstration.rewards.sum() >= 850


def test_no_such_task_lists_those_that_are() -> None:
    with pytest.raises(UserError, match="there are: car_racing"):
        tasks.get("nosuch")


@pytest.mark.parametrize("condition", [name for name in CONDITIONS if name != "stock"])
def test_a_condition_changes_the_environment_and_the_demonstration_and_no_word_of_the_prompts(condition: str) -> None:
    stock, changed = tasks.get("car_racing"), tasks.get("car_racing", condition=condition)
    params, of_stock = (task.env.params_for_seeds([1000]) for task in (changed, stock))
    for name, value in CONDITIONS[condition].items():
        assert getattr(params, name) == value != getattr(of_stock, name)
    fields = prompting.numbers(Config())
    assert prompting.messages(changed, "generate", fields) == prompting.messages(stock, "generate", fields)
    assert changed.protocol == stock.protocol
    found = changed.demonstration
    assert found.provenance["condition"] == {"name": condition, "changes": dict(CONDITIONS[condition])}
    assert tuple(found.own_results) == changed.protocol.test_seeds
    assert stock.demonstration.provenance["condition"]["name"] == "stock"


def test_a_demonstration_of_ones_own_is_taken_under_a_condition_too(tmp_path: Path) -> None:
    task = tasks.get("car_racing", tmp_path / "mine.csv", condition="slick")
    assert (task.condition, task.demonstration_path) == ("slick", tmp_path / "mine.csv")


def test_the_papers_text_calls_the_wheels_angle_what_the_paper_calls_it() -> None:
    fields = prompting.numbers(Config())
    accurate, paper = (
        prompting.messages(tasks.get("car_racing", text=text), "generate", fields)[1].content
        for text in ("accurate", "paper")
    )
    assert "absolute heading" in paper
    assert "absolute heading" not in accurate
    assert "steering angle" in accurate
    assert "steering angle" not in paper
    assert prompting.specification(tasks.get("car_racing"), fields) in paper


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"condition": "icy"}, "no condition .* 'icy'; there are: stock, slick, pull, delay, worn"),
        ({"text": "short"}, "no text .* 'short'; there are: accurate, paper"),
    ],
)
def test_no_such_condition_or_text_lists_those_that_are(options: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        tasks.get("car_racing", **options)
