from __future__ import annotations

from pathlib import Path

import pytest
from sandbox_jailed import Jailed

from jaxrefine.sandbox import Backend
from jaxrefine.sandbox.choice import STRONG, weakness


@pytest.fixture(params=STRONG, ids=lambda backend: backend.name)
def strong(request: pytest.FixtureRequest) -> Backend:
    return present(request.param)


@pytest.fixture(params=(*STRONG, Backend()), ids=lambda backend: backend.name)
def any_backend(request: pytest.FixtureRequest) -> Backend:
    return present(request.param)


def present(backend: Backend) -> Backend:
    if backend.strong and (why := weakness(backend)) is not None:
        pytest.skip(f"{backend.name}: {why}")
    return backend


@pytest.fixture
def jailed(tmp_path: Path) -> Jailed:
    return Jailed(tmp_path)
