"""Event files hold the curves' own numbers, in the format that TensorBoard reads."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tensorboardX.proto.event_pb2 import Event

from jaxrefine.errors import UserError
from jaxrefine.report import require_tensorboard, tensorboard, write_tensorboard


def _events(path: Path) -> Iterator[Event]:
    """The records of a TFRecord file: length, its checksum, the bytes, their checksum."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        yield Event.FromString(data[at + 12 : at + 12 + length])
        at += 16 + length


def _run(path: Path) -> pd.DataFrame:
    folder = path / "rl" / "40"
    folder.mkdir(parents=True)
    resets = np.tile([20, 40], 2)
    curves = pd.DataFrame({"seed": [0, 0, 1, 1], "update": [0, 1, 0, 1], "resets": resets, "kl": [0.1, 0.2, 0.3, 0.5]})
    curves.to_parquet(folder / "curves.parquet")
    looked = {"seed": [0, 0, 1, 1], "resets": [40] * 4, "episode": [0, 1] * 2, "value": [1.0, 3.0, 5.0, 9.0]}
    pd.DataFrame(looked).to_parquet(folder / "checkpoints.parquet")
    return curves


def test_every_seed_is_a_run_with_the_curves_numbers(tmp_path: Path) -> None:
    _run(tmp_path)
    write_tensorboard(tmp_path)
    folder = write_tensorboard(tmp_path)  # a second time leaves one file
    assert sorted(child.name for child in folder.iterdir()) == ["40-seed-0", "40-seed-1"]
    (file,) = (folder / "40-seed-1").iterdir()
    found = {(v.tag, e.step): v.simple_value for e in _events(file) for v in e.summary.value}
    assert found == {("kl", 20): pytest.approx(0.3), ("kl", 40): pytest.approx(0.5), ("test", 40): 7.0}


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(tensorboard, "import_module", missing)
    with pytest.raises(UserError, match=r"jaxrefine\[tensorboard\]"):
        require_tensorboard()
