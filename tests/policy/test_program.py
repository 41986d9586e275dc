from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import PROGRAM, expert

from jaxrefine.policy.checks import check_program
from jaxrefine.policy.program import PolicySpec, load_program
from jaxrefine.policy.source import ProgramError, restricted_builtins

SPEC = PolicySpec("BlockPolicy", (("block", (2,)),), 1)
RNG = np.random.default_rng(0)
DEMONSTRATED = {"block": RNG.normal(size=(50, 2)).astype(np.float32)}
LOW, HIGH = {"block": np.array([-2.0, -2.0])}, {"block": np.array([2.0, 2.0])}


def check(source: str) -> None:
    check_program(load_program(source, SPEC), SPEC, DEMONSTRATED, LOW, HIGH)


def edited(old: str, new: str) -> str:
    assert old in PROGRAM
    return PROGRAM.replace(old, new)


def test_a_good_program_passes_and_computes_what_it_says() -> None:
    check(PROGRAM)
    program = load_program(PROGRAM, SPEC)
    assert program.size == 3
    assert program.weights == ("weight_damping", "weight_noise", "weight_stiffness")
    assert program.latents == ("latent_brake", "latent_pull")
    params = {"stiffness": jnp.array(-0.5), "damping": jnp.array(-1.0), "noise": jnp.array(0.0)}
    mean, scale, info = program.apply(params, {"block": jnp.array([0.8, 0.1])})
    np.testing.assert_allclose(mean, expert(np.array([[0.8, 0.1]])), rtol=1e-6)
    np.testing.assert_allclose(scale, [[np.log(2) + 0.01]], rtol=1e-6)
    assert info["latent_pull"] == pytest.approx(-0.4)


def test_parameters_start_where_the_program_says_in_a_strong_dtype() -> None:
    program = load_program(PROGRAM, SPEC)
    assert {k: float(v) for k, v in program.initial.items()} == pytest.approx(
        {"stiffness": -0.3, "damping": -0.3, "noise": -1.0}
    )
    assert all(v.dtype == jnp.float32 and not v.weak_type for v in program.initial.values())


def test_every_kind_of_assignment_in_a_method_is_kept_as_it_is_written() -> None:
    source = edited(
        "force = jnp.clip",
        "names = {}\n        names['pull'] = pull\n        for i in range(2):\n"
        "            names[f'part{i}'] = block[i]\n        total, (first, *rest) = pull + brake, [pull, brake]\n"
        "        total += 0\n        force = jnp.clip",
    ).replace('"latent_pull": pull,', '"latent_pull": names["pull"], "latent_first": first,')
    check(source)


