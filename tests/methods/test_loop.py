"""The whole loop on a toy task, with scripted replies: every branch, and every place where it may be interrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from toy import PROGRAM, STEPS, make_task

from jaxrefine.config import Config
from jaxrefine.errors import UserError
from jaxrefine.llm import Request, ScriptedClient, TranscriptClient
from jaxrefine.methods.experiment import run_experiment
from jaxrefine.report import write_report
from jaxrefine.run import RunDirectory
from jaxrefine.worker import Worker

BETTER = PROGRAM.replace("block[1]\n", "block[1] + 0 * block[0]\n").replace("Pushes", "Pushes hard")
ANALYSES = """import pandas as pd


def run_all(df):
    ends = df.groupby("episode").reward.sum()
    with open("test_results.txt", "a") as file:
        file.write(f"episodes {df.episode.nunique()} rows {len(df)}\\n")
        file.write(f"return {ends.mean():.3f} +- {ends.std():.3f}\\n")
"""


def code(text: str) -> str:
    return f"Words.\n\n```python\n{text}```\n"


def decide(kind: str, text: str = "") -> str:
    return f"[Decision]\n{kind}\n\n" + (code(text) if text else "")


def config(method: str = "refine", **options: Any) -> Config:
    made = Config(seeds=2)
    made.method.name, made.task.name = method, "block"
    made.refine.rollouts, made.fit.updates = 6, 60
    for name, value in options.items():
        setattr(made.refine, name, value)
    return made


def run(path: Path, replies: list[str] | Callable[[Request], str], settings: Config | None = None) -> dict[str, Any]:
    with RunDirectory.open_or_create(path / "run") as directory:
        return run_experiment(settings or config(), make_task(path), directory, ScriptedClient(replies))


GOOD = [code(PROGRAM), code(ANALYSES), decide("program", BETTER), code(ANALYSES), decide("done")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("finished")
    return path / "run", run(path, GOOD)


def test_rounds_follow_the_decisions(finished: tuple[Path, dict[str, Any]]) -> None:
    path, summary = finished
    assert summary["status"] == "finished"
    assert [entry["decision"] for entry in summary["rounds"]] == ["program", "done"]
    assert summary == json.loads((path / "summary.json").read_text())
    assert (path / "round_0" / "policy.py").read_text() == PROGRAM
    assert (path / "round_1" / "policy.py").read_text() == BETTER
    assert summary["resources"]["llm_calls"] == 5


class _NoWorker:
    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"nothing is left to do, and yet a worker is asked for {name}")


def test_a_finished_run_started_again_asks_no_worker(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    shutil.copytree(finished[0], tmp_path / "run")
    with RunDirectory.open(tmp_path / "run") as directory:
        again = run_experiment(
            config(), make_task(tmp_path), directory, ScriptedClient([]), cast("Worker", _NoWorker())
        )
    assert again == finished[1]
    assert "cpu" in again["provenance"]["device"]


def test_the_summary_is_whole_before_the_run_is_said_to_be_over(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    with RunDirectory.create(tmp_path / "run") as directory:
        directory.subscribe(
            lambda event: seen.append(directory.read_json("summary.json")) if event["event"] == "run_finished" else None
        )
        directory.emit("sandbox_chosen", name="another")
        directory.step("round_0/earlier", lambda: None)
        given = run_experiment(config("zero_shot"), make_task(tmp_path), directory, ScriptedClient([code(PROGRAM)]))
        assert seen == [given] == [directory.read_json("summary.json")]
    assert given["provenance"]["sandbox"]["earlier"] == ["another"]


def test_numbers_of_a_round_are_those_of_its_files(finished: tuple[Path, dict[str, Any]]) -> None:
    path, summary = finished
    for entry in summary["rounds"]:
        folder = path / f"round_{entry['round']}"
        table = pd.read_parquet(folder / "evaluation.parquet")
        assert sorted(table.seed.unique()) == list(range(10))
        chosen = table[table.fit_seed == entry["fit_seeds"]["chosen"]]
        assert entry["metric"]["mean"] == pytest.approx(chosen.value.mean(), rel=1e-5)
        assert entry["metric"]["std"] == pytest.approx(chosen.value.std(ddof=0), rel=1e-4)
        assert entry["metric"]["std_sample"] == pytest.approx(chosen.value.std(ddof=1), rel=1e-4)
        assert entry["metric"]["n"] == 10
        means = table.groupby("fit_seed").value.mean()
        np.testing.assert_allclose(entry["fit_seeds"]["means"], means, rtol=1e-5)
        validation = pd.read_parquet(folder / "validation.parquet")
        best = validation.groupby("fit_seed").value.mean().idxmax()
        assert entry["fit_seeds"]["chosen"] == best
        assert not set(validation.seed) & set(table.seed)


def test_the_table_holds_whole_aligned_episodes(finished: tuple[Path, dict[str, Any]]) -> None:
    table = pd.read_parquet(finished[0] / "round_0" / "rollouts.parquet")
    assert table.columns[:2].tolist() == ["episode", "t"]
    assert table.episode.nunique() == 6
    assert (table.groupby("episode").t.max() == STEPS - 1).all()
    for _, episode in table.groupby("episode"):
        later = episode.iloc[1:]
        np.testing.assert_array_equal(episode.next_obs_position.to_numpy()[:-1], later.obs_position)
        np.testing.assert_allclose(episode.reward, -(episode.next_obs_position**2), rtol=1e-4, atol=1e-6)
    halves = (table.action_force - table.action_mean_force).abs().groupby(table.episode).max()
    assert (halves[:3] == 0).all()
    assert (halves[3:] > 0).all()
    assert table.dtypes.drop(["episode", "t", "done"]).eq("float32").all()


def test_the_prompts_show_what_they_should(finished: tuple[Path, dict[str, Any]]) -> None:
    lines = [json.loads(line) for line in (finished[0] / "transcript.jsonl").read_text().splitlines()]
    by_purpose = {line["purpose"]: line["messages"][-1]["content"] for line in lines[1:]}
    assert "class BlockPolicy(nnx.Module)" in by_purpose["generate"]
    assert "obs_position, obs_velocity" in by_purpose["diagnose"]
    assert "return -" in by_purpose["revise"]
    assert "return -" not in by_purpose["diagnose"]  # no values before the analyses have run
    assert not any("$" in text for text in by_purpose.values())


def test_the_best_round_is_chosen_on_validation_episodes(tmp_path: Path) -> None:
    worse = PROGRAM.replace("jnp.clip(pull + brake, -1, 1)", "0.01 * jnp.clip(pull + brake, -1, 1)")
    summary = run(tmp_path, [code(PROGRAM), code(ANALYSES), decide("program", worse), code(ANALYSES), decide("done")])
    assert summary["rounds"][0]["validation"]["mean"] > summary["rounds"][1]["validation"]["mean"]
    assert summary["best_round"] == 0


def test_a_bad_program_goes_back_with_the_reason_and_a_bad_analysis_too(tmp_path: Path) -> None:
    asked: list[Request] = []
    replies = [
        "no code at all",
        code(PROGRAM.replace("import jax\n", "import os\n", 1)),
        code(PROGRAM),
        code("def run_all(df):\n    open('test_results.txt', 'w').write('before')\n    raise ValueError('mine')\n"),
        code(ANALYSES),
        "hm",
        decide("done"),
    ]

    def answer(request: Request) -> str:
        asked.append(request)
        return replies[len(asked) - 1]

    summary = run(tmp_path, answer)
    purposes = ["generate", "repair_reply", "repair_program", "diagnose", "repair_analysis", "revise", "repair_reply"]
    assert [request.purpose for request in asked] == purposes
    assert "imports `os`" in asked[2].messages[-1].content
    assert "ValueError: mine" in asked[4].messages[-1].content
    assert summary["status"] == "finished"
    assert summary["rounds"][0]["regenerations"] == 4
    assert "imports `os`" in (tmp_path / "run" / "round_0" / "checks.txt").read_text()


def test_more_analyses_see_the_same_table_and_both_results_reach_the_next_decision(tmp_path: Path) -> None:
    more = ANALYSES.replace("episodes {", "again {")
    replies = [code(PROGRAM), code(ANALYSES), decide("analysis", more), decide("done")]
    summary = run(tmp_path, replies)
    assert summary["rounds"][0]["analyses"] == 2
    lines = [json.loads(line) for line in (tmp_path / "run" / "transcript.jsonl").read_text().splitlines()]
    last = lines[-1]["messages"][-1]["content"]
    assert "episodes 6 rows" in last
    assert "again 6 rows" in last
    assert (tmp_path / "run" / "round_0" / "results_1.txt").read_text().startswith("again 6")


def test_a_model_that_never_writes_a_program_fails_the_run_with_the_reason(tmp_path: Path) -> None:
    summary = run(tmp_path, lambda request: "I would rather not.", config(regenerations=2))
    assert summary["status"] == "failed"
    assert "3 attempts" in summary["reason"]
    assert summary["rounds"] == []
    assert summary["resources"]["llm_calls"] == 3


def test_a_revision_that_fails_leaves_the_earlier_rounds(tmp_path: Path) -> None:
    replies = [code(PROGRAM), code(ANALYSES), decide("program", PROGRAM.replace("import jax\n", "import os\n", 1))]
    summary = run(tmp_path, lambda request: replies.pop(0) if replies else "no", config(regenerations=1))
    assert summary["status"] == "stopped"
    assert "round 1 has no usable program" in summary["reason"]
    assert summary["best_round"] == 0


def test_the_last_allowed_revision_is_evaluated_but_not_analysed(tmp_path: Path) -> None:
    summary = run(tmp_path, [code(PROGRAM), code(ANALYSES), decide("program", BETTER)], config(rounds=1))
    assert [entry["decision"] for entry in summary["rounds"]] == ["program", "limit"]


def test_zero_shot_is_the_first_round_alone(tmp_path: Path) -> None:
    summary = run(tmp_path, [code(PROGRAM)], config("zero_shot"))
    assert len(summary["rounds"]) == 1
    assert summary["resources"]["llm_calls"] == 1


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def comparable(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without what the clock says."""
    kept = json.loads(json.dumps(summary))
    del kept["resources"]["wall_s"]
    return kept


