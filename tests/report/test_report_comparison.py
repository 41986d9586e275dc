"""The page that compares runs, from runs whose numbers are known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_reader import Page
from training_run import add_budget, make_refinement

from jaxrefine.errors import UserError
from jaxrefine.report import comparison_target, render_comparison, write_comparison
from jaxrefine.report.groups import gather
from jaxrefine.report.results import results
from jaxrefine.stats import paired_difference

ENDS = np.array([[900.0, 905.0, 910.0], [910.0, 915.0, 920.0]])


LOOKS = {"a0": [800, 900], "a1": [820, 880], "z0": [700, 860], "mlp": [300, 200]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two refined conversations and one of the table, a zero-shot program and a perceptron, of slick."""
    folder = tmp_path_factory.mktemp("made") / "runs"
    runs = [
        make_refinement(folder / "a0", [700, 650, 900], rejected=[1]),
        make_refinement(folder / "a1", [720, 850, 910]),
        make_refinement(folder / "t0", [710, 400, 880], feedback="table"),
        make_refinement(folder / "z0", [705], method="zero_shot"),
        make_refinement(folder / "mlp", [300], method="mlp"),
    ]
    for run in runs:
        if run.name in LOOKS:
            add_budget(run, 400, ENDS, np.array([LOOKS[run.name]] * 2, dtype=float))
    return runs


@pytest.fixture(scope="module")
def page(made: list[Path]) -> Page:
    return page_of(made)


@pytest.fixture
def runs(made: list[Path], tmp_path: Path) -> list[Path]:
    """The same, to be changed."""
    return [Path(shutil.copytree(run, tmp_path / "runs" / run.name)) for run in made]


def page_of(runs: list[Path]) -> Page:
    return Page(render_comparison(runs))


def test_runs_are_grouped_by_method_and_the_options_that_differ(made: list[Path]) -> None:
    (case,) = gather(made).cases
    assert (case.task, case.condition) == ("car_racing", "slick")
    assert [(group.name, len(group.runs)) for group in case.groups] == [
        ("MLP", 1),
        ("zero-shot", 1),
        ("refined", 2),
        ("refined (feedback table)", 1),
    ]
    assert case.yardstick is case.groups[2]


def test_seeds_and_names_of_conversations_make_no_other_method(tmp_path: Path) -> None:
    options = ("rl: {seeds: 4, learning_rate: 0.007}\nseed: 1\n", "rl: {seeds: 9, learning_rate: 0.007}\nseed: 2\n")
    slow = "rl: {learning_rate: 0.0005}\n"
    made = [make_refinement(tmp_path / f"m{i}", [500], method="mlp", options=o) for i, o in enumerate([*options, slow])]
    made.append(make_refinement(tmp_path / "old", [500], method="mlp"))
    names = [(group.name, len(group.runs), group.published) for group in gather(made[:3]).cases[0].groups]
    assert names == [("MLP", 2, True), ("MLP (learning_rate 0.0005)", 1, False)]
    # a run that does not say is not taken for one that agrees
    assert ("MLP (learning_rate None)", 1) in [(g.name, len(g.runs)) for g in gather(made).cases[0].groups]


def test_another_demonstration_or_model_is_no_repetition(tmp_path: Path) -> None:
    far = "/data/" + "of_many_drivers/" * 4
    configs = [("a", "null", "null"), ("b", "null", "null"), ("c", "gpt-x", "null"),
               ("d", "null", far + "1.csv"), ("e", "null", far + "2.csv")]  # fmt: skip
    runs = []
    for name, model, demonstration in configs:
        runs.append(make_refinement(tmp_path / name, [900]))
        (runs[-1] / "config.yaml").write_text(
            f"task: {{demonstration: {demonstration}}}\nrefine: {{feedback: analysis}}\nllm: {{model: {model}}}\n"
        )
    groups = gather(runs).cases[0].groups
    assert [[run.record.name for run in group.runs] for group in groups] == [["a", "b"], ["c"], ["d"], ["e"]]
    assert groups[0].name == "refined"
    assert groups[1].name == "refined (model gpt-x)"
    assert groups[2].name.endswith("1.csv)")
    perceptrons = [make_refinement(tmp_path / f"m{i}", [300], method="mlp") for i in range(2)]
    for run, model in zip(perceptrons, ("null", "gpt-x"), strict=True):
        (run / "config.yaml").write_text(f"llm: {{model: {model}}}\n")
    assert len(gather(perceptrons).cases[0].groups) == 1  # which asks none


