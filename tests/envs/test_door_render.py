"""Pictures of Door Opening: MuJoCo's own where this machine can draw them, and plain ones."""

from __future__ import annotations

import functools
import inspect
import os
import signal
from pathlib import Path
from threading import Timer

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import envs
from envs.door import mujoco_process, offscreen
from envs.door.model import HINGE_OFFSET, load
from envs.door.reference import DOOR_HIGH, DOOR_LOW, TARGET_OFFSET
from envs.door.render import render

REFERENCE = Path(__file__).parent.parent / "reference" / "door"
SIZE = mujoco_process.SIZE
SHUT, OPENING = 0, 100  # steps of a recorded episode


@pytest.fixture(scope="module")
def recorded():
    with np.load(REFERENCE / "scripted.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def episode(recorded):
    """Two states of a recorded episode, the door shut and open."""
    env, _ = envs.make("door")
    params = env.params_for_seeds([int(recorded["seeds"][0])])
    _, state = env.reset_to(params, 0)
    states = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    qpos = jnp.asarray(recorded["qpos"][0, [SHUT, OPENING]])
    return env, states.replace(motion=states.motion._replace(qpos=qpos)), params


@pytest.fixture(scope="module")
def frames(episode):
    """MuJoCo's own."""
    env, states, params = episode
    try:
        return env.render(states, params, "mujoco")
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture
def afresh(monkeypatch):
    """Whether MuJoCo can draw is not known yet."""
    monkeypatch.setattr(offscreen, "_attempt", functools.cache(offscreen._attempt.__wrapped__))
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    return monkeypatch


def script(folder, code):
    path = folder / "script.py"
    path.write_text(f"import os, sys, time\n{code}\n")
    return path


def posed(joints, door):
    """The scene in a state."""
    world = mujoco_process.scene()
    data = mujoco.MjData(world)
    state = np.zeros((), mujoco_process.STATE)
    state["joints"], state["hinge"], state["target"] = joints, door + HINGE_OFFSET, door + TARGET_OFFSET
    mujoco_process.pose(world, data, state[()])
    return world, data


def pixel(point):
    """Column and row of a point in the world, by the camera's angles."""
    eye = mujoco_process.camera()
    azimuth, elevation = np.deg2rad([eye.azimuth, eye.elevation])
    ahead = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    right = np.array([np.sin(azimuth), -np.cos(azimuth), 0])
    away = point - (eye.lookat - eye.distance * ahead)
    focal = SIZE / 2 / np.tan(np.deg2rad(mujoco_process.FIELD) / 2)
    seen = focal / (away @ ahead) * np.array([away @ right, -away @ np.cross(right, ahead)])
    return np.round(seen + SIZE / 2).astype(int)


def test_plain_pictures_show_the_episode_move(episode):
    env, states, params = episode
    frames = env.render(states, params, "plain")
    assert frames.shape == (2, SIZE, SIZE, 3)
    assert frames.dtype == np.uint8
    assert (frames[0] != frames[1]).any()
    assert load().body("cabinet").pos[0] == pytest.approx(-0.185)  # the shared model stays as it was


def test_the_scene_moves_as_the_physics_does(recorded):
    """Bodies and contact shapes are where the physics has them, and only the target is added."""
    physics = load()
    for motion, step in ((0, 30), (4, 80), (9, 400)):
        joints, door = recorded["qpos"][motion, step], recorded["doors"][motion]
        world, data = posed(joints, door)
        plain = mujoco.MjData(physics)
        plain.qpos[:] = joints
        mujoco.mj_kinematics(physics, plain)
        hung = np.array([physics.body(b).name in ("cabinet", "door_link") for b in range(physics.nbody)])
        moved = door + HINGE_OFFSET - physics.body("door_link").pos
        np.testing.assert_allclose(data.xpos[: physics.nbody], plain.xpos + hung[:, None] * moved, atol=1e-9)
        for geom in range(physics.ngeom):
            there, here = plain.geom(geom), data.geom(physics.geom(geom).name)
            shift = hung[physics.geom(geom).bodyid[0]] * moved
            np.testing.assert_allclose(here.xpos, there.xpos + shift, atol=1e-9)
            np.testing.assert_allclose(here.xmat, there.xmat, atol=1e-9)
    assert world.nbody == physics.nbody + 1
    np.testing.assert_array_equal(world.body_mass[: physics.nbody], physics.body_mass)
    np.testing.assert_array_equal(world.geom("bar").size, physics.geom("bar").size)


def test_wherever_the_door_stands_it_is_in_the_picture(recorded):
    for x in (DOOR_LOW[0], DOOR_HIGH[0]):
        for y in (DOOR_LOW[1], DOOR_HIGH[1]):
            door = np.array([x, y, 0.15])
            for step in (SHUT, OPENING):
                _, data = posed(recorded["qpos"][0, step], door)
                shapes = [data.geom(name).xpos for name in ("bar", "grip", "panel", "palm", "left_claw")]
                corners = door + np.array([[0.22, -0.106, 0.15], [0.22, 0.106, 0.15], [0.22, 0.106, -0.15]])
                for point in [*shapes, *corners, data.body("target").xpos]:
                    assert ((pixel(point) > 10) & (pixel(point) < SIZE - 10)).all()


def test_mujocos_pictures_show_door_handle_and_target_where_they_are(frames, episode, recorded):
    env, states, params = episode
    assert frames.shape == env.render(states, params, "plain").shape
    assert frames.dtype == np.uint8
    for i, step in enumerate((SHUT, OPENING)):
        _, data = posed(recorded["qpos"][0, step], recorded["doors"][0])
        column, row = pixel(data.geom("grip").xpos)
        assert np.ptp(frames[i, row, column].astype(int)) < 30
        assert frames[i, row, column].max() < 140
        column, row = pixel(data.geom("panel").xpos)
        assert frames[i, row, column].min() > 140
        assert np.abs(frames[0, row, column].astype(int) - frames[1, row, column]).max() > 40
    _, shut = posed(recorded["qpos"][0, SHUT], recorded["doors"][0])
    column, row = pixel(shut.body("target").xpos)
    red, green, blue = frames[0, row, column].astype(int)
    assert green > 2 * max(red, blue)


def test_mujocos_pictures_are_the_same_again_one_by_one_and_after_its_process_died(frames, episode):
    env, states, params = episode
    offscreen._painter()._process.kill()
    offscreen._painter()._process.wait()
    for i, frame in enumerate(frames):
        (again,) = env.render(jax.tree.map(lambda x, at=i: x[at : at + 1], states), params)
        np.testing.assert_array_equal(again, frame)


def test_without_opengl_pictures_are_plain_and_mujoco_says_what_it_needs(afresh, episode):
    env, states, params = episode
    afresh.setenv("MUJOCO_GL", "off")
    np.testing.assert_array_equal(env.render(states, params), env.render(states, params, "plain"))
    with pytest.raises(RuntimeError, match=r"`apt install .*tried: MUJOCO_GL=off forbids it"):
        env.render(states, params, "mujoco")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("os.abort()", "exit status -6"),
        ("print('ERROR: no driver', file=sys.stderr); sys.exit(1)", "ERROR: no driver"),
        ("time.sleep(60)", "exit status -9"),
    ],
)
def test_a_library_that_breaks_or_hangs_takes_nothing_along(afresh, tmp_path, episode, code, why):
    env, states, params = episode
    afresh.setenv("MUJOCO_GL", "egl")
    afresh.setattr(offscreen, "SCRIPT", script(tmp_path, code))
    if "sleep" in code:
        afresh.setattr(offscreen, "PATIENCE", 0.5)
    with pytest.raises(RuntimeError, match=f"egl: {why}"):
        env.render(states, params, "mujoco")
    np.testing.assert_array_equal(env.render(states, params), env.render(states, params, "plain"))


