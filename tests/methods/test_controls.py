"""The controls: a perceptron, the best of several first programs, and training as a part of any run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_loop import BETTER, code, config, run
from toy import PROGRAM

from jaxrefine.config import Config
from jaxrefine.errors import UserError
from jaxrefine.methods.experiment import check_options


def _with_training(settings: Config) -> Config:
    settings.rl.resets, settings.rl.seeds, settings.rl.episodes = [16, 8], 2, 8
    settings.rl.window, settings.rl.looks = 20, 1
    return settings


def test_the_perceptron_needs_no_model(tmp_path: Path) -> None:
    settings = config("mlp")
    settings.method.hidden = [8]
    summary = run(tmp_path, [], settings)
    assert summary["status"] == "finished"
    assert summary["resources"]["llm_calls"] == 0
    assert summary["rounds"][0]["parameters"] == (2 * 8 + 8) + (8 + 1) + 1


def test_best_of_n_asks_the_same_each_time_and_chooses_on_validation(tmp_path: Path) -> None:
    poor = PROGRAM.replace("jnp.clip(pull + brake, -1, 1)", "jnp.clip(0.02 * (pull + brake), -0.05, 0.05)")
    settings = config("best_of_n")
    settings.method.n, settings.refine.regenerations = 3, 0
    summary = run(tmp_path, [code(poor), "no program at all", code(BETTER)], settings)
    assert [entry["round"] for entry in summary["rounds"]] == [0, 2]  # the second reply was no use
    assert summary["best_round"] == 2
    assert summary["resources"]["llm_calls"] == 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "transcript.jsonl").read_text().splitlines()[1:]]
    assert len({line["key"] for line in lines}) == 1


def test_best_of_n_fails_when_no_program_can_be_used(tmp_path: Path) -> None:
    settings = config("best_of_n")
    settings.method.n, settings.refine.regenerations = 2, 0
    summary = run(tmp_path, ["nothing", "nothing"], settings)
    assert summary["status"] == "failed"
    assert summary["rl"] == []


def test_every_budget_is_trained_from_the_best_round_and_counted(tmp_path: Path) -> None:
    summary = run(tmp_path, [code(PROGRAM)], _with_training(config("zero_shot")))
    assert [entry["budget"] for entry in summary["rl"]] == ["16", "8"]
    choice = 2 * 6  # both seeds on the validation episodes, once a budget
    assert summary["resources"]["training_resets"] == 2 * (16 + 8) + 2 * choice
    before = summary["rounds"][0]
    for entry in summary["rl"]:
        folder = tmp_path / "run" / "rl" / entry["budget"]
        table = pd.read_parquet(folder / "evaluation.parquet")
        np.testing.assert_allclose(table.groupby("fit_seed")["value"].mean(), entry["seeds"]["means"], rtol=1e-5)
        assert entry["looks"][0]["means"] == pytest.approx([before["metric"]["mean"]] * 2, rel=1e-4)
        assert entry["metric"]["n"] == 10
        assert entry["seeds"]["n"] == 2
        assert entry["resets"] == 2 * int(entry["budget"])


def test_a_finished_training_is_not_done_again(tmp_path: Path) -> None:
    settings = _with_training(config("zero_shot"))
    first = run(tmp_path, [code(PROGRAM)], settings)
    (tmp_path / "run" / "summary.json").unlink()
    written = (tmp_path / "run" / "rl" / "16" / "fits.npz").stat().st_mtime_ns
    again = run(tmp_path, [], settings)
    assert again["rl"] == first["rl"]
    assert (tmp_path / "run" / "rl" / "16" / "fits.npz").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("resets", [30], "no multiple of the 20"),
        ("resets", [20, 20], "twice"),
        ("resets", [0], "between 1"),
        ("start", "worst", "best, own"),
        ("ratio", "sum", "product, length_normalised"),
        ("grouping", "road", "start, state"),
        ("episodes", 1, "between 2"),
        ("kl_stop", -1.0, "rl.kl_stop"),
    ],
)
def test_wrong_training_options_are_told(name: str, value: object, says: str) -> None:
    settings = config()
    setattr(settings.rl, name, value)
    with pytest.raises(UserError, match=says):
        check_options(settings)
