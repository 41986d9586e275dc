"""Door Opening's mechanics against MuJoCo, and against the reference's compiled numbers."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from envs.door import contact, dynamics, model, observation, reward, smooth
from envs.door.constraints import limits, touches, weld
from envs.door.solver import Problem, cholesky_solve, solve

REFERENCE = Path(__file__).parent.parent / "reference" / "door"
MOTIONS = ("scripted", "noisy", "smooth", "mixed")
STATES = 64


@pytest.fixture(scope="module")
def compiled():
    return json.loads((REFERENCE / "reference_model.json").read_text())


@pytest.fixture(scope="module")
def states():
    """Some of the reference's states: joints and their rates (10, n), positions of door and mocap body (3, n)."""
    episodes = np.load(REFERENCE / "mixed.npz")
    random = np.random.default_rng(0)
    episode, step = random.integers(0, 10, STATES), random.integers(0, 500, STATES)
    names = ("qpos", "qvel", "mocap")
    qpos, qvel, mocap = (jnp.asarray(episodes[name][episode, step].T, jnp.float32) for name in names)
    return qpos, qvel, mocap, jnp.asarray(episodes["doors"][episode].T, jnp.float32)


@pytest.fixture(scope="module")
def smooth_parts(states):
    qpos, qvel, _, _ = states

    @jax.jit
    def parts(qpos, qvel):
        where = smooth.pose(qpos[:7])
        return where, *smooth.inertia_and_bias(where, qpos[7:9], qvel)

    return parts(qpos, qvel)


def in_mujoco(qpos, qvel):
    data = mujoco.MjData(model.load())
    for joints, rates in zip(np.asarray(qpos).T, np.asarray(qvel).T, strict=True):
        data.qpos[:], data.qvel[:] = joints, rates
        mujoco.mj_forward(model.load(), data)
        yield data


def test_kinematics_inertia_and_bias_forces_are_mujocos(states, smooth_parts):
    where, mass, bias = jax.tree.map(np.asarray, smooth_parts)
    arm = np.zeros((10, 10))
    for i, data in enumerate(in_mujoco(*states[:2])):
        hand = data.body("hand")
        np.testing.assert_allclose(where.hand[:, i], hand.xpos, atol=1e-6)
        np.testing.assert_allclose(where.axes[..., i], hand.xmat.reshape(3, 3), atol=2e-6)
        mujoco.mj_fullM(model.load(), data, arm)
        np.testing.assert_allclose(mass[..., i], arm, atol=1e-5)
        np.testing.assert_allclose(bias[:, i], data.qfrc_bias, atol=1e-4)


def combined(bodies):
    """Mass, centre and inertia of bodies, each in the frame of the first, which carries the others."""
    first = bodies[0]
    parts, places = [], {first["name"]: (np.zeros(3), np.eye(3))}
    for body in bodies:
        if body is not first:
            position, turn = places[body["parent"]]
            places[body["name"]] = (position + turn @ body["pos"], turn @ model.rotation(np.array(body["quat"])))
        position, turn = places[body["name"]]
        axes = turn @ model.rotation(np.array(body["iquat"]))
        parts.append((body["mass"], position + turn @ body["ipos"], axes @ np.diag(body["inertia"]) @ axes.T))
    mass = sum(part[0] for part in parts)
    centre = sum(part[0] * part[1] for part in parts) / mass
    inertia = sum(
        i + m * ((c - centre) @ (c - centre) * np.eye(3) - np.outer(c - centre, c - centre)) for m, c, i in parts
    )
    return mass, centre, inertia


def test_merged_bodies_weigh_what_the_references_do(compiled):
    m = model.load()
    by_name = {body["name"]: body for body in compiled["bodies"]}
    moving = {joint["body"] for joint in compiled["joints"]}
    groups = {name: [by_name[name]] for name in moving}
    for body in compiled["bodies"]:
        carrier = body["name"]
        while carrier not in moving and carrier != "world":
            carrier = by_name[carrier]["parent"]
        if carrier in moving and body["name"] != carrier:
            groups[carrier].append(body)
    for name, bodies in groups.items():
        ours = m.body(name)
        axes = model.rotation(ours.iquat)
        mass, centre, inertia = combined(bodies)
        np.testing.assert_allclose(ours.mass, mass, rtol=1e-6)
        np.testing.assert_allclose(ours.ipos, centre, atol=1e-8)
        np.testing.assert_allclose(axes @ np.diag(ours.inertia) @ axes.T, inertia, atol=1e-9)


