"""Pools of tracks: their layout, what is kept on disk, and the world on the generator's most extreme tracks."""

from __future__ import annotations

import io
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.box2d.car_racing import CarRacing

import envs
from envs.car_racing import cache, dynamics, pool
from envs.car_racing.env import EnvParams
from envs.car_racing.schema import LENGTH_SCALE, TILES
from envs.car_racing.track import HALF_WIDTH, Track, generate

SHORTEST, LONGEST, CLOSEST, NARROWEST, WIDEST, CROOKED = 2849, 9674, 1375, 3617, 3037, 7668  # see test_car_track
EXTREMES = (SHORTEST, LONGEST, CLOSEST, NARROWEST, WIDEST, CROOKED)
POSES = 300
SEEDS = (5, 3, 9)


class Blind(CarRacing):
    """Gymnasium's environment without its pictures, which take 98 % of a step."""

    def _render(self, mode):
        return np.zeros((1, 1, 3), np.uint8)


# layout


def test_a_pool_repeats_each_track_round_its_loop():
    tracks = [generate(seed) for seed in (1, 2, LONGEST)]
    built = pool.build(tracks)
    assert built.count == 3
    assert built.x.dtype == jnp.float32
    for row, track in enumerate(tracks):
        count = len(track)
        assert int(built.length[row]) == count
        node = (np.arange(pool.COLUMNS) - pool.LEAD) % count
        np.testing.assert_array_equal(built.beta[row], track.nodes[node, 1].astype(np.float32))
        np.testing.assert_array_equal(built.x[row], track.nodes[node, 2].astype(np.float32))
        np.testing.assert_array_equal(built.y[row], track.nodes[node, 3].astype(np.float32))
        ahead = np.asarray(built.kerbs[row])[:, None] >> np.arange(13, dtype=np.uint32) & 1
        np.testing.assert_array_equal(ahead, track.kerbs[(node[:, None] + np.arange(13)) % count])


def test_reach_is_half_the_distance_to_the_road_beyond_a_nodes_neighbours():
    seeds = (SHORTEST, LONGEST, CLOSEST, WIDEST)
    built = pool.from_seeds(seeds)
    for row, seed in enumerate(seeds):
        nodes = generate(seed).nodes[:, 2:]
        count = len(nodes)
        apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
        away = np.hypot(*(nodes[:, None] - nodes).transpose(2, 0, 1))
        away[np.minimum(apart, count - apart) <= pool.NEIGHBOURS] = np.inf
        column = (np.arange(pool.COLUMNS) - pool.LEAD) % count
        np.testing.assert_allclose(built.reach[row], away.min(axis=1)[column] / 2, rtol=1e-4)


def test_a_pool_holds_float64_where_jax_does():
    with jax.enable_x64(True):
        built = pool.from_seeds([7])
        assert built.x.dtype == jnp.float64
        np.testing.assert_array_equal(built.x[0, pool.LEAD], generate(7).nodes[0, 2])
        assert built.length.dtype == jnp.int32
        assert built.kerbs.dtype == built.starts.visited.dtype == jnp.uint32


def test_a_track_takes_nine_kilobytes():
    built = pool.from_seeds(range(4))
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(built)) / 4 < 9000


def test_an_empty_pool_and_a_track_too_long_are_refused(tmp_path):
    for keep in (None, tmp_path):
        with pytest.raises(ValueError, match="at least one track"):
            pool.from_seeds([], cache=keep)
    with pytest.raises(ValueError, match="at least one track"):
        pool.build([])
    nodes = np.zeros((pool.MAX_NODES + 1, 4))
    with pytest.raises(ValueError, match="417 nodes is too long"):
        pool.build([Track(nodes, np.zeros(len(nodes), bool))])


# on disk


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


# extreme tracks


@pytest.fixture(scope="module")
def car():
    return envs.make("car_racing")[0]


@pytest.fixture(scope="module")
def params(car):
    return EnvParams(tracks=pool.from_seeds(EXTREMES))


