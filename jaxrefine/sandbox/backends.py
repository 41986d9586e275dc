"""The means that hold a jail: each makes the command that runs Python inside one."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrefine.sandbox.jail import Jail


class Backend:
    """Limits alone: the process keeps the user's rights, and only what it uses up is bounded.

    Attributes:
        name: What a run's provenance calls it.
        strong: Whether it also keeps files, network and processes outside the jail out of reach.
    """

    name = "limits"
    strong = False

    def command(self, jail: Jail, python: Sequence[str]) -> list[str]:
        """The command that runs Python in a jail.

        Start it with an environment and a working directory of its own (one of `jail.write`), and as the leader of a
        new session: then killing its process group ends all of it.

        Args:
            jail: What it may do.
            python: What would follow `python`: `("-m", module, *arguments)` or `(path, *arguments)`.

        Returns:
            Program and arguments. Its standard streams are those of whoever starts it.
        """
        return [sys.executable, *_FLAGS, str(_INSIDE), json.dumps(self._inner(jail)), *python]

    def status(self, returncode: int) -> int:
        """How the jailed Python ended, from how its command did: its exit status, or minus a signal's number."""
        return returncode

    def _inner(self, jail: Jail) -> dict[str, Any]:
        """What `inside` is told."""
        return {"limits": _limits(jail), "path": [str(_PROJECT)]}


_INSIDE = Path(__file__).resolve().with_name("inside.py")
_PROJECT = Path(__file__).resolve().parents[2]
# Not -I: the environment is the caller's, and it fixes the hash seed, so that sets print in the same order each time.
_FLAGS = ("-B", "-P", "-s", "-u", "-X", "utf8")


def _limits(jail: Jail) -> dict[str, float]:
    names = ("memory_mb", "data_mb", "wall_s", "cpu_s", "file_mb", "open_files")
    limits = {name: value for name in names if (value := getattr(jail, name)) is not None}
    if jail.tasks is not None:
        limits["tasks"] = _tasks_of_user() + jail.tasks
    return limits


def _tasks_of_user() -> int:
    """Threads that this user runs now: the kernel counts them all against the limit on processes."""
    user, count = os.getuid(), 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            fields = dict(line.split(":", 1) for line in status.read_text(errors="replace").splitlines() if ":" in line)
            if int(fields["Uid"].split()[0]) == user:
                count += int(fields["Threads"])
    return count
