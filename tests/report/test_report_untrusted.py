from __future__ import annotations

import io
import json
import os
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrefine.report import source, write_report
from jaxrefine.report.rollouts import Driven, Rollouts
from jaxrefine.report.scenes import scene
from jaxrefine.report.untrusted import MAX_CHARACTERS, visible
from jaxrefine.report.weights import read_weights

ATTACKS = [
    "<script>alert(1)</script>",
    "</pre></code></details><script>alert(2)</script>",
    "\"><img src=x onerror=alert(3)><svg onload='alert(4)'>",
    "{{ record.config }}{% raw %}<b onclick=x>",
    "</style><style>*{display:none}</style><iframe src=javascript:alert(5)>",
    "$\\frac{$ <!-- --> ]]> &lt;script&gt;",
]
ATTACK = "\n".join(ATTACKS)


class Elements(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.styles = 0
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.styles += tag == "style"
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def poisoned(value: Any) -> Any:
    """The value with every text in it replaced by the attack, names of entries too where they are free."""
    if isinstance(value, dict):
        return {key: poisoned(entry) for key, entry in value.items()} | {ATTACK: ATTACK}
    if isinstance(value, list):
        return [poisoned(entry) for entry in value]
    return ATTACK if isinstance(value, str) else value


def assert_harmless(html: str) -> Elements:
    elements = Elements(html)
    assert not elements.tags & {"script", "iframe", "img", "b", "object", "embed", "base", "form"}
    assert not {
        name for name in elements.attributes if name.startswith("on") or name in ("src", "srcdoc", "formaction")
    }
    assert elements.styles == 1
    return elements


def test_markup_in_every_text_of_a_round_shows_as_text(finished_run: Path) -> None:
    folder = finished_run / "round_1"
    for name in ("policy.py", "diagnostics.py", "results.txt", "decision.md", "checks.txt"):
        (folder / name).write_text(f"{ATTACK}\n# from {name}")
    (finished_run / "config.yaml").write_text(ATTACK)
    arrays: dict[str, Any] = {"<script>weight</script>": np.array([1.0, -1.0]), "plain": np.array(2.0)}
    for name in ("weights.npz", "initial_weights.npz"):
        np.savez(folder / name, **arrays)
    elements = assert_harmless(write_report(finished_run).read_text())
    for name in ("policy.py", "diagnostics.py", "results.txt", "decision.md", "checks.txt"):
        assert f"# from {name}" in elements.text
    assert elements.text.count("<script>alert(1)</script>") >= 7, "five texts, one diff, one configuration"
    assert "<script>weight</script>[0]" in elements.text


def test_markup_in_summary_events_and_transcript_shows_as_text(finished_run: Path) -> None:
    summary = json.loads((finished_run / "summary.json").read_text())
    (finished_run / "summary.json").write_text(json.dumps(poisoned(summary)))
    for name in ("events.jsonl", "transcript.jsonl"):
        lines = [json.loads(line) for line in (finished_run / name).read_text().splitlines()]
        kept = {"kind", "event", "step"}
        attacked = [{**poisoned(line), **{key: line[key] for key in kept & line.keys()}} for line in lines]
        (finished_run / name).write_text("".join(json.dumps(line) + "\n" for line in attacked))
    elements = assert_harmless(write_report(finished_run).read_text())
    assert "<script>alert(1)</script>" in elements.text


@settings(deadline=None)
@given(st.text())
def test_coloured_source_keeps_the_text_and_adds_only_spans(text: str) -> None:
    elements = Elements(str(source.coloured(visible(text), "python")))
    assert elements.tags <= {"div", "pre", "code", "span"}
    assert elements.attributes <= {"class"}


@settings(deadline=None)
@given(st.text())
def test_visible_text_hides_nothing(text: str) -> None:
    shown = visible(text)
    assert all(character in "\n\t" or character.isprintable() or character.isspace() for character in shown
               if ord(character) < 0x100 or 0x200B <= ord(character) <= 0x206F)  # fmt: skip
    shown.encode("utf-8")


def test_terminal_and_direction_controls_are_spelled_out() -> None:
    assert visible("red \x1b[31m\x00 \u202efdp.exe\r\n") == "red \\x1b[31m\\x00 \\u202efdp.exe\n"
    assert visible("α → β\tok") == "α → β\tok"


def test_endless_text_is_cut_and_says_so() -> None:
    shown = visible("x" * (MAX_CHARACTERS + 5))
    assert len(shown) < MAX_CHARACTERS + 100
    assert shown.endswith("[... 5 more characters are in the file]\n")


def test_bytes_that_are_no_text_are_shown(finished_run: Path) -> None:
    (finished_run / "round_0" / "results.txt").write_bytes(b"caf\xe9 \xff\x00")
    assert "caf\\xe9 \\xff\\x00" in Elements(write_report(finished_run).read_text()).text


def claiming(shape: str, descr: str = "<f8", packed: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of one array of eight numbers whose header says something else."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", packed) as archive:
        archive.writestr("values.npy", array)
    return content.getvalue()


def torn() -> bytes:
    """A deflated stream with bytes of it overwritten."""
    content = io.BytesIO()
    np.savez_compressed(content, values=np.random.default_rng(0).normal(size=1000))
    damaged = bytearray(content.getvalue())
    damaged[60:90] = b"\xff" * 30
    return bytes(damaged)


HOSTILE_ARCHIVES = {
    "terabytes": claiming("(100000000000000,)"),
    "more than an index": claiming(f"({10**30},)"),
    "nothing of more than an index": claiming(f"(0, {10**30})"),
    "negative": claiming("(-1,)"),
    "deep": claiming(f"({'-' * 5000}1,)"),
    "unclosed": claiming("((("),
    "objects": claiming("(8,)", "|O"),
    "complex": claiming("(4,)", "<c16"),
    "a bomb's packing": claiming("(8,)", packed=zipfile.ZIP_LZMA),
    "torn": torn(),
}


@pytest.mark.parametrize("name", HOSTILE_ARCHIVES)
@pytest.mark.filterwarnings("ignore:Reading `.npy` or `.npz` file required additional header parsing")
def test_arrays_that_are_not_what_they_say_are_a_sentence(tmp_path: Path, name: str) -> None:
    for file in ("weights.npz", "scene.npz"):
        (tmp_path / file).write_bytes(HOSTILE_ARCHIVES[name])
    gaps: list[str] = []
    assert read_weights(tmp_path, gaps) == ()
    table = pd.DataFrame({"place_x": [0.0, 1.0], "place_y": [0.0, 1.0]})
    driven = Rollouts((Driven("best", 0, 1.0, table),), "scene.parquet", "", (), (), False)
    assert scene(tmp_path, driven, gaps) is not None
    assert [gap.split(" (")[0].split("/")[1] for gap in gaps] == [
        "weights.npz cannot be read",
        "scene.npz cannot be read",
    ]


def test_an_honest_archive_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "weights.npz", gain=np.float32(1.5), on=np.array([True, False]), none=np.zeros((0, 3)))
    gaps: list[str] = []
    read = [(weight.name, weight.fitted) for weight in read_weights(tmp_path, gaps)]
    assert read == [("gain", 1.5), ("on[0]", 1.0), ("on[1]", 0.0)]
    assert not gaps


