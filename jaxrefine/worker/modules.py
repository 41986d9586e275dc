"""A task of one's own in another process: which files it is made of, and how they are imported there.

Adding its folder to ``sys.path`` would not do: nothing but these files can be seen there, and a folder that cannot be
listed cannot be imported from.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType


def modules_beside(name: str) -> dict[str, str]:
    """The files and packages that a task of one's own was imported from.

    Args:
        name: of the task, imported already.

    Returns:
        The imported top-level modules that lie in the same folder as the task's own, each with its file, its
        ``__init__.py``, or the folder of a package that has none. Nothing for a task that ships or is installed.
    """
    module, separator, _ = name.partition(":")
    top = module.partition(".")[0]
    if not separator or (file := _file(sys.modules[top])) is None:
        return {}
    root = _root(file)
    if str(root) in {str(Path(folder).resolve()) for folder in sysconfig.get_paths().values()}:
        return {}  # installed, so it is seen and found as every package is
    found = {other: _file(loaded) for other, loaded in list(sys.modules.items()) if "." not in other}
    return {
        other: str(path)
        for other, path in found.items()
        if path is not None and _root(path) == root and other != "__main__"
    }


def readable(modules: Mapping[str, str]) -> tuple[Path, ...]:
    """What must be readable for them: a module's file, a package's folder."""
    paths = map(Path, modules.values())
    return tuple(path.parent if path.name == "__init__.py" else path for path in paths)


def _file(module: ModuleType) -> Path | None:
    if file := getattr(module, "__file__", None):
        return Path(file).resolve()
    folders = list(getattr(module, "__path__", []))
    return Path(folders[0]).resolve() if folders else None


def _root(path: Path) -> Path:
    return path.parent.parent if path.name == "__init__.py" else path.parent


def provide(modules: Mapping[str, str]) -> None:
    """Let this process import these modules."""
    sys.meta_path.insert(0, _Finder(modules))


class _Finder(MetaPathFinder):
    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The place of a module, if it is one of these."""
        if fullname not in self._modules:
            return None
        place = Path(self._modules[fullname])
        if not place.is_dir():
            return spec_from_file_location(fullname, place)
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(place)]
        return spec
