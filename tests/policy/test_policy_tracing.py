"""What is refused once a program is built and traced: its state, its size, what it returns, and its time."""

from __future__ import annotations

import ast
import signal
import time
from contextlib import suppress

import jax
import jax.numpy as jnp
import pytest
from toy import PROGRAM

from jaxrefine.policy import program as program_module
from jaxrefine.policy.guard import complaints, deadline
from jaxrefine.policy.program import PolicySpec, load_program
from jaxrefine.policy.source import ProgramError
from jaxrefine.policy.tracing import trace

SPEC = PolicySpec("BlockPolicy", (("block", (2,)),), 1)
NAN = "block = jnp.nan_to_num(block)"
NOISE = "nnx.Param(jnp.array(-1.0))"


def edited(*pairs: tuple[str, str]) -> str:
    source = PROGRAM
    for old, new in pairs:
        assert old in source
        source = source.replace(old, new)
    return source


def in_init(code: str) -> str:
    return edited(("        self.noise = ", f"        {code}\n        self.noise = "))


def in_call(code: str) -> str:
    return edited((NAN, f"{code}\n        {NAN}"))


def latent(expression: str) -> str:
    return edited(('"latent_pull": pull', f'"latent_pull": {expression}'))


def refused(source: str, says: str) -> None:
    with pytest.raises(ProgramError) as caught:
        load_program(source, SPEC)
    message = str(caught.value)
    assert says in message
    assert "\n" not in message
    assert len(message) < 900


@pytest.mark.parametrize("value", ["-1.0", "jnp.array(-1.0)", "jnp.float32(-1.0)", "-1e0", "jnp.array(-1, float)"])
def test_a_parameter_may_be_written_in_several_ways(value: str) -> None:
    program = load_program(edited((NOISE, f"nnx.Param({value})")), SPEC)
    noise = program.initial["noise"]
    assert noise == -1
    assert noise.dtype == jnp.float32
    assert not noise.weak_type


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("-1", "`noise` is the integer -1; write it as a float"),
        ("True", "write it as a float"),
        ("None", "`noise` is None"),
        ("'a'", "`noise` is of type str"),
        ("[1.0, 2.0]", "`noise` is of type list"),
        ("{'a': 1.0}", "`noise` is of type dict"),
        ("jnp.array(1j)", "complex64"),
        ("jnp.zeros((0,))", "no element at all"),
        ("jnp.zeros((101, 100))", "10,102 parameters"),
        ("jnp.array(jnp.inf)", "not finite"),
        ("float('nan')", "not finite"),
    ],
)
def test_a_parameter_that_is_no_float_is_refused(value: str, says: str) -> None:
    refused(edited((NOISE, f"nnx.Param({value})")), says)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("self.cache = [0]", "`self.cache` holds list"),
        ("self.cache = {}", "`self.cache` holds dict"),
        ("self.cache = set()", "`self.cache` holds set"),
        ("self.cache = ([0],)", "`self.cache` holds list"),
        ("self.cache = None", "`self.cache` holds None"),
        ("self.cache = 1j", "`self.cache` holds complex"),
        ("self.f = jax.nn.softplus", "`self.f` holds"),
        ("self.f = lambda x: x", "`self.f` holds function"),
        ("self.kind = BlockPolicy", "`self.kind` holds"),
        ("self.table = jnp.ones(3)", "`self.table` holds"),
        ("self.list = nnx.List([[0]])", "holds list"),
        ("self.pair = nnx.List([self.damping])", "two places"),
        ("self.me = self", "two places"),
        ("self.d = nnx.Dict({'a/b': nnx.Param(1.0)})", "not a name"),
    ],
)
def test_a_module_holds_parameters_numbers_and_text_only(code: str, says: str) -> None:
    refused(in_init(code), says)


def test_a_module_may_hold_numbers_text_and_containers_of_parameters() -> None:
    program = load_program(
        in_init(
            "self.floor = 0.1; self.names = ('a', ('b', 1)); self.flag = True; "
            "self.legs = nnx.List([nnx.Param(1.0), nnx.Param(2.0)]); self.arms = nnx.Dict(left=nnx.Param(3.0))"
        ),
        SPEC,
    )
    assert {k: float(program.initial[k]) for k in ("legs/0", "legs/1", "arms/left")} == {
        "legs/0": 1,
        "legs/1": 2,
        "arms/left": 3,
    }


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("[pull, brake]", "`info['latent_pull']` is of type list"),
        ("(pull,)", "is of type tuple"),
        ("()", "is of type tuple"),
        ("{}", "is of type dict"),
        ("None", "is None"),
        ("'a'", "is of type str"),
        ("self.noise", "is of type Param"),
        ("pull + 1j", "has dtype complex64"),
        ("1j", "is of type complex"),
        ("block", "shape (2,)"),
        ("self", "is of type BlockPolicy"),
    ],
)
def test_every_entry_of_info_is_a_real_number(expression: str, says: str) -> None:
    refused(latent(expression), says)


@pytest.mark.parametrize("expression", ["pull > 0", "3", "0.5", "True", "jnp.argmax(block)", "jnp.float32(3)"])
def test_real_numbers_of_any_type_are_reported(expression: str) -> None:
    load_program(latent(expression), SPEC)


@pytest.mark.parametrize(
    ("mean", "says"),
    [
        ("force[None] + 1j", "`mean` has dtype complex64"),
        ("force[None].astype(int)", "`mean` has dtype int32"),
        ("[force]", "`mean` is of type list"),
        ("None", "`mean` is None"),
        ("0.0", "`mean` is of type float"),
    ],
)
def test_the_mean_is_an_array_of_floats(mean: str, says: str) -> None:
    refused(edited(("return force[None]", f"return {mean}")), says)


