"""MuJoCo's own pictures of Door Opening, without a display.

Which OpenGL library MuJoCo draws with is settled when it is first imported, and a broken one may take its process
along. So a process of its own draws (``mujoco_process.py``), and whether it can is found out by its first picture.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from io import BufferedReader
from pathlib import Path
from threading import Lock, Timer
from typing import cast

import numpy as np
from jaxtyping import Float, UInt8

from envs.door.model import HINGE_OFFSET
from envs.door.mujoco_process import READY, SIZE, STATE
from envs.door.reference import TARGET_OFFSET

SCRIPT = Path(__file__).with_name("mujoco_process.py")
PATIENCE = 60.0  # with a first picture, s
FORBIDDEN = ("disable", "disabled", "off", "false", "0")  # what MuJoCo takes in MUJOCO_GL for no drawing at all


def draw(
    joints: Float[np.ndarray, "time 10"], doors: Float[np.ndarray, "time 3"]
) -> UInt8[np.ndarray, "time height width 3"]:
    """Draw states, one picture each.

    Args:
        joints: seven arm joints, rad; right and left finger, m; door, rad.
        doors: positions of the door, m.

    Raises:
        RuntimeError: MuJoCo cannot draw on this machine; the message says why, and what helps.
    """
    states = np.empty(len(joints), STATE)
    states["joints"], states["hinge"], states["target"] = joints, doors + HINGE_OFFSET, doors + TARGET_OFFSET
    return _painter().draw(states)


class Painter:
    """The drawing process; it is started anew where it has ended.

    Args:
        library: that MuJoCo is to draw with, as its environment variable ``MUJOCO_GL`` names it.

    Raises:
        RuntimeError: it draws no picture; the message is the last thing it said.
    """

    def __init__(self, library: str) -> None:
        self._lock = Lock()
        self._environment = {k: v for k, v in os.environ.items() if k != "PYOPENGL_PLATFORM"} | {"MUJOCO_GL": library}
        self._start()
        atexit.register(self.close)

    def _start(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 `close` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=self._environment,
        )
        assert self._process.stdout is not None
        limit = Timer(PATIENCE, self._process.kill)
        limit.start()
        try:
            if self._process.stdout.readline() != READY:
                raise RuntimeError(self._last_words())
        except BaseException:
            self.close()
            raise
        finally:
            limit.cancel()

    def draw(self, states: np.ndarray) -> UInt8[np.ndarray, "time height width 3"]:
        """Draw each `STATE`.

        Raises:
            RuntimeError: the process ended.
        """
        pictures = np.empty((len(states), SIZE, SIZE, 3), np.uint8)
        with self._lock:
            if self._process.poll() is not None:
                self.close()
                self._start()
            requests, answers = self._process.stdin, cast(BufferedReader, self._process.stdout)
            assert requests is not None
            try:
                requests.write(len(states).to_bytes(8, sys.byteorder) + states.tobytes())
                requests.flush()
                complete = answers.readinto(pictures.data.cast("B")) == pictures.nbytes
            except BrokenPipeError:
                complete = False
            except BaseException:  # what was interrupted must not answer the next request
                self.close()
                raise
            if not complete:
                raise RuntimeError(f"MuJoCo's drawing process ended: {self._last_words()}")
        return pictures

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        with suppress(BrokenPipeError), self._process:  # closes its pipes and waits
            pass
        self._said.close()

    def _last_words(self) -> str:
        status = self._process.wait()
        self._said.seek(0)
        before, _, trace = self._said.read().decode(errors="replace").partition("Traceback")
        # the first exception is the cause: what follows are failures to clean up
        raised = [line for line in trace.splitlines()[1:] if line and not line[0].isspace()]
        return (raised[:1] or before.splitlines()[-1:] or [f"exit status {status}"])[0]


@cache
def _attempt() -> tuple[Painter | None, str]:
    """A painter, or why there is none."""
    if os.environ.get("MUJOCO_GL", "").lower() in FORBIDDEN:
        return None, f"MUJOCO_GL={os.environ['MUJOCO_GL']} forbids it"
    libraries = ("egl", "osmesa", "glfw") if sys.platform == "linux" else ("",)  # elsewhere MuJoCo knows best
    reasons = []
    for library in (os.environ["MUJOCO_GL"],) if os.environ.get("MUJOCO_GL") else libraries:
        try:
            return Painter(library), ""
        except RuntimeError as error:
            reasons.append(f"{library or 'the default'}: {error}")
    return None, "; ".join(reasons)


def _painter() -> Painter:
    painter, reasons = _attempt()
    if painter is None:
        raise RuntimeError(
            "MuJoCo cannot draw on this machine. Without a display it needs EGL or OSMesa; on Debian or Ubuntu, "
            "`apt install libegl1 libgl1 libgl1-mesa-dri`, or libosmesa6, brings one. "
            f"What was tried: {reasons}"
        )
    return painter
