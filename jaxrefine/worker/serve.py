"""What runs inside the jail: a ``Worker`` that answers lines of JSON until its standard input ends.

The first line says which worker; each further one is a call. See ``jaxrefine.worker.calls`` for the answers.
"""

from __future__ import annotations

import json
import math
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import jax
import pyarrow as pa
import pyarrow.parquet as pq

from jaxrefine import task as tasks
from jaxrefine.errors import UserError
from jaxrefine.policy.source import ProgramError
from jaxrefine.worker.api import Worker
from jaxrefine.worker.calls import CALLS
from jaxrefine.worker.modules import provide
from jaxrefine.worker.rehearsal import rehearse
from jaxrefine.worker.runtime import configure


class _Channel:
    """Requests and replies, on descriptors of their own: the standard ones are anybody's who prints or reads."""

    def __init__(self) -> None:
        self._replies = os.dup(1)
        requests = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._requests: SimpleQueue[dict[str, Any]] = SimpleQueue()
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()

    def _listen(self, requests: int) -> None:
        with os.fdopen(requests, "rb") as lines:
            for line in lines:
                self._requests.put(json.loads(line))
        # in the middle of a call, too: nobody waits for its result any more
        os._exit(0)

    def next(self) -> dict[str, Any]:
        """The next request; waits for it."""
        return self._requests.get()

    def send(self, call: int, kind: str, value: Any) -> None:
        """Send one reply."""
        line = memoryview(json.dumps({"call": call, kind: _finite(value)}, allow_nan=False).encode() + b"\n")
        while line:
            line = line[os.write(self._replies, line) :]

    def answer(self, call: int, function: Callable[[], Any]) -> bool:
        """Send what a function returns or raises; tells whether it returned."""
        try:
            value = function()
        except ProgramError as error:
            self.send(call, "program", str(error))
        except UserError as error:
            self.send(call, "user", str(error))
        except Exception as error:
            if _out_of_memory(error):
                what = "The program needs more memory than there is; make its intermediate arrays smaller."
                self.send(call, "program", f"{what} ({str(error)[:500] or type(error).__name__})")
            else:
                self.send(call, "defect", "".join(traceback.format_exception(error)))
        else:
            self.send(call, "result", value)
            return True
        return False


def main() -> None:
    """Serve until the host is gone."""
    channel = _Channel()
    worker: Worker | None = None
    number = 0

    def start(request: dict[str, Any]) -> None:
        nonlocal worker
        configure()
        provide(request["modules"])
        name, condition, text = (request["task"][key] for key in ("name", "condition", "text"))
        task = tasks.get(name, Path(request["task"]["demonstration"]), condition, text)
        _ = task.demonstration  # its mistakes are told now
        if ":" in name:  # those that ship are rehearsed by their tests, and a step of the door takes seconds to trace
            rehearse(task)
        worker = Worker.from_options(
            task, request["seed"], request["fit"], lambda done, total: channel.send(number, "progress", [done, total])
        )

    first = channel.next()
    if not channel.answer(number, lambda: start(first)):
        return
    assert worker is not None
    while True:
        request = channel.next()
        number, method = request["call"], request["method"]
        if method not in CALLS:
            raise ValueError(f"no call is named {method!r}")
        channel.answer(number, lambda m=method, a=request["arguments"]: _call(worker, m, a))  # type: ignore[misc]


def _call(worker: Worker, method: str, arguments: dict[str, Any]) -> Any:
    if "folder" in arguments:
        arguments["folder"] = folder = Path(arguments["folder"])
        for name in CALLS[method].reads:
            if name.endswith(".parquet"):
                _hold_to_be_a_table(folder / name)
    return getattr(worker, method)(**arguments)


def _hold_to_be_a_table(path: Path) -> None:
    """Raises ``UserError`` for a table that is lost or cut: pandas would name no file."""
    try:
        pq.read_schema(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"the table {path} cannot be read: {error}. Restore the file, or start a new run") from error


def _finite(value: Any) -> Any:
    """What is not finite becomes None, for JSON has no word for it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


def _out_of_memory(error: Exception) -> bool:
    says = ("RESOURCE_EXHAUSTED", "Out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, jax.errors.JaxRuntimeError) and any(words in str(error) for words in says)
    )


if __name__ == "__main__":
    main()
