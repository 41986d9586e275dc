"""A bench's usage line is the command that a person types."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHES = [
    path.stem
    for path in sorted((Path(__file__).parents[2] / "bench").glob("*.py"))
    if "ArgumentParser(" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", BENCHES)
def test_the_usage_names_the_module(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [f"/somewhere/{name}.py", "--help"])
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(f"bench.{name}").main(["--help"])
    assert stop.value.code == 0
    # not at the start: brax greets whoever imports it
    assert f"usage: python -m bench.{name} " in capsys.readouterr().out


def test_all_benches_were_found() -> None:
    assert {"car_parity", "gspo_scale", "joined", "paper_table", "throughput"} <= set(BENCHES)
