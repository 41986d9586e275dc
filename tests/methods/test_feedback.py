"""What the model is shown before it decides, and which of its revisions are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from test_loop import ANALYSES, BETTER, GOOD, code, config, decide, run
from toy import PROGRAM

from jaxrefine.errors import UserError
from jaxrefine.methods.experiment import check_options

WORSE = PROGRAM.replace("jnp.clip(pull + brake, -1, 1)", "jnp.clip(pull - brake, -1, 1)")


def asked(path: Path) -> list[dict[str, Any]]:
    lines = (path / "run" / "transcript.jsonl").read_text().splitlines()[1:]
    return [json.loads(line) for line in lines]


def text_of(exchange: dict[str, Any]) -> str:
    return "\n".join(message["content"] for message in exchange["messages"])


def test_the_built_in_checks_are_shown_beside_the_analyses(tmp_path: Path) -> None:
    run(tmp_path, GOOD)
    revise = text_of(asked(tmp_path)[2])
    for title in (
        "Weights: initial -> fitted",
        "Latents over all steps",
        "Actions by the mean",
        "demonstration's range",
    ):
        assert title in revise
    assert "## Your analyses" in revise
    assert (tmp_path / "run" / "round_0" / "battery.txt").read_text().strip() in revise
    assert "leave them out" in text_of(asked(tmp_path)[1])


def test_without_them_nothing_is_said_of_them(tmp_path: Path) -> None:
    run(tmp_path, GOOD, config(battery=False))
    diagnose, revise = (text_of(asked(tmp_path)[i]) for i in (1, 2))
    assert "leave them out" not in diagnose
    assert "Checks that are made" not in revise
    assert not (tmp_path / "run" / "round_0" / "battery.txt").exists()


def test_a_rollouts_table_instead_of_analyses(tmp_path: Path) -> None:
    run(tmp_path, [code(PROGRAM), decide("program", BETTER), decide("done")], config(feedback="table"))
    first, second, third = asked(tmp_path)
    assert [e["purpose"] for e in (first, second, third)] == ["generate", "revise", "revise"]
    shown = text_of(second)
    csv = shown.split("```csv\n")[1].split("```")[0]
    table = pd.read_parquet(tmp_path / "run" / "round_0" / "rollouts.parquet")
    header, *rows = csv.strip().splitlines()
    assert header.split(",")[:2] == ["t", "obs_position"]
    assert "next_obs" not in csv
    assert len(rows) == 40
    returns = table[table.episode < 3].groupby("episode").reward.sum().sort_values()
    median = table[table.episode == returns.index[1]]
    assert [float(row.split(",")[1]) for row in rows] == pytest.approx(
        median.obs_position.to_list(), rel=1e-3, abs=1e-6
    )
    assert "weight_stiffness = " in shown
    assert "in ONE of two forms" in shown
    assert "run_all" not in shown


def test_a_long_table_is_thinned(tmp_path: Path) -> None:
    run(tmp_path, [code(PROGRAM), decide("done")], config(feedback="table", table_kb=1))
    csv = (tmp_path / "run" / "round_0" / "excerpt.csv").read_text()
    assert len(csv) <= 1000
    assert "one step of every" in text_of(asked(tmp_path)[1])


def test_returns_alone(tmp_path: Path) -> None:
    run(tmp_path, [code(PROGRAM), decide("done")], config(feedback="return_only"))
    shown = text_of(asked(tmp_path)[1])
    table = pd.read_parquet(tmp_path / "run" / "round_0" / "rollouts.parquet")
    mean = table[table.episode < 3].groupby("episode").reward.sum().mean()
    assert f"by the mean action, 3 episodes: {mean:.4g}"[:-1] in shown
    assert "latent_" not in shown.split("# How it does")[1]


def test_nothing_at_all(tmp_path: Path) -> None:
    settings = config(feedback="none", accept="always")
    summary = run(tmp_path, [code(PROGRAM), decide("program", BETTER), decide("done")], settings)
    shown = text_of(asked(tmp_path)[1])
    assert "No result of this program is available" in shown
    assert not (tmp_path / "run" / "round_0" / "rollouts.parquet").exists()
    assert summary["status"] == "finished"
    with pytest.raises(UserError, match=r"refine\.accept=always"):
        check_options(config(feedback="none"))
    with pytest.raises(UserError, match=r"refine\.feedback is 'pictures'"):
        check_options(config(feedback="pictures"))


def test_no_analyses_can_be_asked_for_where_none_are_run(tmp_path: Path) -> None:
    replies = [code(PROGRAM), decide("analysis", ANALYSES), decide("done")]
    summary = run(tmp_path, replies, config(feedback="return_only"))
    repair = asked(tmp_path)[2]
    assert repair["purpose"] == "repair_reply"
    assert "no analyses can be run here" in text_of(repair)
    assert summary["rounds"][0]["decision"] == "done"


def test_a_worse_revision_is_set_aside_and_the_model_is_told(tmp_path: Path) -> None:
    changes = "[Changes]\nThe brake pushes the other way.\n\n"
    replies = [code(PROGRAM), code(ANALYSES), changes + decide("program", WORSE), decide("done")]
    summary = run(tmp_path, replies)
    first, second = summary["rounds"]
    assert (first["decision"], first["accepted"]) == ("done", True)
    assert (second["decision"], second["accepted"]) == ("rejected", False)
    assert second["against_best"]["best"] == 0
    assert second["against_best"]["verdict"] == "worse than"
    assert second["changes"] == "The brake pushes the other way."
    assert summary["best_round"] == 0
    last = text_of(asked(tmp_path)[-1])
    assert "Program 1: The brake pushes the other way." in last
    assert "not kept" in last
    assert "pull + brake" in last.split("# The current program")[1].split("# The analyses")[0]


def test_every_revision_is_kept_where_the_paper_keeps_it(tmp_path: Path) -> None:
    replies = [code(PROGRAM), code(ANALYSES), decide("program", WORSE), code(ANALYSES), decide("done")]
    summary = run(tmp_path, replies, config(accept="always"))
    assert [entry["accepted"] for entry in summary["rounds"]] == [True, True]
    last = text_of(asked(tmp_path)[-1])
    assert "pull - brake" in last
    assert "What has been tried" not in last