@pytest.mark.slow
def test_interrupted_at_every_step_it_ends_the_same_and_asks_nothing_twice(
    tmp_path: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    """Kill after every single event that is logged, and go on, until the run is through."""
    asked: list[str] = []
    task, done, attempts = make_task(tmp_path), None, 0

    def answer(request: Request) -> str:
        asked.append(f"{request.purpose} {request.round} {request.attempt}")
        return GOOD[len(asked) - 1]

    while done is None:
        attempts += 1
        assert attempts < 100
        with RunDirectory.open_or_create(tmp_path / "run") as directory:

            def kill(event: dict[str, Any]) -> None:
                if event["event"] == "step_finished":
                    raise Killed

            directory.subscribe(kill)
            try:
                done = run_experiment(config(), task, directory, ScriptedClient(answer))
            except Killed:
                continue
    assert attempts > 12
    assert asked == ["generate 0 0", "diagnose 0 0", "revise 0 0", "diagnose 1 0", "revise 1 0"]
    assert comparable(done) == comparable(finished[1])


def test_another_task_than_it_was_started_with_is_noticed_by_the_transcript(tmp_path: Path) -> None:
    run(tmp_path, GOOD)
    (tmp_path / "run" / "events.jsonl").write_text("")
    other = replace(make_task(tmp_path), text="# Another task\n\n$inputs\n\n$outputs")
    with (
        RunDirectory.open_or_create(tmp_path / "run") as directory,
        pytest.raises(UserError, match="start a new run directory"),
    ):
        run_experiment(config(), other, directory, ScriptedClient(GOOD))


def test_a_run_whose_log_was_lost_goes_on_though_its_analyses_print_other_times(tmp_path: Path) -> None:
    timed = (
        ANALYSES.replace("import pandas as pd\n", "import time\n\nimport pandas as pd\n")
        .replace("    with open", "    df = df.copy()\n    with open")
        .replace('file.write(f"return', 'file.write(f"at {time.time_ns()}\\n")\n        file.write(f"return')
    )
    first = run(tmp_path, [code(PROGRAM), code(timed), decide("done")])
    (tmp_path / "run" / "events.jsonl").write_text("")
    assert comparable(run(tmp_path, ["never asked"])) == comparable(first)


def test_a_run_without_the_answers_it_has_used_is_refused(tmp_path: Path) -> None:
    run(tmp_path, GOOD)
    (tmp_path / "run" / "transcript.jsonl").unlink()
    with pytest.raises(UserError, match="does not hold"):
        run(tmp_path, [code(BETTER), *GOOD[1:]])


def test_a_program_that_was_edited_behind_the_runs_back_is_noticed(tmp_path: Path) -> None:
    run(tmp_path, GOOD)
    (tmp_path / "run" / "round_0" / "policy.py").write_text(BETTER)
    with pytest.raises(UserError, match="was changed since"):
        run(tmp_path, GOOD)


def test_a_finished_run_that_is_started_again_says_the_same(tmp_path: Path) -> None:
    first = run(tmp_path, GOOD)
    assert run(tmp_path, ["never asked"]) == first


def test_the_prompts_say_the_options_that_hold(tmp_path: Path) -> None:
    settings = config()
    settings.analysis.wall_s, settings.fit.learning_rate = 17.0, 0.02
    run(tmp_path, GOOD, settings)
    text = (tmp_path / "run" / "transcript.jsonl").read_text()
    assert "17 seconds and 4 GB" in text
    assert "step size 0.02, 60 updates" in text


def test_a_played_conversation_is_followed_as_far_as_it_was_recorded(tmp_path: Path) -> None:
    first = run(tmp_path, [code(PROGRAM), code(ANALYSES), decide("program", BETTER)], config(rounds=1))
    played = tmp_path / "played"
    client = TranscriptClient(tmp_path / "run" / "transcript.jsonl", strict=True)
    with RunDirectory.open_or_create(played) as directory:
        again = run_experiment(config(rounds=6), make_task(tmp_path), directory, client)
        assert any("recorded with refine.rounds=1" in str(event.get("text")) for event in directory.events)
    for key in ("rounds", "best_round", "status"):
        assert again[key] == first[key]
    assert [entry["decision"] for entry in again["rounds"]] == ["program", "limit"]


def test_the_structure_and_what_changed_in_it_are_kept(finished: tuple[Path, dict[str, Any]]) -> None:
    path, _ = finished
    graphs = [json.loads((path / f"round_{i}" / "graph.json").read_text()) for i in range(2)]
    assert set(graphs[0]["summary"]["latents"]) == {"latent_pull", "latent_brake"}
    assert not (path / "round_0" / "graph_changes.txt").exists()
    changes = json.loads((path / "round_1" / "graph_changes.json").read_text())
    assert changes["before"] == 0
    assert changes["latents"]["unchanged"] == ["latent_brake", "latent_pull"]  # what BETTER adds is nought
    assert "2 wired as before" in (path / "round_1" / "graph_changes.txt").read_text()
    write_report(path)
    assert "What changed in the structure" in (path / "report.html").read_text()
