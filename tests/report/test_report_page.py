from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from report_reader import Page, page_of
from report_run import make_run

from jaxrefine.errors import UserError
from jaxrefine.report import svg, write_report

Edit = Callable[[Path, Callable[[dict[str, Any]], None]], None]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(make_run(tmp_path_factory.mktemp("report") / "run"))


def test_the_outcome_is_one_look_away(page: Page) -> None:
    assert page.has(
        "overview",
        "Finished after 3 rounds. Round 2 was chosen: its program has a mean return of 917.5",
        "n = 10 evaluation episodes), 46.5 better than the demonstrator's 871.0.",
    )
    assert list(page.sections) == [
        "head", "overview", "rounds", "round-0", "round-1", "round-2", "cost", "steps", "provenance",
    ]  # fmt: skip


def test_lower_is_better_for_a_distance(finished_run: Path, edit_summary: Edit) -> None:
    def change(summary: dict[str, Any]) -> None:
        summary["metric"] = {"name": "distance", "better": "lower", "unit": "m"}

    edit_summary(finished_run, change)
    assert page_of(finished_run).has("overview", "mean distance of 917.5 m", "46.5 worse than")


def test_the_table_of_rounds_names_every_n(page: Page) -> None:
    assert page.has("rounds", "905.0 ± ", "880.0 ± ", "917.5 ± ", "871.0 (1)", "902.5 ± 12.2 (3)", "−1.423")
    assert page.has("rounds", "1 rejected", "2 best", "−25.0 (10)", "+37.5 (10)", "p < 0.001")
    assert page.has("rounds", "n counts episodes, not independent runs")


def test_the_figures_show_every_episode_and_every_fit(page: Page) -> None:
    figures = [attributes for tag, attributes in page.elements if attributes.get("role") == "img"]
    assert [str(figure["aria-label"]).split(";")[0].split(",")[0] for figure in figures] == [
        "return by round",
        *(f"negative log-likelihood while fitting in round {index}" for index in range(3)),
    ]
    first = page.html[page.html.index('aria-label="return') :]
    first = first[: first.index("</svg>")]
    dots = first.count("<use ")
    assert dots >= 3 * (10 + 20 + 1), "ten chosen and twenty other episodes and a mean for each round"
    assert page.has("rounds", "demonstrator 871", "n = 10", "round 2")
    assert "#0102" not in page.html, "every colour comes from the style sheet"


def test_means_that_one_episode_presses_together_are_enlarged_too(finished_run: Path, edit_summary: Edit) -> None:
    assert "enlarged: where the means are" not in page_of(finished_run).sections["rounds"]

    def fall(summary: dict[str, Any]) -> None:
        summary["rounds"][0]["per_episode"][0]["value"] -= 400

    edit_summary(finished_run, fall)
    assert page_of(finished_run).has("rounds", "enlarged: where the means are")


