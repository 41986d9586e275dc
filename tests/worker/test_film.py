"""Three episodes of a round for people to look at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scenic_toy import SIDE, seen
from toy import PROGRAM, make_task
from worker_process import PROGRAM as OWN

from jaxrefine import task as tasks
from jaxrefine.learn.imitation import FitSettings
from jaxrefine.task import Metric, Task
from jaxrefine.worker import ProcessWorker, ProgramError, Worker, film
from jaxrefine.worker.arrays import load_arrays


def fitted(task: Task, folder: Path) -> Worker:
    worker = Worker(task, fit_settings=FitSettings(updates=40))
    worker.fit(PROGRAM, 2, folder)
    worker.evaluate(PROGRAM, folder)
    return worker


def test_the_best_the_median_and_the_worst_as_the_table_has_them(tmp_path: Path) -> None:
    worker = fitted(seen(tmp_path), tmp_path)
    found = worker.film(PROGRAM, tmp_path, 6)
    worker.rollout(PROGRAM, tmp_path, 16)
    table = pd.read_parquet(tmp_path / "rollouts.parquet")
    returns = table[table.episode < 6].groupby("episode").reward.sum().sort_values(ascending=False)
    assert found["driven"] == 6
    assert found["chosen"] == returns.index[[0, 3, 5]].tolist()
    assert found["values"] == pytest.approx(returns.iloc[[0, 3, 5]].tolist(), rel=1e-4)
    assert found["env_steps"] == (table.episode < 6).sum()
    scene = pd.read_parquet(tmp_path / "scene.parquet")
    assert list(dict.fromkeys(scene.episode)) == found["chosen"]
    both = scene.merge(table, on=["episode", "t"], suffixes=("", "_logged"))
    assert len(both) == len(scene)
    for name in ("reward", "action_force", "latent_pull", "latent_brake"):
        np.testing.assert_allclose(both[name], both[f"{name}_logged"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(both.place_x, both.obs_position, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(both.place_speed, both.obs_velocity.abs(), rtol=1e-4, atol=1e-5)
    arrays = load_arrays(tmp_path / "scene.npz")
    assert arrays["episodes"].tolist() == found["chosen"]
    assert {f"outline_{i}_{name}" for i in range(3) for name in ("rail", "origin")} <= arrays.keys()


@pytest.mark.parametrize(("reduce", "of"), [("min", "min"), ("max", "max"), ("last", "last")])
def test_which_is_best_is_for_the_metric_to_say(tmp_path: Path, reduce: Any, of: str) -> None:
    worker = fitted(seen(tmp_path, Metric("way off", "m", "lower", of="distance", reduce=reduce)), tmp_path)
    found = worker.film(PROGRAM, tmp_path, 5)
    worker.rollout(PROGRAM, tmp_path, 16)
    table = pd.read_parquet(tmp_path / "rollouts.parquet")
    table = table[table.episode < 5].sort_values(["episode", "t"])
    distances = table.next_obs_position.abs().groupby(table.episode).agg(of)
    assert found["values"] == pytest.approx(distances.sort_values().iloc[[0, 2, 4]].tolist(), rel=1e-3, abs=1e-5)
    assert "value_distance" in pd.read_parquet(tmp_path / "scene.parquet").columns


def test_the_film_shows_best_beside_worst_and_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = fitted(seen(tmp_path), tmp_path)
    found = worker.film(PROGRAM, tmp_path, 4)
    with Image.open(tmp_path / "film.webp") as picture:
        assert picture.format == "WEBP"
        assert picture.n_frames <= found["frames"]  # equal neighbours are one
        assert picture.size == (2 * SIDE, SIDE + film.CAPTION)
    (tmp_path / "film.webp").unlink()
    monkeypatch.setattr(film, "MOST_BYTES", 10)
    assert worker.film(PROGRAM, tmp_path, 4)["frames"] == 0
    assert not (tmp_path / "film.webp").exists()
    assert worker.film(PROGRAM, tmp_path, 1)["chosen"] == [0]
    assert len(worker.film(PROGRAM, tmp_path, 2)["chosen"]) == 2


def test_without_anything_to_look_at_nothing_is_driven(tmp_path: Path) -> None:
    worker = fitted(make_task(tmp_path), tmp_path)
    assert worker.film(PROGRAM, tmp_path, 6)["driven"] == 0
    assert not {path.name for path in tmp_path.iterdir()} & {"scene.parquet", "scene.npz", "film.webp"}


STEER = """import jax.numpy as jnp
from flax import nnx


class RacecarPolicy(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.gain = nnx.Param(jnp.array(2.0))

    def __call__(self, tiles, indicators):
        latent_bearing = jnp.nan_to_num(tiles[4, 0] / (jnp.abs(tiles[4, 1]) + 0.1))
        mean = jnp.stack([jnp.clip(self.gain[...] * latent_bearing, -1, 1), 0.3, 0.0])
        return mean, 0.1 * jnp.eye(3), {"latent_bearing": latent_bearing, "weight_gain": self.gain[...]}
"""


def test_a_short_car_episode(tmp_path: Path) -> None:
    task = tasks.get("car_racing")
    task = replace(task, protocol=replace(task.protocol, rollout_seeds=(10000, 10001), training_seeds=(1,), steps=30))
    np.savez(tmp_path / "weights.npz", gain=np.float32(2.0))
    found = Worker(task).film(STEER, tmp_path, 16)
    assert (found["driven"], found["env_steps"]) == (2, 60)
    scene = pd.read_parquet(tmp_path / "scene.parquet")
    for _, episode in scene.groupby("episode"):
        moved = np.hypot(episode.place_x.diff(), episode.place_y.diff()).iloc[2:]
        np.testing.assert_allclose(moved, episode.place_speed.iloc[2:] / 50, atol=0.02)
    assert scene.columns[-1] == "latent_bearing"
    outlines = load_arrays(tmp_path / "scene.npz")
    away = np.linalg.norm(outlines["outline_0_left"] - scene[["place_x", "place_y"]].to_numpy()[0], axis=1)
    assert away.min() < 10, "it starts on the road"
    with Image.open(tmp_path / "film.webp") as picture:
        assert picture.size == (480, 240 + film.CAPTION)


# --- out of the jail


FILMED = {"driven": 2, "chosen": [0, 1], "values": [1.0, None], "frames": 0, "env_steps": 3}


def test_only_files_of_the_films_own_leave_the_jail(hostile: ProcessWorker, tmp_path: Path) -> None:
    folder = tmp_path / "round_0"
    folder.mkdir()
    (folder / "policy.py").write_text(OWN)
    begin = "from pathlib import Path; folder = Path(folder)\n"
    for act in ("(folder / 'film.webp').symlink_to('/etc/passwd')", "(folder / 'scene.npz').mkdir()"):
        with pytest.raises(ProgramError, match=r"film\.webp|scene\.npz"):
            hostile.film(f"{begin}{act}\nresult = {FILMED}", folder, 16)
        assert [path.name for path in folder.iterdir()] == ["policy.py"]
    write = "(folder / 'scene.parquet').write_text('x'); (folder / 'policy.py').write_text('mine')"
    assert hostile.film(f"{begin}{write}\nresult = {FILMED}", folder, 16) == FILMED
    assert sorted(path.name for path in folder.iterdir()) == ["policy.py", "scene.parquet"]
    assert (folder / "policy.py").read_text() == OWN
    with pytest.raises(ProgramError, match="wrong form"):
        hostile.film("result = {'driven': 1}", folder, 16)
