"""TensorBoard's event files and W&B's offline run hold the report's own numbers, in the formats that those read."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_run import MEANS, make_run
from tensorboardX.proto.event_pb2 import Event
from training_run import add_budget, write_curves

from jaxrefine.errors import UserError
from jaxrefine.report import require_tensorboard, require_wandb, write_tensorboard, write_wandb
from jaxrefine.report.__main__ import main
from jaxrefine.report.record import read_run
from jaxrefine.report.sinks import curves_of, whole_folder

ENDS = np.array([[890.0, 900.0, 910.0], [920.0, np.nan, 940.0]])
LOOKS = np.array([[880.0, 885.0, 900.0], [870.0, np.nan, 930.0]])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = make_run(tmp_path / "run")
    add_budget(run, 40, ENDS, LOOKS)
    return run


def _events(path: Path) -> Iterator[Event]:
    """The records of a TFRecord file: length, its checksum, the bytes, their checksum."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        yield Event.FromString(data[at + 12 : at + 12 + length])
        at += 16 + length


def _scalars(folder: Path) -> dict[tuple[str, int], float]:
    (file,) = folder.iterdir()
    return {(value.tag, event.step): value.simple_value for event in _events(file) for value in event.summary.value}


def _records(path: Path) -> Iterator[Any]:
    """The records of a `.wandb` file: a header of 7 bytes, then LevelDB's log format.

    https://github.com/google/leveldb/blob/main/doc/log_format.md: blocks of 32 KiB; each fragment has a checksum (4
    bytes), a length (2) and a type: full, first, middle or last.
    """
    record = import_module("wandb.proto.wandb_internal_pb2").Record
    data, at, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at < len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record.FromString(parts)
            parts = b""
    assert not parts


def _logged(made: Path) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any], str]:
    """The history, the last summary, the configuration, and everything as text."""
    (file,) = made.glob("*.wandb")
    records = list(_records(file))
    history = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    (started,) = (record.run for record in records if record.HasField("run"))
    summary = {item.key: json.loads(item.value_json) for record in records for item in record.summary.update}
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    return history, summary, config, "\n".join(map(str, records))


def test_rounds_are_the_reports_own_numbers(run: Path) -> None:
    record = read_run(run)
    rounds = curves_of(record)[0]
    assert (rounds.name, rounds.axis) == ("rounds", "round")
    assert [step for step, _ in rounds.points] == [0, 1, 2]
    first, _, last = (values for _, values in rounds.points)
    assert first["metric/mean"] == pytest.approx(MEANS[0])
    assert [first[f"metric/fit_seed_{seed}"] for seed in range(3)] == pytest.approx([905.0, 890.0, 875.0])
    assert (first["nll/train"], first["nll/validation"]) == (-1.423, -1.208)
    assert (first["model/calls"], first["model/input_tokens"]) == (2, 3000)
    assert (last["model/calls"], last["model/output_tokens"]) == (len(record.exchanges), 4200)


def test_training_is_by_seed_and_resets_and_leaves_out_what_is_not_finite(run: Path) -> None:
    _, first, second = curves_of(read_run(run))
    assert (first.name, second.name, second.axis) == ("rl/40/seed_0", "rl/40/seed_1", "resets")
    assert dict(first.points)[0] == {"test": 880.0}
    assert dict(first.points)[40]["evaluation"] == 900.0
    points = dict(second.points)
    assert (points[20]["episode_return"], points[40]["episode_return"]) == (1.0, 101.0)
    assert points[40]["test"] == 930.0
    assert "test" not in points[20]
    assert "evaluation" not in points[40]


def test_a_run_without_numbers_has_no_curves(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"event": "run_started"}\n')
    assert curves_of(read_run(tmp_path)) == ()
    assert list(write_tensorboard(tmp_path).iterdir()) == []


