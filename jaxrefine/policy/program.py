"""From a policy program's text to a checked, pure function of (parameters, observation).

``nnx.split`` gives the two halves of a policy: the graph definition is its structure, the state its parameters.
Here the parameters travel as a plain dictionary of arrays, ``{"path/of/the/param": array}``, which every other
room can save, average, shard and differentiate without knowing Flax.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from jaxrefine.learn.types import Info, Observation, Params, Policy
from jaxrefine.policy.guard import FILENAME, complaints, deadline, remember_lines
from jaxrefine.policy.source import ProgramError, check_source, restricted_builtins
from jaxrefine.policy.tracing import check_returned, check_same, trace

MAX_PARAMETERS = 10_000


@dataclass(frozen=True)
class PolicySpec:
    """What a task asks of a program.

    Attributes:
        class_name: the class it defines.
        observation: entry -> shape, in the order of ``__call__``'s arguments.
        action_size: number of action components, A.
    """

    class_name: str
    observation: tuple[tuple[str, tuple[int, ...]], ...]
    action_size: int

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of ``__call__``'s arguments."""
        return tuple(key for key, _ in self.observation)


@dataclass(frozen=True)
class Program:
    """A program that has been loaded: its parameters' initial values and its pure function.

    ``info_keys`` holds the names of what it reports, weights and latents, sorted. ``initialise`` draws initial values;
    None: there is nothing random about them, they are ``initial``.
    """

    source: str = field(repr=False)
    initial: Params
    apply: Policy
    info_keys: tuple[str, ...]
    initialise: Callable[[Array], Params] | None = None

    @property
    def weights(self) -> tuple[str, ...]:
        """The reported weights' names."""
        return tuple(key for key in self.info_keys if key.startswith("weight_"))

    @property
    def latents(self) -> tuple[str, ...]:
        """The reported intermediate values' names."""
        return tuple(key for key in self.info_keys if key.startswith("latent_"))

    @property
    def size(self) -> int:
        """Number of scalar parameters."""
        return sum(value.size for value in self.initial.values())

    def starts(self, keys: Array) -> Params:
        """Where each of some fits begins, ``(fits, ...)`` an array."""
        if self.initialise is not None:
            return jax.vmap(self.initialise)(keys)
        return {name: jnp.broadcast_to(value, (len(keys), *value.shape)) for name, value in self.initial.items()}


def load_program(source: str, spec: PolicySpec, *, seconds: float = 20.0) -> Program:
    """Check a program's form, build it, and check the shapes and names of what it returns.

    Args:
        source: the program's text.
        spec: what the task asks of it.
        seconds: time allowed for building and tracing it.

    Raises:
        ProgramError: one paragraph saying what is wrong.
    """
    tree = check_source(source, spec.class_name, spec.arguments)
    remember_lines(source)
    with deadline(seconds, "before it could be traced"):
        with complaints("compiling the program"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as a backslash in a docstring
            code = compile(tree, FILENAME, "exec", dont_inherit=True)
        initial, apply = _build(code, spec)
        example = {key: jax.ShapeDtypeStruct(shape, jnp.result_type(float)) for key, shape in spec.observation}
        with complaints("calling the module"):
            first = trace(apply, initial, example, where="__call__")
            check_same(first, trace(apply, initial, example, where="__call__"), "__call__")
        again, apply_again = _build(code, spec)
        with complaints("calling the module"):
            check_same(first, trace(apply_again, again, example, where="__call__"), "__call__")
    if not (list(initial) == list(again) and all(bool(jnp.array_equal(initial[k], again[k])) for k in initial)):
        raise ProgramError("The parameters start differently each time the class is built; give them fixed values.")
    return _finish(source, initial, apply, tuple(sorted(first.returned[2])))


def _build(code: CodeType, spec: PolicySpec) -> tuple[Params, Policy]:
    """Run the program's text in a namespace of its own, and build its class."""
    namespace: dict[str, Any] = {"__builtins__": restricted_builtins(), "__name__": "policy"}
    rngs = nnx.Rngs(0)

    def values() -> Params:
        return _parameters(namespace[spec.class_name](rngs=rngs), spec.class_name)

    with complaints("building the module"):
        exec(code, namespace)
        trace(values, where="__init__")  # its size is known before anything is computed
        module = namespace[spec.class_name](rngs=rngs)
        initial = _parameters(module, spec.class_name)
        graphdef, state = nnx.split(module)
    for name, value in initial.items():
        if not bool(jnp.isfinite(value).all()):
            raise ProgramError(f"The parameter `{name}` starts with a value that is not finite.")
    leaves, treedef = jax.tree.flatten(state, is_leaf=_is_variable)

    def apply(params: Params, observation: Observation) -> tuple[Array, Array, Info]:
        new = [leaf.replace(params[name]) for leaf, name in zip(leaves, initial, strict=True)]
        policy = nnx.merge(graphdef, jax.tree.unflatten(treedef, new))
        returned = policy(**{key: observation[key] for key in spec.arguments})
        check_returned(returned, spec.action_size)
        mean, scale_tril, info = returned
        dtype = jnp.result_type(float)
        return (
            jnp.asarray(mean, dtype),
            jnp.asarray(scale_tril, dtype),
            {key: jnp.asarray(value, dtype) for key, value in info.items()},
        )

    return initial, apply


def _finish(source: str, initial: Params, apply: Policy, info_keys: tuple[str, ...]) -> Program:
    """The program, which from now on reports these names whenever it is traced, or fails."""

    def same_names(params: Params, observation: Observation) -> tuple[Array, Array, Info]:
        mean, scale_tril, info = apply(params, observation)
        if tuple(sorted(info)) != info_keys:
            changed = ", ".join(f"`{key}`" for key in sorted(set(info) ^ set(info_keys))[:5])
            raise ProgramError(
                f"The keys of `info` change from one call to the next ({changed}); report the same names each time."
            )
        return mean, scale_tril, info

    return Program(source, initial, same_names, info_keys)


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable)


