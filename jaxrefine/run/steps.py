"""Steps that run once: their results are in the event log, and a resumed run takes them from there."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from jaxrefine.errors import UserError
from jaxrefine.run.events import Event, EventLog, new_event

Json = Any
"""What `json` gives back: None, bool, int, float, str, and lists and string-keyed dicts of these."""

Listener = Callable[[Event], None]

TRANSIENT = frozenset({"step_progress", "step_reused"})
"""Events of the moment: listeners hear them, the log does not keep them."""


class Steps:
    """The work of a run, cut into named steps.

    A step is done when its end is in the log. Killed before that, it runs again, so its function must give the
    same files and result when called a second time.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._listeners: list[Listener] = []
        self._running: str | None = None
        self._finished = {str(event["step"]): event for event in log.named("step_finished") if _is_whole(event, log)}

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each event from now on, after it is on the disk; what is returned ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def emit(self, event: str, **fields: Any) -> Event:
        """Log an event and tell the listeners.

        Raises:
            TypeError: A field has no JSON form.
            UserError: The disk is full.
        """
        entry = new_event(event, fields)
        if event not in TRANSIENT:
            self._log.append(entry)
        for listener in tuple(self._listeners):
            listener(entry)
        return entry

    def progress(self, done: int, total: int) -> None:
        """Tell the listeners how far the running step is."""
        self.emit("step_progress", step=self._running, done=done, total=total)

    def done(self, step: str) -> bool:
        """Whether the step's end is in the log."""
        return step in self._finished

    @property
    def wall_s(self) -> float:
        """Seconds spent in finished steps, those of earlier processes included."""
        return float(sum(event["wall_s"] for event in self._finished.values()))

    def step(self, name: str, function: Callable[[], Json], *, label: str | None = None) -> Json:
        """The result of a step: the recorded one if there is one, else that of calling `function`.

        Args:
            name: Unique in the run, such as "round_0/fit".
            function: Does the work. Writes its large products as whole files before it returns, and returns a
                small JSON value; `{"line": ...}` in it is a short text for people.
            label: What people read while it runs; the name's last part if absent.

        Returns:
            The result as JSON gives it back, so that a fresh and a resumed run see the same.

        Raises:
            RuntimeError: A step was started inside another.
            TypeError: The result has no JSON form.
        """
        if self._running is not None:
            raise RuntimeError(f"step {name!r} was started inside step {self._running!r}")
        label = label or name.rsplit("/", 1)[-1]
        if (recorded := self._finished.get(name)) is not None:
            self.emit("step_reused", step=name, label=label, wall_s=recorded["wall_s"], result=recorded["result"])
            return recorded["result"]
        self._running = name
        try:
            self.emit("step_started", step=name, label=label)
            start = time.perf_counter()
            try:
                result = function()
                wall_s = round(time.perf_counter() - start, 4)
                end = new_event("step_finished", {"step": name, "label": label, "wall_s": wall_s, "result": result})
            except Exception as error:
                wall_s = round(time.perf_counter() - start, 4)
                text = str(error) or type(error).__name__
                # a full disk refuses this event too; what is told is what it refused first
                with suppress(UserError):
                    self.emit("step_failed", step=name, label=label, wall_s=wall_s, error=text)
                raise
            self._log.append(end)
            self._finished[name] = end
        finally:
            self._running = None
        for listener in tuple(self._listeners):
            listener(end)
        return end["result"]


def _is_whole(event: Event, log: EventLog) -> bool:
    missing = {"step", "wall_s", "result"} - set(event)
    if missing:
        raise UserError(f"{log.path} is damaged: a step_finished event lacks {', '.join(sorted(missing))}.")
    return True
