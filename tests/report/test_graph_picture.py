from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_reader import Page, page_of
from report_run import make_run, write_json

import jaxrefine
from jaxrefine import task as tasks
from jaxrefine.llm import read_transcript
from jaxrefine.methods.replies import ReplyError, find_program
from jaxrefine.policy.graph import SemanticGraph, semantic_graph
from jaxrefine.policy.graph_diff import GraphDiff, diff
from jaxrefine.policy.program import PolicySpec, load_program
from jaxrefine.report.graph_drawing import Drawing, draw
from jaxrefine.report.graph_levels import MOST_DRAWN, Level, by_name, by_operation, families
from jaxrefine.report.graph_picture import graph_picture
from jaxrefine.report.graph_reading import Number, read_graph
from jaxrefine.report.svg import keeping_pdfs

TASKS = ("car_racing", "door")


@pytest.fixture(scope="module", params=TASKS)
def rounds(request: pytest.FixtureRequest) -> tuple[SemanticGraph, SemanticGraph, GraphDiff]:
    """A bundled conversation's first program and its revision, as they are, and what changed."""
    task = tasks.get(request.param)
    spec = PolicySpec(task.class_name, tuple(task.schema.observation_shapes.items()), task.schema.action_size)
    sources: list[str] = []
    for path in sorted((Path(jaxrefine.__file__).parent / "transcripts" / request.param).glob("[0-9].jsonl")):
        if len(sources) < 2:
            sources = []
            for exchange in read_transcript(path).exchanges:
                with suppress(ReplyError):  # analyses, or the word that nothing is left to correct
                    sources.append(find_program(exchange.completion.text, task.class_name))
    before, after = (semantic_graph(load_program(source, spec), task.schema) for source in sources[:2])
    return before, after, diff(before, after)


@pytest.fixture
def folder(tmp_path: Path, rounds: tuple[SemanticGraph, SemanticGraph, GraphDiff]) -> Path:
    found = tmp_path / "round_1"
    found.mkdir()
    write_json(found / "graph.json", rounds[1].to_json())
    write_json(found / "graph_changes.json", {"before": 0, **rounds[2].to_json()})
    return found


def drawn(folder: Path) -> Drawing:
    gaps: list[str] = []
    picture = graph_picture(folder, gaps)
    assert not gaps
    assert picture is not None
    assert picture.named is not None
    return picture.named


def names_of(told: str) -> list[str]:
    """The names that a box stands for, out of what hovering over it says."""
    return told.split("\n")[0].rpartition(" (")[0].split(", ")


def test_every_name_is_in_one_box(folder: Path, rounds: tuple[SemanticGraph, ...]) -> None:
    graph = rounds[1]
    expected = {name for node in graph.nodes for name in node.names}
    assert expected >= set(graph.latents) | set(graph.weights) | set(graph.actions)
    found = [name for box in drawn(folder).boxes for name in names_of(box.told)]
    assert sorted(found) == sorted(expected)


def test_lines_are_the_dependences_that_the_graph_names(folder: Path, rounds: tuple[SemanticGraph, ...]) -> None:
    graph = rounds[1]
    level = by_name(read_graph(folder / "graph.json", []), None)
    assert level is not None
    place = {name: i for i, item in enumerate(level.items) for name in item.names}
    same = {name: node.names for node in graph.nodes for name in node.names}
    expected = set()
    for found in (graph.latents, graph.weights, graph.actions):
        for name, dependence in found.items():
            # one number with several names: any of them may be the one that the line comes from
            expected |= {
                (frozenset(place[other] for other in same[source]), place[name]) for source in dependence.inputs
            }
    edges = {(source, target) for source, target, _ in level.edges}
    for sources, target in expected:
        assert target in sources or any((source, target) in edges for source in sources)
    for source, target in edges:
        assert any(source in sources and target == end for sources, end in expected)


