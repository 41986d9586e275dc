from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import bundled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import PROGRAM, SCHEMA

from envs.base import Column, Schema
from jaxrefine.policy.graph import SemanticGraph, semantic_graph
from jaxrefine.policy.graph_diff import diff
from jaxrefine.policy.program import PolicySpec, Program, load_program

ROWS, COLUMNS = 4, 3


def _column(name: str, key: str, *index: int) -> Column:
    return Column(name, "", "", -1.0, 1.0, key, index)


ROAD = Schema(
    observation=(
        *(_column(f"tile{i}_{'xyz'[j]}", "tiles", i, j) for i in range(ROWS) for j in range(COLUMNS)),
        *(_column(f"sensor{i}", "sensors", i) for i in range(3)),
    ),
    action=(_column("steer", "", 0), _column("gas", "", 1)),
)

ROAD_PROGRAM = """import jax
import jax.numpy as jnp
from flax import nnx


class RoadPolicy(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.gains = nnx.Param(jnp.array([0.5, -0.4]))
        self.width_raw = nnx.Param(jnp.array(0.3))
        self.noise = nnx.Param(jnp.array(-1.0))
        self.coupling = nnx.Param(jnp.array(0.1))
        self.idle = nnx.Param(jnp.array(0.0))

    def __call__(self, tiles, sensors):
        tiles = jnp.clip(jnp.nan_to_num(tiles), -2, 2)
        sensors = jnp.nan_to_num(sensors)
        speed = sensors[0]
        width = jax.nn.softplus(self.width_raw[...])
        errors = self.gains[0] * tiles[:, 0]
        total = jnp.sum(errors) / width
        is_fast = speed > 0.5
        given_total = jax.lax.stop_gradient(total)
        steer = total + self.gains[1] * tiles[0, 1]
        gas = jnp.where(is_fast, 0.0, 1.0) - jnp.abs(given_total)
        positive = jnp.maximum(sensors[1], 0)
        std = jax.nn.softplus(self.noise[...]) + 0.01 + positive
        scale_tril = jnp.diag(jnp.stack([std, std])).at[1, 0].set(self.coupling[...])
        info = {
            "weight_error_gain": self.gains[0],
            "weight_side_gain": self.gains[1],
            "weight_width": width,
            "weight_noise": self.noise[...],
            "weight_coupling": self.coupling[...],
            "weight_idle": self.idle[...],
            "latent_speed": speed,
            "latent_first_error": errors[0],
            "latent_last_error": errors[-1],
            "latent_total": total,
            "latent_sum": total,
            "latent_is_fast": is_fast,
            "latent_given_total": given_total,
            "latent_positive": positive,
            "latent_gain_copy": self.gains[0],
            "latent_tiles": jnp.arange(tiles.shape[0])[2],
            "latent_forgotten": tiles[3, 2] * speed,
            "latent_std": std,
        }
        return jnp.stack([steer, gas]), scale_tril, info
"""


def road(source: str = ROAD_PROGRAM) -> SemanticGraph:
    spec = PolicySpec("RoadPolicy", tuple(ROAD.observation_shapes.items()), 2)
    return semantic_graph(load_program(source, spec), ROAD)


def test_the_block_policys_whole_graph() -> None:
    graph = semantic_graph(load_program(PROGRAM, PolicySpec("BlockPolicy", (("block", (2,)),), 1)), SCHEMA)
    pull = graph.latents["latent_pull"]
    assert set(pull.inputs) == {"position", "weight_stiffness"}
    assert (pull.dependents, pull.means, pull.spreads) == (("action_mean_force",), ("action_mean_force",), ())
    assert set(graph.actions["action_mean_force"].inputs) == {"latent_pull", "latent_brake"}
    assert graph.actions["action_spread_force"].inputs == ("weight_noise",)
    assert graph.actions["action_mean_force"].observations == ("position", "velocity")
    assert [node.operation for node in graph.nodes if node.kind == "latent"] == ["mul", "mul"]
    # clip(pull + brake): nothing else is left of nan_to_num and of inner functions
    plain = [node.operation for node in graph.nodes if node.kind == "operation"]
    assert plain[:3] == ["add", "max", "min"]


