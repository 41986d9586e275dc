"""The report's section on reinforcement learning, from runs whose numbers are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_reader import page_of
from report_run import make_run
from training_run import add_budget

from jaxrefine.report.training import read_training

LOOKS = np.array([[400.0, 800.0, 905.0], [420.0, 840.0, 915.0]])
ENDS = np.array([[900.0, 905.0, 910.0], [910.0, 915.0, 920.0]])


@pytest.fixture
def finished_run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", rounds=1)


@pytest.fixture
def trained(finished_run: Path) -> Path:
    add_budget(finished_run, 400, ENDS, LOOKS, chosen=1)
    return finished_run


def test_the_section_tells_what_training_came_to(trained: Path) -> None:
    page = page_of(trained)
    # seeds of mean 905 and 915: mean 910, sample deviation 7.07; the demonstrator has 871
    assert page.has("training", "910.0 [905.0, 915.0] 7.1 2 × 3 1 915.0 800 32 123,456", "program of round 0")
    assert page.has("training", "2 of 2 training seeds after 400 resets a seed", "Demonstrator: 871.0")
    assert not page.sections["training"].count("Failed")
    labels = [attributes.get("aria-label") for tag, attributes in page.elements if tag == "svg"]
    assert "return on the test episodes over 400 resets, 2 seeds, mean from 410 to 910" in labels
    assert sum("over 400 resets, 2 seeds" in str(label) for label in labels) == 6


def test_curves_are_read_seed_by_seed(trained: Path) -> None:
    (budget,) = read_training(trained).budgets
    assert budget.looks is not None
    np.testing.assert_allclose(budget.looks.values, LOOKS)
    np.testing.assert_array_equal(budget.looks.resets, [0, 200, 400])
    np.testing.assert_array_equal(budget.curves["episode_return"].resets, np.arange(20, 401, 20))
    np.testing.assert_allclose(budget.curves["episode_return"].values[1], 100.0 * np.arange(20) + 1)


def test_budgets_stand_in_the_order_of_their_size(trained: Path) -> None:
    add_budget(trained, 2000, ENDS + 5, LOOKS)
    assert [budget.name for budget in read_training(trained).budgets] == ["400", "2000"]
    text = page_of(trained).sections["training"]
    assert text.index("400 resets a seed") < text.index("2,000 resets a seed")


def test_a_seed_that_failed_is_said_and_flatters_nothing(finished_run: Path) -> None:
    ends, looks = ENDS.copy(), LOOKS.copy()
    ends[1, 2] = np.nan
    looks[1, 1:] = np.nan
    add_budget(finished_run, 400, ends, looks)
    page = page_of(finished_run)
    assert page.has(
        "training", "Failed seed, with a value that is not finite: 1.", "1 × 3 of 2 seeds, the others failed"
    )
    assert page.has("training", "1 of 2 training seeds after", "905.0")


def test_training_of_which_every_seed_failed(finished_run: Path) -> None:
    add_budget(finished_run, 400, np.full((2, 3), np.inf), np.full((2, 3), np.nan))
    page = page_of(finished_run)
    assert page.has("training", "not finite", "all 2 seeds failed", "0 of 2 training seeds")


def test_training_that_was_killed_shows_what_there_is(trained: Path) -> None:
    for name in ("evaluation.parquet", "checkpoints.parquet"):
        (trained / "rl" / "400" / name).unlink()
    page = page_of(trained)
    assert page.has(
        "training", "not evaluated", "There are no looks at the test episodes to show: the training did not"
    )
    (trained / "rl" / "400" / "curves.parquet").unlink()
    assert page_of(trained).has("training", "not evaluated")


def test_a_run_without_training_has_no_such_section(finished_run: Path) -> None:
    page = page_of(finished_run)
    assert "training" not in page.sections
    assert "#training" not in page.html


@pytest.mark.parametrize("name", ["checkpoints", "curves", "evaluation"])
@pytest.mark.parametrize(
    "content",
    [
        b"PAR1 no table",
        b"",
        pd.DataFrame({"seed": [0], "value": ["<script>alert(1)</script>"]}),
        pd.DataFrame({name: ["<b>x</b>", "y"] for name in ("seed", "resets", "episode", "value", "fit_seed")}),
        pd.DataFrame({name: [[1.0], [2.0]] for name in ("seed", "resets", "episode", "value", "fit_seed")}),
    ],
)
def test_a_damaged_or_hostile_table_becomes_a_sentence(trained: Path, name: str, content: bytes | pd.DataFrame) -> None:
    path = trained / "rl" / "400" / f"{name}.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        curves = ("episode_return", "kl", "clip_fraction", "entropy", "gradient_norm")
        extra = dict.fromkeys(curves, content["value"])
        content.assign(**(extra if name == "curves" and "resets" in content else {})).to_parquet(path)
    page = page_of(trained)
    assert page.has("training", "could not be read whole", f"{name}.parquet")
    assert "<script>alert" not in page.html


def test_two_values_of_one_seed_are_not_averaged_in_silence(trained: Path) -> None:
    path = trained / "rl" / "400" / "curves.parquet"
    table = pd.read_parquet(path)
    pd.concat([table, table.head(1)]).to_parquet(path)
    assert page_of(trained).has("training", "says two things of one seed at the same resets")


def test_folders_that_are_no_budget_are_passed_over(trained: Path) -> None:
    for name in ("<b>400</b>".replace("/", ""), "0", "-5", "4e2", "²"):
        (trained / "rl" / name).mkdir()
    assert [budget.name for budget in read_training(trained).budgets] == ["400"]