def test_joints_servos_and_stiffness_are_the_references(compiled):
    m = model.load()
    for joint in compiled["joints"]:
        ours, dof = m.joint(joint["name"]), m.joint(joint["name"]).dofadr[0]
        np.testing.assert_allclose(m.dof_damping[dof], joint["damping"])
        np.testing.assert_allclose(m.dof_armature[dof], joint["armature"])
        if ours.limited:
            np.testing.assert_allclose(ours.range, joint["range"])
    for ours, theirs in {"hand": "hand", "rightpad": "rightpad", "leftclaw": "leftclaw", "palm": "right_hand"}.items():
        expected = next(body["invweight0"] for body in compiled["bodies"] if body["name"] == theirs)
        np.testing.assert_allclose(m.body_invweight0[m.body(ours).id], expected, rtol=1e-5)
    np.testing.assert_allclose(m.eq_data[0, :11], compiled["equalities"][0]["data"])
    assert m.opt.timestep == compiled["option"]["timestep"]


def test_a_reset_is_the_references(compiled):
    homed = compiled["homed"]
    np.testing.assert_array_equal(model.HOMED_QPOS, homed["qpos"])
    np.testing.assert_array_equal(model.HOMED_QVEL, homed["qvel"])
    np.testing.assert_array_equal(model.HOMED_WARMSTART, homed["qacc_warmstart"])
    np.testing.assert_allclose(model.HOMED_HAND, smooth.pose(jnp.asarray(model.HOMED_QPOS[:7])).hand, atol=1e-6)


@pytest.mark.parametrize("motion", MOTIONS)
def test_the_reward_is_the_references_formula(motion):
    """In double precision, so that nothing but the formula is compared."""
    episodes = np.load(REFERENCE / f"{motion}.npz")
    seen = np.moveaxis(episodes["observations"][:, 1:], -1, 0)
    with jax.enable_x64(True):
        gained = reward.reward(
            *(jnp.asarray(seen[part]) for part in (slice(0, 3), slice(4, 7), slice(36, 39))),
            jnp.asarray(episodes["qpos"][:, 1:, 9]),
            jnp.asarray(episodes["actions"][..., 3], float),
        )
        # actions were recorded in single precision
        np.testing.assert_allclose(gained, episodes["rewards"], atol=1e-7)


@pytest.mark.parametrize("motion", MOTIONS)
def test_observation_reward_and_success_are_the_references_in_its_states(motion):
    episodes = np.load(REFERENCE / f"{motion}.npz")
    qpos = jnp.asarray(episodes["qpos"][:, 1:].reshape(-1, 10).T, jnp.float32)
    door = jnp.asarray(np.repeat(episodes["doors"], 500, 0).T, jnp.float32)
    seen = observation.handle(door, qpos[9])
    frame = observation.frame(smooth.pose(qpos[:7]).hand, qpos[7:9], seen)
    np.testing.assert_allclose(np.asarray(frame).T, episodes["observations"][:, 1:, :18].reshape(-1, 18), atol=1e-5)
    target = door + jnp.asarray([-0.3, -0.45, 0.0])[:, None]
    grip = jnp.asarray(episodes["actions"][..., 3].reshape(-1))
    gained = np.asarray(reward.reward(frame[:3], frame[4:7], target, qpos[9], grip))
    expected = episodes["rewards"].reshape(-1)
    np.testing.assert_allclose(gained, expected, atol=1e-4)
    # at the funnel's edge the floor rises with the logarithm of a distance that float32 barely resolves
    hand, handle = (episodes["observations"][:, 1:, part].reshape(-1, 3) for part in (slice(0, 3), slice(4, 7)))
    beyond = np.hypot(hand[:, 0] - handle[:, 0] + 0.05, hand[:, 1] - handle[:, 1]) - reward.FUNNEL_RADIUS
    clear = (beyond <= 0) | (beyond > 0.005)
    assert clear.mean() > 0.95
    np.testing.assert_allclose(gained[clear], expected[clear], atol=1e-5)
    np.testing.assert_array_equal(reward.success(frame[4:7], target), episodes["successes"].reshape(-1))


@pytest.fixture(scope="module")
def problem(states, smooth_parts):
    qpos, qvel, mocap, door = states
    where, mass, bias = smooth_parts
    hinge = door + jnp.asarray(model.HINGE_OFFSET)[:, None]

    @jax.jit
    def build(where, mass, bias):
        found = contact.find(where.hand, where.axes, qpos[7:9], hinge, qpos[9])
        return Problem(mass, -bias, weld(where, mocap, qvel), limits(qpos, qvel), touches(where, found, hinge, qvel))

    return build(where, mass, bias)


def test_weld_and_limits_are_as_stiff_as_mujocos(states, problem):
    limited = np.array([1, 3, 4, 7, 8, 9])
    for i, data in enumerate(in_mujoco(*states[:2])):
        np.testing.assert_allclose(problem.weld.stiffness[:, i], data.efc_D[:6], rtol=1e-4)
        rows = data.efc_type == mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT
        acting = np.asarray(problem.limits.stiffness[:, i]) > 0
        np.testing.assert_array_equal(limited[acting], np.sort(data.efc_id[rows]))
        np.testing.assert_allclose(problem.limits.stiffness[acting, i], data.efc_D[rows], rtol=1e-3)
        np.testing.assert_allclose(problem.limits.reference[acting, i], data.efc_aref[rows], rtol=1e-3, atol=1e-3)


