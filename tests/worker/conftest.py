from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_process import SECRET, Standin, make_worker

from jaxrefine.worker import ProcessWorker, WorkerLimits


@pytest.fixture(autouse=True, scope="module")
def surroundings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXREFINE_WORKER_CACHE_DIR", str(Path.home() / ".cache" / "jaxrefine-tests" / "worker-xla"))
        patch.setenv("OPENAI_API_KEY", SECRET)
        yield


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[ProcessWorker]:
    limits = WorkerLimits(memory_mb=400, check_s=3, file_mb=1)
    with make_worker(tmp_path, limits=limits, backend=Standin()) as worker:
        yield worker
