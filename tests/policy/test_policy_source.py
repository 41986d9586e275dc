"""What is refused, and what is not, before any of a program runs."""

from __future__ import annotations

import ast

import pytest
from toy import PROGRAM

from jaxrefine.policy.source import MAX_CHARACTERS, ProgramError, check_source

NAN = "block = jnp.nan_to_num(block)"


def look(source: str) -> ast.Module:
    return check_source(source, "BlockPolicy", ("block",))


def in_call(code: str) -> str:
    return PROGRAM.replace(NAN, f"{code}\n        {NAN}")


def in_init(code: str) -> str:
    return PROGRAM.replace("        self.noise = ", f"        {code}\n        self.noise = ")


def in_module(code: str) -> str:
    return PROGRAM.replace("\n\nclass BlockPolicy", f"\n{code}\n\n\nclass BlockPolicy")


def in_class(code: str) -> str:
    return PROGRAM.replace("    def __call__", f"    {code}\n\n    def __call__")


def header(text: str) -> str:
    return PROGRAM.replace("class BlockPolicy(nnx.Module):", text)


def refused(source: str, says: str) -> None:
    assert source != PROGRAM
    with pytest.raises(ProgramError) as caught:
        look(source)
    message = str(caught.value)
    assert says in message
    assert "\n" not in message
    assert len(message) < 900


@pytest.mark.parametrize(
    "code",
    [
        "n = nnx",
        "n = nnx; n.object.os.system('true')",
        "c = [jax][0]",
        "(j := jax)",
        "for j in [jax]: pass",
        "f = (lambda q: q)(jax)",
        "x = [j for j in (jnp,)]",
        "f(*[jax])",
        "x = {'j': jax}",
        "x = jax if True else 0",
    ],
)
def test_a_module_is_never_a_value(code: str) -> None:
    refused(in_init(code), "stands alone")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = jax.config", "`jax.config`"),
        ("x = jax.debug.print", "`jax.debug.print`"),
        ("x = jax.numpy.load('x')", "`jax.numpy.load`"),
        ("x = jnp.linalg._src", "`jnp.linalg._src`"),
        ("x = jnp.savez", "`jnp.savez`"),
        ("x = jnp.linalg", "is a module"),
        ("n = jax.numpy", "is a module"),
        ("x = jnp.add.at", "`jnp.add.at`"),
        ("x = jnp.clip.__wrapped__", "__wrapped__"),
        ("x = jax.nn.initializers.zeros", "`jax.nn.initializers.zeros`"),
        ("x = jax.lax.while_loop", "loops"),
        ("x = jax.lax.fori_loop", "loops"),
        ("x = jax.lax.scan", "loops"),
        ("x = jax.lax.map", "loops"),
        ("x = jax.lax.associative_scan", "loops"),
        ("x = jax.lax.reduce_window", "loops"),
        ("x = jax.lax.rng_uniform", "`jax.lax.rng_uniform`"),
        ("x = jax.lax.infeed", "`jax.lax.infeed`"),
        ("x = jax.random.normal", "`jax.random.normal`"),
        ("x = nnx.Module.sow", "`nnx.Module.sow`"),
        ("x = nnx.Module", "base of a class"),
        ("x = nnx.Variable(1.0)", "`nnx.Variable`"),
        ("x = nnx.Rngs(0)", "no randomness"),
        ("P = nnx.Param", "must be called"),
        ("x = nnx.Param(1.0, on_get_value=abs)", "must be called"),
        ("x = nnx.Param(*[1.0])", "must be called"),
        ("L = nnx.List", "may only be called"),
        ("x = jnp.finfo(jnp.float32).eps.dump('x')", "`.dump`"),
        ("x = (y for y in ()).gi_frame", "`.gi_frame`"),
        ("self.gi_frame = 1.0", "`self.gi_frame`"),
        ("self.f_back = 1.0", "`self.f_back`"),
        ("self.set_metadata = 1.0", "`self.set_metadata`"),
        ("rngs.params.normal(())", "no randomness"),
        ("x = BlockPolicy.mro()", "`.mro`"),
        ("x = self.noise.set_value(1.0)", "`.set_value`"),
        ("x = '{0}'.format(self)", "`.format`"),
        ("x = self._pytree__state", "_pytree__state"),
        ("self._pytree__state = 0", "_pytree__state"),
        ("self.__dict__ = 0", "__dict__"),
        ("x = self.__dict__", "__dict__"),
        ("x = self._missing", "`._missing`"),
        ("super(BlockPolicy, self).__init__()", "`super`"),
        ("s = super", "`super`"),
        ("BlockPolicy.__init__(self, rngs=rngs)", "`.__init__`"),
        ("x = __builtins__", "`__builtins__`"),
        ("f = type(self)", "`type`"),
    ],
)  # fmt: skip
def test_only_what_is_listed_can_be_reached(code: str, says: str) -> None:
    refused(in_init(code), says)