def test_too_many_entries_of_info() -> None:
    source = edited(
        ("        return force", "        for i in range(2001): info[f'latent_{i}'] = 0.0\n        return force")
    )
    refused(source, "2,006 entries")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (in_call("for i in range(11_000): block = jnp.sin(block)"), "`__call__` unrolls into 11,0"),
        (in_init("x = 0.0\n        for i in range(11_000): x = jnp.sin(x)"), "`__init__` unrolls into 11,0"),
        (in_call("block = block + 0 * jnp.ones((10**5, 10**6)).sum()"), "`__call__` computes 100,000,000,0"),
        (in_init("x = jnp.ones((10**5, 10**6))"), "`__init__` computes 100,000,000,000"),
        (in_call("block = block + jax.vmap(lambda x: jnp.ones(10**4) * x)(jnp.ones(10**4)).sum()"), "computes"),
    ],
)
def test_programs_that_are_too_large_are_never_run(source: str, says: str) -> None:
    start = time.monotonic()
    refused(source, says)
    assert time.monotonic() - start < 15


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (in_call("if block[0] > 0: block = -block"), "In `__call__`, at line 15 `if block[0] > 0: block = -block`"),
        (in_call("x = [1, 2][jnp.argmax(block)]"), "Python number is needed"),
        (in_init("self.floor = float(jnp.sqrt(2.0))"), "In `__init__`, at line 12"),
        (in_call("def deeper(): return deeper()\n        x = deeper()"), "RecursionError"),
        (in_call("x = [0] * 10**18"), "MemoryError"),
        (in_call("raise ValueError('no\\n\\nway')"), "ValueError: no"),
        (in_call("x = object(3); object = 3"), "UnboundLocalError"),
    ],
)  # fmt: skip
def test_errors_of_the_program_are_paragraphs(source: str, says: str) -> None:
    refused(source, says)


def test_the_program_is_compiled_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    # were this package's own `annotations` inherited, an annotation would be text that nothing looks up
    source = edited(("def __call__(self, block)", "def __call__(self, block: Missing)"))
    refused(source, "Missing")
    load_program("from __future__ import annotations\n" + source, SPEC)


def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load programs without the check of their form, to see that what stands behind it holds too."""
    monkeypatch.setattr(program_module, "check_source", lambda source, name, arguments: ast.parse(source))
    builtins = program_module.restricted_builtins()
    monkeypatch.setattr(program_module, "restricted_builtins", lambda: builtins)


@pytest.mark.parametrize(
    "changes",
    [
        '"latent_pull": len(seen) * pull',
        '"latent_pull": pull, f"latent_pull{len(seen)}": pull',
        '"latent_pull": pull, **({"latent_first": pull} if len(seen) == 1 else {})',
        '"latent_pull": pull + jnp.array([1.0 * len(seen), 1.0])[0]',
    ],
)
def test_two_traces_must_agree(changes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unchecked(monkeypatch)
    source = edited(
        ("\n\nclass Block", "\nseen = []\n\n\nclass Block"),
        (NAN, f"seen.append(1); {NAN}"),
        ('"latent_pull": pull', changes),
    )
    refused(source, "not the same each time")


def test_names_that_change_later_are_an_error_then(monkeypatch: pytest.MonkeyPatch) -> None:
    unchecked(monkeypatch)
    source = edited(
        ("\n\nclass Block", "\nseen = []\n\n\nclass Block"),
        (NAN, f"seen.append(1); {NAN}"),
        ('"latent_pull": pull', '"latent_pull": pull, **({"latent_x": pull} if len(seen) > 2 else {})'),
    )
    program = load_program(source, SPEC)
    with pytest.raises(ProgramError, match=r"change from one call to the next \(`latent_x`\)"):
        program.apply(program.initial, {"block": jnp.zeros(2)})


def test_parameters_that_start_differently_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    unchecked(monkeypatch)
    seen: list[int] = []
    program_module.restricted_builtins()["seen"] = seen
    refused(in_init("seen.append(1); self.x = nnx.Param(1.0 * len(seen))"), "start differently")


def test_randomness_is_refused_even_where_the_form_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    unchecked(monkeypatch)
    refused(in_call("block = block + nnx.Rngs(0).params.normal((2,))"), "uses randomness")
    refused(in_call("jax.debug.print('x')"), "calls back into Python")


def test_tracing_refuses_callbacks() -> None:
    with pytest.raises(ProgramError, match="pure_callback"):
        trace(lambda x: jax.pure_callback(lambda y: y, x, x), jnp.zeros(3), where="__call__")


def test_an_interruption_that_is_swallowed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxrefine.policy.guard._AGAIN", 0.1)

    def stubborn() -> None:
        for _ in range(2):
            with suppress(ProgramError):
                time.sleep(5)
        time.sleep(5)

    start = time.monotonic()
    with pytest.raises(ProgramError, match=r"more than 0\.1 s while it slept"), deadline(0.1, "while it slept"):
        stubborn()
    assert time.monotonic() - start < 2


def test_a_deadline_puts_back_what_was_there() -> None:
    handler, (left, interval) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    try:
        signal.setitimer(signal.ITIMER_REAL, 500, 7)
        with deadline(100.0, "in a test"), deadline(50.0, "inside"):
            pass
        assert signal.getitimer(signal.ITIMER_REAL) == pytest.approx((500, 7), abs=1)
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)


def test_every_failure_is_a_complaint() -> None:
    for error in (ValueError("a\nb\n\nc"), RecursionError(), MemoryError(), KeyError("x"), StopIteration()):
        with pytest.raises(ProgramError, match=f"While trying: {type(error).__name__}"), complaints("trying"):
            raise error
    with pytest.raises(KeyboardInterrupt), complaints("trying"):
        raise KeyboardInterrupt
