"""Reinforcement learning through the worker: what it writes, what it returns, and that it goes past the start."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from toy import PROGRAM, make_task

from jaxrefine.config import RLConfig
from jaxrefine.learn.evaluate import Evaluation
from jaxrefine.learn.imitation import FitSettings
from jaxrefine.worker import Worker, training
from jaxrefine.worker.arrays import load_arrays

OPTIONS = asdict(RLConfig(seeds=3, episodes=8, learning_rate=0.05, window=20, looks=2))


def _worker(path: Path) -> Worker:
    return Worker(make_task(path), fit_settings=FitSettings(updates=20))


def _trained(path: Path, source: str = PROGRAM, resets: int = 160, **options: Any) -> tuple[dict[str, Any], Path]:
    worker = _worker(path)
    worker.fit(source, 2, path / "fit")
    folder = path / "rl"
    folder.mkdir()
    (folder / "start.npz").write_bytes((path / "fit" / "fits.npz").read_bytes())
    fits = options.pop("fits", [0])
    return worker.train(source, folder, fits, resets, OPTIONS | options), folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, Path]:
    path = tmp_path_factory.mktemp("trained")
    (path / "fit").mkdir()
    return (*_trained(path), path)


def test_every_seed_improves_on_where_it_started(trained: tuple[dict[str, Any], Path, Path]) -> None:
    found, _, _ = trained
    first, *_, last = (np.array(look["means"]) for look in found["looks"])
    assert np.ptp(first) == 0  # all from the same policy
    assert (last > first + 0.5).all()
    assert len(set(last.tolist())) == 3  # and on their own from there


def test_resets_and_steps_are_counted(trained: tuple[dict[str, Any], Path, Path]) -> None:
    found, folder, _ = trained
    assert (found["seeds"], found["updates"], found["resets"], found["at_once"]) == (3, 20, 480, 3)
    assert [look["resets"] for look in found["looks"]] == [0, 80, 160]
    curves = pd.read_parquet(folder / "curves.parquet")
    assert len(curves) == 3 * 20
    assert curves.resets.max() == 160
    assert found["env_steps"] == pytest.approx((curves.length * 8).sum())
    looks = pd.read_parquet(folder / "checkpoints.parquet")
    assert 0 < found["look_steps"] <= len(looks) * 120
    assert np.isfinite(curves).all().all()


def test_the_files_hold_what_the_looks_say(trained: tuple[dict[str, Any], Path, Path]) -> None:
    found, folder, path = trained
    looked = pd.read_parquet(folder / "checkpoints.parquet")
    assert sorted(looked.episode.unique()) == list(range(10))
    for look in found["looks"]:
        by_seed = looked[looked.resets == look["resets"]].groupby("seed")["value"].mean()
        np.testing.assert_allclose(by_seed, look["means"], rtol=1e-5)
    evaluated = _worker(path).evaluate(PROGRAM, folder)
    np.testing.assert_allclose(evaluated["means"], found["looks"][-1]["means"], rtol=1e-4)


def test_seeds_that_do_not_fit_in_memory_are_trained_in_turn(
    trained: tuple[dict[str, Any], Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, folder, _ = trained
    monkeypatch.setattr(training, "device_memory", lambda: 1)
    (tmp_path / "fit").mkdir()
    alone, apart = _trained(tmp_path)
    assert alone["at_once"] == 1
    for name, value in load_arrays(folder / "fits.npz").items():
        np.testing.assert_allclose(load_arrays(apart / "fits.npz")[name], value, rtol=1e-3, atol=1e-4)
    assert alone["looks"][0]["means"] == pytest.approx(found["looks"][0]["means"])


def test_each_seed_may_start_from_a_fit_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "fit").mkdir()
    found, _ = _trained(tmp_path, resets=8, fits=[0, 1])
    first = found["looks"][0]["means"]
    assert first[0] == first[2] != first[1]  # two fits, in turn


def test_a_perceptron_is_fitted_and_trained_as_a_program_is(tmp_path: Path) -> None:
    (tmp_path / "fit").mkdir()
    checked = _worker(tmp_path).check("mlp:8,8")
    assert checked["parameters"] == (2 * 8 + 8) + (8 * 8 + 8) + (8 + 1) + 1
    found, _ = _trained(tmp_path, source="mlp:8,8", learning_rate=0.01)
    kernels = load_arrays(tmp_path / "fit" / "fits.npz")["layer_0/kernel"]
    assert kernels.shape == (2, 2, 8)
    assert not np.allclose(*kernels)  # the fits start apart
    assert np.isfinite(found["looks"][-1]["means"]).all()


def test_the_best_look_on_validation_episodes_is_kept(tmp_path: Path) -> None:
    (tmp_path / "fit").mkdir()
    # steps so large that training leads away from where it started, sooner or later
    found, folder = _trained(tmp_path, keep="best", learning_rate=3.0, looks=4)
    last = _worker(tmp_path)
    protocol = last.task.protocol
    assert found["choice_resets"] == 3 * 5 * len(protocol.validation_seeds)
    kept = last.evaluate(PROGRAM, folder)
    looks = pd.read_parquet(folder / "checkpoints.parquet")
    assert len(looks) == 3 * 5 * len(protocol.test_seeds)
    for seed, at in enumerate(found["kept_at"]):
        mine = looks[(looks.seed == seed) & (looks.resets == at)].value.mean()
        assert kept["means"][seed] == pytest.approx(mine, rel=1e-4)
    assert set(found["kept_at"]) <= {0, 40, 80, 120, 160}


def test_without_a_better_look_the_start_is_kept(tmp_path: Path) -> None:
    (tmp_path / "fit").mkdir()
    found, folder = _trained(tmp_path, resets=8, keep="best", learning_rate=1e4, looks=1)
    assert found["kept_at"] == [0, 0, 0]
    start, kept = load_arrays(folder / "start.npz"), load_arrays(folder / "fits.npz")
    for name, value in kept.items():
        np.testing.assert_allclose(value, np.repeat(start[name][:1], 3, 0), rtol=1e-6)


def test_a_look_that_is_not_finite_is_never_the_best() -> None:
    means = np.array([[1.0, np.nan, 2.0], [np.nan, np.nan, np.nan], [3.0, 3.0, -np.inf]])
    assert training._choose(means, "higher").tolist() == [2, 0, 0]
    assert training._choose(means, "lower").tolist() == [0, 0, 0]


def test_the_test_episodes_choose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fit").mkdir()
    looks = 0

    def evaluate(task, program, env_params, params, index, *_: Any, **__: Any) -> Evaluation:
        """Look after look, the test episodes go better and the validation episodes worse."""
        nonlocal looks
        looks += 1
        is_test = np.arange(len(index)) < len(make_task(tmp_path).protocol.test_seeds)
        values = np.where(is_test, looks, -looks) * np.ones((3, 1))
        return Evaluation((jnp.asarray(values),), jnp.ones(values.shape, int), jnp.zeros(values.shape, bool))

    monkeypatch.setattr(training, "evaluate", evaluate)
    found, _ = _trained(tmp_path, resets=32, keep="best", looks=4)
    assert [look["means"] for look in found["looks"]] == [[n] * 3 for n in range(1, 6)]
    assert found["kept_at"] == [0, 0, 0]