def test_an_option_that_an_older_run_did_not_have_is_its_default(tmp_path: Path) -> None:
    options = ("rl: {seeds: 4}\n", "rl: {keep: last}\nfilm: true\n", "rl: {keep: best}\n", "rl: {keep: best}\n")
    made = [make_refinement(tmp_path / f"m{i}", [500], method="mlp", options=o) for i, o in enumerate(options)]
    groups = gather(made).cases[0].groups
    assert sorted(tuple(run.record.name for run in group.runs) for group in groups) == [("m0", "m1"), ("m2", "m3")]


@pytest.mark.parametrize(
    ("option", "published"),
    [("seeds: 3", True), ("looks: 2", True), ("start: own", True), ("resets: [400]", True), ("keep: best", False),
     ("ratio: length_normalised", False), ("window: 10", False), ("clip: 0.1", False), ("learning_rate: 0.01", False),
     ("entropy: 0", False), ("discount: 0.9", False), ("groups: 2", False), ("episodes: 10", False),
     ("epochs: 1", False), ("grouping: state", False), ("log_ratio_limit: 9.0", False), ("kl_stop: 0.1", False),
     ("clip_stop: 0.5", False), ("survivors: 2", False)],
)  # fmt: skip
def test_the_paper_s_figures_are_of_its_own_training(tmp_path: Path, option: str, published: bool) -> None:
    run = make_refinement(tmp_path / "run", [900], condition="stock", options=f"rl: {{{option}}}\n")
    (group,) = gather([run]).cases[0].groups
    assert group.published is published
    assert ("882.0" in page_of([run]).sections["case-0-results"]) is published


def test_the_table_of_results(page: Page) -> None:
    # conversations of 900 and 910 with two fits each
    assert page.has("case-0-results", "refined IL 905.0", "4 (2) × 3 906.0 5 100")
    assert page.has("case-0-results", "refined (feedback table) IL 880.0", "2 (1) × 3 881.0 5 100")
    assert page.has("case-0-results", "MLP RL 400 910.0", "2 (1) × 3 905.0 1 516", "The demonstrator has 860.0")
    assert " paper" not in page.sections["case-0-results"].split("p: Welch")[0]


def test_paired_differences_are_the_method_s_minus_refinement_s(made: list[Path], page: Page) -> None:
    found = results(gather(made).cases[0])
    pair = next(pair for pair in found.pairs if pair.method == "refined (feedback table)")
    expected = paired_difference([895.0, 905.0, 915.0], [870.0, 880.0, 890.0])
    assert pair.difference.mean == expected.mean == -25
    assert pair.difference.n == 3
    assert page.has("case-0-results", "refined (feedback table) IL −25.0 [−25.0, −25.0] 3")


def test_the_paper_stands_beside_its_own_task_alone(tmp_path: Path) -> None:
    stock = [
        make_refinement(tmp_path / "s", [900], condition="stock"),
        make_refinement(tmp_path / "n", [900], condition="stock", feedback="none"),
    ]
    page = page_of(stock)
    assert page.has("case-0-results", "882.0")
    assert page.sections["case-0-results"].count("882.0") == 1


def test_rounds_by_feedback(page: Page) -> None:
    # first program, worst revision, largest loss, set aside, chosen: all of the fit that was chosen, 1 above the mean
    assert page.has("case-0-feedback", "refined a0 701.0 651.0 50.0 1 of 2 901.0")
    assert page.has("case-0-feedback", "refined (feedback table) t0 711.0 401.0 310.0 0 of 2 881.0")
    # decisions of 2,000 + 3,000 and 4,000 + 5,000 tokens in, 1,000 out; levels 817, 860, 903
    assert page.has("case-0-feedback", "refined analyses 4 2.0 7.0 ± 2.0 1.0 ± 0.0 2, 1 2, 2 never, 2")
    assert page.has("case-0-feedback", "revisions to 817.0 revisions to 860.0 revisions to 903.0")
    labels = [str(attributes["aria-label"]) for tag, attributes in page.elements if tag == "svg"]
    assert any("refined, a0: 701, 651, 901; refined, a1: 721, 851, 911" in label for label in labels)


