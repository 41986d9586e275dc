from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from gymnasium.envs.box2d import car_dynamics
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from envs.car_racing import reference
from envs.car_racing.conditions import CONDITIONS

FORWARD = np.array([0.0, 0.8, 0.0], np.float32)


@pytest.fixture(scope="module")
def env():
    return reference.make_reference()


def straight_road(n: int = 40, spacing: float = 3.5) -> reference.Nodes:
    """A road along the world's y axis, which is where a hull of angle 0 points."""
    position = np.stack([np.zeros(n), spacing * np.arange(n)], axis=1)
    return reference.Nodes(position, np.zeros(n), np.arange(n) % 5 == 0)


def circle(n: int = 64, radius: float = 40.0) -> reference.Nodes:
    """A loop driven counter-clockwise, that is, always turning left; node 0 is at (radius, 0)."""
    turn = 2 * np.pi * np.arange(n) / n
    return reference.Nodes(radius * np.stack([np.cos(turn), np.sin(turn)], axis=1), turn, np.zeros(n, bool))


def test_a_car_left_of_the_centre_line_sees_the_tiles_to_its_right():
    tiles = reference.tiles_ahead(straight_road(), np.array([-2.0, 7.0]), 0.0)
    assert tiles.dtype == np.float32
    np.testing.assert_allclose(tiles[:, 0], 2.0 * 0.03, rtol=1e-6)
    np.testing.assert_allclose(tiles[:, 1], 3.5 * np.arange(12) * 0.03, atol=1e-6)
    np.testing.assert_array_equal(tiles[:, 2], 0)
    np.testing.assert_array_equal(tiles[:, 3], np.arange(2, 14) % 5 == 0)


def test_a_road_that_turns_left_has_positive_theta_and_goes_to_negative_x():
    tiles = reference.tiles_ahead(circle(), np.array([40.0, 0.0]), 0.0)
    np.testing.assert_allclose(tiles[:, 2], 2 * np.arange(12) / 64, atol=1e-6)
    assert (np.diff(tiles[:, 0]) < 0).all()
    assert tiles[0, 0] == 0


def test_a_car_that_points_left_of_the_road_has_negative_theta():
    tiles = reference.tiles_ahead(straight_road(), np.array([0.0, 7.0]), 0.25)
    np.testing.assert_allclose(tiles[:, 2], -0.25 / np.pi, rtol=1e-6)
    assert tiles[5, 0] > 0


@pytest.mark.parametrize(
    ("forward", "first"),
    [(7.0, 7.0), (6.9, 7.0), (7.1, 10.5), (5.3, 7.0), (5.2, 7.0), (8.7, 10.5), (8.8, 10.5)],
)
def test_the_first_tile_is_the_nearest_or_the_next_when_that_is_behind(forward, first):
    tiles = reference.tiles_ahead(straight_road(), np.array([0.5, forward]), 0.0)
    assert tiles[0, 1] == pytest.approx((first - forward) * 0.03, abs=1e-6)


def test_a_car_against_the_traffic_takes_the_next_of_the_road_not_of_its_view():
    tiles = reference.tiles_ahead(straight_road(), np.array([0.0, 7.1]), math.pi)
    # node 2 is nearest and, for a car turned round, ahead of it
    assert tiles[0, 1] == pytest.approx(0.1 * 0.03, abs=1e-6)
    assert (tiles[1:, 1] < 0).all()
    np.testing.assert_allclose(np.abs(tiles[:, 2]), 1.0, rtol=1e-6)


def test_the_tiles_wrap_round_the_loop():
    road = circle()
    at_node_60 = reference.tiles_ahead(road, road.position[60], road.heading[60])
    at_node_20 = reference.tiles_ahead(road, road.position[20], road.heading[20])
    np.testing.assert_allclose(at_node_60, at_node_20, atol=1e-6)
    behind_the_last = reference.tiles_ahead(road, road.position[63] * np.array([1.0, 0.9]), 0.0)
    # node 0 follows node 63, which the car has just passed
    assert behind_the_last[0, 1] == pytest.approx(0.9 * 40 * math.sin(2 * math.pi / 64) * 0.03, abs=1e-6)
    assert behind_the_last[0, 2] == 0


@pytest.mark.parametrize("turns", [-2, -1, 1, 3])
def test_whole_turns_of_the_hull_change_nothing(turns):
    road = circle()
    expected = reference.tiles_ahead(road, np.array([37.0, 9.0]), 0.3)
    turned = reference.tiles_ahead(road, np.array([37.0, 9.0]), 0.3 + 2 * np.pi * turns)
    np.testing.assert_allclose(turned, expected, atol=1e-6)


def test_half_a_turn_is_plus_one():
    road = reference.Nodes(straight_road().position, np.full(40, math.pi), np.zeros(40, bool))
    np.testing.assert_array_equal(reference.tiles_ahead(road, np.zeros(2), 0.0)[:, 2], 1.0)
    np.testing.assert_array_equal(reference.tiles_ahead(road, np.zeros(2), 2 * math.pi)[:, 2], 1.0)