@pytest.fixture(scope="module")
def poses():
    """Positions and headings (episode, pose, 3) on the road, beside it, and far from it."""
    random = np.random.default_rng(0)
    found = []
    for seed in EXTREMES:
        track = generate(seed)
        _, beta, x, y = track.nodes[random.integers(0, len(track), POSES)].T
        beta[:20], x[:20], y[:20] = track.nodes[np.arange(-10, 10), 1:].T  # where the loop closes
        aside = random.uniform(-1, 1, POSES) * random.choice([2, HALF_WIDTH + 3, 40], POSES)
        along = random.uniform(-2, 2, POSES)
        x, y = x + aside * np.cos(beta) - along * np.sin(beta), y + aside * np.sin(beta) + along * np.cos(beta)
        found.append(np.stack([x, y, beta + random.choice([0.3, 3], POSES) * random.normal(size=POSES)], axis=1))
    return np.stack(found)


@pytest.fixture(scope="module")
def placed(car, params, poses):
    """Cars put down at the poses, and stepped twice where they stand: an observation, and what they have touched."""

    def look(track, pose):
        _, state = car.reset_to(params, track)
        forward = jnp.stack([-jnp.sin(pose[2]), jnp.cos(pose[2])]) * dynamics.CENTRE
        still = state.car.replace(
            x=pose[0] + forward[0],
            y=pose[1] + forward[1],
            angle=pose[2],
            front_angle=jnp.zeros(()),
            front_spread=jnp.zeros(()),
            rear_angle=jnp.zeros(()),
        )
        nothing = state.replace(
            car=still, visited=jnp.zeros_like(state.visited), touching=jnp.zeros_like(state.touching)
        )
        obs, state, *_ = car.step_env(jax.random.key(0), nothing, jnp.zeros(3), params)
        _, after, *_ = car.step_env(jax.random.key(0), state, jnp.zeros(3), params)
        return obs["tiles"], state.nearest, after.visited

    each = jax.jit(jax.vmap(jax.vmap(look, (None, 0)), (0, 0)))
    tiles, nearest, visited = each(jnp.arange(len(EXTREMES)), jnp.asarray(poses, jnp.float32))
    bits = np.asarray(visited)[..., None] >> np.arange(32, dtype=np.uint32) & 1
    return np.asarray(tiles), np.asarray(nearest), bits.reshape(*visited.shape[:2], -1).astype(bool)


def test_the_nearest_node_is_found_among_all(placed, poses):
    _, nearest, _ = placed
    for i, seed in enumerate(EXTREMES):
        away = np.hypot(*(poses[i, :, None, :2] - generate(seed).nodes[:, 2:]).transpose(2, 0, 1))
        # equally near to two nodes, float32 may choose either
        np.testing.assert_allclose(away[np.arange(POSES), nearest[i]], away.min(axis=1), rtol=0, atol=1e-3)
        assert (nearest[i] == away.argmin(axis=1)).mean() > 0.99


def test_the_observation_is_the_twelve_nodes_from_there(placed, poses):
    tiles, nearest, _ = placed
    for i, seed in enumerate(EXTREMES):
        track = generate(seed)
        for pose, first, seen in zip(poses[i], nearest[i], tiles[i], strict=True):
            sin, cos = np.sin(pose[2]), np.cos(pose[2])
            away = track.nodes[:, 2:] - pose[:2]
            ahead = away @ (-sin, cos)
            if abs(ahead[first]) < 1e-3:
                continue
            index = (first + (ahead[first] < 0) + np.arange(TILES)) % len(track)
            theta = (track.nodes[index, 1] - pose[2] + np.pi) % (2 * np.pi) - np.pi
            expected = np.stack([away[index] @ (cos, sin) * LENGTH_SCALE, ahead[index] * LENGTH_SCALE], axis=1)
            np.testing.assert_allclose(seen[:, :2], expected, atol=1e-4)
            turned = np.abs(seen[:, 2] - theta / np.pi)
            assert np.minimum(turned, 2 - turned).max() < 1e-4
            np.testing.assert_array_equal(seen[:, 3], track.kerbs[index])