def test_drawn_from_left_to_right_without_overlap(folder: Path) -> None:
    drawing = drawn(folder)
    boxes = drawing.boxes
    for i, box in enumerate(boxes):
        assert 0 < box.x < box.x + box.width < drawing.width
        assert 0 < box.y < box.y + box.height < drawing.height
        for other in boxes[:i]:
            apart_x = box.x >= other.x + other.width or other.x >= box.x + box.width
            assert apart_x or box.y >= other.y + other.height or other.y >= box.y + box.height
    for wire in drawing.wires:
        assert wire.corners[0][0] < wire.corners[-1][0]
    centres = {
        kind: {round(box.x + box.width / 2) for box in boxes if box.kind == kind} for kind in ("observation", "action")
    }
    assert max(centres["observation"]) == min(centres["observation"])
    assert max(centres["action"]) == min(centres["action"])
    assert min(box.x for box in boxes if box.kind == "action") > max(
        box.x for box in boxes if box.kind == "observation"
    )


def test_what_changed_is_marked(folder: Path, rounds: tuple[SemanticGraph, SemanticGraph, GraphDiff]) -> None:
    changes = rounds[2]
    kinds = (changes.latents, changes.weights, changes.actions)
    added = {name for kind in kinds for name in kind.added} | set(changes.columns_added)
    rewired = {
        name for kind in kinds for name, sides in kind.rewired.items() if sides.inputs_added or sides.inputs_removed
    }
    assert added
    assert rewired
    for box in drawn(folder).boxes:
        names = set(names_of(box.told))
        assert (box.state == "added") == (names <= added)
        assert (box.state == "rewired") == (bool(names & (added | rewired)) and not names <= added)
        assert box.lines[0].startswith({"added": "+ ", "rewired": "~ ", "": ""}[box.state])
    picture = graph_picture(folder, [])
    assert picture is not None
    assert picture.since == 0
    removed = [name for kind in kinds for name in kind.removed] + list(changes.columns_removed)
    assert removed
    assert sum(int(found[-1]) if (found := re.findall(r"\((\d+)\)$", name)) else 1 for name in picture.removed) <= len(
        removed
    )
    assert set(removed) >= {name for name in picture.removed if "…" not in name}


def test_the_level_of_operations_keeps_every_name(folder: Path, rounds: tuple[SemanticGraph, ...]) -> None:
    numbers = read_graph(folder / "graph.json", [])
    named, level = by_name(numbers, None), by_operation(numbers, None)
    assert named is not None
    assert level is not None
    assert [item.names for item in level.items if item.names] == [item.names for item in named.items]
    operations = [node for node in rounds[1].nodes if node.kind == "operation" and not node.names]
    assert sum(item.count for item in level.items) == len(operations)
    assert len(level.items) - len(named.items) < len(operations)


def test_the_page_shows_it(tmp_path: Path, folder: Path) -> None:
    run = make_run(tmp_path / "run")
    for name in ("graph.json", "graph_changes.json"):
        (run / "round_1" / name).write_bytes((folder / name).read_bytes())
    with keeping_pdfs() as pdfs:
        page = page_of(run)
    titles = [box.told for box in drawn(folder).boxes]
    for told in titles:
        assert page.sections["round-1"].count(told) >= 1
    page.has("round-1", "What the program computes from what", "Since round 0:", "removed:", "With every operation")
    assert "With every operation" not in page.sections["round-0"]
    closed = page.html.index("With every operation")
    assert page.html.rindex("<details>", 0, closed) > page.html.rindex("<details open>", 0, closed)
    assert (run / "figures" / "graph-1.pdf").read_bytes().startswith(b"%PDF")
    assert not pdfs  # write_report keeps its own


def test_same_bytes_in_another_process(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from jaxrefine.report.graph_drawing import draw;"
        "from jaxrefine.report.graph_levels import by_operation; from jaxrefine.report.graph_reading import read_graph;"
        "print(draw(by_operation(read_graph(Path(sys.argv[1]), []), None)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "graph.json")],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        check=True,
        text=True,
    )
    level = by_operation(read_graph(folder / "graph.json", []), None)
    assert level is not None
    assert done.stdout == f"{draw(level)}\n"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["tile00_x", "tile01_x", "tile02_x"], ["tile00…02_x"]),
        (["bend_2_on", "bend_5_on"], ["bend_2…5_on (2)"]),
        (["turn_two_on", "turn_three_on", "turn_four_on"], ["turn_two…four_on"]),
        (["a1_b2", "a2_b1"], ["a1…2_b1…2 (2)"]),
        (["bone", "stone"], ["bone", "stone"]),
        (["only_7"], ["only_7"]),
    ],
)
def test_names_that_differ_by_a_number(names: list[str], told: list[str]) -> None:
    assert families(names) == told


