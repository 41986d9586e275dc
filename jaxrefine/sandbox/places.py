"""Where the files are that any Python program with this project's packages reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
"""The folder that this project's packages are imported from; other things may lie in it."""

ACCELERATOR = ("/sys", "/proc/driver")
"""What drivers of accelerators tell of themselves."""

_PACKAGES = ("jaxrefine", "envs", "prompts")
_SYSTEM = (
    "/usr",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/localtime",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/kernel/mm/transparent_hugepage",
)
_ROOTS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
_OF_PREFIX = ("bin", "lib", "lib64", "share", "pyvenv.cfg")
_DEVICES = ("nvidia*", "dri", "kfd")


def libraries() -> tuple[Path, ...]:
    """Files and folders that exist and hold the system's libraries, Python, its packages and this project's."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    places = [
        *map(Path, _SYSTEM),
        # never the whole of a prefix or of the project: a person's own files may lie there
        *(Path(prefix, name) for prefix in sorted(prefixes) for name in _OF_PREFIX),
        *map(Path, _site_packages()),
        *(PROJECT / name for name in _PACKAGES),
    ]
    return tuple(place for place in dict.fromkeys(places) if place.exists())


def import_path() -> list[str]:
    """Where this project's packages and those it needs are imported from."""
    return [*_site_packages(), str(PROJECT)]


def _site_packages() -> list[str]:
    return [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]


def root_folders() -> Iterator[tuple[str, str | None]]:
    """The system's folders at the root: name, and where it leads if it is a link."""
    for folder in map(Path, _ROOTS):
        if folder.is_symlink():
            yield str(folder), str(folder.readlink())
        elif folder.exists():
            yield str(folder), None


def interpreter_links() -> Iterator[tuple[str, str]]:
    """Links that lead from the name that Python is started by to its file."""
    place = Path(sys.executable).absolute()
    while place.is_symlink():
        target = place.readlink()
        yield str(place), str(target)
        place = place.parent / target


def devices() -> tuple[Path, ...]:
    """Accelerators' device files and folders."""
    return tuple(sorted(place for pattern in _DEVICES for place in Path("/dev").glob(pattern)))


def spellings(places: Iterable[Path]) -> list[str]:
    """Absolute paths, as they are written and with links resolved; parents before what they hold."""
    paths = {os.path.abspath(place) for place in places} | {os.path.realpath(place) for place in places}  # noqa: PTH100
    return sorted(paths, key=lambda path: (path.count(os.sep), path))
