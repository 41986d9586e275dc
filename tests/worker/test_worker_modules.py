"""A task of one's own is imported in another process."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from jaxrefine.worker.modules import modules_beside, provide, readable


@pytest.mark.parametrize("name", ["alone_task:make", "whole_package.task:make", "bare_package.task:make"])
def test_a_task_of_ones_own_is_imported_with_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for package in ("whole_package", "bare_package"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "task.py").write_text("import beside_task")
    (tmp_path / "whole_package" / "__init__.py").touch()
    (tmp_path / "alone_task.py").write_text("import beside_task")
    (tmp_path / "beside_task.py").touch()
    (tmp_path / "never_imported.py").touch()
    module = name.partition(":")[0]
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        import_module(module)
    found = modules_beside(name)
    assert found.keys() == {module.partition(".")[0], "beside_task"}
    own = tmp_path / ("alone_task.py" if module == "alone_task" else module.partition(".")[0])
    assert set(readable(found)) == {own, tmp_path / "beside_task.py"}
    for imported in {module, *found}:
        del sys.modules[imported]
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    with pytest.raises(ImportError):
        import_module(module)
    provide(found)
    assert import_module(module).beside_task.__file__ == str(tmp_path / "beside_task.py")
    for imported in {module, *found}:
        del sys.modules[imported]


@pytest.mark.parametrize("name", ["car_racing", "scipy.stats:norm"])
def test_what_is_installed_needs_no_leave(name: str) -> None:
    assert modules_beside(name) == {}
