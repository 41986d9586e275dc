from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import bundled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bundled import quick_jit
from test_policy_graph import ROAD, ROAD_PROGRAM
from toy import PROGRAM, SCHEMA, STEPS, Block

from envs.base import Schema
from jaxrefine.learn.ablation import ablate
from jaxrefine.learn.evaluate import Measure, evaluate
from jaxrefine.learn.rollout import key_per_episode
from jaxrefine.policy.ablation import hold
from jaxrefine.policy.graph import SemanticGraph, semantic_graph
from jaxrefine.policy.program import PolicySpec, Program, load_program

CURVES = """import jax
import jax.numpy as jnp
from flax import nnx


class RoadPolicy(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.shape = nnx.Param(jnp.array([0.5, -0.4, 0.2, 0.9]))
        self.noise = nnx.Param(jnp.array(-1.0))

    def __call__(self, tiles, sensors):
        tiles = jnp.nan_to_num(tiles)
        speed = jnp.clip(sensors[0], -0.5, 0.5)
        path = jnp.cumsum(self.shape[...] * tiles[:, 1])
        reach = jnp.linalg.norm(tiles[0])
        bend = jnp.where(path > 0, path, jnp.sin(path))
        weights = jax.nn.softmax(bend)
        aim = jnp.sum(weights * tiles[:, 0])
        std = jax.nn.softplus(self.noise[...] + speed)
        info = {
            "weight_first": self.shape[0],
            "latent_speed": speed,
            "latent_path_1": path[1],
            "latent_reach": reach,
            "latent_bend_2": bend[2],
            "latent_weight_3": weights[3],
            "latent_aim": aim,
            "latent_std": std,
        }
        return jnp.stack([aim, jnp.clip(reach - speed, 0, 1)]), jnp.eye(2) * std, info
"""
# latent -> (what stands in the source, what stands there while the latent is held)
BLOCK_LINES = {
    "latent_pull": ("pull = self.stiffness[...] * block[0]", "pull = VALUE"),
    "latent_brake": ("brake = self.damping[...] * block[1]", "brake = VALUE"),
}
ROAD_LINES = {
    "latent_speed": ("speed = sensors[0]", "speed = VALUE"),
    "latent_first_error": ("tiles[:, 0]\n", "tiles[:, 0]\n        errors = errors.at[0].set(VALUE)\n"),
    "latent_last_error": ("tiles[:, 0]\n", "tiles[:, 0]\n        errors = errors.at[3].set(VALUE)\n"),
    "latent_total": ("total = jnp.sum(errors) / width", "total = jnp.array(VALUE)"),
    "latent_is_fast": ("is_fast = speed > 0.5", "is_fast = jnp.array(VALUE >= 0.5)"),
    "latent_given_total": ("given_total = jax.lax.stop_gradient(total)", "given_total = VALUE"),
    "latent_positive": ("positive = jnp.maximum(sensors[1], 0)", "positive = VALUE"),
    "latent_std": ("std = jax.nn.softplus(self.noise[...]) + 0.01 + positive", "std = jnp.array(VALUE)"),
    "latent_forgotten": ("tiles[3, 2] * speed", "VALUE"),
}
CURVE_LINES = {
    "latent_speed": ("speed = jnp.clip(sensors[0], -0.5, 0.5)", "speed = VALUE"),
    "latent_path_1": ("tiles[:, 1])\n", "tiles[:, 1])\n        path = path.at[1].set(VALUE)\n"),
    "latent_reach": ("reach = jnp.linalg.norm(tiles[0])", "reach = VALUE"),
    "latent_bend_2": ("jnp.sin(path))\n", "jnp.sin(path))\n        bend = bend.at[2].set(VALUE)\n"),
    "latent_weight_3": ("softmax(bend)\n", "softmax(bend)\n        weights = weights.at[3].set(VALUE)\n"),
    "latent_aim": ("aim = jnp.sum(weights * tiles[:, 0])", "aim = jnp.array(VALUE)"),
    "latent_std": ("std = jax.nn.softplus(self.noise[...] + speed)", "std = jnp.array(VALUE)"),
}
CASES = [
    (source, schema, latent, *lines)
    for source, schema, every in (
        (PROGRAM, SCHEMA, BLOCK_LINES),
        (ROAD_PROGRAM, ROAD, ROAD_LINES),
        (CURVES, ROAD, CURVE_LINES),
    )
    for latent, lines in every.items()
]


@cache
def load(source: str, schema: Schema) -> tuple[Program, SemanticGraph]:
    name = "BlockPolicy" if schema is SCHEMA else "RoadPolicy"
    program = load_program(source, PolicySpec(name, tuple(schema.observation_shapes.items()), schema.action_size))
    return program, semantic_graph(program, schema)


@cache
def held_over_rows(source: str, schema: Schema) -> Callable:
    return quick_jit(jax.vmap(hold(*load(source, schema)), (None, 0, None, None)))


def observations(schema: Schema, rows: int = 16) -> dict[str, jax.Array]:
    flat = np.random.default_rng(1).normal(size=(rows, len(schema.observation))).astype(np.float32)
    return jax.tree.map(jnp.asarray, schema.unflatten(flat))


