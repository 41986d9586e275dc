from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jaxrefine.errors import UserError
from jaxrefine.report import write_report
from jaxrefine.report.__main__ import main


def test_the_command_prints_where_the_report_is(finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(finished_run)]) == 0
    printed = capsys.readouterr().out.strip()
    assert Path(printed) == finished_run / "report.html"
    assert Path(printed).read_text().startswith("<!DOCTYPE html>")


def test_the_module_runs_and_imports_no_jax(finished_run: Path) -> None:
    code = (
        "import runpy, sys; sys.argv = ['report', sys.argv[1]]\n"
        "try: runpy.run_module('jaxrefine.report', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "assert 'jax' not in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(finished_run)], check=True, timeout=60, capture_output=True)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert "python -m jaxrefine.report" in capsys.readouterr().out


def test_folders_that_are_no_run(tmp_path: Path, finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for wrong, said in (("absent", "no folder"), ("file", "no folder"), ("empty", "no run directory"), (".", "no run")):
        assert main([str(tmp_path / wrong)]) == 2
        captured = capsys.readouterr()
        assert said in captured.err
        assert "Traceback" not in captured.err
        assert captured.out == ""
    assert not list(tmp_path.glob("*.html"))


def test_a_report_that_cannot_be_written(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match=r"Cannot write .*report\.html: No space left"):
        write_report(finished_run)
    assert not list(finished_run.glob("*report*"))


def test_a_file_that_may_not_be_read(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(UserError, match=r"Cannot read .*summary\.json: Permission denied"):
        write_report(finished_run)
