"""Resets to the demonstrator's level: interpolation, intervals, and the figure of several conditions."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_run import add_budget, make_refinement

from bench import resets_figure
from jaxrefine.report.resets import LearningCurve, reach, reach_interval

ENDS = np.full((2, 3), 900.0)


def curve(*rows: list[float], clusters: list[int] | None = None) -> LearningCurve:
    values = np.array(rows, dtype=float)
    numbers = np.array(clusters if clusters is not None else range(len(rows)))
    return LearningCurve("m", "refine", 100, 50.0 * np.arange(values.shape[1]), values, numbers, None)


@pytest.mark.parametrize(
    ("row", "level", "expected"),
    [
        ([0, 10, 20], 15, 75.0),
        ([0, 10, 20], 10, 50.0),
        ([0, 10, 20], 0, 0.0),
        ([30, 10, 20], 25, 0.0),  # better before training than after
        ([0, 20, 5], 10, 25.0),  # the first time counts
        ([0, 10, 20], 21, None),
        ([np.nan, 10, 20], 15, 75.0),
        ([0, np.nan, 20], 15, 100.0),  # nothing is known in between
        ([np.nan, np.nan, np.nan], 15, None),
    ],
)
def test_reaching_a_level(row: list[float], level: float, expected: float | None) -> None:
    assert reach(curve(row), level, higher_is_better=True) == expected
    mirrored = [-value for value in row]
    assert reach(curve(mirrored), -level, higher_is_better=False) == expected


@given(st.lists(st.floats(0, 1000), min_size=2, max_size=12), st.floats(0, 1000))
def test_at_the_crossing_the_curve_has_the_level(row: list[float], level: float) -> None:
    one = curve(row)
    found = reach(one, level, higher_is_better=True)
    if found is None:
        assert max(row) < level
    elif found > 0:
        assert np.interp(found, one.resets, row) == pytest.approx(level, abs=1e-6)
        assert all(value < level for value, at in zip(row, one.resets, strict=True) if at < found - 1e-9)
    else:
        assert row[0] >= level


def test_the_mean_over_trainings_decides() -> None:
    assert reach(curve([0, 20], [0, 0]), 5, higher_is_better=True) == 25.0
    assert reach(curve([0, np.nan], [0, 10]), 5, higher_is_better=True) == 25.0


def test_the_interval_of_the_crossing() -> None:
    assert reach_interval(curve([0, 10]), 5, higher_is_better=True) is None
    # resampled means are 20, 10 or 0 at the second look, a quarter of them 0: some never cross
    assert reach_interval(curve([0, 20], [0, 0]), 5, higher_is_better=True) == (12.5, None)
    assert reach_interval(curve([0, 10], [0, 10]), 5, higher_is_better=True) == (25.0, 25.0)


def test_the_figure_of_several_conditions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = []
    for condition in ("stock", "slick", "delay", "worn"):
        for method, looks in (("refine", [800.0, 900.0]), ("zero_shot", [700.0, 900.0]), ("mlp", [300.0, 200.0])):
            run = make_refinement(tmp_path / condition / method, [800], condition=condition, method=method)
            add_budget(run, 400, ENDS, np.array([looks, looks]))
            made.append(str(run))
    svg, written = tmp_path / "f.svg", tmp_path / "f.json"
    assert resets_figure.main([*made, "--figure", str(svg), "--json", str(written)]) == 0
    found = json.loads(written.read_text())
    assert [entry["condition"].split(", ")[1] for entry in found["conditions"]] == ["stock", "delay", "slick", "worn"]
    by_method = {entry["method"]: entry for entry in found["conditions"][0]["methods"]}
    # to 860: 60 of 100 and 160 of 200, of 400 resets
    assert by_method["refined"]["resets_to_demonstrator"] == pytest.approx(240)
    assert by_method["zero-shot"]["resets_to_demonstrator"] == pytest.approx(320)
    assert by_method["zero-shot"]["times_those_of_refined"] == pytest.approx(4 / 3)
    assert by_method["MLP"]["resets_to_demonstrator"] is None
    assert str(tmp_path) not in written.read_text()
    tree = ElementTree.fromstring(svg.read_text())
    assert tree.tag == "{http://www.w3.org/2000/svg}svg"
    text = " ".join("".join(tree.itertext()).split())
    assert all(f"car racing, {condition}" in text for condition in ("stock", "slick", "delay", "worn"))
    assert all(name in text for name in ("refined", "zero-shot", "MLP", "demonstrator", "--orange: #"))
    assert "never" in capsys.readouterr().out


def test_runs_without_training_are_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_refinement(tmp_path / "run", [800])
    with pytest.raises(SystemExit) as ended:
        resets_figure.main([str(run)])
    assert ended.value.code == 2
    assert "none of these runs has looks" in capsys.readouterr().err
