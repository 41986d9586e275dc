from __future__ import annotations

import base64
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from markupsafe import Markup
from PIL import Image
from report_reader import Page, page_of

from jaxrefine.report import archive, rollouts, scenes
from jaxrefine.report.lines import compact, spaced, thin
from jaxrefine.report.record import read_run
from jaxrefine.report.rollout_pictures import rollout_pictures
from jaxrefine.report.rollouts import read_rollouts

STEPS = 400
EPISODES = 7  # of which the first four took the mean action
# of each episode, a step: episode 2 is best of the mean-action ones, 3 worst; 5 is better and was sampled
REWARDS = [1.0, 2.0, 4.0, -3.0, 0.0, 9.0, 0.0]


def steps_of(episode: int, reward: float, **columns: np.ndarray) -> pd.DataFrame:
    t = np.arange(STEPS)
    table = {"episode": episode, "t": t, "reward": reward, "action_steer": np.sin(t / 20), "action_mean_steer": 0.0}
    table |= {"latent_still": np.full(STEPS, 3.0), "latent_calm": 10 + np.cos(t / 30), "latent_wild": np.sin(t / 9)}
    return pd.DataFrame({**table, "weight_gain": 1.0, **columns}).astype({"episode": "int32", "t": "int32"})


def write_table(folder: Path, **columns: np.ndarray) -> None:
    rows = [steps_of(i, reward, **columns) for i, reward in enumerate(REWARDS)]
    pd.concat(rows).astype({"reward": "float32"}).to_parquet(folder / "rollouts.parquet")


def write_scene(folder: Path, **columns: np.ndarray) -> None:
    angle = np.linspace(0, 6, STEPS)
    circle = {"place_x": 30 * np.cos(angle), "place_y": 20 * np.sin(angle), "place_speed": np.linspace(0, 25, STEPS)}
    rows = [steps_of(i, REWARDS[i], **circle, **columns) for i in (2, 1, 3)]
    pd.concat(rows).to_parquet(folder / "scene.parquet")
    lines = {f"outline_{i}_left": np.stack([33 * np.cos(angle), 23 * np.sin(angle)], axis=1) for i in range(3)}
    np.savez(folder / "scene.npz", episodes=[2, 1, 3], values=[1600.0, 800.0, -1200.0], **lines)


def film_of(folder: Path, frames: int = 3) -> bytes:
    pictures = [Image.new("RGB", (32, 16), (80 * i, 0, 0)) for i in range(frames)]
    pictures[0].save(folder / "film.webp", save_all=True, append_images=pictures[1:])
    return (folder / "film.webp").read_bytes()


# --- reading


def test_best_median_and_worst_by_return_of_the_mean_action_episodes(tmp_path: Path) -> None:
    write_table(tmp_path)
    gaps: list[str] = []
    found = read_rollouts(tmp_path, gaps)
    assert found is not None
    assert not gaps
    assert [(driven.role, driven.episode) for driven in found.episodes] == [("best", 2), ("median", 0), ("worst", 3)]
    assert [driven.reward for driven in found.episodes] == [1600.0, 400.0, -1200.0]
    assert found.actions == ("action_steer",)
    assert found.latents == ("latent_wild", "latent_calm"), "those that vary most for their size; none that is still"
    assert not {"weight_gain", "action_mean_steer"} & set(found.episodes[0].table.columns), "nothing else is read"
    np.testing.assert_allclose(found.episodes[0].table["progress_return_so_far"], 4.0 * np.arange(1, STEPS + 1))


@pytest.mark.parametrize(("higher", "first"), [(True, "latent_calm"), (False, "latent_wild")])
def test_latents_come_in_the_order_of_what_holding_them_cost(tmp_path: Path, higher: bool, first: str) -> None:
    write_table(tmp_path)
    held = {
        "latent_wild": {"values": [5.0, 5.0]},
        "latent_calm": {"values": [1.0, 1.0]},
        "none": {"values": [4.0, 4.0]},
    }
    (tmp_path / "battery.json").write_text(json.dumps({"Each latent held at its mean, 2 mean-action episodes": held}))
    found = read_rollouts(tmp_path, [], higher)
    assert found is not None
    assert found.latents[0] == first
    assert found.by_loss


