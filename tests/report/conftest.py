from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_run import make_run, write_json


@pytest.fixture
def finished_run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.fixture
def edit_summary() -> Callable[[Path, Callable[[dict[str, Any]], None]], None]:
    def edit(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
        summary = json.loads((run / "summary.json").read_text())
        change(summary)
        write_json(run / "summary.json", summary)

    return edit