@st.composite
def programs(draw: st.DrawFn) -> tuple[Number, ...]:
    """Numbers in order, some of them named, with families and recurrences among them."""
    count = draw(st.integers(1, 24))
    taken: set[str] = set()
    numbers = []
    for i in range(count):
        kind = draw(st.sampled_from(["observation", "weight", "constant", "operation", "latent", "action"]))
        stem = draw(st.sampled_from(["a", "b", "c_x", "c_y", "two_d"]))
        prefix = {"latent": "latent_", "action": "action_", "weight": "weight_"}.get(kind, "")
        names = {f"{prefix}{stem}_{draw(st.integers(0, 9))}"}
        if kind in ("observation", "weight", "latent") and draw(st.booleans()):
            names.add(f"latent_{stem}_{i}")
        names = set() if kind in ("constant", "operation") else names - taken
        taken |= names
        inputs = () if kind in ("observation", "constant") else tuple(draw(st.sets(st.integers(0, i - 1)))) if i else ()
        numbers.append(Number(kind, tuple(sorted(names)), "add" if kind == "operation" else "", inputs, ""))
    return tuple(numbers)


def reaches(numbers: tuple[Number, ...], i: int) -> set[int]:
    """Named numbers that number i is computed from without another named one between, by walking back."""
    found: set[int] = set()
    waiting = list(numbers[i].inputs)
    while waiting:
        j = waiting.pop()
        if numbers[j].names:
            found.add(j)
        else:
            waiting += numbers[j].inputs
    return found


@settings(max_examples=150, deadline=None)
@given(programs())
def test_any_program_is_contracted_rightly(numbers: tuple[Number, ...]) -> None:
    level = by_name(numbers, None)
    assert level is not None
    place = {name: i for i, item in enumerate(level.items) for name in item.names}
    assert sorted(place) == sorted(name for number in numbers for name in number.names)
    assert sum(len(item.names) for item in level.items) == len(place)
    edges = {(source, target) for source, target, _ in level.edges}
    assert not any(source == target for source, target in edges)
    assert not leads_back(level)
    boxes = [{place[name] for name in number.names} for number in numbers]
    for i, number in enumerate(numbers):
        if number.names:
            for j in reaches(numbers, i):
                assert boxes[i] & boxes[j] or any((s, t) in edges for s in boxes[j] for t in boxes[i])
    for source, target in edges:
        assert any(
            source in boxes[j] and target in boxes[i]
            for i, number in enumerate(numbers)
            if number.names
            for j in reaches(numbers, i) | {i}
        )


def leads_back(level: Level) -> bool:
    """Whether following the edges ever comes back, by taking away what nothing leads to."""
    edges = {(source, target) for source, target, _ in level.edges}
    left = set(range(len(level.items)))
    while free := {i for i in left if not any(t == i and s in left for s, t in edges)}:
        left -= free
    return bool(left)


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=12,
)
NODES = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["observation", "latent", "weight", "action", "operation", "constant"]) | JSONS,
        "names": st.lists(st.text(max_size=12) | JSONS, max_size=3) | JSONS,
        "operation": st.text(max_size=8) | JSONS,
        "value": JSONS,
    },
)
GRAPHS = st.fixed_dictionaries(
    {"nodes": st.lists(NODES | JSONS, max_size=12) | JSONS},
    optional={"edges": st.lists(st.lists(st.integers(-2, 14), min_size=1, max_size=3) | JSONS, max_size=20) | JSONS},
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        kind: st.fixed_dictionaries(
            {},
            optional={
                "added": st.lists(st.text(max_size=3)) | JSONS,
                "removed": st.lists(st.text(max_size=3)) | JSONS,
                "rewired": st.dictionaries(st.text(max_size=3), JSONS, max_size=3) | JSONS,
            },
        )
        | JSONS
        for kind in ("latents", "weights", "actions", "columns_added", "columns_removed", "before")
    },
)