def test_resets_to_the_demonstrator(page: Page) -> None:
    # refined: from (800 + 820) / 2 = 810 to 890: 860 after 5/8 of 400; zero-shot at its last look, 1.6 times as many
    assert page.has("case-0-resets", "refined 400 4 (2) 810.0 → 890.0 250 ", "350 1.0 ×")
    assert page.has("case-0-resets", "zero-shot 400 2 (1) 700.0 → 860.0 400 [400, 400] 500 1.6 ×")
    assert page.has("case-0-resets", "MLP 400 2 (1) 300.0 → 200.0 never [never, never] never –")


def test_weights_that_fitting_turned_round(page: Page) -> None:
    assert page.has("case-0-weights", "refined, a0: turned round in 1/2, 0/2, 0/2 weights", "brake −0.5 0.25 0.25")
    assert page.has("case-0-weights", "1 651.0 set aside - change number 1")
    assert " gain " not in page.sections["case-0-weights"]
    assert sum(attributes.get("class") == "n turned" for tag, attributes in page.elements if tag == "td") == 3


def test_sections_without_data_are_one_sentence(tmp_path: Path) -> None:
    page = page_of([make_refinement(tmp_path / "m", [300], method="mlp")])
    assert page.has("case-0-results", "MLP IL 300.0", "nothing is held against it")
    assert page.has("case-0-feedback", "None of these runs refines")
    assert page.has("case-0-resets", "None of these runs was trained")
    assert page.has("case-0-weights", "None of these runs has two rounds")


def test_several_tasks_stand_one_after_the_other(runs: list[Path], tmp_path: Path) -> None:
    runs.append(make_refinement(tmp_path / "stock", [900], condition="stock"))
    page = page_of(runs)
    assert page.has("case-0-results", "car racing, stock: results")
    assert page.has("case-1-results", "car racing, slick: results")
    identifiers = [value for _, attributes in page.elements if (value := attributes.get("id"))]
    assert len(identifiers) == len(set(identifiers))


def test_runs_that_did_not_end_are_listed_with_the_reason(runs: list[Path], tmp_path: Path) -> None:
    (runs[0] / "summary.json").unlink()
    failed = json.loads((runs[2] / "summary.json").read_text())
    failed |= {"status": "failed", "reason": "The program was refused 5 times.", "best_round": None}
    (runs[2] / "summary.json").write_text(json.dumps(failed))
    stopped = json.loads((runs[3] / "summary.json").read_text()) | {"status": "stopped", "reason": "memory ran out"}
    (runs[3] / "summary.json").write_text(json.dumps(stopped))
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    page = page_of([*runs, nothing])
    assert page.has("head", "3 runs compared")
    assert page.has("runs", "a0: Unfinished", "t0: This run failed: The program was refused 5 times.")
    assert page.has("runs", "nothing: ", "is no run directory", "Compared as far as they came: z0: This run stopped")
    assert page.has("case-0-results", "refined IL 910.0", "zero-shot IL 705.0")


def test_training_that_failed_is_in_no_mean(runs: list[Path], tmp_path: Path) -> None:
    shutil.rmtree(runs[3] / "rl")
    summary = json.loads((runs[3] / "summary.json").read_text()) | {"rl": []}
    (runs[3] / "summary.json").write_text(json.dumps(summary))
    ends = ENDS.copy()
    ends[0, 1] = np.nan
    add_budget(runs[3], 400, ends, np.array([[700.0, np.nan], [700.0, 800.0]]))
    page = page_of(runs)
    assert page.has("case-0-results", "zero-shot RL 400 915.0 915.0 –", "2 (1) × 3 1 failed")
    assert page.has("case-0-resets", "zero-shot 400 2 (1) 700.0 → 800.0 never")