def test_copies_constants_flags_and_what_is_unused_are_told_apart() -> None:
    graph = road()
    latents = graph.latents
    copies = {name: found.inputs for name, found in latents.items() if found.role == "copy"}
    assert copies == {
        "latent_speed": ("sensor0",),
        "latent_gain_copy": ("weight_error_gain",),
        "latent_given_total": ("latent_sum", "latent_total"),
    }
    assert [name for name, found in latents.items() if found.role == "constant"] == ["latent_tiles"]
    assert latents["latent_total"].same_as == ("latent_sum",)
    assert graph.unused_latents == ("latent_forgotten", "latent_tiles")
    assert graph.unused_weights == ("weight_idle",)
    assert set(graph.unused_columns) == {c.name for c in ROAD.observation} - {
        *(f"tile{i}_x" for i in range(ROWS)), "tile0_y", "sensor0", "sensor1"
    }  # fmt: skip
    # the flag itself, which the gas is chosen by, and not the number that only the report makes of it
    assert latents["latent_is_fast"].means == ("action_mean_gas",)
    assert set(latents["latent_is_fast"].inputs) == {"sensor0", "latent_speed"}
    # a rectified input is not the input
    assert latents["latent_positive"].role == "intermediate"
    assert latents["latent_positive"].spreads == ("action_spread_steer", "action_spread_gas")


def test_an_element_of_an_array_is_followed_through_it() -> None:
    latents = road().latents
    first = latents["latent_first_error"]
    assert first.observations == ("tile0_x",)
    assert set(first.dependents) == {"latent_sum", "latent_total"}
    assert first.means == ("action_mean_steer", "action_mean_gas")
    assert latents["latent_last_error"].observations == ("tile3_x",)
    assert latents["latent_total"].observations == tuple(f"tile{i}_x" for i in range(ROWS))


def test_spreads_are_the_entries_that_are_not_zero_whatever_happens() -> None:
    graph = road()
    spreads = {name: found.inputs for name, found in graph.actions.items() if "spread" in name}
    assert spreads == {
        "action_spread_steer": ("latent_std",),
        "action_spread_gas_steer": ("weight_coupling",),
        "action_spread_gas": ("latent_std",),
    }


def test_a_weight_reported_behind_an_operation_is_found_and_so_is_its_parameter() -> None:
    width = road().weights["weight_width"]
    assert width.inputs == ("width_raw",)
    assert set(road().latents["latent_total"].weights) == {"weight_error_gain", "weight_width", "width_raw"}
    assert "width_raw" not in road().latents["latent_total"].inputs


MOVES: dict[str, Callable] = {
    "flip": lambda t, s: jnp.flip(t[:, 0])[0],
    "roll": lambda t, s: jnp.roll(t, 1, axis=0)[0, 2],
    "negative index": lambda t, s: t[-1, -1],
    "strided slice": lambda t, s: t[::2, 1][1],
    "concatenate": lambda t, s: jnp.concatenate([t[:, 0], s])[5],
    "stack": lambda t, s: jnp.stack([t[:, 0], t[:, 1]])[1, 2],
    "transpose": lambda t, s: (t.T)[2, 1],
    "reshape": lambda t, s: t.reshape(6, 2)[3, 1],
    "tile": lambda t, s: jnp.tile(s, 3)[4],
    "repeat": lambda t, s: jnp.repeat(s, 2)[3],
    "split": lambda t, s: jnp.split(t, 2)[1][0, 0],
    "pad": lambda t, s: jnp.pad(s, 2)[3],
    "take": lambda t, s: jnp.take(t, jnp.array([3, 1]), axis=0)[1, 2],
    "array index": lambda t, s: t[jnp.array([2, 0]), 1][0],
    "dynamic slice": lambda t, s: jax.lax.dynamic_slice_in_dim(s, 1, 2)[1],
    "set": lambda t, s: s.at[0].set(t[2, 2])[0],
    "set beside": lambda t, s: s.at[0].set(t[2, 2])[1],
    "diag": lambda t, s: jnp.diag(s)[1, 1],
    "known choice": lambda t, s: jnp.where(jnp.arange(3) > 1, s, t[0])[2],
    "tril": lambda t, s: jnp.tril(jnp.outer(s, s))[0, 0],
    "times a mask": lambda t, s: jnp.sum(s * jnp.array([0.0, 1.0, 0.0])),
    "matrix product": lambda t, s: (t @ s)[2],
    "identity": lambda t, s: (jnp.eye(3) @ s)[1],
    "batched product": lambda t, s: jnp.einsum("ij,ij->i", t, t)[1],
    "row sum": lambda t, s: jnp.sum(t, axis=1)[3],
    "mean of columns": lambda t, s: jnp.mean(t, axis=0)[0],
    "cumulative sum": lambda t, s: jnp.cumsum(t[:, 0])[1],
    "cumulative sum of columns": lambda t, s: jnp.cumsum(t, axis=1)[2, 1],
    "reverse cumulative sum": lambda t, s: jax.lax.cumsum(t, axis=0, reverse=True)[2, 1],
    "difference": lambda t, s: jnp.diff(t[:, 1])[2],
    "norm": lambda t, s: jnp.linalg.norm(t[1]),
    "vmap": lambda t, s: jax.vmap(lambda row: row[0] * row[2])(t)[3],
    "softmax": lambda t, s: jax.nn.softmax(s)[0],
    "logsumexp": lambda t, s: jax.nn.logsumexp(t[2]),
    "polynomial": lambda t, s: jnp.polyval(s, t[0, 0]),
    "inner jit": lambda t, s: jax.nn.gelu(t[0, 1]) + jax.nn.softplus(s[2]),
}
MAY_BE_WIDER: dict[str, Callable] = {
    "sort": lambda t, s: jnp.sort(t, axis=0)[0, 1],
    "maximum": lambda t, s: jnp.max(t[:, 2]),
    "median": lambda t, s: jnp.median(t[:, 0]),
    "choice": lambda t, s: jnp.where(s[0] > 0, s[1], t[0, 0]),
    "index by value": lambda t, s: t[jnp.argmin(t[:, 0]), 1],
    "cond": lambda t, s: jax.lax.cond(s[0] > 0, jnp.sin, jnp.cos, t[1, 1]),
    "add at": lambda t, s: s.at[0].add(t[0, 0])[0],
    "interpolation": lambda t, s: jnp.interp(s[0], jnp.arange(4.0), t[:, 1]),
    "inverse": lambda t, s: jnp.linalg.inv(jnp.eye(3) + 0.1 * t[:3])[0, 1],
}