@pytest.mark.parametrize("value", [0.0, 0.7])
@pytest.mark.parametrize(("source", "schema", "latent", "line", "held_line"), CASES)
def test_holding_a_latent_is_writing_the_number_into_the_source(
    source: str, schema: Schema, latent: str, line: str, held_line: str, value: float
) -> None:
    program, graph = load(source, schema)
    assert source.count(line) == 1
    edited, _ = load(source.replace(line, held_line.replace("VALUE", repr(value))), schema)
    which = jnp.asarray(list(graph.latents).index(latent))
    batch = observations(schema)
    over = held_over_rows(source, schema)
    held = over(program.initial, batch, which, jnp.asarray(value))
    expected = quick_jit(jax.vmap(edited.apply, (None, 0)))(program.initial, batch)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), held, expected)
    as_it_is = over(program.initial, batch, jnp.asarray(-1), jnp.asarray(value))
    moved = not np.array_equal(held[0], as_it_is[0]) or not np.array_equal(held[1], as_it_is[1])
    assert moved == graph.latents[latent].used


def test_names_of_one_number_are_held_together() -> None:
    program, graph = load(ROAD_PROGRAM, ROAD)
    names = list(graph.latents)
    by_total, by_sum = (
        held_over_rows(ROAD_PROGRAM, ROAD)(
            program.initial, observations(ROAD), jnp.asarray(names.index(name)), jnp.asarray(0.2)
        )
        for name in ("latent_total", "latent_sum")
    )
    jax.tree.map(np.testing.assert_array_equal, by_total, by_sum)
    np.testing.assert_allclose(by_sum[2]["latent_given_total"], 0.2, rtol=1e-6)


@pytest.mark.parametrize("name", bundled.FINAL)
def test_holding_nothing_is_the_bundled_program_itself(name: str) -> None:
    task, program, graph = bundled.load(name)
    one = {key: jnp.asarray(value[17]) for key, value in task.demonstration.observations.items()}
    with jax.disable_jit():  # number by number, so that no fusion rounds differently
        expected = program.apply(program.initial, one)
        found = hold(program, graph)(program.initial, one, jnp.asarray(-1), jnp.asarray(3.0))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("name", bundled.FINAL)
def test_holding_a_bundled_latent_moves_what_the_graph_says(name: str) -> None:
    task, program, graph = bundled.load(name)
    seen = task.schema.flatten(task.demonstration.observations)
    batch = task.schema.unflatten(seen[:: len(seen) // 8].astype(np.float32))
    rows = jnp.arange(-1, len(graph.latents))
    over = quick_jit(jax.vmap(jax.vmap(hold(program, graph), (None, 0, None, None)), (None, None, 0, None)))
    mean, scale, info = over(program.initial, batch, rows, jnp.asarray(0.37))
    every = {f"action_mean_{c.name}": np.asarray(mean[..., i]) for i, c in enumerate(task.schema.action)}
    every |= {f"action_spread_{c.name}": np.asarray(scale[..., i, i]) for i, c in enumerate(task.schema.action)}
    every |= {key: np.asarray(info[key]) for key in program.latents}
    own = 0
    for row, (latent, found) in enumerate(graph.latents.items(), start=1):
        if found.role == "constant":  # a number that other formulas may share; the ablation holds none of these
            own += 1
            continue
        downstream = {*found.means, *found.spreads, latent, *found.same_as}
        downstream |= {key for key, other in graph.latents.items() if latent in other.latents}
        moved = {key for key, values in every.items() if not np.array_equal(values[row], values[0])}
        assert moved <= downstream, latent
        own += bool(np.allclose(every[latent][row], 0.37))
    assert own > 0.95 * len(graph.latents)  # a flag is held at one or zero


PARAMS = Block().params_for_seeds(range(6))
KEYS = key_per_episode(jax.random.key(0), 6)
MEASURES = (Measure(), Measure("distance", "min"))


def test_episodes_with_a_latent_held_are_those_of_the_edited_program() -> None:
    program, graph = load(PROGRAM, SCHEMA)
    env, held = Block(), hold(program, graph)
    which, value = jnp.arange(-1, 2), jnp.array([9.0, 0.0, 0.4])
    run = partial(ablate, env, held, PARAMS, program.initial, index=jnp.arange(6), keys=KEYS)
    found = run(which, value, measures=MEASURES, steps=STEPS)
    assert found.values[0].shape == (3, 6)

    def plain(policy: Program) -> tuple[jax.Array, ...]:
        params = {key: leaf[None] for key, leaf in program.initial.items()}
        return evaluate(
            env, policy.apply, PARAMS, params, jnp.arange(6), KEYS, measures=MEASURES, steps=STEPS, sampled=False
        ).values

    without = load(PROGRAM.replace(BLOCK_LINES["latent_brake"][0], "brake = 0.0"), SCHEMA)[0]
    pulled = load(PROGRAM.replace(BLOCK_LINES["latent_pull"][0], "pull = 0.4"), SCHEMA)[0]
    for row, policy in enumerate((program, without, pulled)):
        for measured, expected in zip(found.values, plain(policy), strict=True):
            np.testing.assert_allclose(measured[row], expected[0], rtol=1e-5, atol=1e-6)
    assert not np.allclose(found.values[0][0], found.values[0][1])
    compiled = evaluate._cache_size()
    other = run(which, value + 1, measures=MEASURES, steps=STEPS)
    again = ablate(
        env, held, PARAMS, program.initial, which, value + 1, jnp.arange(6), KEYS, measures=MEASURES, steps=STEPS
    )
    assert evaluate._cache_size() == compiled
    np.testing.assert_array_equal(other.values[0], again.values[0])
    np.testing.assert_array_equal(other.values[0][0], found.values[0][0])
    assert not np.allclose(other.values[0][1], found.values[0][1])