def test_accelerations_balance_all_forces(problem):
    """The constraints' force at the minimum is what the equation of motion lacks; many contacts act in these states."""
    assert (problem.touches.stiffness > 0).sum() > 2 * STATES
    again = jax.jit(solve)
    acceleration, push = again(problem, jnp.zeros((10, STATES)))
    for _ in range(3):
        acceleration, push = again(problem, acceleration)
    left = jnp.einsum("ijb,jb->ib", problem.mass, acceleration) - problem.force - push
    assert jnp.max(jnp.abs(left) / jnp.max(jnp.abs(push), 0)) < 1e-3


def test_a_positive_definite_system_is_solved():
    random = np.random.default_rng(1)
    factor = random.standard_normal((10, 10, 5)).astype(np.float32)
    matrix = np.einsum("ikb,jkb->ijb", factor, factor) + np.eye(10, dtype=np.float32)[:, :, None]
    right = random.standard_normal((10, 5)).astype(np.float32)
    found = jax.jit(cholesky_solve)([jnp.asarray(matrix[j:, j]) for j in range(10)], jnp.asarray(right))
    expected = np.linalg.solve(np.moveaxis(matrix, -1, 0), right.T[..., None])[..., 0].T
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-4)


def test_contacts_with_the_handle_are_where_mujoco_finds_them(states):
    """Cylinders, as in the reference; the distances between box and cylinder are MuJoCo's own."""
    qpos, _, _, door = states
    hinge = door + jnp.asarray(model.HINGE_OFFSET)[:, None]
    where = jax.jit(smooth.pose)(qpos[:7])
    found = jax.jit(contact.find)(where.hand, where.axes, qpos[7:9], hinge, qpos[9])
    spec = mujoco.MjSpec.from_file(str(Path(model.__file__).parent / "door.xml"))
    for geom in spec.geoms:
        if geom.name in contact.CYLINDERS:
            geom.type = mujoco.mjtGeom.mjGEOM_CYLINDER
    scene = spec.compile()
    data = mujoco.MjData(scene)
    compared = 0
    for i in range(STATES):
        scene.body("door_link").pos = hinge[:, i]
        data.qpos[:] = qpos[:, i]
        mujoco.mj_kinematics(scene, data)
        for b, box in enumerate(contact.BOXES[:4]):
            for o, other in enumerate(contact.CYLINDERS):
                near = mujoco.mj_geomDistance(scene, data, scene.geom(box).id, scene.geom(other).id, 0.2, None)
                if 0 < near < 0.005:
                    compared += 1
                    assert abs(float(found.distance[5 * b + o, i]) - near) < 1e-3, (box, other, i)
    assert compared > 10


# the palm on panel and cabinet, in which four steps of the line search overshot
HARD = {
    "qpos": [
        1.6798779964447021,
        -0.4990430474281311,
        -0.7408892512321472,
        1.3363951444625854,
        0.7577280402183533,
        0.9253150820732117,
        2.517137289047241,
        0.032496094703674316,
        -0.02516750618815422,
        0.017100870609283447,
    ],
    "qvel": [
        -1.2307016849517822,
        0.0806426852941513,
        -0.700192391872406,
        -0.7974957227706909,
        0.45940229296684265,
        0.03306553140282631,
        -0.2664426863193512,
        0.18335704505443573,
        -0.1877080351114273,
        0.01749521493911743,
    ],
    "warm": [
        -241.4082794189453,
        37.228118896484375,
        -49.498382568359375,
        -316.5756530761719,
        159.45755004882812,
        -78.19673156738281,
        -148.1406707763672,
        2.061741828918457,
        -2.1015288829803467,
        -58.70304870605469,
    ],
    "mocap": [0.23000003397464752, 0.8899997472763062, 0.1899999976158142],
    "hinge": [-0.13581877946853638, 0.7808157801628113, 0.15000000596046448],
}


def test_a_solve_that_is_hard_to_search_converges():
    with jax.enable_x64(True):
        qpos, qvel, warm, mocap, hinge = (jnp.asarray(HARD[name])[:, None] for name in HARD)
        control = jnp.asarray([-1.0, 1.0])[:, None]
        found = jax.jit(dynamics.step)(dynamics.Motion(qpos, qvel, warm), mocap, control, hinge)
        expected = [0.4, -18.1, 81.0, 34.3, -78.8, 53.4, -105.4, -6.0, 6.0, 39.0]  # 30 iterations, 20 search steps
        np.testing.assert_allclose(found.qacc_warmstart[:, 0], expected, atol=0.5)
