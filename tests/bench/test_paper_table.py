"""The bench that makes the paper's table from runs of the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import paper_table


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
