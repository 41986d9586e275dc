"""The command as a person meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from jaxrefine import task as tasks
from jaxrefine.config import Config
from jaxrefine.errors import UserError
from jaxrefine.main import _settle_options, main
from jaxrefine.methods.clients import _bundled
from jaxrefine.methods.experiment import earlier_sandboxes
from jaxrefine.run import RunDirectory
from jaxrefine.sandbox import Backend, choose

SMALL = ["refine.rollouts=4", "refine.rounds=1", "fit.updates=40", "seeds=2"]


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit status and both outputs of the command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["jaxrefine", *arguments])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    for held in ("_started", "_mistakes", "_failures"):
        monkeypatch.setattr(f"jaxrefine.main.{held}", [])
    status = 0
    try:
        main()
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def short_transcript(tmp_path: Path) -> Path:
    """The bundled conversation up to its first answer."""
    lines = _bundled("car_racing", "0").read_text().splitlines(keepends=True)
    path = tmp_path / "short.jsonl"
    path.write_text("".join(lines[:2]))
    return path


@pytest.fixture
def table_without_speed(tmp_path: Path) -> Path:
    table = pd.read_parquet(tasks.get("car_racing").demonstration_path).drop(columns="obs_speed")
    table.to_csv(tmp_path / "mine.csv", index=False)
    return tmp_path / "mine.csv"


def test_help_helps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(monkeypatch, capsys, "--help")
    assert status == 0, err
    for word in ("task: car_racing", "llm: mailbox, openai, scripted, transcript", "run=", "seeds: 4", "Exit status"):
        assert word in out


@pytest.mark.parametrize(
    ("choice", "says"),
    [("default", ("rollouts: 64", "accept: validate")), ("paper", ("rollouts: 1", "accept: always"))],
)
def test_a_way_to_refine_can_be_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], choice: str, says: tuple[str, ...]
) -> None:
    status, out, err = call(monkeypatch, capsys, f"refine={choice}", "--cfg", "job")
    assert status == 0, err
    for word in says:
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["task=nosuch"], ["task/nosuch", "car_racing"]),
        (["method=nosuch"], ["method/nosuch", "zero_shot"]),
        (["task=own"], ["task.name=module:function"]),
        (["refine.feedback=table"], ["refine.feedback=analysis", "llm=openai"]),
        (["task.condition=icy"], ["icy", "stock, slick, pull, delay, worn"]),
        (["task.text=short"], ["short", "accurate, paper"]),
        (["nosuch=1"], ["nosuch"]),
        (["seeds=many"], ["seeds", "many"]),
        (["seeds=0"], ["seeds is 0"]),
        (["seed=-1"], ["seed is -1"]),
        (["fit.learning_rate=nan"], ["fit.learning_rate is nan"]),
        (["fit.validation_fraction=2"], ["fit.validation_fraction is 2"]),
        (["llm.max_cost=nan"], ["llm.max_cost is nan"]),
        (["llm=null"], ["cannot be read"]),
        (["=1"], ["cannot be read"]),
        (["llm=openai"], ["OPENAI_API_KEY"]),
        (["llm.chain=99"], ["99", "llm.chain"]),
        (["llm.path=nowhere.jsonl"], ["nowhere.jsonl"]),
        (["task.demonstration=nowhere.csv"], ["nowhere.csv", "does not exist"]),
        (["llm=scripted"], ["llm.path"]),
    ],
)
def test_a_mistake_gets_one_clear_message_and_status_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    says: list[str],
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    status, out, err = call(monkeypatch, capsys, *arguments)
    assert status == 2
    for text in says:
        assert text in err
    assert "Traceback" not in out + err
    assert err.startswith("jaxrefine: ")


def test_a_demonstration_without_a_column_is_refused_by_the_columns_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], table_without_speed: Path
) -> None:
    status, _, err = call(monkeypatch, capsys, f"task.demonstration={table_without_speed}")
    assert status == 2
    assert "obs_speed" in err


def test_a_folder_that_cannot_be_made_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    status, _, err = call(monkeypatch, capsys, f"out={tmp_path / 'file'}")
    assert status == 2
    assert str(tmp_path / "file") in err


@pytest.mark.parametrize("sink", ["tensorboard", "wandb"])
def test_a_viewer_whose_package_is_missing_is_told_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, sink: str
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(f"jaxrefine.report.{sink}.import_module", missing)
    status, _, err = call(monkeypatch, capsys, f"sinks.{sink}=true", f"out={tmp_path}")
    assert status == 2
    assert f"pip install '.[{sink}]'" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_transcript_that_ends_early_says_where_and_keeps_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, short_transcript: Path
) -> None:
    run = tmp_path / "run"
    status, _, err = call(monkeypatch, capsys, f"llm.path={short_transcript}", f"run={run}", "sandbox=limits", *SMALL)
    assert status == 2
    assert "the transcript ends here" in err
    assert f"the same command with run={run}" in err
    assert (run / "round_0" / "weights.npz").exists()
    status, _, err = call(monkeypatch, capsys, f"run={run}", "method=zero_shot", *SMALL)
    assert status == 2
    assert "method.name was 'refine'" in err
    status, _, err = call(monkeypatch, capsys, f"run={run}", "task.condition=slick", *SMALL)
    assert status == 2
    assert "task.condition was 'stock'" in err
    # the whole recording carries the same run on, and other viewers may be asked for now
    status, out, err = call(monkeypatch, capsys, f"run={run}", "sinks.tensorboard=true", "sinks.wandb=true", *SMALL)
    assert status == 0, err
    assert "model decides" in out
    assert "tensorboard --logdir" in out
    assert len(list((run / "tensorboard" / "rounds").iterdir())) == 1
    assert len(list((run / "wandb").glob("offline-run-*/*.wandb"))) == 1
    summary = json.loads((run / "summary.json").read_text())
    assert summary["resources"]["llm_calls"] >= 3
    now = choose().name
    assert summary["provenance"]["sandbox"] == {
        "analyses": now, "programs": now, "earlier": [] if now == "limits" else ["limits"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("events", "earlier"),
    [
        ([], []),
        (["now", "step"], []),
        (["step", "now", "step"], []),  # of a program version that did not say
        (["old", "step", "now", "step"], ["old"]),
        (["old", "now", "step"], []),  # nothing was done under it
        (["old", "step", "step", "now", "step", "older", "step", "old", "step", "now"], ["old", "older"]),
    ],
)
def test_the_summary_names_every_sandbox_that_worked_on_the_run(
    tmp_path: Path, events: list[str], earlier: list[str]
) -> None:
    backend = Backend()
    backend.name = "now"
    with RunDirectory.create(tmp_path) as run:
        for number, event in enumerate(events):
            if event == "step":
                run.step(f"step {number}", lambda: None)
            else:
                run.emit("sandbox_chosen", name=event)
        assert earlier_sandboxes(run, backend) == earlier


def test_a_run_begun_before_an_option_was_there_goes_on_with_its_default(tmp_path: Path) -> None:
    config = Config()
    config.task.name, config.method.name, config.llm.provider = "car_racing", "refine", "transcript"
    with RunDirectory.create(tmp_path / "run") as run:
        _settle_options(config, run)
        lines = run.read_text("config.yaml").splitlines()
        run.write_text("config.yaml", "\n".join(line for line in lines if "keep:" not in line))
        _settle_options(config, run)
        config.rl.keep = "best"
        with pytest.raises(UserError, match=r"rl\.keep was 'last', is 'best'"):
            _settle_options(config, run)


def test_a_chain_that_would_lead_elsewhere_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = call(monkeypatch, capsys, "llm=scripted", "llm.path=x", "llm.chain=a/../../../b", "out=runs")
    assert status == 2
    assert "llm.chain is 'a/../../../b'" in err
    assert not list(tmp_path.iterdir())


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "jaxrefine.main", *SMALL, *arguments]


def comparable(path: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((path / "summary.json").read_text())
    del summary["resources"]["wall_s"]
    return summary


@pytest.mark.slow
def test_killed_and_continued_from_another_folder_it_ends_as_if_undisturbed(tmp_path: Path) -> None:
    """`kill -9` and Ctrl-C at moments of the run's own making, then let it finish."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    whole, broken = tmp_path / "whole", tmp_path / "broken"

    def finish(run: Path) -> str:
        done = subprocess.run(
            command(f"run={run}"), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    out = finish(whole)
    assert "report.html" in out
    assert (whole / "report.html").stat().st_size > 10_000

    def lines() -> int:
        log = broken / "events.jsonl"
        return log.read_text().count("\n") if log.exists() else 0

    for sent in (signal.SIGINT, signal.SIGKILL):
        before = lines()
        process = subprocess.Popen(
            command(f"run={broken}"), cwd=tmp_path, env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while lines() < before + 7 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(sent)
        status = process.wait(timeout=60)
        assert status in (-signal.SIGKILL, 130), "the run was over before it could be disturbed"
    finish(broken)
    assert comparable(broken) == comparable(whole)
    asked = [json.loads(line) for line in (broken / "transcript.jsonl").read_text().splitlines()[1:]]
    places = [(line["purpose"], line["round"], line["attempt"]) for line in asked]
    assert len(places) == len(set(places))
    assert (broken / "transcript.jsonl").read_bytes().count(b"\n") == (whole / "transcript.jsonl").read_bytes().count(
        b"\n"
    )