def test_tensorboard_holds_them(run: Path) -> None:
    write_tensorboard(run)
    folder = write_tensorboard(run)  # a second time leaves one file
    found = {child.name: _scalars(child) for child in folder.iterdir()}
    assert sorted(found) == ["rl-40-seed_0", "rl-40-seed_1", "rounds"]
    for curves in curves_of(read_run(run)):
        expected = {(name, step): value for step, values in curves.points for name, value in values.items()}
        assert found[curves.name.replace("/", "-")] == pytest.approx(expected, rel=1e-6)


def test_wandb_holds_them(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    write_wandb(run)
    made = write_wandb(run)  # a second time leaves one run
    assert [child.name for child in (run / "wandb").iterdir()] == [made.name]
    history, summary, config, everything = _logged(made)
    expected = [
        {f"{curves.name}/{name}": value for name, value in ({curves.axis: step} | dict(values)).items()}
        for curves in curves_of(read_run(run))
        for step, values in curves.points
    ]
    plain = [{name: value for name, value in row.items() if not name.startswith("_")} for row in history]
    assert plain == [pytest.approx(row) for row in expected]
    assert config["method"] == "refine"
    assert config["seeds"] == 3
    assert summary["status"] == "finished"
    assert summary["best_round"] == 2
    assert summary["resources/llm_calls"] == 6
    for private in ("a" * 40, os.uname().nodename + '"', str(Path.home()), "git@"):
        assert private not in everything
    assert os.environ["WANDB_MODE"] == "online"
    assert not (tmp_path / "elsewhere").exists()
    assert not list(run.glob(".tmp-*"))


def test_a_long_offline_run_is_read_over_its_blocks(run: Path) -> None:
    write_curves(run / "rl" / "40", seeds=2, updates=150)
    history, *_ = _logged(write_wandb(run))
    assert [row["rl/40/seed_1/kl"] for row in history if "rl/40/seed_1/kl" in row] == [1 / (i + 1) for i in range(150)]


@pytest.mark.parametrize(
    ("require", "module", "said"),
    [(require_tensorboard, "tensorboard", r"\[tensorboard\]'"), (require_wandb, "wandb", r"pip install '\.\[wandb\]'")],
)
def test_without_the_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, require: Callable[[], None], module: str, said: str
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(f"jaxrefine.report.{module}.import_module", missing)
    with pytest.raises(UserError, match=said):
        require()


def test_a_folder_is_whole_or_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with whole_folder(target) as folder:
        (folder / "a").write_text("1")

    def half() -> None:
        with whole_folder(target) as folder:
            (folder / "b").write_text("2")
            raise KeyError

    with pytest.raises(KeyError):
        half()
    (tmp_path / ".tmp-folder").mkdir()
    (tmp_path / ".tmp-folder" / "half").write_text("of a killed process")
    assert [path.name for path in target.iterdir()] == ["a"]
    with whole_folder(target) as folder:
        assert not list(folder.iterdir())
        (folder / "c").write_text("3")
    assert [path.name for path in target.iterdir()] == ["c"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"Cannot write .*: Not a directory"), whole_folder(tmp_path / "file" / "x"):
        pass


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "folder"
    with whole_folder(target) as folder:
        (folder / "a").write_text("1")
    rename = Path.rename

    def refused(self: Path, to: Path) -> Path:
        if self.name == ".tmp-folder":
            raise OSError(28, "No space left on device")
        return rename(self, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refused)
        with pytest.raises(UserError, match="No space left"), whole_folder(target) as folder:
            (folder / "b").write_text("2")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["folder", "folder/a"]
    target.rename(tmp_path / ".tmp-folder-old")  # a process killed between its two renames
    with pytest.raises(KeyError), whole_folder(target) as folder:
        raise KeyError
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["folder", "folder/a"]


def test_the_command_writes_both(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main([str(run), "--tensorboard", "--wandb", "--out", str(page)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [str(page), str(run / "tensorboard")]
    assert Path(printed[2]).parent == run / "wandb"
    assert page.read_text().startswith("<!DOCTYPE html>")