@settings(max_examples=50, deadline=None)
@given(
    rotation=st.floats(-3.0, 3.0),
    shift=st.tuples(st.floats(-100, 100), st.floats(-100, 100)),
    pose=st.tuples(st.floats(30, 50), st.floats(-0.04, 0.04), st.floats(-1, 1)),
)
def test_what_is_seen_does_not_depend_on_where_the_world_lies(rotation, shift, pose):
    road = circle()
    radius, turn, angle = pose
    position = radius * np.array([math.cos(turn), math.sin(turn)])
    cos, sin = math.cos(rotation), math.sin(rotation)
    matrix = np.array([[cos, -sin], [sin, cos]])
    moved = reference.Nodes(road.position @ matrix.T + shift, road.heading + rotation, road.border)
    expected = reference.tiles_ahead(road, position, angle)
    distances = np.linalg.norm(road.position - position, axis=1)
    nearest, second = np.argsort(distances)[:2]
    ahead = (road.position[nearest] - position) @ np.array([-math.sin(angle), math.cos(angle)])
    # which tile comes first hangs on rounding where the nearest node is just abreast, or another is as near
    assume(abs(ahead) > 1e-3)
    assume(distances[second] - distances[nearest] > 1e-3)
    assume(abs(expected[:, 2]).max() < 0.999)
    seen = reference.tiles_ahead(moved, matrix @ position + shift, angle + rotation)
    np.testing.assert_allclose(seen, expected, atol=1e-5)


def test_the_edge_of_the_road_is_at_two_tenths():
    from gymnasium.envs.box2d.car_racing import TRACK_WIDTH

    assert pytest.approx(0.2) == TRACK_WIDTH * reference.LENGTH_SCALE


def test_a_car_placed_beside_a_known_node_of_a_live_track(env):
    env.reset(seed=5)
    _, beta, x, y = env.track[100]
    env.car.hull.position = (x - 3 * math.cos(beta), y - 3 * math.sin(beta))
    env.car.hull.angle = beta - 0.2
    tiles = reference.reference_observation(env)["tiles"]
    # 3 m left of the node, then turned 0.2 rad to the right: the node is ahead
    assert tiles[0, 0] == pytest.approx(3 * math.cos(0.2) * 0.03, abs=1e-5)
    assert tiles[0, 1] == pytest.approx(3 * math.sin(0.2) * 0.03, abs=1e-5)
    assert tiles[0, 2] == pytest.approx(0.2 / math.pi, abs=1e-6)


def test_indicators_are_scaled_as_the_schema_says(env):
    env.reset(seed=5)
    hull, wheels = env.car.hull, env.car.wheels
    hull.linearVelocity = (30.0, -40.0)
    hull.angularVelocity = -2.5
    wheels[0].angle = hull.angle + 0.25
    wheels[1].angle = hull.angle - 0.1
    for i, wheel in enumerate(wheels):
        wheel.omega = 10.0 * (i + 1)
    indicators = reference.reference_observation(env)["indicators"]
    np.testing.assert_allclose(indicators, [0.5, 0.25 / np.pi, -0.25, 0.05, 0.1, 0.15, 0.2], rtol=1e-5)
    assert indicators.dtype == np.float32


def test_wheels_are_ordered_front_left_front_right_rear_left_rear_right(env):
    env.reset(seed=5)
    places = [env.car.hull.GetLocalPoint(wheel.position) for wheel in env.car.wheels]
    assert [(p[0] < 0, p[1] > 0) for p in places] == [(True, True), (False, True), (True, False), (False, False)]


def test_positive_steer_turns_right(env):
    def policy(observation):
        return np.array([1.0, 0.3, 0.0])

    indicators = reference.run_episode(policy, seed=5, max_steps=30, env=env).observations["indicators"]
    assert indicators[-1, 1] < 0
    assert indicators[-1, 2] < 0


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_kerbs_are_where_the_rule_puts_them(env, seed):
    env.reset(seed=seed)
    nodes = reference.track_nodes(env)
    heading, n = nodes.heading, len(nodes.heading)
    # sharp and to one side over four nodes; then marked on those four, in place, as the original does
    bend = heading - np.roll(heading, 1)
    border = []
    for i in range(n):
        four = bend[[i - k for k in range(4)]]
        sharp = bool((np.abs(four) > 0.31 * 0.2).all())
        border.append(sharp and len(set(np.sign(four))) == 1)
    for i in range(n):
        for k in range(4):
            border[i - k] |= border[i]
    np.testing.assert_array_equal(nodes.border, border)
    assert 0 < nodes.border.sum() < n


def test_actions_are_clipped_before_they_are_sent_and_recorded(env):
    wild = reference.run_episode(lambda o: [-3.0, 7.0, -1.0], seed=5, max_steps=40, env=env)
    tame = reference.run_episode(lambda o: [-1.0, 1.0, 0.0], seed=5, max_steps=40, env=env)
    np.testing.assert_array_equal(wild.actions, np.tile(np.array([-1, 1, 0], np.float32), (40, 1)))
    np.testing.assert_array_equal(wild.observations["tiles"], tame.observations["tiles"])
    assert wild.steps == 40
    assert not wild.terminated


