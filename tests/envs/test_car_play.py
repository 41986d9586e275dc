"""A person at the wheel: the window, and the file that a drive becomes."""

from __future__ import annotations

import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from envs.car_racing import controls, drive, play
from envs.car_racing.schema import SCHEMA
from jaxrefine.demonstration import load_demonstration

pygame = pytest.importorskip("pygame", reason="needs pygame")

SEED = 3


course = functools.cache(drive.Course)  # compiled once for all tests


def replay(table: pd.DataFrame, condition: str) -> tuple[np.ndarray, np.ndarray]:
    """Observations and rewards when ``step_env`` is given the table's actions again."""
    (obs, state), step = course(SEED, condition).start, course(SEED, condition).step
    seen, paid = [], []
    for action in table[["action_steer", "action_gas", "action_brake"]].to_numpy(np.float32):
        seen.append(SCHEMA.flatten(obs))
        obs, state, reward, *_ = step(state, action)
        paid.append(float(reward))
    return np.stack(seen), np.array(paid)


def check(path, condition="stock") -> tuple[pd.DataFrame, dict]:
    """What every saved drive must be; returns its table and what the file beside it says."""
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    about = json.loads(path.with_suffix(".json").read_text())
    loaded = load_demonstration(path, SCHEMA)
    assert loaded.steps == len(table) == about["steps"]
    assert (about["track_seed"], about["condition"]["name"]) == (SEED, condition)
    seen, paid = replay(table, condition)
    np.testing.assert_array_equal(SCHEMA.flatten(loaded.observations), seen)
    np.testing.assert_allclose(loaded.rewards, paid, rtol=1e-6)
    assert about["return"] == pytest.approx(paid.sum(), abs=0.01)
    assert about["driver"]["name"] == "person"
    return table, about