def test_the_handles_distance_from_its_target(tmp_path: Path) -> None:
    along = np.linspace(0.4, 0.0, STEPS)
    handle = {"obs_handle_x": along, "obs_handle_y": 0 * along + 0.3, "obs_handle_z": 0 * along}
    target = {"obs_target_x": 0 * along, "obs_target_y": 0 * along, "obs_target_z": 0 * along}
    write_table(tmp_path, **handle, **target)
    found = read_rollouts(tmp_path, [])
    assert found is not None
    assert found.progress == "progress_handle_distance"
    distance = found.episodes[0].table[found.progress]
    assert (distance.iloc[0], distance.iloc[-1]) == pytest.approx((0.5, 0.3))


# --- the page


def page_and_film(run: Path) -> tuple[Page, bytes]:
    film = film_of(run / "round_2")
    return page_of(run), film


def test_a_round_is_shown_by_film_from_above_and_over_time(finished_run: Path) -> None:
    for i in range(3):
        write_scene(finished_run / f"round_{i}")
    page, film = page_and_film(finished_run)
    assert page.has(
        "round-2", "How it drives: best, median, worst episodes", "best: episode 2, return 1,600.0, 400 steps"
    )
    assert page.has("round-2", "speed, m/s 0.25", "wild", "on the left those of round 0")  # round 1 was rejected
    sources = [attributes["src"] for tag, attributes in page.elements if tag == "img"]
    assert sources == ["data:image/webp;base64," + base64.b64encode(film).decode()]
    opened = [
        "open" in attributes
        for tag, attributes in page.elements
        if tag == "details" and attributes.get("class") == "rollouts"
    ]
    assert opened == [False, False, True], "the best round's alone"
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = {attributes["for"] for tag, attributes in page.elements if tag == "label"}
    assert labelled <= set(ids)
    assert len(labelled) == 3 * 3, "speed and two latents in each of three rounds"


def test_a_piece_of_a_path_has_the_shade_of_its_value(finished_run: Path) -> None:
    write_scene(finished_run / "round_2")
    page = page_of(finished_run)
    pieces = [a["class"] for tag, a in page.elements if tag == "path" and re.match(r"a\d", str(a.get("class", "")))]
    speeds = [int(re.match(r"a(\d+)", str(piece))[1]) for piece in pieces]  # type: ignore[index]
    third = len(speeds) // 3
    assert speeds[:third] == sorted(speeds[:third]), "speed only rises"
    assert set(speeds) == set(range(scenes.SHADES))
    rules = page.html[: page.html.index("</style>")]
    for piece in {name for names in pieces for name in str(names).split()}:
        assert f".by{scenes.LETTERS.index(piece[0])}:checked ~ .paths .{piece} " in rules.replace(",", " ")


# --- what a jailed process may leave