def test_a_process_that_ends_in_the_middle_gives_no_half_picture(tmp_path, monkeypatch):
    code = "os.write(1, b'ready\\n'); sys.stdin.buffer.read(200); os.write(1, b'x' * 999); sys.exit('lost the device')"
    monkeypatch.setattr(offscreen, "SCRIPT", script(tmp_path, code))
    painter = offscreen.Painter("egl")
    with pytest.raises(RuntimeError, match="lost the device"):
        painter.draw(np.zeros(2, mujoco_process.STATE))
    painter.close()


def test_an_interrupted_picture_never_answers_the_next_request(tmp_path, monkeypatch):
    monkeypatch.setattr(offscreen, "SCRIPT", script(tmp_path, "os.write(1, b'ready\\n'); time.sleep(60)"))
    painter = offscreen.Painter("egl")
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(KeyboardInterrupt):
            painter.draw(np.zeros(1, mujoco_process.STATE))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert painter._process.poll() is not None


def test_another_way_to_draw_or_states_of_no_time_are_refused(episode):
    env, states, params = episode
    with pytest.raises(ValueError, match="auto, mujoco, plain"):
        inspect.unwrap(render)(states, params, "opengl")
    for wrong in (jax.tree.map(lambda x: x[0], states), jax.tree.map(lambda x: x[:0], states)):
        with pytest.raises(ValueError, match="one episode"):
            env.render(wrong, params)