def test_box2d_touches_the_same_tiles_at_every_pose(placed, poses):
    _, _, visited = placed
    env = Blind()
    touched, differ = 0, []
    for i, seed in enumerate(EXTREMES):
        env.reset(seed=seed)
        for j, (x, y, angle) in enumerate(poses[i].tolist()):
            put(env, x, y, angle)
            env.world.Step(1 / 50, 180, 60)
            theirs = {tile.idx for wheel in env.car.wheels for tile in wheel.tiles}
            touched += len(theirs)
            if theirs != set(np.flatnonzero(visited[i, j]).tolist()):
                differ.append((seed, j, theirs, np.flatnonzero(visited[i, j])))
    env.close()
    assert touched > len(EXTREMES) * POSES
    assert differ == []


def put(env, x, y, angle):
    """Place Gymnasium's car, at rest and undistorted."""
    sin, cos = np.sin(angle), np.cos(angle)
    env.car.hull.transform = (x, y), angle
    for wheel, (right, ahead) in zip(env.car.wheels, dynamics.WHEEL_POSITIONS.tolist(), strict=True):
        wheel.transform = (x + cos * right - sin * ahead, y + sin * right + cos * ahead), angle
    for body in (env.car.hull, *env.car.wheels):
        body.linearVelocity, body.angularVelocity = (0, 0), 0
        body.awake = True


def drive(tiles, speed, xp):
    """A driver slow enough never to slide, whose episodes rounding does not drive apart."""
    steer = xp.clip(2 * xp.arctan2(tiles[3, 0], tiles[3, 1]), -1, 1)
    wanted = xp.clip(0.7 - 1.5 * xp.max(xp.abs(tiles[:9, 2])), 0.25, 0.55)
    return xp.stack([steer, xp.clip(4 * (wanted - speed), 0, 0.5), xp.clip(2 * (speed - wanted), 0, 0.4)])


def look(env):
    hull = env.car.hull
    nodes = np.array(env.track)
    sin, cos = np.sin(hull.angle), np.cos(hull.angle)
    away = nodes[:, 2:] - np.array(hull.position)
    ahead = away @ (-sin, cos)
    first = np.argmin((away**2).sum(axis=1))
    index = (first + (ahead[first] < 0) + np.arange(TILES)) % len(nodes)
    theta = (nodes[index, 1] - hull.angle + np.pi) % (2 * np.pi) - np.pi
    tiles = np.stack([away[index] @ (cos, sin) * LENGTH_SCALE, ahead[index] * LENGTH_SCALE, theta / np.pi], axis=1)
    return tiles, hull.linearVelocity.length / 100


def test_a_whole_lap_visits_what_gymnasiums_does_within_a_step(car, params):
    steps = 2000

    @jax.jit
    def laps(params):
        def body(carry, _):
            state, obs = carry
            action = jax.vmap(lambda o: drive(o["tiles"], o["indicators"][0], jnp))(obs)
            obs, state, _, terminated, _ = jax.vmap(car.step_env, (None, 0, 0, None))(
                jax.random.key(0), state, action, params
            )
            return (state, obs), (state.visited, terminated)

        obs, state = jax.vmap(car.reset_to, (None, 0))(params, jnp.arange(len(EXTREMES)))
        return jax.lax.scan(body, (state, obs), None, steps)[1]

    visited, terminated = (np.asarray(values).swapaxes(0, 1) for values in laps(params))
    bits = (visited[..., None] >> np.arange(32, dtype=np.uint32) & 1).reshape(*visited.shape[:2], -1).astype(bool)
    env = Blind()
    for i, seed in enumerate(EXTREMES):
        env.reset(seed=seed)
        theirs = []
        for _ in range(steps):
            _, _, over, _, _ = env.step(drive(*look(env), np).astype(np.float32))
            theirs.append([tile.road_visited for tile in env.road])
            if over:
                break
        theirs = np.array(theirs)
        assert over, f"seed {seed}: {theirs[-1].sum()} of {len(env.road)} tiles"
        # millimetres decide at which of two steps a tile is reached
        ours = bits[i, : len(theirs), : len(env.road)]
        assert (ours[:-1] <= theirs[1:]).all(), seed
        assert (theirs[:-1] <= ours[1:]).all(), seed
        assert (ours == theirs).all(axis=1).mean() > 0.97, seed
        assert abs(terminated[i].argmax() - (len(theirs) - 1)) <= 1
    env.close()