def test_nested_modules_and_vectors_are_parameters_by_path() -> None:
    source = edited(
        "class BlockPolicy",
        "class Gains(nnx.Module):\n    def __init__(self, *, rngs):\n"
        "        self.both = nnx.Param(jnp.array([-0.5, -1.0]))\n\n\nclass BlockPolicy",
    ).replace("self.stiffness = nnx.Param(jnp.array(-0.3))", "self.gains = Gains(rngs=rngs)")
    source = source.replace("        self.damping = nnx.Param(jnp.array(-0.3))\n", "")
    source = source.replace("self.stiffness[...]", "self.gains.both[0]").replace(
        "self.damping[...]", "self.gains.both[1]"
    )
    check(source)
    program = load_program(source, SPEC)
    assert program.initial["gains/both"].tolist() == [-0.5, -1.0]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def f(:", "does not parse"),
        (PROGRAM + "\nprint(1)\n", "Expr statement"),
        (edited("import jax\n", "import os\nimport jax\n"), "imports `os`"),
        (edited("import jax\n", "import jax\nfrom jax.experimental import io_callback\n"), "jax.experimental"),
        (edited("import jax\n", "import jax\nfrom flax.nnx import Param\n"), "flax.nnx.Param"),
        (edited("class BlockPolicy", "class OtherPolicy"), "defines: OtherPolicy"),
        (edited("def __call__(self, block)", "def __call__(self, state)"), "(self, block)"),
        (edited("def __init__(self, *, rngs: nnx.Rngs)", "def __init__(self)"), "rngs: nnx.Rngs"),
        (edited("jnp.nan_to_num(block)", "jax.debug.callback(str, block)"), ".callback"),
        (edited("jnp.nan_to_num(block)", "jnp.load('x')"), ".load"),
        (edited("jnp.nan_to_num(block)", "open('x')"), "`open`"),
        (edited("jnp.nan_to_num(block)", "().__class__"), "__class__"),
        (edited("jnp.nan_to_num(block)", "getattr(block, 'x')"), "`getattr`"),
        (edited("jnp.nan_to_num(block)", "__import__('os')"), "`__import__`"),
        (edited("pull = self", "self.last = pull = self"), "changes `self`"),
        (edited("pull = self", "self.stiffness[...] = 1.0\n        pull = self"), "changes `self`"),
        (edited("jnp.array(-0.3))\n        self.damping", "jnp.array(-3))\n        self.damping"), "float"),
        (edited("nnx.Param(jnp.array(-0.3))\n        self.d", "jnp.array(-0.3)\n        self.d"), "nnx.Param and"),
        (edited("self.noise = ", "self.drop = nnx.Dropout(0.5, rngs=rngs)\n        self.noise = "), "nnx.Dropout"),
        (edited("self.noise = ", "self.again = self.damping\n        self.noise = "), "two places"),
        (edited("jnp.array(-1.0)", "jnp.array(jnp.nan)"), "not finite"),
        (edited("force[None], std", "force, std"), "`mean` has shape ()"),
        (edited("std[None, None]", "std[None]"), "`scale_tril` has shape (1,)"),
        (edited(", info\n", "\n"), "three things"),
        (edited('"latent_pull": pull', '"latent_pull": block'), "shape (2,)"),
        (edited('"latent_pull"', '"pull"'), "'pull'"),
        (edited('            "latent_pull": pull,\n            "latent_brake": brake,\n', ""), "no latent_"),
        (edited("pull = self", "undefined_name\n        pull = self"), "undefined_name"),
        (edited("block = jnp.nan_to_num(block)", "block = block + 0"), "NaN"),
        (edited("self.noise[...]) + 0.01", "self.noise[...]) - 5.0"), "not positive"),
        (edited("jax.nn.softplus(self.noise[...])", "jnp.exp(-self.noise[...] * 100 * block[0] ** 2)"), "not finite"),
        (edited('            "weight_noise": self.noise[...],\n', ""), "`noise` is not reported"),
        (edited("brake = self.damping[...]", "brake = 0 * self.damping[...]"), "No gradient reaches `damping`"),
        (edited("pull + brake", "pull + brake + jnp.sqrt(0 * self.noise[...])"), "gradient"),
    ],
)  # fmt: skip
def test_a_bad_program_gets_one_paragraph(source: str, says: str) -> None:
    with pytest.raises(ProgramError) as caught:
        check(source)
    message = str(caught.value)
    assert says in message
    assert "\n" not in message
    assert len(message) < 900


def test_an_upper_triangular_factor_is_refused() -> None:
    spec = PolicySpec("BlockPolicy", (("block", (2,)),), 2)
    source = edited(
        "force[None], std[None, None]", "jnp.stack([force, force]), std * jnp.array([[1.0, 0.5], [0.0, 1.0]])"
    )
    with pytest.raises(ProgramError, match="lower triangular"):
        check_program(load_program(source, spec), spec, DEMONSTRATED, LOW, HIGH)


def test_a_program_that_never_ends_is_interrupted() -> None:
    source = edited("self.noise = ", "for i in range(10**12):\n            pass\n        self.noise = ")
    with pytest.raises(ProgramError, match=r"more than 0\.5 s"):
        load_program(source, SPEC, seconds=0.5)


def test_a_program_sees_no_more_than_it_needs() -> None:
    namespace = restricted_builtins()
    assert not {"open", "eval", "exec", "getattr", "setattr", "vars", "type", "object", "print"} & set(namespace)
    for name in ("os", "numpy", "jax.experimental", "flax.nnx.object"):
        with pytest.raises(ImportError, match="imports only"):
            namespace["__import__"](name)


def test_errors_show_the_programs_own_line() -> None:
    with pytest.raises(ProgramError, match=r"at line 16 `pull = self\.stiffness\[\.\.\.\] @ block`"):
        load_program(edited("self.stiffness[...] * block[0]", "self.stiffness[...] @ block"), SPEC)


def test_one_example_agrees_with_a_batch() -> None:
    program = load_program(PROGRAM, SPEC)
    batch = {"block": jnp.asarray(DEMONSTRATED["block"])}
    mean, _, _ = jax.vmap(program.apply, (None, 0))(program.initial, batch)
    one = [program.apply(program.initial, {"block": row})[0] for row in batch["block"]]
    np.testing.assert_allclose(mean, jnp.stack(one), rtol=1e-6)