@pytest.mark.parametrize(
    "source",
    [
        in_call("jnp = 3"),
        in_call("for jax in range(3): pass"),
        in_call("f = lambda nnx: nnx"),
        in_call("(jnp := 3)"),
        in_call("def jax(): return 3"),
        in_call("x = [jnp for jnp in range(3)]"),
        in_module("def f(x, *jnp):\n    return x"),
        in_module("def f(x, *, nnx):\n    return x"),
        in_module("class jax(nnx.Module):\n    def __init__(self):\n        self.x = 1"),
        in_module("jnp: int = 3"),
    ],
)
def test_an_imported_name_keeps_its_meaning(source: str) -> None:
    refused(source, "new meaning")


def test_one_name_is_not_imported_twice() -> None:
    refused(PROGRAM.replace("import jax\n", "import jax\nfrom jax import lax as jnp\n"), "two different things")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (in_call("jnp.clip = abs"), "changes `jnp.clip`"),
        (in_call("nnx.Module.foo = 3"), "changes `nnx.Module.foo`"),
        (in_call("BlockPolicy.count = 3"), "changes `BlockPolicy.count`"),
        (in_call("BlockPolicy.count += 3"), "changes `BlockPolicy.count`"),
        (in_call("for self.foo in range(3): pass"), "changes `self`"),
        (in_call("x = [0 for self.foo in range(3)]"), "changes `self`"),
        (in_call("(a, *self.foo) = 1, 2"), "changes `self`"),
        (in_call("self.foo: int = 3"), "changes `self`"),
        (in_call("self.noise[0] += 3"), "changes `self`"),
        (in_call("self.gains['a'].b = 3"), "changes `self`"),
        (in_call("m = self\n        m.foo = 3"), "changes `m.foo`"),
        (in_call("block.x[0] = 3"), "changes `block.x[0]`"),
        (in_call("(lambda: block)()[0] = 3"), "changes"),
        (in_module("def touch(m):\n    m.foo = 1"), "`touch` changes `m.foo`"),
        (in_init("self.noise.x = 3"), "changes `self`"),
        (in_init("self.noise[...] = 3.0"), "changes `self`"),
        (in_init("BlockPolicy.x = 3"), "changes `BlockPolicy.x`"),
        (in_init("def f(): self.x = 3"), "changes `self`"),
        (in_init("def f(self): pass"), "first argument of a method"),
        (in_init("self = BlockPolicy"), "`self` gets a new meaning"),
        (in_call("f = lambda self: self"), "first argument of a method"),
        (in_module("def f(self):\n    return self"), "first argument of a method"),
        (in_class("@staticmethod\n    def f(self): return self"), "no `self`"),
        (in_class("def f(this): return this"), "`self` as its first argument"),
        (in_call("del block"), "nothing is deleted"),
        (in_call("with block as self.x: pass"), "`with`"),
    ],
)  # fmt: skip
def test_nothing_is_patched_or_remembered(source: str, says: str) -> None:
    refused(source, says)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (in_call("match block:\n            case x: pass"), "`match`"),
        (in_call("try:\n            pass\n        except: pass"), "`try`"),
        (in_call("try:\n            pass\n        finally: pass"), "`try`"),
        (in_call("try:\n            pass\n        except* ValueError: pass"), "`try`"),
        (in_call("global x"), "no global name"),
        (in_call("def f():\n            nonlocal block"), "no outer name"),
        (in_call("yield block"), "yields"),
        (in_call("yield from block"), "yields"),
        (in_call("async def f(): pass"), "async"),
        (in_call("while True: pass"), "`while`"),
        (in_call("import jax"), "at the top"),
        (in_call("from flax import nnx"), "at the top"),
        (in_call("class A(nnx.Module): pass"), "top level"),
        (in_call("@jax.vmap\n        def f(x): return x"), "decorator"),
        (in_class("@jax.vmap\n    def f(self): return 1"), "decorator"),
        (in_class("@property\n    def f(self): return 1"), "decorator"),
        (PROGRAM.replace("    def __call__", "    @staticmethod\n    def __call__"), "decorator"),
        (in_class("def __getattr__(self, name): return name"), "special method"),
        (in_class("def f(self): return 1\n\n    def f(self): return 2"), "second time"),
        (in_class("seen = []"), "methods only"),
        (in_class("count = 0"), "methods only"),
        (in_class("count: int = 0"), "methods only"),
        (in_class("for i in range(3): pass"), "methods only"),
        (header("class BlockPolicy(nnx.Module, metaclass=nnx.Module):"), "class BlockPolicy(nnx.Module):"),
        (header("class BlockPolicy(nnx.Module, pytree=False):"), "class BlockPolicy(nnx.Module):"),
        (header("class BlockPolicy(*[nnx.Module]):"), "class BlockPolicy(nnx.Module):"),
        (header("class BlockPolicy(nnx.Param):"), "class BlockPolicy(nnx.Module):"),
        (header("class BlockPolicy(dict):"), "class BlockPolicy(nnx.Module):"),
        (header("class BlockPolicy:"), "class BlockPolicy(nnx.Module):"),
        (header("@(lambda c: 3)\nclass BlockPolicy(nnx.Module):"), "class BlockPolicy(nnx.Module):"),
        (PROGRAM + "\n\nclass BlockPolicy(nnx.Module):\n    pass\n", "second time"),
        (PROGRAM + "\nBlockPolicy = 3\n", "second time"),
        (in_call("f = lambda q=block: q"), "default argument"),
        (in_module("def f(x, seen=[]):\n    return x"), "default argument"),
        (in_module("def f(x, *, seen={}):\n    return x"), "default argument"),
        (in_module("def f(x, y=(1, [2])):\n    return x"), "default argument"),
        (in_module("def __f(x):\n    return x"), "`__f`"),
        (in_call("x = 7 ** (10 ** 7)"), "exponent"),
        (in_call("x = 1 << 10_000"), "exponent"),
    ],
)  # fmt: skip
def test_statements_that_a_policy_does_not_need(source: str, says: str) -> None:
    refused(source, says)


