"""A policy program as JAX sees it: what one call returns, how large it is, and whether it is always the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jax_core

from jaxrefine.policy.errors import ProgramError
from jaxrefine.policy.guard import own_line

MAX_EQUATIONS = 10_000
MAX_NUMBERS = 1_000_000  # computed for one example; thousands of examples are computed at once
MAX_REPORTED = 2_000
_IMPURE = re.compile(r"random_|rng_|threefry|.*callback|debug_|infeed|outfeed|ffi_call|custom_call")
_NEEDS_NUMBER = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True)
class Trace:
    """One trace: its jaxpr as text, without addresses; the arrays it closes over; names and shapes of its result."""

    text: str
    constants: tuple[np.ndarray, ...]
    returned: Any

    @property
    def names(self) -> str:
        """The result's structure, as text."""
        return str(jax.tree.structure(self.returned))


def trace(function: Callable[..., Any], *arguments: Any, where: str) -> Trace:
    """Trace a function of a program abstractly, and refuse what is too large to be run.

    Args:
        function: what is traced; it returns a pytree of arrays.
        arguments: arrays or their shapes.
        where: the method's name, for messages.

    Raises:
        ProgramError: it computes too much, or uses randomness or callbacks.
    """

    def anew(*arguments: Any) -> Any:  # JAX remembers the trace of a function that it has seen
        return function(*arguments)

    try:
        closed, returned = jax.make_jaxpr(anew, return_shape=True)(*arguments)
    except _NEEDS_NUMBER as error:
        raise ProgramError(
            f"In `{where}`{own_line(error)}: an array is used where a Python number is needed (by `if`, `range`, "
            "`int`, `float`, `bool` or as an index of a list). Use jnp.where instead of `if` on values, and write "
            f"constants as Python numbers. JAX says: {str(error).strip().splitlines()[0][:300]}"
        ) from error
    count = _measure(closed.jaxpr)
    for name in count:
        if name and _IMPURE.match(name):
            raise ProgramError(
                f"`{where}` uses randomness or calls back into Python (`{name}`); a policy program computes the same "
                "numbers each time. The distribution that it returns is sampled outside."
            )
    numbers = count.pop("") + sum(np.size(constant) for constant in closed.consts)
    equations = count.total()
    if equations > MAX_EQUATIONS:
        raise ProgramError(
            f"`{where}` unrolls into {equations:,} operations; at most {MAX_EQUATIONS:,} are allowed. Use fewer or "
            "shorter `for` loops, and operate on whole arrays."
        )
    if numbers > MAX_NUMBERS:
        raise ProgramError(
            f"`{where}` computes {numbers:,} numbers for one example; at most {MAX_NUMBERS:,} are allowed. Use smaller "
            "arrays."
        )
    return Trace(_ADDRESS.sub("", str(closed)), tuple(np.asarray(c) for c in closed.consts), returned)


def _measure(jaxpr: Any) -> Counter[str]:
    """How often each primitive occurs, inner functions included; under "", how many numbers they compute."""
    count: Counter[str] = Counter({"": 0})
    for equation in jaxpr.eqns:
        count[equation.primitive.name] += 1
        count[""] += sum(int(np.prod(getattr(v.aval, "shape", ()), dtype=float)) for v in equation.outvars)
        for inner in jax_core.jaxprs_in_params(equation.params):
            more = _measure(inner)
            more[""] *= int(equation.params.get("length", 1)) if equation.primitive.name == "scan" else 1
            count.update(more)
    return count


def check_same(first: Trace, second: Trace, where: str) -> None:
    """Check that two traces are one and the same function.

    Raises:
        ProgramError: they differ.
    """
    same = (
        first.names == second.names
        and first.text == second.text
        and len(first.constants) == len(second.constants)
        and all(
            a.shape == b.shape and a.tobytes() == b.tobytes()
            for a, b in zip(first.constants, second.constants, strict=True)
        )
    )
    if not same:
        raise ProgramError(
            f"`{where}` is not the same each time it is called: its names or its computation change from one call to "
            "the next. A policy program has no memory; let everything follow from the parameters and the arguments."
        )


def check_returned(returned: Any, action_size: int) -> None:
    """Check what ``__call__`` returned for one example, while it is being traced.

    Args:
        returned: what it returned.
        action_size: number of action components, A.

    Raises:
        ProgramError: the first thing that is not as agreed.
    """
    if not (isinstance(returned, tuple) and len(returned) == 3):
        raise ProgramError("`__call__` must return three things: mean, scale_tril, info.")
    mean, scale_tril, info = returned
    a = action_size
    for label, value, shape in (("mean", mean, (a,)), ("scale_tril", scale_tril, (a, a))):
        if not isinstance(value, jax.Array):
            raise ProgramError(f"`{label}` is {_kind(value)}; it must be an array of shape {shape}, e.g. by jnp.stack.")
        if value.shape != shape:
            raise ProgramError(
                f"`{label}` has shape {value.shape}; for one example it must be {shape}. The program sees ONE example, "
                "without a batch axis."
            )
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise ProgramError(f"`{label}` has dtype {value.dtype}; it must be floating point.")
    if not isinstance(info, dict) or not info:
        raise ProgramError("`info` must be a dictionary of the weights and latents.")
    if len(info) > MAX_REPORTED:
        raise ProgramError(f"`info` has {len(info):,} entries; at most {MAX_REPORTED:,} are logged. Report fewer.")
    for key, value in info.items():
        if not (isinstance(key, str) and key.isidentifier() and key.startswith(("weight_", "latent_"))):
            raise ProgramError(f"The info key {str(key)[:100]!r} must be a name that starts with weight_ or latent_.")
        _check_reported_value(key, value)
    if not any(key.startswith("latent_") for key in info):
        raise ProgramError("`info` reports no latent_*; report every intermediate value, by its meaning.")


def _check_reported_value(key: str, value: Any) -> None:
    if isinstance(value, bool | int | float):
        return
    if not isinstance(value, jax.Array | np.generic):
        raise ProgramError(
            f"`info[{key!r}]` is {_kind(value)}; every entry is a real number, of shape (). Report the parts of a "
            "collection under names that say what each is."
        )
    if value.shape != ():
        raise ProgramError(
            f"`info[{key!r}]` has shape {value.shape}; every entry is a scalar. Report the parts of a vector under "
            "names that say what each is."
        )
    if not any(jnp.issubdtype(value.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise ProgramError(f"`info[{key!r}]` has dtype {value.dtype}; every entry is a real number.")


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