def test_identifiers_are_unique_and_links_lead_somewhere(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [v for _, a in page.elements for k, v in a.items() if k in ("href", "xlink:href") and v is not None]
    assert targets
    assert {target.removeprefix("#") for target in targets} <= set(ids)


def test_a_round_shows_what_happened_in_it(page: Page) -> None:
    assert page.has("round-1", "Decision: program", "class RacecarPolicy(nnx.Module):", "Fitted weights 2 changed sign")
    assert page.has("round-1", "brake 0.8 −0.25 sign changed", "gains[1, 0] 3 −3.5 sign changed", "lookahead 1 1.234 ")
    assert page.has("round-1", "big mean of 100 – 1", "107 fitted weights", "failed a check 1 time and")
    assert page.has("round-1", "PASS steering follows heading: corr = 0.91", "def run_all(df):", "All checks passed.")
    assert page.has("round-1", "The car brakes late, so round 1 needs", "1000 ", "812")
    assert "Changes since" not in page.sections["round-0"]


def test_the_diff_is_against_the_previous_program(finished_run: Path) -> None:
    page = page_of(finished_run)
    assert page.has("round-2", "Changes since round 1 2 lines added, 2 removed")
    assert "-        self.weight_lookahead = nnx.Param(jnp.array(1.0))\n" in page.sections["round-2"]
    assert "+        self.weight_lookahead = nnx.Param(jnp.array(1.1))\n" in page.sections["round-2"]
    (finished_run / "round_2" / "policy.py").write_text((finished_run / "round_1" / "policy.py").read_text())
    assert page_of(finished_run).has("round-2", "The program is the same.")


def test_the_model_s_words_stand_apart_from_its_code(finished_run: Path) -> None:
    reply = "It turns late.\n```python\nimport jax\nx = 1\n```\n# Decision\nprogram\n~~~\nleft open"
    (finished_run / "round_1" / "decision.md").write_text(reply)
    page = page_of(finished_run)
    said = "It turns late. [2 lines of code] # Decision program"
    assert page.has("round-1", f"The model's diagnosis and decision {said}", "Its whole reply, with the code It turns")
    assert page.has("round-1", "import jax x = 1 ``` # Decision")


def test_what_a_revision_was_said_to_change_and_how_it_compared(finished_run: Path, edit_summary: Edit) -> None:
    def change(summary: dict[str, Any]) -> None:
        summary["rounds"][1] |= {"changes": "- The brake bites.", "against_best": {"line": "worse than round 0: -8"}}

    edit_summary(finished_run, change)
    page = page_of(finished_run)
    assert page.has("round-1", "What the model said it changed - The brake bites.", "episodes worse than round 0: -8.")


def test_cost_steps_and_provenance(page: Page) -> None:
    assert page.has("cost", "generate 1 1,500 700 200 4.5 s", "all 6 9,000 4,200 1,200 27.0 s", "a-model")
    assert page.has("steps", "round_0/fit fit it 21.5 s", "all finished steps 1 min 48 s", "the prompt differs")
    assert page.has("provenance", "human_like_0", "jax 0.10.2", "device cpu", "prompt version 7", "method: refine")
    assert page.has("provenance", "rollout 10000"), "a seed is a name, not an amount"


def test_the_task_is_named_with_its_condition_unless_that_is_the_stock_one(
    finished_run: Path, edit_summary: Edit
) -> None:
    edit_summary(finished_run, lambda summary: summary.update(condition="stock"))
    assert page_of(finished_run).has("head", "car_racing · refine")
    edit_summary(finished_run, lambda summary: summary.update(condition="slick"))
    assert page_of(finished_run).has("head", "car_racing (slick) · refine")


def test_the_page_needs_nothing_but_itself(page: Page) -> None:
    assert not {tag for tag, _ in page.elements} & {"script", "link", "iframe", "img", "object"}
    assert "@import" not in page.html
    assert "url(http" not in page.html
    sources = [value for _, attributes in page.elements for name, value in attributes.items() if name == "src"]
    assert sources == []


def test_the_same_run_gives_the_same_bytes(finished_run: Path) -> None:
    first = write_report(finished_run).read_bytes()
    assert write_report(finished_run).read_bytes() == first
    assert [path.name for path in finished_run.glob("*.html*")] == ["report.html"]
    assert not list(finished_run.glob(".report*"))


def test_every_figure_is_a_pdf_for_a_paper_too(finished_run: Path) -> None:
    write_report(finished_run)
    files = {path.stem: path.read_bytes() for path in (finished_run / "figures").iterdir()}
    html = (finished_run / "report.html").read_text()
    assert len(files) == html.count('<svg class="figure"'), "one for each"
    for content in files.values():
        assert content.startswith(b"%PDF")
        assert b"/FontFile2" in content, "a TrueType font is embedded"
        assert b"Date" not in content
    streams = [
        zlib.decompress(found) for found in re.findall(rb"stream\n(x.*?)\nendstream", files["metric"], re.DOTALL)
    ]
    page = next(stream for stream in streams if b" re\n" in stream or b" RG" in stream)
    colours = {tuple(round(255 * float(part)) for part in found)
               for found in re.findall(rb"([\d.]+) ([\d.]+) ([\d.]+) (?:rg|RG)\b", page)}  # fmt: skip
    assert (0x24, 0x67, 0xB5) in colours, "the light scheme's blue"
    assert (0xB8, 0x52, 0x0A) in colours, "the light scheme's orange"
    assert not [colour for colour in colours if colour[:2] == (1, 2)], "no colour that stands for another is left"


def test_a_figure_s_name_is_safe_as_a_file_and_an_identifier() -> None:
    with pytest.raises(ValueError, match="cannot name a figure"):
        svg.to_markup(Figure(), "../metric", "")


def test_a_report_takes_less_than_five_seconds(finished_run: Path) -> None:
    start = time.process_time()
    write_report(finished_run)
    assert time.process_time() - start < 5


def test_more_analyses_in_one_round_are_shown_in_order(finished_run: Path) -> None:
    folder = finished_run / "round_0"
    for extra in range(10):
        (folder / f"diagnostics_{extra + 2}.py").write_text(f"EXTRA_CODE_{extra}")
        (folder / f"results_{extra + 2}.txt").write_text(f"extra result {extra}")
    page = page_of(finished_run)
    places = [page.sections["round-0"].index(f"extra result {extra}") for extra in range(10)]
    assert places == sorted(places)
    assert page.has("round-0", "What the analyses 2 found", "EXTRA_CODE_0")


def test_rounds_are_compared_with_the_demonstrator_on_the_same_episodes(finished_run: Path, edit_summary: Edit) -> None:
    test = {"mean": 900.0, "std": 20.0, "std_sample": 21.1, "n": 10, "over": "episodes"}
    edit_summary(finished_run, lambda summary: summary["demonstration"].update(test=test))
    page = page_of(finished_run)
    assert page.has(
        "rounds", "demonstrator, the same episodes", "900.0 ± 20.0 (10)", "the demonstrated episode", "871.0"
    )
    assert page.has("overview", "17.5 better than the demonstrator's 900.0")


def test_figures_of_an_earlier_report_go(finished_run: Path, tmp_path: Path) -> None:
    write_report(finished_run)
    folder = finished_run / "figures"
    drawn = {path.name for path in folder.iterdir()}
    elsewhere = tmp_path / "elsewhere.pdf"
    elsewhere.write_text("of another")
    (folder / "old.pdf").write_text("of more rounds")
    (folder / "notes.txt").write_text("mine")
    (folder / "linked.pdf").symlink_to(elsewhere)
    (folder / "folder.pdf").mkdir()
    write_report(finished_run)
    assert {path.name for path in folder.iterdir()} == drawn | {"notes.txt", "linked.pdf", "folder.pdf"}
    assert elsewhere.exists()


def test_no_figure_is_removed_through_a_link(finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "old.pdf").write_text("mine")
    (finished_run / "figures").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="figures is a link"):
        write_report(finished_run)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["old.pdf"]