@pytest.mark.parametrize(
    "code",
    [
        "seen = []",
        "seen = {}",
        "seen = {'n': 0}",
        "seen = (1, [2])",
        "f = lambda x: x",
        "x = jnp.zeros(3)",
        "x = jnp.array([jnp.zeros(3)])",
        "x = jnp.array(3, device=0)",
        "x = 'a' * 10**9",
        "x = (1,) * 10**9",
        "x = 9 ** 9 ** 9",
        "a = 10 ** 39\nb = a * a",
        "a, b = 1, 2",
        "jnp.clip = abs",
        "x = [i for i in range(3)]",
        "x = 1 / 0",
        "x = len",
    ],
)
def test_module_level_names_are_constants(code: str) -> None:
    refused(in_module(code), "a module-level name is a constant")


@pytest.mark.parametrize(
    "source",
    [
        in_init("self.rngs = rngs"),
        in_init("x = rngs"),
        in_init("x = rngs.params()"),
        in_init("x = jnp.array(rngs)"),
        in_init("x = dict(rngs=rngs)"),
        in_init("rngs = 3"),
        in_call("rngs = 3"),
        in_call("f = lambda rngs: rngs"),
        in_module("def f(rngs):\n    return 1"),
    ],
)
def test_rngs_is_only_passed_on(source: str) -> None:
    refused(source, "`rngs`")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("#" * (MAX_CHARACTERS + 1), "100,001 characters"),
        (in_call("x = block" + "+block" * 10_000), "nested too deeply"),
        (in_call("x = " + "-" * 20_000 + "block"), "nested too deeply"),
        (in_call("x = block" + ".T" * 20_000), "nested too deeply"),
        (in_call("x = " + "(" * 3_000 + "block" + ")" * 3_000), "does not parse"),
        (PROGRAM + "\0", "null bytes"),
        (PROGRAM + "# \udcff\n", "does not parse"),
    ],
)
def test_text_that_breaks_the_parser(source: str, says: str) -> None:
    refused(source, says)


