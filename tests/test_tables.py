from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from toy import PROGRAM, SCHEMA, STEPS, Block

from jaxrefine.learn.rollout import key_per_episode, rollout
from jaxrefine.policy.program import PolicySpec, load_program
from jaxrefine.tables import column_names, to_columns, write_parquet

ENV = Block()


@pytest.fixture(scope="module")
def log():
    program = load_program(PROGRAM, PolicySpec("BlockPolicy", (("block", (2,)),), 1))
    keys = key_per_episode(jax.random.key(0), 4)
    away = {**program.initial, "stiffness": jnp.array(5.0), "damping": jnp.array(5.0)}
    index, sampled = jnp.arange(4), jnp.array([True, False, True, False])
    return rollout(ENV, program.apply, ENV.params_for_seeds(range(4)), away, index, sampled, keys, steps=STEPS)


def test_the_header_is_the_contracts(log) -> None:
    columns = to_columns(SCHEMA, log, 0)
    assert list(columns) == column_names(SCHEMA, sorted(log.transitions.info))
    assert list(columns) == [
        "episode", "t", "obs_position", "obs_velocity", "latent_brake", "latent_pull", "weight_damping", "weight_noise",
        "weight_stiffness", "action_mean_force", "action_force", "reward", "done", "next_obs_position",
        "next_obs_velocity",
    ]  # fmt: skip


def test_rows_are_the_valid_steps_in_order(log) -> None:
    frame = pd.DataFrame(to_columns(SCHEMA, log, 10))
    lengths = np.asarray(log.transitions.valid).sum(0)
    assert (lengths < STEPS).any()
    assert frame.groupby("episode").size().to_dict() == {10 + i: int(n) for i, n in enumerate(lengths)}
    for _, episode in frame.groupby("episode"):
        assert episode.t.tolist() == list(range(len(episode)))
        assert not episode.done.iloc[:-1].any()
        assert episode.done.iloc[-1]


def test_actions_are_shown_as_the_environment_used_them(log) -> None:
    frame = pd.DataFrame(to_columns(SCHEMA, log, 0))
    assert np.abs(np.asarray(log.transitions.action)).max() > 1
    assert frame.action_force.between(-1, 1).all()
    velocity = frame.obs_velocity + 0.1 * frame.action_force
    np.testing.assert_allclose(frame.next_obs_velocity, velocity, atol=1e-6)


def test_what_follows_a_row_is_what_the_next_row_sees(log) -> None:
    frame = pd.DataFrame(to_columns(SCHEMA, log, 0))
    for _, episode in frame.groupby("episode"):
        np.testing.assert_array_equal(episode.next_obs_position[:-1], episode.obs_position[1:])
    # the toy moves by a tenth of its new velocity, also in the step that ends an episode
    moved = frame.obs_position + 0.1 * frame.next_obs_velocity
    np.testing.assert_allclose(frame.next_obs_position, moved, atol=1e-6)


def test_chunks_are_streamed_into_one_file(log, tmp_path: Path) -> None:
    chunks = [to_columns(SCHEMA, jax.tree.map(lambda x, i=i: x[..., i : i + 2], log), i) for i in (0, 2)]
    rows = write_parquet(tmp_path / "t.parquet", iter(chunks))
    together = pd.DataFrame(to_columns(SCHEMA, log, 0))
    assert rows == len(together)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), together)


def test_a_failed_write_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(path, [{"x": np.arange(3)}])

    def chunks():
        yield {"x": np.arange(5)}
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        write_parquet(path, chunks())
    assert len(pd.read_parquet(path)) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]
    with pytest.raises(ValueError, match="at least one chunk"):
        write_parquet(path, [])
