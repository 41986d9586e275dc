"""Rows of the comparison table: which numbers they take from run directories, and what they make of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from training_run import write_evaluation

from jaxrefine.errors import UserError
from jaxrefine.report.parquet import MOST_SEEDS
from jaxrefine.report.stages import combine, read_parts, rows, stages
from jaxrefine.report.training import CURVES, read_training
from jaxrefine.stats import describe, holm, interquartile_mean, welch


def _run(folder: Path, il: np.ndarray, rl: np.ndarray, *, chosen: int = 0, calls: int = 1, resets: int = 4) -> Path:
    """A run directory as far as the table reads it: values of (fit, episode) and of (training seed, episode)."""
    for path, values in ((folder / "round_2", il), (folder / "rl" / "400", rl)):
        path.mkdir(parents=True)
        write_evaluation(path, values)
    trained = {"budget": "400", "resets": 400 * len(rl), "choice_resets": 16 * len(rl)}
    trained["seeds"] = {"means": rl.mean(1).tolist(), "chosen": 1}
    summary = {
        "best_round": 2,
        "rounds": [{"round": 0}, {"round": 2, "fit_seeds": {"chosen": chosen}}],
        "rl": [trained],
        "resources": {"llm_calls": calls, "refinement_resets": resets},
        "method": "refine" if calls else "mlp",
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list:
    path, noise = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    il = [900 + 5 * noise.normal(size=(2, 3)) for _ in range(2)]
    rl = [920 + 5 * noise.normal(size=(4, 3)) for _ in range(2)]
    refined = [_run(path / f"r{i}", il[i], rl[i], chosen=i, calls=9 + 2 * i, resets=100) for i in range(2)]
    other = [_run(path / "m", 600 + 50 * noise.normal(size=(2, 3)), 610 + 50 * noise.normal(size=(4, 3)), calls=0)]
    return stages("MLP", other) + stages("refined", refined)


def test_runs_are_fits_and_training_seeds_of_every_conversation(found: list) -> None:
    made = {(row.method, row.stage): row for row in rows(found)}
    assert {key: (row.runs, row.conversations, row.episodes) for key, row in made.items()} == {
        ("MLP", "IL"): (2, 2, 3),
        ("MLP", "RL 400"): (4, 1, 3),
        ("refined", "IL"): (4, 2, 3),
        ("refined", "RL 400"): (8, 2, 3),
    }
    assert made["refined", "IL"].calls == 10
    assert (made["refined", "IL"].resets, made["refined", "RL 400"].resets) == (100, 100 + 400 + 16)


def test_means_deviations_and_the_chosen_runs(found: list) -> None:
    made = {(row.method, row.stage): row for row in rows(found)}
    stage = found[2]
    row = made["refined", "IL"]
    assert row.mean == pytest.approx(stage.values.mean())
    assert row.std_runs == pytest.approx(stage.values.mean(1).std(ddof=1))
    assert row.std_episodes == pytest.approx(stage.values.mean(0).std())
    # fit 0 of the first conversation, fit 1 of the second
    assert row.chosen_mean == pytest.approx(stage.values[[0, 3]].mean())
    assert row.interval.low < row.mean < row.interval.high


def test_p_values_are_welchs_over_conversations_and_adjusted_together(found: list) -> None:
    made = rows(found)
    assert [row.p_value for row in made if row.method == "refined"] == [None, None]
    fits = found[0].values.mean(1)  # of a perceptron, each of its own
    conversations = found[2].values.reshape(2, 2, 3).mean((1, 2))
    expected = welch(fits, conversations).p_value
    # its training seeds share one fit, which is one case: there is nothing to test
    assert [row.p_value for row in made if row.method == "MLP"] == [pytest.approx(*holm([expected])), None]


def test_a_run_that_failed_is_counted_and_left_out_of_every_mean(tmp_path: Path) -> None:
    values = np.array([[1.0, 2.0, 3.0], [4.0, np.nan, 5.0], [7.0, 8.0, 12.0], [np.inf, 1.0, 1.0]])
    run = _run(tmp_path / "run", values, np.full((2, 3), np.nan), chosen=1)
    first, second = rows(stages("refined", [run]))
    assert (first.runs, first.failed, first.mean, first.chosen_mean) == (4, 2, pytest.approx(5.5), None)
    assert first.iqm == pytest.approx(interquartile_mean([2.0, 9.0]))
    assert first.std_runs == pytest.approx(describe([2.0, 9.0]).std_sample)
    assert first.std_episodes == pytest.approx(describe([4.0, 5.0, 7.5]).std)
    assert first.details["per_run"] == [2.0, None, 9.0, None]
    assert (second.runs, second.failed, second.mean, second.interval, second.iqm) == (2, 2, None, None, None)
    assert json.loads(json.dumps(first.details, allow_nan=False)) == first.details


def test_p_values_leave_failed_runs_out(tmp_path: Path) -> None:
    noise = np.random.default_rng(3)
    il = [900 + noise.normal(size=(2, 3)) for _ in range(3)]
    others = [880 + noise.normal(size=(2, 3)) for _ in range(3)]
    others[1][0, 0] = np.nan
    others[2][:, 0] = np.nan
    refined = [_run(tmp_path / f"r{i}", il[i], il[i]) for i in range(3)]
    first = [_run(tmp_path / f"z{i}", others[i], il[i]) for i in range(3)]
    made = rows(combine("zero-shot", [read_parts(run, []) for run in first]) + stages("refined", refined))
    expected = welch([others[0].mean(), others[1][1].mean()], [run.mean() for run in il]).p_value
    same = welch([run.mean() for run in il], [run.mean() for run in il]).p_value
    assert [row.p_value for row in made if row.method == "zero-shot"] == pytest.approx(holm([expected, same]))


def test_replays_of_one_conversation_are_one_conversation(tmp_path: Path) -> None:
    runs = [_run(tmp_path / f"r{i}", np.full((2, 3), 900.0 + i), np.full((2, 3), 910.0)) for i in range(3)]
    for run, program in zip(runs, ("same", "same", "other"), strict=True):
        (run / "round_0").mkdir()
        (run / "round_0" / "policy.py").write_text(program)
    stage = stages("refined", runs)[0]
    assert stage.clusters.tolist() == [0, 0, 0, 0, 1, 1]
    assert rows([stage])[0].conversations == 2


def test_a_run_that_lacks_a_stage_is_told_or_left_out_of_it(tmp_path: Path) -> None:
    runs = [_run(tmp_path / f"r{i}", np.full((2, 3), 900.0 + i), np.full((2, 3), 910.0)) for i in range(2)]
    (runs[1] / "rl" / "400" / "evaluation.parquet").unlink()
    with pytest.raises(UserError, match="r1 lacks RL 400"):
        stages("refined", runs)
    found = combine("refined", [read_parts(run, []) for run in runs])
    assert [(stage.stage, len(stage.values)) for stage in found] == [("IL", 4), ("RL 400", 2)]


@pytest.mark.parametrize(
    ("fits", "episodes"),
    [
        (np.arange(100_000), np.arange(100_000)),  # which would be a table of 80 GB
        (np.array([0, 0, 1]), np.array([1, 2, 2])),
        (np.arange(MOST_SEEDS + 1), np.zeros(MOST_SEEDS + 1)),
    ],
    ids=["a diagonal", "a gap", "too many seeds"],
)
def test_a_table_that_is_not_every_seed_by_every_place_is_a_sentence(
    tmp_path: Path, fits: np.ndarray, episodes: np.ndarray
) -> None:
    run = _run(tmp_path / "run", np.ones((2, 3)), np.ones((2, 3)))
    entries = {"fit_seed": fits, "seed": episodes, "value": 1.0}
    pd.DataFrame(entries).to_parquet(run / "round_2" / "evaluation.parquet")
    looks = {"seed": fits, "resets": episodes, "episode": 0, "value": 1.0}
    pd.DataFrame(looks).to_parquet(run / "rl" / "400" / "checkpoints.parquet")
    curves = {"seed": fits, "resets": episodes, **dict.fromkeys(CURVES, 1.0)}
    pd.DataFrame(curves).to_parquet(run / "rl" / "400" / "curves.parquet")
    gaps: list[str] = []
    assert [*read_parts(run, gaps).parts] == ["RL 400"]
    assert gaps == ["round_2/evaluation.parquet does not say one thing of every seed and episode."]
    training = read_training(run)
    assert training.budgets[0].looks is None
    assert not training.budgets[0].curves
    assert {gap.split(" ", 1)[1] for gap in training.gaps} == {
        "does not say one thing of every seed after the same resets."
    }
    assert {gap.split(" ", 1)[0] for gap in training.gaps} == {"rl/400/checkpoints.parquet", "rl/400/curves.parquet"}


def test_a_trained_table_of_too_many_seeds_is_a_sentence(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", np.ones((2, 3)), np.ones((2, 3)))
    write_evaluation(run / "rl" / "400", np.ones((MOST_SEEDS + 1, 3)))
    training = read_training(run)
    assert training.budgets[0].final is None
    assert training.gaps == ("rl/400/evaluation.parquet has 1,001 seeds, more than a report reads.",)
