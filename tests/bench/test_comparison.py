"""Rows of the comparison table: which numbers they take from run directories, and what they make of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench import paper_table
from bench.comparison import cluster_bootstrap, rows, stages
from jaxrefine.stats import holm, welch

SEEDS = (1000, 1001, 1002)


def _run(folder: Path, il: np.ndarray, rl: np.ndarray, *, chosen: int = 0, calls: int = 1, resets: int = 4) -> Path:
    """A run directory as far as the table reads it: values of (fit, episode) and of (training seed, episode)."""

    def table(path: Path, values: np.ndarray) -> None:
        path.mkdir(parents=True)
        fit, episode = np.meshgrid(np.arange(len(values)), SEEDS, indexing="ij")
        columns = {"fit_seed": fit.ravel(), "seed": episode.ravel(), "value": values.ravel()}
        pd.DataFrame(columns).sample(frac=1, random_state=0).to_parquet(path / "evaluation.parquet")

    table(folder / "round_2", il)
    table(folder / "rl" / "400", rl)
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


def test_runs_of_one_conversation_are_not_taken_for_independent() -> None:
    values = np.repeat([900.0, 920.0], 50) + np.random.default_rng(0).normal(size=100)
    together = cluster_bootstrap(values, np.zeros(100, int))
    apart = cluster_bootstrap(values, np.repeat([0, 1], 50))
    assert apart.high - apart.low > 2 * (together.high - together.low)
    assert cluster_bootstrap(values[:1], np.zeros(1, int)) is None


@pytest.mark.slow
def test_the_table_is_made_from_runs_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "table.json"
    options = ["task=car_racing", "--rows", "MLP", "--quick", "--out", str(tmp_path / "runs"), "--json", str(written)]
    assert paper_table.main(options) == 0
    table = json.loads(written.read_text())
    assert [(row["method"], row["stage"]) for row in table["rows"]] == [("MLP", "IL"), ("MLP", "RL 8")]
    before = written.read_text()
    assert paper_table.main(options) == 0  # from what is there
    again = json.loads(written.read_text())
    assert again["rows"] == json.loads(before)["rows"]
    assert "car_racing, stock" in capsys.readouterr().out
    assert table["paper"]["MLP"]["IL"] == 636.6


def test_wrong_options_of_the_table_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        paper_table.main(["task=car_racing", "task.condition=icy", "--quick", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "icy" in capsys.readouterr().err
