"""A task that is no part of jaxrefine, defined as the README shows it, runs the whole loop."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import own_task
import pytest

from jaxrefine import task as tasks
from jaxrefine.errors import UserError
from jaxrefine.main import main

PROGRAM = """import jax
import jax.numpy as jnp
from flax import nnx


class HeaterPolicy(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.wanted = nnx.Param(jnp.array(18.0))
        self.gain = nnx.Param(jnp.array(0.1))
        self.loss = nnx.Param(jnp.array({loss}))
        self.raw_std = nnx.Param(jnp.array(-1.0))

    def __call__(self, air):
        air = jnp.nan_to_num(air)
        wanted, gain, loss, raw_std = self.wanted[...], self.gain[...], self.loss[...], self.raw_std[...]
        missing = wanted - air[0]
        leak = wanted - air[1]
        heat = jnp.clip(gain * missing + loss * leak, 0, 1)
        std = jax.nn.softplus(raw_std) + 0.01
        info = {{
            "weight_wanted": wanted, "weight_gain": gain, "weight_loss": loss, "weight_raw_std": raw_std,
            "latent_missing": missing, "latent_leak": leak,
        }}
        return heat[None], std[None, None], info
"""
ANALYSES = """def run_all(df):
    with open("test_results.txt", "a") as file:
        file.write(f"inside at the end {df.groupby('episode').obs_inside.last().mean():.2f}\\n")
"""
README = Path(__file__).parents[1] / "README.md"


def fenced(code: str) -> str:
    return f"```python\n{code}```\n"


def test_a_task_of_ones_own_runs_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_task.demonstrate(tmp_path / "room.npz")
    replies = [
        fenced(PROGRAM.format(loss=0.0)),
        fenced(ANALYSES),
        "[Decision]\nprogram\n\n" + fenced(PROGRAM.format(loss=0.02)),
        fenced(ANALYSES),
        "[Decision]\ndone\n",
    ]
    (tmp_path / "replies").mkdir()
    for i, reply in enumerate(replies):
        (tmp_path / "replies" / f"{i:02}.md").write_text(reply)
    monkeypatch.chdir(tmp_path)
    options = ["task=own", "task.name=own_task:room", "llm=scripted", "llm.path=replies", "run=mine", "seeds=2"]
    monkeypatch.setattr(sys, "argv", ["jaxrefine", *options, "refine.rollouts=8", "refine.accept=always"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    main()
    summary = json.loads((tmp_path / "mine" / "summary.json").read_text())
    assert (summary["task"], summary["status"]) == ("room", "finished")
    assert [entry["decision"] for entry in summary["rounds"]] == ["program", "done"]
    # a fitted heater leaves at most what warming up costs: from 5 degC with 0.8 K a minute, about 200 K min
    assert all(entry["metric"]["mean"] < 250 for entry in summary["rounds"])
    assert "inside at the end 2" in (tmp_path / "mine" / "round_1" / "results.txt").read_text()
    request = json.loads((tmp_path / "mine" / "transcript.jsonl").read_text().splitlines()[2])
    assert "on weathers that the demonstration did not visit" in json.dumps(request)
    assert "discomfort K min" in capsys.readouterr().out


def test_the_readme_shows_this_very_file() -> None:
    assert f"```python\n{Path(own_task.__file__).read_text()}```" in README.read_text()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:room", "no_such_module"),
        ("own_task:flat", "flat"),
        ("own_task:demonstrate", "Path"),
        (":room", "cannot be found"),
        ("own_task:STATE", "STATE"),
        ("json:dumps", "cannot be made"),
    ],
)
def test_a_name_that_leads_nowhere_is_told(name: str, says: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(own_task, "demonstrate", lambda condition, text: tmp_path)
    with pytest.raises(UserError, match=says):
        tasks.get(name)


def test_a_condition_that_the_task_does_not_know_is_told() -> None:
    with pytest.raises(UserError, match="slick"):
        tasks.get("own_task:room", condition="slick")


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ('of="error"', 'of="cold"', "the metric 'discomfort' of .* room is of the entry 'cold', .*: error, reward"),
        ("state.air\n", "state.sky\n", "fails in its first step: AttributeError: .*sky"),
        ('name="room"', 'name="../room"', "the task's name is '../room'"),
    ],
)
def test_a_mistake_in_it_is_told_before_a_model_is_asked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    right: str,
    wrong: str,
    says: str,
) -> None:
    text = Path(own_task.__file__).read_text()
    assert text.count(right) == 1
    (tmp_path / "mistaken_task.py").write_text(text.replace(right, wrong))
    own_task.demonstrate(tmp_path / "room.npz")
    (tmp_path / "00.md").write_text(fenced(PROGRAM.format(loss=0.0)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    options = ["task=own", "task.name=mistaken_task:room", "llm=scripted", "llm.path=.", "run=mine"]
    monkeypatch.setattr(sys, "argv", ["jaxrefine", *options])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    for held in ("_started", "_mistakes", "_failures"):
        monkeypatch.setattr(f"jaxrefine.main.{held}", [])
    try:
        with pytest.raises(SystemExit) as stop:
            main()
    finally:
        sys.modules.pop("mistaken_task", None)
    assert stop.value.code == 2
    assert re.search(says, capsys.readouterr().err)
    assert not list(tmp_path.rglob("transcript.jsonl"))
