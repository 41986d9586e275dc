from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from toy import PROGRAM, make_task

from jaxrefine.errors import UserError
from jaxrefine.learn.imitation import FitSettings
from jaxrefine.worker import ProgramError, Worker
from jaxrefine.worker.arrays import load_arrays, save_arrays

NAMES = st.sampled_from(["file", "a/b", "allow_pickle", "x"])


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(make_task(tmp_path), fit_settings=FitSettings(updates=40))


def test_chunks_change_nothing(worker: Worker, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        worker.fit(PROGRAM, 5, folder)
    first = worker.evaluate(PROGRAM, whole)
    worker.rollout(PROGRAM, whole, 7)
    worker.chunk, worker.evaluation_chunk = 3, 35  # 16 episodes a fit, so 2 fits at once
    assert worker.evaluate(PROGRAM, parts)["means"] == pytest.approx(first["means"], rel=1e-5)
    worker.rollout(PROGRAM, parts, 7)
    for name in ("evaluation", "validation", "rollouts"):
        a, b = (pd.read_parquet(folder / f"{name}.parquet") for folder in (whole, parts))
        pd.testing.assert_frame_equal(a, b, rtol=1e-5, atol=1e-6)


def test_another_root_seed_gives_another_fit_and_the_same_one_the_same(tmp_path: Path) -> None:
    found = []
    for number, seed in enumerate((0, 0, 1)):
        worker = Worker(make_task(tmp_path), seed=seed, fit_settings=FitSettings(updates=40))
        worker.fit(PROGRAM, 2, tmp_path / str(number))
        found.append(load_arrays(tmp_path / str(number) / "fits.npz")["damping"])
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.allclose(found[0], found[2])


def test_the_fit_finds_the_demonstrators_controller(tmp_path: Path) -> None:
    """force = -0.5 position - velocity; that his force is clipped after the noise draws the fit towards zero."""
    worker = Worker(make_task(tmp_path), fit_settings=FitSettings(updates=1000))
    worker.fit(PROGRAM, 2, tmp_path)
    worker.evaluate(PROGRAM, tmp_path)
    weights = load_arrays(tmp_path / "weights.npz")
    np.testing.assert_allclose([weights["stiffness"], weights["damping"]], [-0.5, -1.0], atol=0.2)


def test_a_fit_that_never_moved_is_a_failure(worker: Worker, tmp_path: Path) -> None:
    # finite everywhere, but its gradient is not: the square root's slope at zero
    broken = PROGRAM.replace("pull + brake, -1, 1)", "pull + brake, -1, 1) + jnp.sqrt(0 * self.noise[...])")
    with pytest.raises(ProgramError, match="gradient"):
        worker.fit(broken, 2, tmp_path)


@given(st.dictionaries(NAMES, hnp.arrays(np.float32, hnp.array_shapes(min_dims=0))))
def test_arrays_come_back_whatever_their_names(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, np.ndarray]
) -> None:
    path = tmp_path_factory.mktemp("arrays") / "a.npz"
    save_arrays(path, arrays)
    found = load_arrays(path)
    assert list(found) == list(arrays)
    for name, value in arrays.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize(
    "damage",
    [lambda p: p.unlink(), lambda p: p.write_bytes(p.read_bytes()[:-30]), lambda p: p.write_bytes(b"")],
)
def test_damaged_parameters_are_named(tmp_path: Path, damage) -> None:
    path = tmp_path / "weights.npz"
    save_arrays(path, {"x": np.arange(10.0)})
    damage(path)
    with pytest.raises(UserError, match=r"weights\.npz cannot be read"):
        load_arrays(path)


def test_the_structure_of_a_program_and_its_difference_from_another(tmp_path: Path) -> None:
    worker = Worker(make_task(tmp_path))
    assert worker.structure(PROGRAM, None)["changes"] is None
    wider = PROGRAM.replace("brake = self.damping[...] * block[1]", "brake = self.damping[...] * (block[1] + block[0])")
    found = worker.structure(wider, PROGRAM)
    assert found["changes"]["latents"]["rewired"]["latent_brake"]["inputs_added"] == ["position"]
    assert "latent_brake: now from position" in found["text"]
