"""Pools of tracks: their layout, and the world on the generator's most extreme tracks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.box2d.car_racing import CarRacing

import envs
from envs.car_racing import dynamics, pool
from envs.car_racing.env import EnvParams
from envs.car_racing.schema import LENGTH_SCALE, TILES
from envs.car_racing.track import HALF_WIDTH, Track, generate

SHORTEST, LONGEST, CLOSEST, NARROWEST, WIDEST, CROOKED = 2849, 9674, 1375, 3617, 3037, 7668  # see test_car_track
EXTREMES = (SHORTEST, LONGEST, CLOSEST, NARROWEST, WIDEST, CROOKED)
POSES = 300


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
