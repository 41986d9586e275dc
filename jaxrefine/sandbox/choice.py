"""Which means hold the jails of this process: found by trying to break out of one."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from jaxrefine.errors import UserError
from jaxrefine.sandbox.backends import Backend, Bubblewrap, Landlock
from jaxrefine.sandbox.canary import MARK
from jaxrefine.sandbox.jail import Jail
from jaxrefine.sandbox.syscalls import supported

Mode = Literal["auto", "strong", "limits"]

STRONG: tuple[Backend, ...] = (Bubblewrap(), Landlock())
"""The strong backends, the best first."""

_CANARY = Path(__file__).resolve().with_name("canary.py")
_CANARY_S = 20.0


def choose(mode: Mode = "auto") -> Backend:
    """The strongest backend that holds here; tried out once in a process.

    Args:
        mode: "auto"; "strong": nothing less than a strong one; "limits": limits alone.

    Raises:
        UserError: A strong one is asked for, and none holds.
    """
    if mode == "limits":
        return Backend()
    weak = []
    for backend in STRONG:
        if (why := weakness(backend)) is None:
            return backend
        weak.append(f"{backend.name}: {why}")
    if mode == "strong":
        raise UserError(
            "no strong sandbox holds on this machine, and sandbox=strong asks for one. "
            + "; ".join(weak)
            + ". Install bubblewrap (Debian: `apt install bubblewrap`), use Linux 6.2 or newer, or set sandbox=auto."
        )
    return Backend()


@functools.cache
def weakness(backend: Backend) -> str | None:
    """Why a strong backend does not hold on this machine; `None` if it does."""
    if sys.platform != "linux" or not supported():
        return "it needs Linux on x86_64 or aarch64"
    with tempfile.TemporaryDirectory(prefix="jaxrefine-canary-") as name:
        outside, work = Path(name), Path(name, "work")
        work.mkdir()
        secret = outside / "secret"
        secret.write_text("secret", encoding="utf-8")
        jail = Jail(read=(_CANARY,), write=(work,), wall_s=_CANARY_S, cpu_s=_CANARY_S)
        try:
            command = backend.command(jail, (str(_CANARY), str(secret), name, str(os.getpid()), str(work)))
            ended = subprocess.run(
                command,
                cwd=work,
                env={"PATH": "/usr/bin:/bin", MARK: "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_CANARY_S,
                start_new_session=True,
                check=False,
            )
            escapes = json.loads(ended.stdout) if ended.returncode == 0 else None
        except UserError as error:
            return str(error).rstrip(".")
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            return f"it cannot be tried out ({error})"
        if escapes is None:
            last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
            return f"it does not start ({''.join(last) or f'exit status {ended.returncode}'})"
        if not (work / "written").exists():
            return "what is written in it does not come out"
    return f"it let a process {', '.join(escapes)}" if escapes else None
