"""The means that hold a jail: each makes the command that runs Python inside one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrefine.errors import UserError
from jaxrefine.sandbox import places
from jaxrefine.sandbox.jail import Jail
from jaxrefine.sandbox.syscalls import seccomp_policy

_INSIDE = Path(__file__).resolve().with_name("inside.py")
# Not -I: the environment is the caller's, and it fixes the hash seed, so that sets print in the same order each time.
_FLAGS = ("-B", "-P", "-s", "-u", "-X", "utf8")
_LANDLOCK_PROC = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm/overcommit_memory")
_LANDLOCK_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


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

        Start it with an environment of its own, in one of `jail.write`, and as the leader of a new session: killing
        its process group then ends all of it. It also ends with the thread that started it.

        Args:
            jail: What it may do.
            python: What would follow `python`: `("-m", module, *arguments)` or `(path, *arguments)`.

        Returns:
            Program and arguments. Its standard streams are those of whoever starts it.

        Raises:
            UserError: A file or folder of the jail does not exist.
        """
        for place in (*jail.read, *jail.write):
            if not place.exists():
                raise UserError(f"{place} does not exist, so no sandbox can hold it.")
        told = {"limits": _limits(jail), "path": places.import_path(), **self._held_inside(jail)}
        return [*self._held_outside(jail), sys.executable, *_FLAGS, str(_INSIDE), json.dumps(told), *python]

    def status(self, returncode: int) -> int:
        """How the jailed Python ended, from how its command did: its exit status, or minus a signal's number."""
        return returncode

    def _held_outside(self, jail: Jail) -> list[str]:
        """The start of the command."""
        return []

    def _held_inside(self, jail: Jail) -> dict[str, Any]:
        """What `inside` is told besides."""
        return {}


class Landlock(Backend):
    """Landlock and seccomp: the kernel refuses the process files and system calls, from inside and for good.

    What it can still learn of files it may not open is that they exist, how long they are, and to whom they belong.
    """

    name = "landlock"
    strong = True

    def _held_inside(self, jail: Jail) -> dict[str, Any]:
        kind = "run" if jail.processes else "read"
        system = [path for path, link in places.root_folders() if link is None]
        read = [*places.libraries(), *jail.read, *map(Path, (*system, *_LANDLOCK_PROC))]
        devices = [*map(Path, _LANDLOCK_DEVICES)]
        if jail.processes:
            read += map(Path, places.ACCELERATOR)
            devices += places.devices()
        rules = [(read, kind), (jail.write, "write"), (devices, "device")]
        return {
            "seccomp": seccomp_policy(processes=jail.processes),
            "landlock": [(str(path), kind) for paths, kind in rules for path in paths if path.exists()],
        }


class Bubblewrap(Backend):
    """Bubblewrap and seccomp: the process has a view of its own of files, processes and network."""

    name = "bubblewrap"
    strong = True

    def status(self, returncode: int) -> int:
        """How the jailed Python ended, from how its command did: its exit status, or minus a signal's number."""
        return 128 - returncode if returncode > 128 else returncode

    def _held_inside(self, jail: Jail) -> dict[str, Any]:
        return {"seccomp": seccomp_policy(processes=jail.processes)}

    def _held_outside(self, jail: Jail) -> list[str]:
        program = shutil.which("bwrap")
        if program is None:
            raise UserError("bubblewrap (the program bwrap) is not installed.")
        # In its starter's session, so that killing the group reaches it; seccomp keeps it from typing into a terminal.
        command = [program, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
        command += ["--proc", "/proc", "--dev", "/dev", "--dir", "/tmp"]
        for path, link in places.root_folders():
            command += ["--symlink", link, path] if link else ["--ro-bind", path, path]
        read = [*places.libraries(), *jail.read]
        if jail.processes:
            read.append(Path("/sys"))
        bound = places.spellings(read)
        writable = set(places.spellings(jail.write))
        for path in sorted({*bound, *writable}, key=lambda path: path.count(os.sep)):
            command += ["--bind" if path in writable else "--ro-bind", path, path]
        for path, link in places.interpreter_links():
            if not any(Path(path).is_relative_to(folder) for folder in bound):
                command += ["--symlink", link, path]
        if jail.processes:
            for device in map(str, places.devices()):
                command += ["--dev-bind", device, device]
        # What bubblewrap itself made is memory that nobody counts, and its own first process must not be rewritten.
        for folder in ("/proc", "/dev", "/"):
            command += ["--remount-ro", folder]
        return [*command, "--"]


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
