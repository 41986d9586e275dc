from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path
from typing import Any

from jaxrefine.sandbox import Backend, Jail


class Jailed:
    """Runs programs in jails; they may write in the folder `work` and nowhere else."""

    def __init__(self, folder: Path) -> None:
        self._work, self._source = folder / "work", folder / "program.py"
        self._work.mkdir()

    def __call__(
        self, backend: Backend, program: str, *arguments: Any, jail: Jail | None = None
    ) -> subprocess.CompletedProcess[str]:
        self._source.write_text(textwrap.dedent(program), encoding="utf-8")
        jail = jail or Jail()
        jail = Jail(**{**vars(jail), "read": (*jail.read, self._source), "write": (*jail.write, self._work)})
        return subprocess.run(
            backend.command(jail, (str(self._source), *map(str, arguments))),
            cwd=self._work,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self._work), "MARK": "of the jail"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            start_new_session=True,
            check=False,
        )