def damage(folder: Path, what: str) -> str:
    """Spoils one file; returns a part of the sentence that tells of it."""
    match what:
        case "html as a film":
            (folder / "film.webp").write_text("<script>alert(1)</script>")
            return "film.webp is neither WebP nor GIF"
        case "a huge film":
            (folder / "film.webp").write_bytes(film_of(folder) + bytes(scenes.MOST_FILM))
            return "more than a page should"
        case "a table that is none":
            (folder / "scene.parquet").write_bytes(b"PAR1 and no more")
            return "scene.parquet cannot be read"
        case "too many episodes":
            pd.concat([steps_of(i, 1.0) for i in range(5)]).to_parquet(folder / "scene.parquet")
            return "it holds 5 episodes"
        case "numbers that are words":
            steps_of(0, 1.0).assign(t="now").to_parquet(folder / "scene.parquet")
            return "scene.parquet cannot be read"
        case "too many steps":
            rows = len(rollouts.ROLES) * rollouts.MOST_STEPS + 1
            pd.concat([steps_of(0, 1.0)] * (rows // STEPS + 1)).to_parquet(folder / "scene.parquet")
            return "rows, more than a report reads"
        case "too many columns":
            many = {f"latent_{i}": np.zeros(STEPS) for i in range(rollouts.MOST_COLUMNS)}
            steps_of(0, 1.0, **many).to_parquet(folder / "scene.parquet")
            return "columns, more than a report reads"
        case "two columns of one name":
            table = pa.Table.from_pandas(steps_of(0, 1.0, value_return=np.zeros(STEPS)))
            pq.write_table(table.append_column("value_return", table["reward"]), folder / "scene.parquet")
            return "several columns named value_return"
        case "a pickle":
            np.savez(folder / "scene.npz", values=np.array([pickle.dumps(1), None], dtype=object))
            return "scene.npz cannot be read"
        case "a bomb":
            np.savez_compressed(folder / "scene.npz", values=np.zeros(archive.MOST_BYTES // 8 + 1))
            return "unpacks to more"
        case "cut":
            (folder / "scene.npz").write_bytes((folder / "scene.npz").read_bytes()[:100])
            return "scene.npz cannot be read"
    raise ValueError(what)


@pytest.mark.parametrize(
    "what",
    [
        "html as a film", "a huge film", "a table that is none", "too many episodes", "numbers that are words",
        "too many steps", "too many columns", "two columns of one name", "a pickle", "a bomb", "cut",
    ],
)  # fmt: skip
def test_what_is_no_picture_is_a_sentence(finished_run: Path, what: str) -> None:
    folder = finished_run / "round_2"
    write_scene(folder)
    said = damage(folder, what)
    found = rollout_pictures(read_run(finished_run))[2]
    assert said in " ".join(found.gaps)
    assert found.film is None


def test_entries_of_any_size_and_what_a_table_says_of_its_index_are_passed_over(tmp_path: Path) -> None:
    table = pa.Table.from_pandas(steps_of(0, 1.0).set_index("reward"))
    lists = pa.array([[1.0] * 50] * STEPS)
    pq.write_table(table.append_column("latent_lists", lists), tmp_path / "scene.parquet")
    gaps: list[str] = []
    found = read_rollouts(tmp_path, gaps)
    assert found is not None
    assert not gaps
    assert "latent_lists" not in found.episodes[0].table
    assert scenes.scene(tmp_path, found, gaps) is None, "it has no places"


@pytest.mark.parametrize("size", [1e308, 1e-320, np.inf, np.nan])
def test_places_of_no_size_that_fits_a_picture_have_none(tmp_path: Path, size: float) -> None:
    way = np.where(np.arange(STEPS) % 2, size, -size)
    write_scene(tmp_path)
    (tmp_path / "scene.npz").unlink()
    table = pd.read_parquet(tmp_path / "scene.parquet")
    table.assign(place_x=np.tile(way, 3), place_y=np.tile(way, 3)).to_parquet(tmp_path / "scene.parquet")
    gaps: list[str] = []
    found = read_rollouts(tmp_path, gaps)
    assert found is not None
    assert scenes.scene(tmp_path, found, gaps) is None
    assert not gaps


def test_names_are_text_and_strange_places_do_no_harm(finished_run: Path) -> None:
    folder = finished_run / "round_2"
    wild = np.where(np.arange(STEPS) % 7, np.inf, np.nan)
    names = {"latent_</svg><script>alert(1)</script>": np.arange(STEPS), "latent_gaps": wild * np.arange(STEPS)}
    write_scene(folder, **names, **{"place_</text><script>_x": wild, "place_</text><script>_y": wild})
    np.savez(
        folder / "scene.npz",
        outline_0_flat=np.zeros(3), outline_1_none=np.zeros((0, 2)), outline_2_wide=np.zeros((4, 9)),
        **{"outline_0_</text><script>": np.array([[1.0, 2.0]]), "outline_1_gap": np.full((3, 2), np.nan)},
    )  # fmt: skip
    page = page_of(finished_run)
    assert page.has("round-2", "From above", "</svg><script>alert(1)</script>")
    assert not any(tag == "script" for tag, _ in page.elements)
    assert not re.search(r"(nan|inf)", " ".join(str(a.get("d", "")) for _, a in page.elements))


# --- lines


@given(hnp.arrays(float, st.integers(1, 300), elements=st.floats(-1e6, 1e6) | st.just(np.nan)), st.integers(1, 40))
def test_a_thinned_line_keeps_its_extremes_and_their_order(values: np.ndarray, half: int) -> None:
    kept = thin(values, 2 * half)
    assert len(kept) <= max(2 * half, 1)
    assert (np.diff(kept) > 0).all()
    finite = values[np.isfinite(values)]
    if finite.size:
        assert np.nanmin(values[kept]) == finite.min()
        assert np.nanmax(values[kept]) == finite.max()


@given(st.integers(1, 500), st.integers(2, 50))
def test_spaced_points_keep_both_ends(n: int, points: int) -> None:
    kept = spaced(n, points)
    assert (kept[0], kept[-1]) == (0, n - 1)
    assert len(kept) <= points
    assert np.diff(kept).max(initial=0) <= 2 * max(1, n // points) + 1


def test_a_compact_figure_says_the_same_in_fewer_digits() -> None:
    figure = Markup('<svg>\n <path d="M 1.23456 2.0 \nL -0.04 10"/>\n <text x="3.14159">v1.2345 = 0.5</text></svg>')
    assert compact(figure) == '<svg><path d="M 1.2 2 L -0 10"/><text x="3.1">v1.2345 = 0.5</text></svg>'