def test_the_return_is_what_gymnasium_paid(env):
    import gymnasium

    episode = reference.run_episode(lambda o: FORWARD, seed=5, max_steps=60, env=env)
    plain = gymnasium.make("CarRacing-v3").unwrapped
    plain._render = lambda mode: None
    plain.reset(seed=5)
    paid = [plain.step(FORWARD)[1] for _ in range(60)]
    np.testing.assert_array_equal(episode.rewards, paid)
    assert episode.total == pytest.approx(sum(paid))


def test_leaving_the_playfield_ends_the_episode(env):
    episode = reference.run_episode(lambda o: FORWARD, seed=5, env=env)
    assert episode.terminated
    assert episode.steps < reference.MAX_STEPS
    assert episode.rewards[-1] == -100


@pytest.mark.parametrize("action", [[0.0, 1.0], [math.nan, 0.0, 0.0]])
def test_a_policy_that_gives_no_action_is_told(env, action):
    with pytest.raises(ValueError, match="three finite numbers"):
        reference.run_episode(lambda o: action, seed=5, env=env)


def test_rendering_is_left_out_unless_asked_for(env):
    assert env.reset(seed=5)[0] is None
    drawing = reference.make_reference(render=True)
    assert drawing.reset(seed=5)[0].shape == (96, 96, 3)
    assert drawing.render().shape == (400, 600, 3)
    drawing.close()


def script(steps: int = 200) -> np.ndarray:
    """Full gas through bends, then the brakes: every tyre slides for a while."""
    t = np.arange(steps)
    return np.stack([0.6 * np.sin(0.1 * t), t < 150, 0.6 * (t >= 150)], axis=1)


def poses(env, actions, seed=5):
    """(steps, 5): place, angle and velocity of the hull after each action as Gymnasium gets it."""
    env.reset(seed=seed)
    return np.array([pose_after(env, action) for action in actions])


def pose_after(env, action):
    env.step(action)
    hull = env.car.hull
    return (*hull.position, hull.angle, *hull.linearVelocity)


@pytest.mark.parametrize(
    ("field", "constant", "factor"), [("friction", "FRICTION_LIMIT", 0.5), ("engine_power", "ENGINE_POWER", 0.4)]
)
def test_a_factor_does_what_the_constant_would(env, monkeypatch, field, constant, factor):
    changed = poses(reference.make_reference(condition={field: factor}), script())
    assert np.abs(changed - poses(env, script())).max() > 5
    monkeypatch.setattr(car_dynamics, constant, getattr(car_dynamics, constant) * factor)
    np.testing.assert_array_equal(changed, poses(env, script()))


def test_a_pull_adds_to_the_clipped_steering(env):
    pulled = reference.make_reference(condition="pull")
    wild = script() * np.array([3.0, 1.0, 1.0])
    sent = np.clip(wild, [-1, 0, 0], 1) + np.array([CONDITIONS["pull"]["pull"], 0, 0])
    assert sent[:, 0].max() > 1
    np.testing.assert_array_equal(poses(pulled, wild), poses(env, sent))


def test_a_pull_is_to_the_right_and_no_part_of_the_recorded_action():
    pulled = reference.make_reference(condition="pull")
    episode = reference.run_episode(lambda o: [0.0, 0.3, 0.0], seed=5, max_steps=60, env=pulled)
    assert episode.observations["indicators"][-1, 2] < -0.01
    assert (episode.actions[:, 0] == 0).all()


def test_a_delayed_car_coasts_and_then_obeys_and_forgets_at_a_reset(env):
    late = reference.make_reference(condition={"delay": 6})
    actions = script().astype(np.float32)
    expected = poses(env, np.concatenate([np.zeros((6, 3), np.float32), actions[:-6]]))
    np.testing.assert_array_equal(poses(late, actions), expected)
    np.testing.assert_array_equal(poses(late, actions), expected)


def test_references_under_different_conditions_go_side_by_side():
    actions = script(120).astype(np.float32)
    together = {name: reference.make_reference(condition=name) for name in CONDITIONS}
    for other in together.values():
        other.reset(seed=5)
    turns = [{name: pose_after(other, action) for name, other in together.items()} for action in actions]
    ends = set()
    for name in CONDITIONS:
        alone = poses(reference.make_reference(condition=name), actions)
        np.testing.assert_array_equal(alone, [turn[name] for turn in turns])
        ends.add(tuple(alone[-1]))
    assert len(ends) == len(CONDITIONS)


@pytest.mark.parametrize(
    ("condition", "says"),
    [("icy", "there are: stock, slick, pull, delay, worn"), ({"observation_noise": 0.1}, "cannot change observation")],
)
def test_a_condition_that_is_not_there_is_told(condition, says):
    with pytest.raises(ValueError, match=says):
        reference.make_reference(condition=condition)


def test_without_gymnasium_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"jaxrefine\[test\]"):
        reference.make_reference()