NAMES = ["summary.json", "events.jsonl", "transcript.jsonl", "config.yaml", "round_0/policy.py", "round_0/fit.json",
         "round_0/weights.npz", "round_0/evaluation.parquet", "round_0/results.txt"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(finished_run: Path, name: str) -> None:
    (finished_run / name).unlink(missing_ok=True)
    os.mkfifo(finished_run / name)
    page = write_report(finished_run).read_text(encoding="utf-8")
    assert f"{name} is a link, a pipe or the like and was passed over." in page


@pytest.mark.parametrize("name", [*NAMES, "round_0", "rl"])
def test_a_link_that_leads_out_of_the_run_is_not_followed(finished_run: Path, tmp_path: Path, name: str) -> None:
    outside, place = tmp_path / "outside", finished_run / name
    outside.mkdir()
    (outside / "policy.py").write_text("SECRET = 1\n")
    (outside / "file").write_text('{"reason": "SECRET"}\n')
    if place.is_dir():
        place.rename(tmp_path / "before")
    place.unlink(missing_ok=True)
    place.symlink_to(outside if name in ("round_0", "rl") else outside / "file")
    page = write_report(finished_run).read_text(encoding="utf-8")
    assert "SECRET" not in page
    assert f"{name} is a link, a pipe or the like and was passed over." in page


def with_numbers(value: Any, put: Any) -> Any:
    """The value with every number in it replaced."""
    if isinstance(value, dict):
        return {key: with_numbers(entry, put) for key, entry in value.items()}
    if isinstance(value, list):
        return [with_numbers(entry, put) for entry in value]
    return put if isinstance(value, int | float) and not isinstance(value, bool) else value


@pytest.mark.parametrize("put", [10**400, -(10**400), float("nan"), float("inf"), 1e308, -1, 0])
def test_numbers_that_no_run_writes_end_no_report(finished_run: Path, put: float) -> None:
    for name in ("summary.json", "round_0/fit.json"):
        path = finished_run / name
        path.write_text(json.dumps(with_numbers(json.loads(path.read_text()), put)))
    assert "<html" in write_report(finished_run).read_text(encoding="utf-8")


def test_returns_whose_mean_is_too_large_end_no_report(finished_run: Path) -> None:
    (finished_run / "summary.json").unlink()
    path = finished_run / "round_0" / "evaluation.parquet"
    pd.read_parquet(path).assign(value=1.7e308).to_parquet(path)
    assert "<html" in write_report(finished_run).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["summary.json", "round_0/graph.json"])
def test_a_folder_in_the_place_of_a_file_ends_no_report(finished_run: Path, name: str) -> None:
    (finished_run / name).unlink(missing_ok=True)
    (finished_run / name).mkdir()
    page = write_report(finished_run).read_text(encoding="utf-8")
    assert f"{name} is a link, a pipe or the like and was passed over." in page
