from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.box2d.car_racing import CarRacing

from envs.car_racing import pool
from envs.car_racing.start import start_of
from envs.car_racing.track import HALF_WIDTH, NODE_SPACING, Track, attempt, generate

SEEDS = [*range(34, 72), 1000, 1001, 1002, 123_456_789]
FAILS_FIRST = 36  # its first attempt does not close


class Blind(CarRacing):
    """Gymnasium's environment without its pictures, which take 98 % of a step."""

    def _render(self, mode):
        return np.zeros((1, 1, 3), np.uint8)


@pytest.fixture(scope="module")
def gymnasium_tracks():
    env = Blind()
    tracks = {}
    for seed in SEEDS:
        env.reset(seed=seed)
        # kerbs are the polygons with a fixed colour, tiles those with a tinted one
        tiles = [corners for corners, colour in env.road_poly if isinstance(colour, np.ndarray)]
        kerbs = [corners for corners, colour in env.road_poly if not isinstance(colour, np.ndarray)]
        visited = [i for i, tile in enumerate(env.road) if tile.road_visited]
        tracks[seed] = (np.array(env.track), np.array(tiles), np.array(kerbs).reshape(-1, 4, 2), visited)
    env.close()
    return tracks


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_gives_gymnasiums_track_bit_for_bit(gymnasium_tracks, seed):
    nodes, tiles, kerbs, _ = gymnasium_tracks[seed]
    track = generate(seed)
    np.testing.assert_array_equal(track.nodes, nodes, strict=True)
    np.testing.assert_array_equal(track.tiles, tiles, strict=True)
    np.testing.assert_array_equal(track.kerb_tiles, kerbs, strict=True)
    assert track.kerbs.sum() == len(kerbs)


def test_a_failed_attempt_is_followed_by_another_from_the_same_numbers():
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(FAILS_FIRST)))
    assert attempt(random) is None
    second = attempt(random)
    assert second is not None
    np.testing.assert_array_equal(second.nodes, generate(FAILS_FIRST).nodes)


def test_reset_has_visited_gymnasiums_tiles_and_tile_0_among_them(gymnasium_tracks):
    for seed, (_, _, _, visited) in gymnasium_tracks.items():
        assert start_of(generate(seed)).visited.tolist() == visited
        assert 0 in visited, "the rule of the finished lap could fire"


def test_tiles_share_edges_and_have_the_roads_width():
    track = generate(5)
    left, right, back_right, back_left = track.tiles.transpose(1, 0, 2)
    np.testing.assert_array_equal(np.roll(right, 1, axis=0), back_right)
    np.testing.assert_array_equal(np.roll(left, 1, axis=0), back_left)
    np.testing.assert_allclose(np.linalg.norm(right - left, axis=1), 2 * HALF_WIDTH)
    spacing = np.linalg.norm(np.diff(track.nodes[:, 2:], axis=0), axis=1)
    np.testing.assert_allclose(spacing, NODE_SPACING)


def test_a_pool_repeats_each_track_round_its_loop():
    tracks = [generate(seed) for seed in (1, 2, 3)]
    built = pool.build(tracks)
    assert built.count == 3
    assert built.x.dtype == jnp.float32
    for row, track in enumerate(tracks):
        count = len(track)
        assert int(built.length[row]) == count
        for column in (0, pool.LEAD, pool.LEAD + count - 1, pool.LEAD + count + 5, pool.COLUMNS - 1):
            node = (column - pool.LEAD) % count
            assert float(built.x[row, column]) == np.float32(track.nodes[node, 2])
            assert float(built.beta[row, column]) == np.float32(track.nodes[node, 1])
            ahead = [bool(int(built.kerbs[row, column]) >> k & 1) for k in range(13)]
            assert ahead == track.kerbs[(node + np.arange(13)) % count].tolist()


def test_a_pool_holds_float64_where_jax_does():
    with jax.enable_x64(True):
        built = pool.from_seeds([7])
        assert built.x.dtype == jnp.float64
        np.testing.assert_array_equal(built.x[0, pool.LEAD], generate(7).nodes[0, 2])


def test_an_empty_pool_and_a_track_too_long_are_refused():
    with pytest.raises(ValueError, match="at least one track"):
        pool.from_seeds([])
    nodes = np.zeros((pool.MAX_NODES + 1, 4))
    with pytest.raises(ValueError, match="417 nodes is too long"):
        pool.build([Track(nodes, np.zeros(len(nodes), bool))])