@settings(max_examples=200, deadline=None)
@given(GRAPHS | JSONS, CHANGES | JSONS)
def test_anything_at_all_is_drawn_or_told(tmp_path_factory: pytest.TempPathFactory, graph: Any, changes: Any) -> None:
    folder = tmp_path_factory.mktemp("round_0")
    (folder / "graph.json").write_text(json.dumps(graph))
    (folder / "graph_changes.json").write_text(json.dumps(changes))
    gaps: list[str] = []
    picture = graph_picture(folder, gaps)
    assert picture or gaps or graph is None


def node(kind: str, *names: str) -> dict[str, Any]:
    return {"kind": kind, "names": list(names)}


def picture_of(run: Path, graph: Any) -> Page:
    write_json(run / "round_0" / "graph.json", graph)
    return page_of(run)


def test_names_are_text(finished_run: Path) -> None:
    evil = '</title><script>alert(1)</script><img src=x onerror="alert(2)">'
    graph = {"nodes": [node("observation", evil), node("latent", f"latent_{evil}")], "edges": [[0, 1]]}
    changes = {"before": evil, "latents": {"added": [f"latent_{evil}"], "removed": [evil], "rewired": {evil: evil}}}
    write_json(finished_run / "round_0" / "graph_changes.json", changes)
    page = picture_of(finished_run, graph)
    assert not [tag for tag, attributes in page.elements if tag in ("script", "img") or "onerror" in attributes]
    assert page.sections["round-0"].count(evil[:100]) >= 3


def test_edges_that_lead_back_are_passed_over(finished_run: Path) -> None:
    nodes = [node("observation", "speed"), node("latent", "latent_a"), node("latent", "latent_b")]
    edges = [[0, 1], [1, 2], [2, 1], [2, 2], [7, 1], [0, True], "ab", [1]]
    page = picture_of(finished_run, {"nodes": nodes, "edges": edges})
    page.has("round-0", "round_0/graph.json is damaged: 6 of its nodes and edges were passed over.", "from speed")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\x00\xff", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"{}", "holds no graph"),
        (b'{"nodes": "many"}', "holds no graph"),
        (json.dumps({"nodes": [{}] * 30_000}).encode(), "is not drawn: it has 30000 numbers"),
        (b" " * 20_000_001, "is not read: it has 20000001 bytes"),
    ],
)
def test_what_cannot_be_drawn_is_told(finished_run: Path, content: bytes, told: str) -> None:
    (finished_run / "round_0" / "graph.json").write_bytes(content)
    page_of(finished_run).has("round-0", told)


def test_too_much_to_read_is_counted(finished_run: Path) -> None:
    letters = [f"latent_{a}{b}" for a in "abcdefghijklm" for b in "abcdefghijklmn"]
    assert len(letters) > MOST_DRAWN
    page = picture_of(finished_run, {"nodes": [node("latent", name) for name in letters], "edges": []})
    page.has("round-0", f"Not drawn: too many names ({len(letters)} latents)", f"{len(letters)} numbers are too many")


@pytest.mark.parametrize("width", [1, 40, 149])
def test_dense_graphs_take_no_long(tmp_path: Path, width: int) -> None:
    """Every number is computed from the `width` before it, in a chain, by name and by operation."""
    folder = tmp_path / "round_0"
    folder.mkdir()
    nodes = [node("latent", f"latent_{'ab'[i % 2]}{'x' * (i // 2)}") for i in range(140)]
    nodes += [{"kind": "operation", "names": [], "operation": f"op{i}"} for i in range(1500)]
    edges = [[j, i] for i in range(len(nodes)) for j in range(max(0, i - width), i)][:150_000]
    write_json(folder / "graph.json", {"nodes": nodes, "edges": edges})
    start = time.process_time()
    assert graph_picture(folder, []) is not None
    assert time.process_time() - start < 5
