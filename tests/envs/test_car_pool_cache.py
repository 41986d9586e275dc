"""Pools of tracks on disk: what is kept is read again, and what is damaged is made anew."""

from __future__ import annotations

import io
import zipfile

import jax
import numpy as np
import pytest

from envs.car_racing import cache, pool
from envs.car_racing.track import generate

SEEDS = (5, 3, 9)


def same(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.fixture
def no_generator(monkeypatch):
    """From its call on, only the first track, to which a file is compared, may be generated."""

    def refuse(seed):
        assert seed == SEEDS[0], f"seed {seed} was generated again"
        return generate(seed)

    return lambda: monkeypatch.setattr(pool, "generate", refuse)


def test_kept_tracks_are_read_and_not_generated_again(tmp_path, no_generator):
    folder = tmp_path / "deep" / "folder"
    made = pool.from_seeds(SEEDS, cache=folder)
    same(made, pool.from_seeds(SEEDS, cache=False))
    no_generator()
    same(made, pool.from_seeds(SEEDS, cache=str(folder)))
    assert list(folder.iterdir()) == [cache.path_for(folder, SEEDS, "float32")]


def test_each_precision_has_its_own_file(tmp_path, no_generator):
    pool.from_seeds(SEEDS, cache=tmp_path)
    with jax.enable_x64(True):
        made = pool.from_seeds(SEEDS, cache=tmp_path)
        no_generator()
        kept = pool.from_seeds(SEEDS, cache=tmp_path)
        same(made, kept)
        np.testing.assert_array_equal(kept.x[0, pool.LEAD], generate(SEEDS[0]).nodes[0, 2])
    assert len(list(tmp_path.iterdir())) == 2


def test_other_seeds_and_another_order_have_their_own_files(tmp_path):
    for seeds in (SEEDS, SEEDS[::-1], SEEDS[:2], (53, 9), (5, 39)):
        same(pool.from_seeds(seeds, cache=tmp_path), pool.from_seeds(seeds))
    assert len(list(tmp_path.iterdir())) == 5


def test_small_pools_are_not_kept_large_ones_are_in_the_users_cache_folder(tmp_path, monkeypatch, no_generator):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pool.from_seeds(SEEDS)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(pool, "MANY", 3)
    made = pool.from_seeds(SEEDS)
    assert [file.parent for file in tmp_path.rglob("*.npz")] == [tmp_path / "jaxrefine" / "car_racing"]
    no_generator()
    same(made, pool.from_seeds(SEEDS))
    same(made, pool.from_seeds(SEEDS, cache=True))


@pytest.mark.parametrize("set_to", [None, "", "relative/folder"])
def test_without_an_absolute_xdg_folder_the_one_at_home_is_meant(monkeypatch, tmp_path, set_to):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if set_to is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", set_to)
    assert cache.default_folder() == tmp_path / ".cache" / "jaxrefine" / "car_racing"


def write(path, arrays):
    with path.open("wb") as file:
        np.savez(file, **arrays)


def arrays(path):
    with np.load(path) as file:
        return dict(file)


def changed(name, change):
    """Damage to one array, of which the file knows nothing."""
    return lambda path: write(path, arrays(path) | {name: change(arrays(path)[name])})


def set_at(place, value):
    def change(values):
        values = values.copy()
        values[place] = value
        return values

    return change


def truncated(path):
    path.write_bytes(path.read_bytes()[:-1000])


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def without_an_array(path):
    content = arrays(path)
    del content["kerbs"]
    write(path, content)


def a_plain_array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def a_pool_of_other_seeds(path):
    pool.from_seeds((6, 3, 9), cache=path.parent / "other")
    [other] = (path.parent / "other").iterdir()
    other.replace(path)


def claims_a_terabyte(path):
    content = arrays(path)
    with zipfile.ZipFile(path, "w") as file:
        for name, values in content.items():
            buffer = io.BytesIO()
            if name == "x":
                header = {"descr": "<f4", "fortran_order": False, "shape": (2**30, pool.COLUMNS)}
                np.lib.format.write_array_header_1_0(buffer, header)
            else:
                np.lib.format.write_array(buffer, values)
            file.writestr(f"{name}.npy", buffer.getvalue())


def extended(path):
    with path.open("ab") as file:
        file.truncate(200_000)


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": truncated,
    "flipped": flipped,
    "without an array": without_an_array,
    "a plain array": a_plain_array,
    "a pickle": changed("x", lambda old: np.array([{}, [], 1], dtype=object)),
    "claims a terabyte": claims_a_terabyte,
    "extended": extended,
    "other seeds": a_pool_of_other_seeds,
    "fewer tracks": changed("starts.x", lambda old: old[:2]),
    "fewer columns": changed("beta", lambda old: old[:, 1:]),
    "another type": changed("y", lambda old: old.astype(np.float64)),
    "another first track": changed("kerbs", set_at((0, 5), 0xFFFF)),
    "another start": changed("starts.angle", lambda old: old + 0.01),
    "no length": changed("length", set_at(1, 0)),
    "too long": changed("length", set_at(1, pool.MAX_NODES + 1)),
    "a node too many": changed("length", lambda old: old + np.array([0, 1, 0], np.int32)),
    "not a number": changed("x", set_at((2, 100), np.nan)),
    "a start out of bounds": changed("starts.nearest", set_at(2, 10**6)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_bad_file_is_reported_and_made_anew(tmp_path, no_generator, damage):
    made = pool.from_seeds(SEEDS, cache=tmp_path)
    damage(cache.path_for(tmp_path, SEEDS, "float32"))
    with pytest.warns(UserWarning, match="does not hold the tracks it should and is made anew"):
        again = pool.from_seeds(SEEDS, cache=tmp_path)
    same(made, again)
    no_generator()
    same(made, pool.from_seeds(SEEDS, cache=tmp_path))


def test_a_folder_that_cannot_be_written_costs_a_warning_and_no_pool(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.warns(UserWarning, match="is made anew"), pytest.warns(UserWarning, match="cannot be kept"):
        made = pool.from_seeds(SEEDS, cache=blocked)
    same(made, pool.from_seeds(SEEDS))


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(file, **arrays):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(UserWarning, match="No space left"):
        made = pool.from_seeds(SEEDS, cache=tmp_path)
    assert made.count == 3
    assert list(tmp_path.iterdir()) == []
