from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from jaxrefine.sandbox import Backend
from jaxrefine.sandbox.choice import STRONG, weakness


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "rollouts.parquet"
    pd.DataFrame({"episode": [0, 0, 1], "t": [0, 1, 0], "reward": [1.0, 2.0, 4.0]}).to_parquet(path)
    return path


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == [], "the temporary folder is left"
    assert capfd.readouterr() == ("", ""), "the analysis reached our own output"


@pytest.fixture(params=STRONG, ids=lambda backend: backend.name)
def strong(request: pytest.FixtureRequest) -> Backend:
    backend: Backend = request.param
    if (why := weakness(backend)) is not None:
        pytest.skip(f"{backend.name}: {why}")
    return backend
