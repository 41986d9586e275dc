"""A demonstration replayed: Meta-World's episode beside this environment's, the report, and the film."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageSequence

import envs.door.demonstrations
from envs.door import replay as replays
from envs.door.reward import SUCCESS_REWARD
from envs.door.schema import HAND, HANDLE

PLANNER = Path(envs.door.demonstrations.__file__).parent / "planner.parquet"
REFERENCE = Path(__file__).parent.parent / "reference" / "door"


@pytest.fixture(scope="module")
def recording():
    return replays.read(PLANNER)


@pytest.fixture(scope="module")
def replayed(recording):
    return replays.replay(recording)


@pytest.fixture
def table():
    return pd.read_parquet(PLANNER)


def taken(replayed, steps):
    """The replay of some steps alone."""
    parts = {f: jax.tree.map(lambda x: x[steps], getattr(replayed, f)) for f in ("observations", "states", "rewards")}
    return dataclasses.replace(replayed, **parts)


def refused(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        replays.main([str(a) for a in arguments])
    assert end.value.code == 2
    return capsys.readouterr().err


def test_the_demonstration_opens_the_door_here_too(recording, replayed):
    there = replays.outcome(recording.observations, recording.rewards)
    here = replays.outcome(replayed.observations, replayed.rewards)
    assert here.success_at_the_end
    assert here.smallest == pytest.approx(there.smallest, abs=0.002)
    assert here.final == pytest.approx(there.final, abs=0.002)
    assert abs(here.steps_to_success - there.steps_to_success) <= 1
    assert here.total == pytest.approx(there.total, rel=0.002)
    errors = np.linalg.norm(recording.observations[:, HAND] - replayed.observations[:, HAND], axis=1)
    assert errors.mean() < 0.001


def test_steps_and_states_stand_beside_the_recorded_ones(recording, replayed):
    np.testing.assert_allclose(replayed.observations[0], recording.observations[0], atol=1e-6)
    np.testing.assert_array_equal(replayed.states.time, np.arange(len(recording.actions)))
    np.testing.assert_array_equal(replayed.states.frame, replayed.observations[:, :18])
    # a step's success is seen before the next one
    success = np.abs(replayed.observations[1:, 4] - replayed.observations[1:, 36]) <= 0.08
    np.testing.assert_array_equal(replayed.rewards[:-1] == SUCCESS_REWARD, success)


def test_the_doors_angle_is_read_off_the_handle():
    for motion in ("scripted", "mixed"):
        with np.load(REFERENCE / f"{motion}.npz") as arrays:
            for observations, qpos in zip(arrays["observations"], arrays["qpos"], strict=True):
                np.testing.assert_allclose(replays.door_angles(observations.astype(np.float32)), qpos[:, 9], atol=1e-3)


def test_the_report_tells_what_differs(recording, replayed):
    seen = recording.observations.copy()
    seen[:, 0] += 0.005
    seen[100, 2] += 0.1
    moved = dataclasses.replace(recording, observations=seen, rewards=None)
    lines = replays.report(moved, replayed).splitlines()
    assert "hand 5.1" in lines[-1]
    assert "mm (100." in lines[-1]
    assert lines[5].split() == ["return", "unknown", f"{replayed.rewards.sum(dtype=float):.1f}"]
    seen[:, HANDLE] = recording.observations[0, HANDLE]
    lines = replays.report(moved, replayed).splitlines()
    assert lines[3].split() == ["steps", "to", "success", "never", "200"]
    assert lines[4].split()[-2:] == ["no", "yes"]


def test_the_command_reports_and_films(tmp_path, capsys):
    out = tmp_path / "film.gif"
    assert replays.main([str(PLANNER), "--out", str(out), "--how", "plain"]) == 0
    said = capsys.readouterr().out
    assert "seed 20, 500 steps" in said
    assert "3536.6" in said
    assert "film.gif: 125 frames" in said
    with Image.open(out) as film:
        bars = []
        for frame in ImageSequence.Iterator(film):
            assert frame.info["duration"] == 50
            row = np.asarray(frame.convert("RGB"))[-2].astype(int)
            bars.append((row[:, 1] > row[:, 0] + 50).mean())
        assert len(bars) == 125
    assert (np.diff(bars) > 0).all()
    assert bars[-1] == 1
    assert out.stat().st_size < 5e6
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("ending", [".webp", ".png"])
def test_films_have_the_other_endings_too(replayed, tmp_path, ending):
    out = tmp_path / f"film{ending}"
    assert replays.film(taken(replayed, list(range(10))), out, "plain") == 3
    with Image.open(out) as film:
        assert film.n_frames == 3
        assert film.size == (replays.FILM, replays.FILM)


def test_a_long_film_has_no_more_frames_but_longer_ones(replayed, tmp_path, monkeypatch):
    monkeypatch.setattr(replays, "FRAMES", 10)
    out = tmp_path / "film.gif"
    assert replays.film(taken(replayed, 2 * list(range(500))), out, "plain") == 10
    with Image.open(out) as film:
        assert film.info["duration"] == 1250


def test_a_table_alone_needs_its_seed_and_no_rewards(table, recording, tmp_path, capsys):
    alone = tmp_path / "alone.csv"
    table.drop(columns=["t", "reward"]).to_csv(alone, index=False)
    assert "give --seed" in refused([alone], capsys)
    read = replays.read(alone, 20)
    assert read.rewards is None
    np.testing.assert_array_equal(read.actions, recording.actions)
    np.testing.assert_array_equal(read.observations, recording.observations)


def test_endings_are_known_in_capitals_too(table, replayed, tmp_path):
    table.to_csv(tmp_path / "LOUD.CSV", index=False)
    assert replays.read(tmp_path / "LOUD.CSV", 20).seed == 20
    assert replays.film(taken(replayed, list(range(10))), tmp_path / "FILM.GIF", "plain") == 3
    with Image.open(tmp_path / "FILM.GIF") as film:
        assert film.format == "GIF"


def test_a_table_without_its_columns_is_told_of_them_before_it_is_asked_for_a_seed(table, tmp_path, capsys):
    table.drop(columns="obs_hand_x").to_csv(tmp_path / "other.csv", index=False)
    assert "no column `obs_hand_x`" in refused([tmp_path / "other.csv"], capsys)


def test_another_episodes_seed_is_refused(capsys):
    assert replays.main([str(PLANNER), "--seed", "21"]) == 2
    assert "does not start as the episode of seed 21" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda table: table.drop(columns="obs_hand_x"), "no column `obs_hand_x`;"),
        (lambda table: table.drop(columns=["action_dx", "action_grip"]), "no column `action_dx` and 1 more;"),
        (lambda table: table.assign(action_dy=np.nan), "`action_dy` of .* not a finite number"),
        (lambda table: table.assign(obs_hand_z="high"), "`obs_hand_z` of .* not a finite number"),
        (lambda table: table.assign(reward=np.inf), "`reward` of .* not a finite number"),
        (lambda table: table[::-1], "`t` of .* not 0, 1, 2"),
        (lambda table: table[:1], r"has 1 row\(s\)"),
    ],
)
def test_a_table_that_is_no_demonstration_is_named(table, tmp_path, change, why):
    path = tmp_path / "changed.parquet"
    change(table).to_parquet(path, index=False)
    with pytest.raises(ValueError, match=why):
        replays.read(path, 20)


def test_files_that_cannot_be_read_are_named(tmp_path, capsys):
    assert "there is no file" in refused([tmp_path / "nothing.parquet"], capsys)
    assert ".parquet or .csv" in refused([tmp_path / "table.npz"], capsys)
    broken = tmp_path / "broken.parquet"
    broken.write_text("no table")
    assert "cannot be read" in refused([broken], capsys)
    shutil.copy(PLANNER, broken)
    for text in ("{", "[]", '{"seed": "twenty"}', '{"seed": [20]}'):
        broken.with_suffix(".json").write_text(text)
        assert "cannot be read" in refused([broken], capsys)
    assert "0 or more" in refused([PLANNER, "--seed", "-1"], capsys)


def test_a_film_that_cannot_be_written_is_refused_before_anything_is_done(tmp_path, capsys):
    assert ".gif, .webp, .png" in refused([PLANNER, "--out", tmp_path / "film.mp4"], capsys)
    assert "missing" in refused([PLANNER, "--out", tmp_path / "nowhere" / "film.gif"], capsys)
    (tmp_path / "film.gif").mkdir()
    assert "is a folder" in refused([PLANNER, "--out", tmp_path / "film.gif"], capsys)


def test_a_film_that_fails_leaves_nothing_behind(replayed, tmp_path, monkeypatch):
    short, whole = taken(replayed, list(range(10))), tmp_path / "film.gif"
    whole.mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        replays.film(short, whole, "plain")
    assert list(tmp_path.iterdir()) == [whole]
    whole.rmdir()
    save = Image.Image.save

    def full(image, path, **options):
        save(image, path, **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OSError, match="No space left"):
        replays.film(short, whole, "plain")
    assert list(tmp_path.iterdir()) == []
