from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from report_run import make_run

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

    monkeypatch.setattr("jaxrefine.report.fields.read_bytes", refused)
    with pytest.raises(UserError, match=r"Cannot read .*summary\.json: Permission denied"):
        write_report(finished_run)


def test_several_runs_are_compared_in_the_folder_that_holds_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [make_run(tmp_path / name, rounds=1) for name in ("a", "b")]
    assert main([*map(str, runs)]) == 0
    target = tmp_path.resolve() / "comparison.html"
    assert capsys.readouterr().out.strip() == str(target)
    assert target.read_text().startswith("<!DOCTYPE html>")
    assert not (runs[0] / "report.html").exists()


def test_an_earlier_comparison_is_none_of_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, rounds=1)
    assert main([*map(str, sorted(tmp_path.iterdir()))]) == 0
    first = (tmp_path / "comparison.html").read_text()
    (tmp_path / "comparison_figures").mkdir(exist_ok=True)
    assert main([*map(str, sorted(tmp_path.iterdir()))]) == 0
    assert (tmp_path / "comparison.html").read_text() == first
    assert "comparing 2 runs" in capsys.readouterr().err.splitlines()[2]
    assert main([str(tmp_path / "comparison.html")]) == 2


def test_a_comparison_goes_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def write(runs: list[Path], target: Path | None) -> Path:
        asked.append((runs, target))
        return tmp_path

    monkeypatch.setattr("jaxrefine.report.__main__.write_comparison", write)
    assert main(["a", "b", "--out", "mine.html"]) == 0
    assert asked == [([Path("a"), Path("b")], Path("mine.html"))]


def test_the_page_of_one_run_goes_where_it_is_told(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(finished_run.rglob("*"))
    assert main([str(finished_run), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert sorted(finished_run.rglob("*")) == before
    assert main([str(finished_run), "--out", str(tmp_path)]) == 2
    assert f"such as {tmp_path / 'report.html'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "RUN"),
        (["run", "run/../run"], "named twice"),
        (["run", "--watch", "--out", "page.html"], "--watch writes no file"),
        (["run", "--watch", "--wandb"], "--watch writes no file"),
        (["run", "--port", "80"], "--port and --every are for --watch"),
        (["run", "--watch", "--port", "65536"], "no port"),
        (["run", "--watch", "--every", "nan"], "from 1 to 86400"),
    ],
)
def test_mistakes_in_the_command(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert said in capsys.readouterr().err
