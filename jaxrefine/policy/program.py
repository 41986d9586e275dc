"""From a policy program's text to a checked, pure function of (parameters, observation).

``nnx.split`` gives the two halves of a policy: the graph definition is its structure, the state its parameters.
Here the parameters travel as a plain dictionary of arrays, ``{"path/of/the/param": array}``, which every other
room can save, average, shard and differentiate without knowing Flax.
"""

from __future__ import annotations

import linecache
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxrefine.policy.source import ProgramError, check_source, restricted_builtins

Params = dict[str, Array]
Observation = Mapping[str, Array]
Info = dict[str, Float[Array, ""]]
# (parameters, ONE observation) -> mean (A,), lower Cholesky factor of the covariance (A, A), named scalars
Apply = Callable[[Params, Observation], tuple[Float[Array, "a"], Float[Array, "a a"], Info]]

FILENAME = "policy.py"


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

    ``info_keys`` holds the names of what it reports, weights and latents, sorted.
    """

    source: str = field(repr=False)
    initial: Params
    apply: Apply
    info_keys: tuple[str, ...]

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
    # so that a traceback shows the program's own lines
    linecache.cache[FILENAME] = (len(source), None, source.splitlines(keepends=True), FILENAME)
    namespace: dict[str, Any] = {"__builtins__": restricted_builtins(), "__name__": "policy"}
    with _complaints("building the module"), _deadline(seconds):
        exec(compile(tree, FILENAME, "exec"), namespace)
        module = namespace[spec.class_name](rngs=nnx.Rngs(0))
        graphdef, state = nnx.split(module)
    initial, restore = _parameters(module, state, spec.class_name)

    def apply(params: Params, observation: Observation) -> tuple[Array, Array, Info]:
        policy = nnx.merge(graphdef, restore(params))
        mean, scale_tril, info = policy(**{key: observation[key] for key in spec.arguments})
        dtype = jnp.result_type(float)
        return (
            jnp.asarray(mean, dtype),
            jnp.asarray(scale_tril, dtype),
            {key: jnp.asarray(value, dtype) for key, value in info.items()},
        )

    example = {key: jax.ShapeDtypeStruct(shape, jnp.result_type(float)) for key, shape in spec.observation}
    with _complaints("calling the module"), _deadline(seconds):
        returned = jax.eval_shape(lambda params, obs: nnx.merge(graphdef, restore(params))(**obs), initial, example)
    info_keys = _check_returned(returned, spec)
    return Program(source, initial, apply, info_keys)


def _parameters(module: nnx.Module, state: nnx.State, name: str) -> tuple[Params, Callable[[Params], nnx.State]]:
    """The module's parameters by path, and the function that puts new values back into its state."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    params: Params = {}
    for path, leaf in leaves:
        where = "/".join(str(getattr(part, "key", part)) for part in path)
        if not isinstance(leaf, nnx.Param):
            raise ProgramError(
                f"`self.{where.replace('/', '.')}` holds {type(leaf).__name__}; the state of a policy is nnx.Param and "
                "Python numbers only. Wrap a trainable value in nnx.Param, and compute constants in `__call__`."
            )
        value = jnp.asarray(leaf[...])
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise ProgramError(f"The parameter `{where}` has dtype {value.dtype}; write it as a float, e.g. 1.0.")
        if not bool(jnp.isfinite(value).all()):
            raise ProgramError(f"The parameter `{where}` starts with a value that is not finite.")
        # a weak type would recompile every function at its first update
        params[where] = jax.lax.convert_element_type(value, jnp.result_type(float))
    if not params:
        raise ProgramError(f"`{name}` has no nnx.Param: there is nothing to learn.")
    if _shares_state(module):
        raise ProgramError(f"`{name}` holds the same submodule or parameter in two places; give each its own.")
    names, variables = list(params), [leaf for _, leaf in leaves]

    def restore(values: Params) -> nnx.State:
        return jax.tree_util.tree_unflatten(
            treedef, [v.replace(values[n]) for n, v in zip(names, variables, strict=True)]
        )

    return params, restore


def _shares_state(module: nnx.Module) -> bool:
    seen: set[int] = set()

    def visit(node: Any) -> bool:
        if isinstance(node, nnx.Variable | nnx.Module):
            if id(node) in seen:
                return True
            seen.add(id(node))
        if isinstance(node, nnx.Module):
            return any(visit(v) for k, v in vars(node).items() if not k.startswith("_pytree"))
        if isinstance(node, list | tuple):
            return any(visit(v) for v in node)
        if isinstance(node, dict):
            return any(visit(v) for v in node.values())
        return False

    return visit(module)


def _check_returned(returned: Any, spec: PolicySpec) -> tuple[str, ...]:
    if not (isinstance(returned, tuple) and len(returned) == 3):
        raise ProgramError("`__call__` must return three things: mean, scale_tril, info.")
    mean, scale_tril, info = returned
    a = spec.action_size
    for label, value, shape in (("mean", mean, (a,)), ("scale_tril", scale_tril, (a, a))):
        if getattr(value, "shape", None) != shape:
            raise ProgramError(
                f"`{label}` has shape {getattr(value, 'shape', type(value).__name__)}; for one example it must be "
                f"{shape}. The program sees ONE example, without a batch axis."
            )
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise ProgramError(f"`{label}` has dtype {value.dtype}; it must be floating point.")
    if not isinstance(info, dict) or not info:
        raise ProgramError("`info` must be a dictionary of the weights and latents.")
    for key, value in info.items():
        if not (isinstance(key, str) and key.isidentifier() and key.startswith(("weight_", "latent_"))):
            raise ProgramError(f"The info key {key!r} must be a name that starts with weight_ or latent_.")
        if getattr(value, "shape", ()) != ():
            raise ProgramError(
                f"`info[{key!r}]` has shape {value.shape}; every entry is a scalar. Report the parts of a vector under "
                "names that say what each is."
            )
    if not any(key.startswith("latent_") for key in info):
        raise ProgramError("`info` reports no latent_*; report every intermediate value, by its meaning.")
    return tuple(sorted(info))


@contextmanager
def _complaints(doing: str) -> Iterator[None]:
    """Turn whatever a program raises into one paragraph that shows its own line."""
    try:
        yield
    except ProgramError:
        raise
    except (Exception, RecursionError) as error:
        line = _own_line(error)
        message = str(error).strip().split("\n\n")[0].replace("\n", " ")[:600]
        raise ProgramError(f"While {doing}{line}: {type(error).__name__}: {message}") from error


def _own_line(error: BaseException) -> str:
    traceback, line = error.__traceback__, ""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == FILENAME:
            number = traceback.tb_lineno
            line = f", at line {number} `{linecache.getline(FILENAME, number).strip()}`"
        traceback = traceback.tb_next
    return line


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Interrupt Python code that does not end. Only a main thread can be interrupted; elsewhere, no deadline."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise ProgramError(f"The program ran for more than {seconds:g} s before it could be traced.")

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