@pytest.fixture
def play_by(monkeypatch, tmp_path):
    """Drives in this process on a screen that is not there, by what is posted before each frame."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(play, "Course", course)
    from envs.car_racing.window import Window

    def at_the_wheel(script: dict[int, list], *arguments: str) -> int:
        frame = 0

        def tick(window: Window, fps: int) -> None:
            nonlocal frame
            frame += 1
            assert frame < 2000, "the script does not end the drive"
            for act in script.get(frame, []):
                act() if callable(act) else pygame.event.post(act)

        monkeypatch.setattr(Window, "tick", tick)
        return play.main(["--seed", str(SEED), "--size", "200", *arguments])

    return at_the_wheel


def down(key, mod=0):
    return pygame.event.Event(pygame.KEYDOWN, key=key, mod=mod)


def up(key):
    return pygame.event.Event(pygame.KEYUP, key=key, mod=0)


def tap(*keys):
    return [event for key in keys for event in (down(key), up(key))]


def test_keys_drive_and_s_saves_after_a_pause(play_by, tmp_path, capsys):
    script = {
        10: [down(pygame.K_UP)],
        70: [down(pygame.K_d)],
        90: [up(pygame.K_d), up(pygame.K_UP)],
        95: [down(pygame.K_s)],  # brakes, for the car is driven
        110: [up(pygame.K_s), *tap(pygame.K_h, pygame.K_p)],
        120: tap(pygame.K_s),
    }
    assert play_by(script, "--out", "mine.parquet") == 0
    table, about = check(tmp_path / "mine.parquet")
    assert len(table) == 100  # the clock starts with the gas, and stops in the pause
    gas, steer, brake = (table[f"action_{name}"].to_numpy() for name in ("gas", "steer", "brake"))
    assert 0 < gas[0] < 0.2  # a key's pedal goes down by and by
    assert gas[30:60].min() == 1
    assert (steer[:60] == 0).all()
    assert (steer[61:80] > 0).all()
    assert (np.diff(steer[60:]).clip(0) <= 0.026).all()
    assert brake[:85].max() == 0
    assert brake[-5:] == pytest.approx(controls.KEY_BRAKE)
    assert table["obs_angular_velocity"].to_numpy()[70:80].max() < 0  # it turns right
    assert about["driver"] == {"name": "person", "drove_with": ["keyboard"], "assist": True}
    assert "mine.parquet" in capsys.readouterr().out


def test_without_assistance_keys_are_all_or_nothing(play_by, tmp_path):
    script = {1: [down(pygame.K_w)], 20: [down(pygame.K_LEFT)], 40: [down(pygame.K_s, pygame.KMOD_LCTRL)]}
    assert play_by(script, "--no-assist", "--out", "mine.csv") == 0
    table, about = check(tmp_path / "mine.csv")
    assert set(table["action_gas"]) == {1.0}
    assert set(table["action_steer"]) == {0.0, -1.0}
    assert not about["driver"]["assist"]


def test_a_condition_is_driven_and_recorded(play_by, tmp_path):
    script = {1: [down(pygame.K_UP)], 60: [down(pygame.K_s, pygame.KMOD_LCTRL)]}
    assert play_by(script, "--condition", "delay", "--out", "late.parquet") == 0
    table, _ = check(tmp_path / "late.parquet", "delay")
    assert table["obs_wheel_speed_rl"].to_numpy()[:7].max() < 1e-4  # six steps until the gas takes effect
    assert table["obs_wheel_speed_rl"].to_numpy()[10] > 0.01


def test_a_drive_is_dropped_only_by_a_second_press(play_by, tmp_path, capsys):
    start, both = [down(pygame.K_UP)], {60: tap(pygame.K_r), 70: tap(pygame.K_p), 80: tap(pygame.K_ESCAPE)}
    assert play_by({1: start, **both, 90: tap(pygame.K_ESCAPE)}) == 0
    assert not list(tmp_path.iterdir())
    assert "nothing was saved" in capsys.readouterr().out

    assert play_by({1: start, **both, 90: tap(pygame.K_s)}, "--out", "kept.parquet") == 0
    assert len(check(tmp_path / "kept.parquet")[0]) == 69  # the drive went on after R, P

    # R twice starts over: the clock waits for gas again, which is still held
    again = {1: start, 60: tap(pygame.K_r), 65: tap(pygame.K_r), 85: [down(pygame.K_s, pygame.KMOD_LCTRL)]}
    assert play_by(again, "--out", "anew.parquet") == 0
    assert len(check(tmp_path / "anew.parquet")[0]) == 20


def interrupt():
    raise KeyboardInterrupt


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def fail():
    raise RuntimeError("the screen broke")


def test_what_was_driven_outlives_a_closed_window_signals_and_a_fault(play_by, tmp_path):
    start = {1: [down(pygame.K_UP)]}
    assert play_by({**start, 30: [pygame.event.Event(pygame.QUIT)]}, "--out", "closed.parquet") == 0
    assert play_by({**start, 30: [interrupt]}, "--out", "interrupted.parquet") == 0
    assert play_by({**start, 30: [terminate]}, "--out", "terminated.parquet") == 0
    with pytest.raises(RuntimeError, match="broke"):
        play_by({**start, 30: [fail]}, "--out", "broken.parquet")
    lengths = [
        len(check(tmp_path / f"{name}.parquet")[0]) for name in ("closed", "interrupted", "terminated", "broken")
    ]
    assert lengths == [29, 29, 29, 29]


def test_the_time_limit_ends_the_drive_and_no_file_is_overwritten(play_by, tmp_path):
    script = {1: [down(pygame.K_UP)], 40: tap(pygame.K_s)}
    for _ in range(2):
        assert play_by(script, "--max-steps", "20") == 0
    names = sorted(path.name for path in tmp_path.glob("*.parquet"))
    assert len(names) == 2
    assert names[1] == names[0].replace(".parquet", "_2.parquet")
    assert [len(check(tmp_path / name)[0]) for name in names] == [20, 20]
    with pytest.raises(SystemExit):
        play_by({}, "--out", names[0])


def test_a_folder_that_refuses_the_file_does_not_lose_the_drive(play_by, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "gone"
    folder.mkdir()
    spare = tmp_path / "spare"
    spare.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spare))
    script = {1: [down(pygame.K_UP)], 30: [folder.rmdir, down(pygame.K_s, pygame.KMOD_LCTRL)]}
    assert play_by(script, "--out", str(folder / "mine.parquet")) == 0
    check(spare / "mine.parquet")
    assert "cannot be written" in capsys.readouterr().err


def test_a_saved_drive_can_be_watched(play_by, tmp_path, monkeypatch, capsys):
    play_by({1: [down(pygame.K_UP)], 30: [down(pygame.K_s, pygame.KMOD_LCTRL)]}, "--out", "mine.parquet")
    table, about = check(tmp_path / "mine.parquet")
    shown = []

    def look():
        shown.append(pygame.surfarray.array3d(pygame.display.get_surface()))

    from envs.car_racing.window import Window

    frames = []
    draw = Window.draw
    monkeypatch.setattr(
        Window, "draw", lambda self, r, *rest: (frames.append((r.steps, r.total)), draw(self, r, *rest))
    )
    script = {5: [look], 28: [look], 40: tap(pygame.K_ESCAPE)}
    assert play_by(script, "--replay", "mine.parquet") == 0
    assert frames[-1] == (len(table), pytest.approx(about["return"], abs=0.01))
    assert (shown[0] != shown[1]).any()
    assert len(list(tmp_path.iterdir())) == 2  # nothing was recorded anew
    (tmp_path / "mine.json").write_text(json.dumps({"track_seed": SEED, "condition": {"name": "icy"}}))
    with pytest.raises(SystemExit):
        play_by({}, "--replay", "mine.parquet")
    assert "no condition of car_racing is called 'icy'" in capsys.readouterr().err
    capsys.readouterr()
    table.assign(obs_tile00_y=0.5).to_parquet(tmp_path / "other.parquet")
    assert play_by({}, "--replay", "other.parquet") == 2
    assert "does not start as track 3 does" in capsys.readouterr().err


def test_the_shipped_demonstrations_can_be_watched():
    folder = Path(drive.__file__).parent / "demonstrations"
    shown = drive.read(folder / "human_like.parquet")
    assert shown.condition == "stock"
    assert drive.fits(shown, drive.Course(shown.seed, "stock"))
    assert not drive.fits(shown, course(SEED, "stock"))
    assert drive.read(folder / "delay.parquet").condition == "delay"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "mine.txt"], "parquet or .csv"),
        (["--out", "nowhere/mine.csv"], "missing or cannot be written"),
        (["--condition", "icy"], "invalid choice"),
        (["--seed", "-1"], "0 or more"),
        (["--fps", "0"], "at least 1"),
        (["--size", "20"], "200 to 4000"),
        (["--replay", "nothing.parquet"], "cannot be read"),
    ],
)
def test_mistaken_options_are_explained(play_by, capsys, arguments, said):
    with pytest.raises(SystemExit) as stopped:
        play_by({}, *arguments)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_a_missing_display_or_pygame_is_said_in_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(play, "Course", course)
    monkeypatch.setattr("envs.car_racing.window.Window.tick", lambda self, fps: fail())
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert play.main([]) == 2
    assert "no display was found; run this on a desktop" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pygame", None)
    assert play.main([]) == 2
    said = capsys.readouterr().err
    assert "pip install 'jaxrefine[play]'" in said
    assert said.count("\n") == 1


def test_a_gamepad_in_use_comes_before_the_keys(play_by, tmp_path, monkeypatch):
    from envs.car_racing.window import Window

    class Pad:
        axes = dict.fromkeys((pygame.CONTROLLER_AXIS_LEFTX, pygame.CONTROLLER_AXIS_TRIGGERLEFT), 0)

        def get_axis(self, axis):
            return self.axes.get(axis, 0)

    made = Window.__init__

    def with_pad(self, *arguments):
        made(self, *arguments)
        self._pads[0] = Pad()

    monkeypatch.setattr(Window, "__init__", with_pad)
    script = {
        2: [down(pygame.K_RIGHT), lambda: Pad.axes.update({pygame.CONTROLLER_AXIS_TRIGGERRIGHT: 32767})],
        10: [lambda: Pad.axes.update({pygame.CONTROLLER_AXIS_LEFTX: -32768})],
        20: [lambda: Pad.axes.update({pygame.CONTROLLER_AXIS_TRIGGERLEFT: 16384})],
        30: [down(pygame.K_s, pygame.KMOD_LCTRL)],
    }
    assert play_by(script, "--out", "stick.parquet") == 0
    table, about = check(tmp_path / "stick.parquet")
    assert about["driver"]["drove_with"] == ["gamepad"]
    assert set(table["action_gas"]) == {1.0}
    assert table["action_steer"].to_numpy()[[0, -1]].tolist() == [0, -1]
    assert table["action_brake"].to_numpy()[-1] == pytest.approx(0.485, abs=0.01)


@pytest.fixture
def display():
    """A display of its own, with nobody before it."""
    if shutil.which("Xvfb") is None:
        pytest.skip("Xvfb is not installed (Debian: xvfb)")
    pytest.importorskip("Xlib", reason="needs python-xlib")
    read, write = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(write), "-screen", "0", "640x480x24", "-nolisten", "tcp"],
        pass_fds=[write],
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    try:
        assert select.select([read], [], [], 30)[0], "Xvfb does not start"
        yield f":{os.read(read, 16).decode().strip()}"
    finally:
        os.close(read)
        server.terminate()
        server.wait()


class Fingers:
    """Presses keys of a display, as its hardware would."""

    def __init__(self, name):
        from Xlib import XK, X, display
        from Xlib.ext import xtest

        self._display = display.Display(name)
        self._codes = lambda key: self._display.keysym_to_keycode(XK.string_to_keysym(key))
        self._send = lambda kind, key: (xtest.fake_input(self._display, kind, self._codes(key)), self._display.sync())
        self._down, self._up = X.KeyPress, X.KeyRelease

    def press(self, key):
        self._send(self._down, key)

    def release(self, key):
        self._send(self._up, key)

    def windows(self):
        return [w for w in self._display.screen().root.query_tree().children if w.get_attributes().map_state]

    def close(self):
        self._display.close()


def test_a_person_drives_in_a_real_window(display, tmp_path):
    """The module as it is started, real key events, real time."""
    out = tmp_path / "mine.parquet"
    command = [sys.executable, "-m", "envs.car_racing.play", "--seed", str(SEED), "--size", "240", "--out", str(out)]
    surroundings = {name: value for name, value in os.environ.items() if name != "SDL_VIDEODRIVER"}
    game = subprocess.Popen(command, env=surroundings | {"DISPLAY": display}, stdout=subprocess.PIPE, text=True)
    fingers = Fingers(display)
    try:
        deadline = time.monotonic() + 120
        while not fingers.windows():
            assert game.poll() is None
            assert time.monotonic() < deadline, "no window opens"
            time.sleep(0.02)
        fingers.press("Up")
        time.sleep(1.0)
        fingers.press("Left")
        time.sleep(0.4)
        fingers.release("Left")
        fingers.release("Up")
        fingers.press("p")
        fingers.press("s")
        said, _ = game.communicate(timeout=60)
    finally:
        fingers.close()
        game.kill()
        game.communicate()
    assert game.returncode == 0
    assert str(out) in said
    table, about = check(out)
    assert about["driver"]["drove_with"] == ["keyboard"]
    assert table["action_gas"].max() > 0.3
    assert table["action_steer"].min() < -0.05
    assert table["action_steer"].max() <= 0
    assert table["obs_speed"].max() > 0.05
