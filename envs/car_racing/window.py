"""The window in which a person drives: keys and gamepad in, pictures out. Needs pygame."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

import numpy as np
import pygame
from jaxtyping import Float
from pygame._sdl2 import controller

from envs.car_racing.controls import Control, assisted, from_gamepad, from_keys
from envs.car_racing.drive import Recording
from envs.car_racing.dynamics import TIME_STEP
from envs.car_racing.render import GRASS, HULL, INK, TRAIL, TYRE, Camera, Ground, Pose, car_shapes, path_lines
from envs.car_racing.track import Track

Request = Literal["restart", "pause", "save", "save at rest", "quit", "close", "help"]

SPAN = 60.0  # m across the window: a driver sees 43 m ahead, as far as the observation's twelve tiles reach
BAR = (70, 74, 84)
GAS, BRAKE = (92, 200, 120), (230, 84, 70)
FULL_TRIGGER, FULL_STICK = 32767, 32768
KEYS: dict[int, Control] = {
    pygame.K_LEFT: "left", pygame.K_a: "left", pygame.K_RIGHT: "right", pygame.K_d: "right",
    pygame.K_UP: "gas", pygame.K_w: "gas", pygame.K_DOWN: "brake", pygame.K_s: "brake", pygame.K_SPACE: "brake",
}  # fmt: skip
REQUESTS: dict[int, Request] = {
    pygame.K_r: "restart", pygame.K_p: "pause", pygame.K_ESCAPE: "quit", pygame.K_h: "help", pygame.K_F1: "help",
}  # fmt: skip
HELP = (
    "up, W: gas",
    "left and right, A and D: steer",
    "space, down, S: brake",
    "gamepad: left stick steers, right trigger gas, left trigger brake",
    "P: pause, go on",
    "S: save and quit, when paused or at the end; while driving, Ctrl-S",
    "R: start over",
    "Esc: quit",
)


def start() -> None:
    """Prepare pygame for windows and gamepads.

    Raises:
        pygame.error: there is no display.
    """
    pygame.display.init()
    if pygame.display.get_driver() == "x11":
        # straight to the X server: the default detour through OpenGL takes three times as long where that is software
        os.environ.setdefault("SDL_FRAMEBUFFER_ACCELERATION", "0")
    # SDL falls back on a screen that nobody sees
    if pygame.display.get_driver() == "offscreen" and "SDL_VIDEODRIVER" not in os.environ:
        pygame.display.quit()
        raise pygame.error("no display was found")
    pygame.font.init()
    controller.init()


class Window:
    """An open window, until ``pygame.quit``.

    Attributes:
        help: whether the keys are explained on it.
        used: what the car has been driven with.
    """

    def __init__(self, size: int, track: Track) -> None:
        """Open a square window of ``size`` pixels.

        Raises:
            pygame.error: it cannot be opened.
        """
        self._surface = pygame.display.set_mode((size, size))
        pygame.display.set_caption("Car Racing")
        self._clock = pygame.time.Clock()
        self._small, self._large = (pygame.font.Font(None, max(size // share, 12)) for share in (32, 14))
        self._ground = Ground(track)
        self._tiles = len(track)
        self._chart = Camera.above(track, size // 4, margin=25.0)
        self._loop = self._chart.pixels(track.nodes[:, 2:]).tolist()
        self._keys: set[int] = set()
        self._pads: dict[int, Any] = {}
        self.help = False
        self.used: set[str] = set()

    def poll(self) -> list[Request]:
        """What the person asked for since the last call; keys that drive are remembered for ``controls``."""
        requests: list[Request] = []
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                requests.append("close")
            elif event.type == pygame.KEYDOWN:
                if event.key == pygame.K_s:  # which also brakes
                    requests.append("save" if event.mod & pygame.KMOD_CTRL else "save at rest")
                if event.key in KEYS:
                    self._keys.add(event.key)
                elif event.key in REQUESTS:
                    requests.append(REQUESTS[event.key])
            elif event.type == pygame.KEYUP:
                self._keys.discard(event.key)
            elif event.type == pygame.WINDOWFOCUSLOST:
                self._keys.clear()
            elif event.type == pygame.CONTROLLERDEVICEADDED:
                pad = controller.Controller(event.device_index)
                self._pads[pad.as_joystick().get_instance_id()] = pad
            elif event.type == pygame.CONTROLLERDEVICEREMOVED:
                self._pads.pop(event.instance_id, None)
        return requests

    def controls(
        self, now: Float[np.ndarray, " 3"], speed: float, wheels: float, assist: bool
    ) -> Float[np.ndarray, " 3"]:
        """Steer, gas and brake of this step: of a gamepad that is in use, else of the keys (``controls.assisted``)."""
        for pad in self._pads.values():
            asked = from_gamepad(
                pad.get_axis(pygame.CONTROLLER_AXIS_LEFTX) / FULL_STICK,
                pad.get_axis(pygame.CONTROLLER_AXIS_TRIGGERRIGHT) / FULL_TRIGGER,
                pad.get_axis(pygame.CONTROLLER_AXIS_TRIGGERLEFT) / FULL_TRIGGER,
            )
            if asked.any():
                self.used.add("gamepad")
                return asked
        held = {KEYS[key] for key in self._keys}
        if held:
            self.used.add("keyboard")
        return assisted(now, held, speed, wheels) if assist else from_keys(held)

    def draw(self, recording: Recording, controls: Float[np.ndarray, " 3"], message: Sequence[str]) -> None:
        """Show the car on the road, what its driver is to know, and a message of some lines, if any."""
        surface, size, pose = self._surface, self._surface.get_width(), recording.pose
        camera = Camera.behind(pose, size, SPAN)
        surface.fill(GRASS)
        for corners, colour in self._ground.shapes(camera):
            pygame.draw.polygon(surface, colour, corners)
        for line in path_lines(recording.path, camera):
            pygame.draw.lines(surface, TRAIL, False, line, 3)
        for corners, colour in car_shapes(pose, camera):
            pygame.draw.polygon(surface, colour, corners)
        self._draw_chart(pose)
        self._draw_readings(recording)
        self._draw_controls(controls)
        lines = [*message, *([""] if message and self.help else []), *(HELP if self.help else [])]
        if lines:
            self._draw_message(lines)
        pygame.display.flip()

    def tick(self, fps: int) -> None:
        """Wait until the next frame is due; 0 waits for nothing."""
        self._clock.tick(fps)

    @property
    def frame_rate(self) -> float:
        """Frames a second over the last ten; 0 before that."""
        return float(self._clock.get_fps())

    def _draw_chart(self, pose: Pose) -> None:
        side, edge = self._chart.size, self._surface.get_width() // 60
        plate = pygame.Surface((side, side), pygame.SRCALPHA)
        plate.fill((0, 0, 0, 90))
        pygame.draw.lines(plate, INK, True, self._loop, 3)
        pygame.draw.circle(plate, HULL, self._chart.pixels(np.array([pose.x, pose.y])).tolist(), 5)
        self._surface.blit(plate, (self._surface.get_width() - side - edge, edge))

    def _draw_readings(self, recording: Recording) -> None:
        edge, line = self._surface.get_width() // 60, self._small.get_linesize()
        self._write(f"{3.6 * recording.speed:.0f} km/h", (edge, edge), self._large)
        texts = (
            f"{recording.steps * TIME_STEP:.1f} s",
            f"return {recording.total:.1f}",
            f"tiles {recording.tiles}/{len(recording.course.track)}",
        )
        for i, text in enumerate(texts):
            self._write(text, (edge, edge + self._large.get_linesize() + i * line), self._small)

    def _draw_controls(self, controls: Float[np.ndarray, " 3"]) -> None:
        surface, size = self._surface, self._surface.get_width()
        steer, gas, brake = controls.tolist()
        length, width, bottom, middle = size // 5, size // 50, size - size // 30, size // 2
        pygame.draw.rect(surface, BAR, (middle - length, bottom - width, 2 * length, width))
        left, right = sorted((middle, middle + round(steer * length)))
        pygame.draw.rect(surface, TRAIL, (left, bottom - width, right - left, width))
        pygame.draw.line(surface, INK, (middle, bottom - width - 3), (middle, bottom + 2), 2)
        for left, share, colour in ((size - 5 * width, brake, BRAKE), (size - 3 * width, gas, GAS)):
            pygame.draw.rect(surface, BAR, (left, bottom - length, width, length))
            filled = round(share * length)
            pygame.draw.rect(surface, colour, (left, bottom - filled, width, filled))

    def _draw_message(self, lines: Sequence[str]) -> None:
        size, height = self._surface.get_width(), self._small.get_linesize()
        width = max(self._small.size(line)[0] for line in lines) + 2 * height
        plate = pygame.Surface((width, height * (len(lines) + 1)), pygame.SRCALPHA)
        plate.fill((*TYRE, 190))
        for i, line in enumerate(lines):
            plate.blit(self._small.render(line, True, INK), (height, height // 2 + i * height))
        self._surface.blit(plate, ((size - width) // 2, size // 4))

    def _write(self, text: str, at: tuple[int, int], font: Any) -> None:
        # a shadow, for white letters are lost on kerbs
        for offset, colour in ((1, TYRE), (0, INK)):
            self._surface.blit(font.render(text, True, colour), (at[0] + offset, at[1] + offset))