def dependence_of(function: Callable) -> tuple[set[str], set[str]]:
    """The columns that a function depends on: as its graph says, and as derivatives and changes at random points do."""

    def apply(params, observation):
        value = params["gain"] * function(observation["tiles"], observation["sensors"])
        return jnp.stack([value, value]), jnp.eye(2), {"latent_value": value, "weight_gain": params["gain"]}

    program = Program("", {"gain": jnp.array(1.3)}, apply, ("latent_value", "weight_gain"))
    claimed = set(semantic_graph(program, ROAD).latents["latent_value"].observations)
    rng = np.random.default_rng(0)

    @bundled.quick_jit
    @jax.vmap
    def value(flat):
        return function(flat[:12].reshape(ROWS, COLUMNS), flat[12:])

    points = rng.normal(size=(50, 15)).astype(np.float32)
    moved = points[:, None] + np.eye(15, dtype=np.float32) * rng.normal(size=(50, 1, 1)).astype(np.float32)
    both = value(np.concatenate([points, moved.reshape(-1, 15)]))
    changes = np.asarray(both[50:]).reshape(50, 15) != np.asarray(both[:50])[:, None]
    return claimed, {c.name for c, changed in zip(ROAD.observation, changes.any(0), strict=True) if changed}


@pytest.mark.parametrize("name", MOVES)
def test_what_only_moves_or_combines_elements_is_followed_exactly(name: str) -> None:
    claimed, found = dependence_of(MOVES[name])
    assert claimed == found


@pytest.mark.parametrize("name", MAY_BE_WIDER)
def test_nothing_that_matters_is_missed_where_values_decide(name: str) -> None:
    claimed, found = dependence_of(MAY_BE_WIDER[name])
    assert found
    assert found <= claimed


@pytest.mark.parametrize("name", bundled.SAMPLE)
def test_bundled_programs_have_a_graph_with_every_reported_name(name: str) -> None:
    task, program, graph = bundled.load(name)
    assert tuple(graph.latents) == program.latents
    assert tuple(graph.weights) == program.weights
    assert {f"action_mean_{column.name}" for column in task.schema.action} <= set(graph.actions)
    plain = ("copy", "constant")
    assert all(found.role in plain or found.inputs for found in graph.latents.values() if found.used)
    assert all(source < i for i, node in enumerate(graph.nodes) for source in node.inputs)
    written = json.dumps(graph.to_json(), allow_nan=False)
    again = SemanticGraph.from_json(json.loads(written))
    assert again == graph
    assert json.dumps(again.to_json()) == written
    assert len(graph.describe(5_000)) <= 5_000
    assert "latent_steer" in graph.describe() or task.name != "car_racing"


@partial(bundled.quick_jit, static_argnums=0)
def _everything(apply, params, observations):
    mean, scale, info = jax.vmap(apply)(params, observations)
    rows, across = np.tril_indices(mean.shape[-1])
    return {"mean": mean, "scale": scale[:, rows, across], **info}


