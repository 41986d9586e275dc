"""A bench's usage line is the command that a person types."""

from __future__ import annotations

import pytest

from bench import metaworld_bridge


def test_the_usage_names_the_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/metaworld_bridge.py"])
    with pytest.raises(SystemExit) as stop:
        metaworld_bridge.main(["--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("usage: python -m bench.metaworld_bridge ")