def _parameters(module: nnx.Module, class_name: str) -> Params:
    """The module's parameters by path, in the order of its state."""
    _check_attributes(module, "self", set())
    params: Params = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(nnx.state(module), is_leaf=_is_variable)[0]:
        parts = [str(getattr(part, "key", part)) for part in path]
        where = "/".join(parts)
        if not all(part.isidentifier() or part.isdecimal() for part in parts):
            raise ProgramError(f"The parameter `{where}` has a key that is not a name; rename it.")
        value = leaf.get_value()
        if isinstance(value, bool | int):
            raise ProgramError(f"The parameter `{where}` is the integer {value}; write it as a float, e.g. 1.0.")
        if not isinstance(value, float | jax.Array):
            kind = "None" if value is None else f"of type {type(value).__name__}"
            raise ProgramError(
                f"The value of the parameter `{where}` is {kind}; write a number or an array of numbers, as in "
                "`nnx.Param(jnp.array(0.5))`."
            )
        value = jnp.asarray(value)
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise ProgramError(f"The parameter `{where}` has dtype {value.dtype}; write it as a float, e.g. 1.0.")
        if value.size == 0:
            raise ProgramError(f"The parameter `{where}` has shape {value.shape}, no element at all; remove it.")
        # a weak type would recompile every function at its first update
        params[where] = jax.lax.convert_element_type(value, jnp.result_type(float))
    if not params:
        raise ProgramError(f"`{class_name}` has no nnx.Param: there is nothing to learn.")
    size = sum(value.size for value in params.values())
    if size > MAX_PARAMETERS:
        raise ProgramError(
            f"`{class_name}` has {size:,} parameters; at most {MAX_PARAMETERS:,} are allowed. A policy program is "
            "small: a person tunes each of its numbers."
        )
    return params


def _check_attributes(value: Any, where: str, seen: set[int]) -> None:
    """Check that a module holds parameters, submodules, numbers and text only, each in one place."""
    if isinstance(value, nnx.Variable | nnx.Module):
        if id(value) in seen:
            raise ProgramError(
                f"`{where}` holds a submodule or parameter that stands in two places; give each place its own."
            )
        seen.add(id(value))
    if isinstance(value, nnx.Module):
        for name, part in vars(value).items():
            if not name.startswith("_pytree"):
                _check_attributes(part, f"{where}.{name}", seen)
    elif isinstance(value, tuple):
        for part in value:
            _check_attributes(part, where, seen)
    elif not isinstance(value, nnx.Param | bool | int | float | str):
        kind = "None" if value is None else type(value).__name__
        raise ProgramError(
            f"`{where}` holds {kind}; the state of a policy is nnx.Param and Python numbers only (text, tuples of "
            "these, submodules, nnx.List and nnx.Dict too). Wrap a trainable value in nnx.Param, and "
            "compute constants in `__call__`."
        )
