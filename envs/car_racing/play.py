"""Drive Car Racing yourself and save the drive as a demonstration.

    python -m envs.car_racing.play --seed 3

opens a window (pygame: pip install 'jaxrefine[play]'). Hold gas to drive off; H explains the keys. What you drive is
saved as a table that `python -m jaxrefine.main task.demonstration=FILE` takes, with its provenance as JSON beside it.
Nothing driven is lost but what you drop by pressing Esc or R twice: closing the window and Ctrl-C save, too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from jaxtyping import Float

from envs.car_racing.conditions import CONDITIONS
from envs.car_racing.drive import Course, Recording, fits, free, provenance, read, save

if TYPE_CHECKING:
    from envs.car_racing.window import Window

Mode = Literal["ready", "driving", "paused", "finished"]

LEAST_STEPS = 2  # of a demonstration


def drive(recording: Recording, window: Window, fps: int, assist: bool) -> bool:
    """Let a person drive until they have had enough; returns whether the drive is to be kept."""
    mode: Mode = "ready"
    asked = ""  # what a second press will do
    controls = np.zeros(3)
    while True:
        for request in window.poll():
            if request in ("save", "close") or (request == "save at rest" and mode in ("paused", "finished")):
                return True
            if request == "save at rest":
                continue
            if request == "help":
                window.help = not window.help
            elif request == "pause":
                asked = ""
                mode = "driving" if mode == "paused" else "paused" if mode == "driving" else mode
            elif recording.steps and asked != request:
                asked = request
                mode = "paused" if mode == "driving" else mode
            elif request == "quit":
                return False
            else:
                recording.restart()
                mode, asked, controls = "ready", "", np.zeros(3)
        if mode in ("ready", "driving"):
            controls = window.controls(controls, recording.speed, -float(recording.pose.steering), assist)
            if mode == "driving" or controls[1] > 0:
                recording.step(controls)
                mode = "finished" if recording.over else "driving"
        window.draw(recording, controls, _message(recording, mode, asked, window.frame_rate, fps))
        window.tick(fps)


def watch(recording: Recording, window: Window, actions: Float[np.ndarray, "step 3"], fps: int) -> None:
    """Show a recorded drive, again and again if asked to."""
    playing, controls = True, np.zeros(3)
    while True:
        for request in window.poll():
            if request in ("quit", "close"):
                return
            if request == "help":
                window.help = not window.help
            elif request == "pause":
                playing = not playing
            elif request == "restart":
                recording.restart()
        if playing and not recording.over:
            controls = actions[recording.steps]
            recording.step(controls)
        ended = ["The end: R shows it again, Esc quits"] if recording.over else []
        window.draw(recording, controls, ended or ([] if playing else ["Paused: P goes on"]))
        window.tick(fps)


def main(arguments: Sequence[str] | None = None) -> int:
    """Drive, or watch a drive; returns the exit status."""
    options = _options(arguments)
    try:
        import pygame

        from envs.car_racing import window as windows
    except ImportError as error:
        return _refuse(f"driving needs pygame, which cannot be imported ({error}); pip install 'jaxrefine[play]'")
    try:
        windows.start()
        return _play(options, windows.Window)
    except pygame.error as error:
        return _refuse(f"no window can be opened: {error}; run this on a desktop, or set DISPLAY to one it may use")
    finally:
        pygame.quit()


def _play(options: Any, open_window: type[Window]) -> int:
    print(f"track {options.seed}, condition {options.condition}: compiling the car ...", flush=True)
    course = Course(options.seed, options.condition)
    if options.replay and not fits(options.drive, course):
        return _refuse(f"{options.replay} does not start as track {options.seed} does; give the --seed of its track")
    recording, window = Recording(course, options.max_steps), open_window(options.size, course.track)
    keep = not options.replay
    try:
        if options.replay:
            watch(recording, window, options.drive.actions, options.fps)
        else:
            keep = drive(recording, window, options.fps, options.assist)
    except KeyboardInterrupt:
        pass
    finally:  # whatever went wrong, the drive is kept
        if keep and recording.steps >= LEAST_STEPS:
            about = provenance(recording, window.used, options.assist, options.fps)
            path = save(recording, about, options.out)
            print(f"{path}: track {options.seed}, return {recording.total:.1f} in {recording.steps} steps")
        elif not options.replay:
            print("nothing was saved")
    return 0


def _options(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(
        prog="python -m envs.car_racing.play", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--seed", type=int, help="of the track (default 0); evaluations report on 1000..1009, so take others")
    add("--condition", choices=list(CONDITIONS), help="of car and road, which no policy is told of (default stock)")
    add("--out", type=Path, help="a new .parquet or .csv file (default car_racing_DATE.parquet, or the next free name)")
    add("--size", type=int, default=720, help="of the window's sides, pixels (default 720)")
    add("--fps", type=int, default=50, help="steps and frames a second: 50 is real time (default), fewer are slower")
    add("--max-steps", type=int, default=1000, help="the time limit, steps of 0.02 s (default 1000)")
    assist = "move steering and pedals as hands and feet do while a key is held (default); else keys are all or nothing"
    add("--assist", action=argparse.BooleanOptionalAction, default=True, help=assist)
    add("--replay", type=Path, metavar="FILE", help="watch a saved drive; its .json names the track and the condition")
    options = parser.parse_args(arguments)
    if options.replay:
        try:
            options.drive = read(options.replay)
        except ValueError as error:
            parser.error(str(error))
        options.max_steps = len(options.drive.actions)
        options.seed = options.drive.seed if options.seed is None else options.seed
        options.condition = options.condition or options.drive.condition
        if options.seed is None:
            parser.error(f"--replay {options.replay}: nothing beside it says on which track it was driven; give --seed")
    options.seed = options.seed or 0
    options.condition = options.condition or "stock"
    if options.seed < 0:
        parser.error(f"--seed {options.seed}: a track's seed is 0 or more")
    if not 200 <= options.size <= 4000:
        parser.error(f"--size {options.size}: give 200 to 4000 pixels")
    if options.fps < 1 or options.max_steps < LEAST_STEPS:
        parser.error(f"--fps must be at least 1, and the steps at least {LEAST_STEPS}")
    out = options.out or Path(f"car_racing_{date.today().isoformat()}.parquet")
    if out.suffix not in {".parquet", ".csv"}:
        parser.error(f"--out {out}: give it the ending .parquet or .csv")
    if options.out and free(out) != out:
        parser.error(f"--out {out}: it or the .json beside it exists; give a new name")
    if not options.replay and not (out.parent.is_dir() and os.access(out.parent, os.W_OK)):
        parser.error(f"--out {out}: the folder {out.parent} is missing or cannot be written; give another")
    options.out = out
    return options


def _message(recording: Recording, mode: Mode, asked: str, frame_rate: float, fps: int) -> list[str]:
    if asked == "quit":
        return ["Quit? Esc again drops this drive, S saves it and quits, P goes on"]
    if asked == "restart":
        return ["Start over? R again drops this drive, S saves it and quits, P goes on"]
    if mode == "ready":
        return ["Hold gas to drive off: the clock starts then.", "H explains the keys."]
    if mode == "paused":
        return ["Paused: P goes on, S saves and quits, R starts over, Esc quits"]
    if mode == "finished":
        tiles, nodes = recording.tiles, len(recording.course.track)
        why = "All tiles visited" if tiles == nodes else "Out of the field" if recording.terminated else "Time is up"
        return [f"{why}: return {recording.total:.1f}", "S saves and quits, R starts over, Esc quits"]
    if 0 < frame_rate < 0.9 * fps:
        return [f"This machine keeps up {frame_rate:.0f} of {fps} frames a second: try a smaller --size"]
    return []


def _refuse(message: str) -> int:
    print(message, file=sys.stderr)
    return 2


if __name__ == "__main__":
    # one car's step waits for the device longer than it computes
    jax.config.update("jax_platforms", "cpu")
    sys.exit(main())