@pytest.mark.parametrize(
    "source",
    [
        in_class("def _brake(self, block): return self._gain * block[0]").replace(
            "        self.noise = ", "        self._gain = 0.5\n        self.noise = "
        ),
        in_call("next = block; input = next; id = map = filter = input; x = id + map"),
        in_call("def object(open): return open * 2\n        x = object(block)"),
        in_call("names = {}\n        names['a'] = {}\n        names['a']['b'] = block"),
        in_call("x = block.at[0].set(0.0).sum().astype(jnp.float32)"),
        in_call("x = [block[i] for i in range(2) if i != 1]; x.append(block[0])"),
        in_call("first, *rest = [block[0], block[1]]"),
        in_call("x = jax.vmap(lambda b, scale=2.0: scale * b)(block)"),
        in_call("x = jax.lax.cond(block[0] > 0, lambda: block, lambda: -block)"),
        in_call("x = jax.lax.stop_gradient(jnp.linalg.norm(block) + jnp.finfo(jnp.float32).eps)"),
        in_call("assert block.shape == (2,), 'one example'"),
        in_call("x = jnp.interp(block[0], jnp.array([0.0, 1.0]), jnp.array([0.0, 2.0])) ** 2"),
        in_module("HALF = jnp.pi / 2\nNAMES = ('a', 'b')\nLIMIT = -(2 * HALF) ** 2\nTABLE = jnp.array([[1.0, LIMIT]])"),
        in_module("def limit(value: jax.Array, low=-1.0, names=('a', 'b')) -> jax.Array:\n    return value"),
        in_class("@staticmethod\n    def double(x): return 2 * x"),
        in_init("super().__init__()"),
        in_init("self.names = ('a', 'b'); self.floor = 0.01"),
        in_init("self.legs = nnx.List([nnx.Param(1.0)])"),
        in_init("self.arms = nnx.Dict(left=nnx.Param(1.0)); x = self.arms.left"),
        in_module(
            "class Gain(nnx.Module):\n    size: float\n\n    def __init__(self, start, *, rngs):\n"
            "        self.size = nnx.Param(start)\n\n\nclass Sub(Gain):\n    def __init__(self, *, rngs):\n"
            "        super().__init__(1.0, rngs=rngs)"
        ).replace("        self.noise = ", "        self.sub = Sub(rngs=rngs)\n        self.noise = "),
        PROGRAM.replace("import jax\n", "from __future__ import annotations\nimport jax\nfrom jax import lax\n"),
        PROGRAM.replace("Pushes", "Pushes \\dot{x} and"),
    ],
)  # fmt: skip
def test_honest_programs_are_accepted(source: str) -> None:
    assert source != PROGRAM
    assert isinstance(look(source), ast.Module)
