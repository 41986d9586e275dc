"""What a loaded program is tried on."""

from __future__ import annotations

import time

import jax
import numpy as np
import pytest
from toy import PROGRAM

from jaxrefine.policy import checks
from jaxrefine.policy.checks import check_program
from jaxrefine.policy.program import PolicySpec, load_program
from jaxrefine.policy.source import ProgramError

SPEC = PolicySpec("BlockPolicy", (("block", (2,)),), 1)
DEMONSTRATED = {"block": np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)}
LOW, HIGH = {"block": np.array([-2.0, -2.0])}, {"block": np.array([2.0, 2.0])}
NAN = "block = jnp.nan_to_num(block)"


def edited(*pairs: tuple[str, str]) -> str:
    source = PROGRAM
    for old, new in pairs:
        assert old in source
        source = source.replace(old, new)
    return source


def check(source: str, spec: PolicySpec = SPEC, demonstrated: dict[str, np.ndarray] = DEMONSTRATED) -> None:
    check_program(load_program(source, spec), spec, demonstrated, LOW, HIGH)


def refused(source: str, says: str, demonstrated: dict[str, np.ndarray] = DEMONSTRATED) -> None:
    with pytest.raises(ProgramError) as caught:
        check(source, demonstrated=demonstrated)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["1e9", "-1e9", "1e-9", "3e4"])
def test_parameters_of_any_size_count_as_reported(value: str) -> None:
    check(
        edited(
            ("        self.noise = ", f"        self.big = nnx.Param({value})\n        self.noise = "),
            ("pull = self", "pull = 1e-9 * self.big[...] * block[0] + self"),
            ('"weight_noise"', '"weight_big": self.big[...], "weight_noise"'),
        )
    )


def test_a_weight_behind_a_clip_is_reported() -> None:
    check(edited(('"weight_damping": self.damping[...]', '"weight_damping": jnp.maximum(self.damping[...], 0)')))


def test_a_vector_is_reported_element_by_element() -> None:
    vector = edited(
        ("self.noise = nnx.Param(jnp.array(-1.0))", "self.noise = nnx.Param(jnp.array([-1.0, -1.0, -1.0]))"),
        ("self.noise[...]) + 0.01", "self.noise[...].sum()) + 0.01"),
        ('"weight_noise": self.noise[...]', '"weight_noise0": self.noise[0], "weight_noise2": self.noise[2]'),
    )
    refused(vector, "`noise` is not reported: 1 of its 3 elements are")


def test_many_parameters_are_nudged_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_NUDGED", 20)
    check(PROGRAM)
    refused(edited(('"weight_damping": self.damping[...],', "")), "`damping` is not reported")


@pytest.mark.parametrize(
    "weight",
    [
        "self.noise[...] + block[1]",
        "self.noise[...] * (block[0] < 1.9)",
        "jnp.where(block[1] > 50, 0.0, self.noise[...])",
    ],
)
def test_a_weight_does_not_depend_on_the_observation(weight: str) -> None:
    refused(edited(('"weight_noise": self.noise[...]', f'"weight_noise": {weight}')), "`weight_noise` changes with")


def test_a_weight_that_is_nan_where_the_observation_is() -> None:
    source = edited(
        (NAN, f"raw = block\n        {NAN}"),
        ('"weight_noise": self.noise[...]', '"weight_noise": self.noise[...] + 0 * raw[1]'),
    )
    refused(source, "`weight_noise` changes with the observation (on observations whose `block` is NaN)")


@pytest.mark.parametrize("column", [0, 1])
def test_one_column_alone_may_be_missing(column: int) -> None:
    # finite where all or none is NaN
    source = edited(
        (NAN, f"gone = jnp.isnan(block); {NAN}"),
        ("force = jnp.clip(", f"force = jnp.where(gone[{column}] & ~gone[{1 - column}], jnp.inf, 1) * jnp.clip("),
    )
    refused(source, f"`mean` is not finite on observations whose `block[{column}]` alone is NaN")


def test_more_columns_than_rows_of_a_batch() -> None:
    spec = PolicySpec("BlockPolicy", (("block", (30, 5)),), 1)
    source = edited((NAN, "last = jnp.isnan(block); block = jnp.nan_to_num(block).mean(axis=1)"))
    low, high = {"block": np.full((30, 5), -2.0)}, {"block": np.full((30, 5), 2.0)}
    demonstrated = {"block": np.random.default_rng(0).normal(size=(20, 30, 5)).astype(np.float32)}
    check_program(load_program(source, spec), spec, demonstrated, low, high)
    source = source.replace("force = ", "force = jnp.where(last[29, 4] & ~last[0, 0], jnp.inf, 1) * ")
    with pytest.raises(ProgramError, match=r"`block\[29, 4\]` alone is NaN"):
        check_program(load_program(source, spec), spec, demonstrated, low, high)


@pytest.mark.parametrize(
    ("kink", "says"),
    [
        ("0.01 * jnp.sqrt(jnp.abs(block[0] - 7.0) * self.noise[...] ** 2)", "gradient with respect to"),
        ("0.01 / (block[0] - 7.0)", "`mean` is not finite on observations of the demonstration"),
    ],
)
def test_every_row_of_the_demonstration_is_tried(kink: str, says: str) -> None:
    demonstrated = {"block": DEMONSTRATED["block"].copy()}
    sampled = set(np.linspace(0, 299, 128).astype(int).tolist())
    row = next(i for i in range(200, 300) if i not in sampled)
    source = edited(("pull = self", f"pull = {kink} + self"), ("jnp.clip(pull + brake, -1, 1)", "pull + brake"))
    check(source)
    demonstrated["block"][row, 0] = 7.0
    refused(source, says, demonstrated)


def test_one_compilation_of_the_program_and_one_of_its_gradient() -> None:
    counts = {"forward": checks._forward._cache_size(), "gradient": checks._surrogate_gradient._cache_size()}
    check(PROGRAM)
    assert checks._forward._cache_size() - counts["forward"] == 1
    assert checks._surrogate_gradient._cache_size() - counts["gradient"] == 1


def test_a_demonstration_of_one_row() -> None:
    check(PROGRAM, demonstrated={"block": DEMONSTRATED["block"][:1]})


def test_failures_while_it_is_tried_are_paragraphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\n\nmore")

    monkeypatch.setattr(checks, "_forward", broken)
    refused(PROGRAM, "While trying the program: JaxRuntimeError: RESOURCE_EXHAUSTED: out of memory")


def test_trying_it_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    program = load_program(PROGRAM, SPEC)
    monkeypatch.setattr(checks, "_check_gradients", lambda *args: time.sleep(20))
    monkeypatch.setattr(checks, "_check_outputs", lambda *args: None)
    with pytest.raises(ProgramError, match=r"more than 1 s while it was tried out"):
        check_program(program, SPEC, DEMONSTRATED, LOW, HIGH, seconds=1.0)
