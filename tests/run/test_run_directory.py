from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from jaxrefine.errors import UserError
from jaxrefine.run import RunDirectory, whole_file


def test_what_is_written_can_be_read_back(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "a" / "run") as run:
        assert run.write_text("config.yaml", "schräg: 1\n") == run.path / "config.yaml"
        run.write_json("round_0/fit.json", {"nll": np.float32(1.5), "curve": np.arange(3), "path": run.path})
        run.write_bytes("blob", b"\0\1")
        assert run.read_text("config.yaml") == "schräg: 1\n"
        assert run.read_json("round_0/fit.json") == {"nll": 1.5, "curve": [0, 1, 2], "path": str(run.path)}
        assert run.round_path(3).is_dir()
        assert run.round_path(3) == run.path / "round_3"
    assert sorted(path.name for path in run.path.iterdir()) == [
        ".lock", "blob", "config.yaml", "events.jsonl", "round_0", "round_3",
    ]  # fmt: skip


def test_json_files_hold_no_nan(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        path = run.write_json("summary.json", {"a": [math.nan, 1.0], "b": math.inf})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"a": [None, 1.0], "b": None}


def test_text_that_utf8_cannot_hold_is_escaped(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        run.write_text("reply.md", "a\udc80b")
        assert run.read_text("reply.md") == "a\\udc80b"


def test_a_name_outside_the_directory_is_refused(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run") as run, pytest.raises(ValueError, match="outside"):
        run.write_text("../elsewhere", "")


def test_a_writer_that_fails_leaves_the_earlier_file(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        run.write_text("table", "whole")
        with contextlib.suppress(KeyboardInterrupt), run.whole_file("table") as temporary:
            temporary.write_text("ha")
            raise KeyboardInterrupt
        assert run.read_text("table") == "whole"
    assert not list(tmp_path.glob(".tmp*"))


def test_whole_file_keeps_the_suffix_numpy_wants(tmp_path: Path) -> None:
    with whole_file(tmp_path / "deep" / "weights.npz") as temporary:
        np.savez(temporary, a=np.ones(2))
    with np.load(tmp_path / "deep" / "weights.npz") as weights:
        assert weights["a"].tolist() == [1, 1]


def test_leftovers_of_a_killed_writer_are_swept(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path).close()
    (tmp_path / "round_1").mkdir()
    (tmp_path / "round_1" / ".tmp-rollouts.parquet").write_bytes(b"half")
    (tmp_path / "round_1" / ".tmp-fits.npz" / "deep").mkdir(parents=True)
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "round_1" / ".tmp-weights.npz").symlink_to(tmp_path / "mine")
    (tmp_path / "round_1" / ".tmp-start.npz").symlink_to(tmp_path / "nowhere")
    (tmp_path / "round_1" / ".tmp-folder").symlink_to(tmp_path)
    with RunDirectory.open(tmp_path):
        assert not list(tmp_path.rglob(".tmp*"))
    assert (tmp_path / "mine").read_text() == "kept"


def test_create_refuses_a_run_and_open_refuses_none(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run").close()
    with pytest.raises(UserError, match=r"holds a run already.*run="):
        RunDirectory.create(tmp_path / "run")
    with pytest.raises(UserError, match="holds no run"):
        RunDirectory.open(tmp_path)
    assert not (tmp_path / "events.jsonl").exists()
    with pytest.raises(UserError, match="holds no run"):
        RunDirectory.open(tmp_path / "nosuch")


def test_a_second_process_is_told_who_has_the_run(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom jaxrefine.run import RunDirectory\nfrom jaxrefine.errors import UserError\n"
        "try:\n    RunDirectory.open_or_create(sys.argv[1])\n"
        "except UserError as error:\n    print(error); sys.exit(2)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with RunDirectory.create(tmp_path):
        other = subprocess.run(command, capture_output=True, text=True, check=False)
        assert other.returncode == 2
        assert f"in use by process {os.getpid()} on" in other.stdout
        with pytest.raises(UserError, match=f"process {os.getpid()}"):
            RunDirectory.open(tmp_path)
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_failed_open_lets_go_of_the_lock(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("rubbish\n")
    for _ in range(2):
        with pytest.raises(UserError, match="line 1 is damaged"):
            RunDirectory.open(tmp_path)


def test_an_unwritable_folder_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot create .*file.*choose another folder"):
        RunDirectory.create(tmp_path / "file" / "run")


def test_a_forbidden_folder_is_one_clear_error() -> None:
    user = os.geteuid()
    # not under pytest's own folder, which nobody but its owner may enter
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        if user == 0:
            os.seteuid(65534)  # permissions do not bind root
        try:
            with pytest.raises(UserError, match="Permission denied"):
                RunDirectory.create(folder)
        finally:
            if user == 0:
                os.seteuid(0)
            Path(folder).chmod(0o755)


def test_a_missing_or_damaged_artifact_is_one_clear_error(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        run.write_bytes("broken.json", b"{")
        run.write_bytes("broken.txt", b"\xff")
        with pytest.raises(UserError, match=r"cannot read .*nosuch"):
            run.read_text("nosuch")
        with pytest.raises(UserError, match=r"broken.json is damaged"):
            run.read_json("broken.json")
        with pytest.raises(UserError, match=r"broken.txt is damaged"):
            run.read_text("broken.txt")


def test_a_full_disk_is_one_clear_error_and_leaves_the_record_intact(tmp_path: Path) -> None:
    # A limit on the size of files refuses a write in its middle, as a full disk does.
    script = """
import resource, sys
from jaxrefine.errors import UserError
from jaxrefine.run import RunDirectory
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
with RunDirectory.create(sys.argv[1]) as run:
    run.write_text("kept", "first")
    for what in (lambda: run.write_text("kept", "x" * 5000), lambda: run.emit("note", text="y" * 5000)):
        try:
            what()
        except UserError as error:
            print(error)
    run.emit("after")
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert "kept: File too large. Free some space" in first
    assert "run=PATH" in second
    with RunDirectory.open(tmp_path) as run:
        assert run.read_text("kept") == "first"
        assert [event["event"] for event in run.events] == ["after"]
        assert run.notices == ()