@pytest.mark.parametrize(
    "config",
    [
        b"a: &a [x, x]\nb: &b [*a, *a]\nrefine: {feedback: [*b, *b, *b]}",
        b"[" * 5_000,
        b"!!python/object/apply:os.system ['true']",
        b"\xff\xfe\x00",
        b"refine: [1, 2]\nrl: text\n3: {4: 5}\n? {a: 1}\n: {b: 2}\n",
        b"x" * 200_000,
    ],
)
def test_options_that_are_none_are_no_reason_to_stop(runs: list[Path], config: bytes) -> None:
    (runs[0] / "config.yaml").write_bytes(config)
    names = [run.record.name for group in gather(runs).cases[0].groups for run in group.runs]
    assert sorted(names) == ["a0", "a1", "mlp", "t0", "z0"]


def test_what_runs_say_is_text(runs: list[Path]) -> None:
    (runs[0] / "config.yaml").write_text("refine: {feedback: '<script>alert(1)</script>'}")
    summary = json.loads((runs[1] / "summary.json").read_text())
    summary["rounds"][1]["changes"] = "<img src=x onerror=alert(2)>"
    summary["provenance"]["transcript"]["chain"] = "<b>bold</b>\u202e"
    (runs[1] / "summary.json").write_text(json.dumps(summary))
    page = page_of(runs)
    assert not {"script", "img", "b"} & {tag for tag, _ in page.elements}
    assert page.has("case-0-weights", "<img src=x onerror=alert(2)>", "<b>bold</b>\\u202e")
    assert page.has("case-0-results", "refined (feedback <script>alert(1)</script>)")


@pytest.mark.parametrize(
    "name", ["round_2/evaluation.parquet", "rl/400/checkpoints.parquet", "rl/400/evaluation.parquet"]
)
def test_a_damaged_file_is_told_and_the_rest_compared(runs: list[Path], name: str) -> None:
    (runs[0] / name).write_bytes(b"PAR1 no table")
    page = page_of(runs)
    assert page.has("head", "What could not be read whole", Path(name).name)
    assert page.sections["head"].count(f"{name} cannot be read") == 1
    assert page.has("case-0-results", "zero-shot IL 705.0")


@pytest.mark.parametrize("summary", [b"", b"[]", b'{"rounds": 3, "rl": {"a": 1}, "best_round": 0}', b"nonsense"])
def test_summaries_of_another_shape_are_left_out(runs: list[Path], summary: bytes) -> None:
    (runs[0] / "summary.json").write_bytes(summary)
    found = gather(runs)
    assert "a1" in [run.record.name for case in found.cases for group in case.groups for run in group.runs]
    places = [*found.left_out, *(run.record for case in found.cases for group in case.groups for run in group.runs)]
    assert sorted(place.name for place in places) == ["a0", "a1", "mlp", "t0", "z0"]


def test_a_run_tested_on_other_episodes_is_not_mixed_in(runs: list[Path]) -> None:
    for path in runs[1].glob("*/**/evaluation.parquet"):
        table = pd.read_parquet(path)
        table.assign(seed=table["seed"] + 500).to_parquet(path)
    (left,) = gather(runs).left_out
    assert (left.name, left.why) == ("a1", "it was tested on other episodes than most")


def test_the_page_is_one_file_that_asks_for_nothing(made: list[Path], page: Page, tmp_path: Path) -> None:
    links = [value for _, attributes in page.elements for key in ("href", "src") if (value := attributes.get(key))]
    assert all(value.startswith("#") for value in links)
    assert "default-src 'none'" in page.html
    assert write_comparison(made, tmp_path / "c.html").read_text(encoding="utf-8") == page.html
    assert sorted(path.name for path in (tmp_path / "c_figures").iterdir()) == [
        "case-0-resets.pdf",
        "case-0-results.pdf",
        "case-0-rounds-0.pdf",
        "case-0-rounds-1.pdf",
    ]


def test_where_the_page_goes(runs: list[Path], tmp_path: Path) -> None:
    assert comparison_target(runs) == tmp_path / "runs" / "comparison.html"
    assert comparison_target([runs[0]]) == tmp_path / "runs" / "comparison.html"
    assert comparison_target([runs[0], tmp_path / "elsewhere" / "x"]) == tmp_path / "comparison.html"
    with pytest.raises(UserError, match="is a folder"):
        write_comparison(runs, tmp_path)


def test_folders_that_are_no_runs_are_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no run directory"):
        write_comparison([tmp_path / "empty"], tmp_path / "c.html")