@pytest.mark.parametrize("name", bundled.SAMPLE)
def test_bundled_programs_depend_on_what_changes_them_and_mostly_on_all_of_that(name: str) -> None:
    """Finite differences of every latent and action by every column and every parameter."""
    task, program, graph = bundled.load(name)
    rng, points, columns = np.random.default_rng(0), 24, task.schema.observation
    seen = task.schema.flatten(task.demonstration.observations)
    base = np.concatenate(
        [seen[rng.integers(len(seen), size=points // 2)], rng.normal(size=(points // 2, len(columns)))]
    )
    initial = {key: np.asarray(value) for key, value in program.initial.items()}
    sizes = [value.size for value in initial.values()]
    flat = np.concatenate([value.ravel() for value in initial.values()])
    shifts = [np.zeros((1, len(columns) + len(flat))), 0.3 * np.eye(len(columns) + len(flat))]
    shift = np.concatenate(shifts)[None] * rng.choice([-1.0, 1.0], size=(points, 1, 1))
    observed = (base[:, None] + shift[..., : len(columns)]).reshape(-1, len(columns)).astype(np.float32)
    numbers = np.split((flat + shift[..., len(columns) :]).reshape(-1, len(flat)), np.cumsum(sizes)[:-1], axis=-1)
    params = {
        key: part.reshape(-1, *value.shape).astype(np.float32)
        for (key, value), part in zip(initial.items(), numbers, strict=True)
    }
    found = _everything(program.apply, params, task.schema.unflatten(observed))

    def changed(values) -> np.ndarray:
        """Whether each column and parameter changes it at any point."""
        table = np.asarray(values).reshape(points, -1)
        return (table[:, 1:] != table[:, :1]).any(0)

    weights = {key: changed(found[key])[len(columns) :] for key in program.weights}
    claims, holds = 0, 0
    actions = dict(zip((f"action_mean_{c.name}" for c in task.schema.action), found["mean"].T, strict=True))
    for key, values in ({key: found[key] for key in program.latents} | actions).items():
        claimed = graph.actions[key] if key in actions else graph.latents[key]
        by = changed(values)
        observations = {c.name for c, moves in zip(columns, by[: len(columns)], strict=True) if moves}
        assert observations <= set(claimed.observations), key
        by_weight = {other for other, moved in weights.items() if (moved & by[len(columns) :]).any()}
        assert by_weight <= set(claimed.weights), key
        claims += len(claimed.observations) + len(claimed.weights)
        holds += len(observations) + len(by_weight)
    # a branch that none of the points enters depends on its inputs all the same
    assert holds > 0.75 * claims


def test_the_difference_between_two_rounds_is_told_by_names() -> None:
    before = road()
    changed = (
        ROAD_PROGRAM.replace(
            "steer = total + ", "offset = tiles[0, 2] * self.idle[...]\n        steer = total + offset + "
        )
        .replace('"latent_forgotten": tiles[3, 2] * speed', '"latent_offset": offset')
        .replace('"weight_noise"', '"weight_noise_raw"')
    )
    found = diff(before, road(changed))
    assert (found.latents.added, found.latents.removed) == (("latent_offset",), ("latent_forgotten",))
    assert (found.weights.added, found.weights.removed) == (("weight_noise_raw",), ("weight_noise",))
    assert set(found.actions.rewired) == {"action_mean_steer"}
    assert found.actions.rewired["action_mean_steer"].inputs_added == ("latent_offset",)
    assert found.weights.rewired["weight_idle"].dependents_added == ("latent_offset",)
    assert found.latents.rewired["latent_std"].inputs_removed == ("weight_noise",)
    assert "latent_total" in found.latents.unchanged
    assert (found.columns_added, found.columns_removed) == (("tile0_z",), ())
    text = found.describe()
    assert "action_mean_steer: now from latent_offset." in text
    assert len(found.describe(120)) <= 120
    assert json.loads(json.dumps(found.to_json()))["latents"]["added"] == ["latent_offset"]


def test_a_graph_differs_in_nothing_from_itself() -> None:
    found = diff(road(), road())
    for changes in (found.latents, found.weights, found.actions):
        assert changes.unchanged
        assert (changes.added, changes.removed, changes.rewired) == ((), (), {})


def test_the_text_tells_the_road_policys_oddities() -> None:
    text = road().describe()
    assert "Latents that no action depends on: latent_forgotten, latent_tiles." in text
    assert "Weights that no action depends on: weight_idle." in text
    assert "latent_speed: a copy of sensor0" in text
    assert "tile*_x (4)" in text
