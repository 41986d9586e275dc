"""Every task that ships can be built in the strongest jail there is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from jaxrefine import task as tasks
from jaxrefine.config import FitConfig
from jaxrefine.worker import ProcessWorker, TaskChoice


@pytest.mark.parametrize("name", tasks.names())
def test_a_jailed_worker_starts(name: str, tmp_path: Path) -> None:
    with ProcessWorker(TaskChoice(name), 0, asdict(FitConfig()), tmp_path) as worker:
        assert "cpu" in worker.device()
