"""What a policy program may reach: of its imports, of the builtins, of values, and of Python's syntax."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import CodeType, FrameType, GeneratorType, ModuleType, TracebackType
from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

IMPORTS = ("jax", "jax.numpy", "flax.nnx")

# a module: name -> where it leads; None: a function, class or constant, with nothing to reach behind it
Reach: TypeAlias = Mapping[str, "Reach | None"]


def _public(module: ModuleType, refused: set[str]) -> dict[str, Reach | None]:
    names = (name for name in dir(module) if not name.startswith("_") and name not in refused)
    return {name: None for name in names if not isinstance(getattr(module, name), ModuleType)}


def _listed(names: str) -> dict[str, Reach | None]:
    return dict.fromkeys(names.split())


# files, raw memory, NumPy's global state, Python callbacks, and in-place functions that JAX refuses anyway
_NUMPY_REFUSED = {
    "apply_along_axis", "apply_over_axes", "array_repr", "array_str", "fill_diagonal", "from_dlpack", "frombuffer",
    "fromfile", "fromfunction", "fromiter", "fromstring", "frompyfunc", "get_printoptions", "load", "loadtxt",
    "place", "printoptions", "put", "put_along_axis", "save", "savetxt", "savez", "set_printoptions", "ufunc",
}  # fmt: skip
_NUMPY = {
    **_public(jnp, _NUMPY_REFUSED),
    "fft": _public(jnp.fft, set()),
    "linalg": _public(jnp.linalg, set()),
}
_NN = _public(
    jax.nn,
    {"dot_product_attention", "get_scaled_dot_general_config", "scaled_dot_general", "scaled_matmul"},
)
# elementwise functions, shapes, choices and reductions; no loops, windows, callbacks, randomness or collectives
_LAX = _listed(
    "abs acos acosh add argmax argmin asin asinh atan atan2 atanh batch_matmul broadcast broadcast_in_dim "
    "broadcasted_iota cbrt ceil clamp collapse concatenate cond convert_element_type cos cosh cumlogsumexp cummax "
    "cummin cumprod cumsum digamma div dot dot_general dynamic_index_in_dim dynamic_slice dynamic_slice_in_dim "
    "dynamic_update_index_in_dim dynamic_update_slice dynamic_update_slice_in_dim eq erf erf_inv erfc exp exp2 "
    "expand_dims expm1 floor full full_like ge gt index_in_dim index_take integer_pow iota is_finite le lgamma log "
    "log1p logistic lt max min mul ne neg pad pow reciprocal reduce_and reduce_max reduce_min reduce_or reduce_prod "
    "reduce_sum rem reshape rev round rsqrt select select_n sign sin sinh slice slice_in_dim sort sort_key_val sqrt "
    "square squeeze stop_gradient sub switch tan tanh tile top_k transpose"
)
_NNX = _listed(
    "Dict List Module Param Rngs celu elu gelu hard_sigmoid hard_tanh identity leaky_relu log_sigmoid log_softmax "
    "relu relu6 selu sigmoid silu soft_sign softmax softplus standardize swish tanh"
)
REACH: Reach = {
    "jax": {"Array": None, "lax": _LAX, "nn": _NN, "numpy": _NUMPY, "vmap": None},
    "flax": {"nnx": _NNX},
}
IMPORTABLE = ("flax.nnx", "jax.lax", "jax.nn", "jax.numpy")  # by `from ... import ...`


def reach(path: str) -> Reach | None:
    """What a dotted path leads to: a module's names, or None for a function, a class or a constant.

    Raises:
        KeyError: it leads to something that is not on the list; the argument is the part that does not.
    """
    where: Reach | None = REACH
    parts = path.split(".")
    for i, part in enumerate(parts):
        if where is None or part not in where:
            raise KeyError(".".join(parts[: i + 1]))
        where = where[part]
    return where


# what arrays, parameters, tuples, dictionaries, lists and text are asked for
VALUE_ATTRIBUTES = frozenset(
    _listed(
        "T add all any append apply argmax argmin argsort astype at bits clip conj copy count cumprod cumsum diagonal "
        "divide dot dtype endswith eps extend flatten get get_value index insert items itemsize join keys ljust mT max "
        "mean min multiply ndim pop power prod ravel real remove repeat replace reshape reverse rjust round set "
        "setdefault shape size smallest_normal sort split squeeze startswith std strip subtract sum swapaxes take tiny "
        "tolist transpose union update value values var zfill"
    )
)
# never, not even where a class of the program has an attribute of this name
_INNER = (CodeType, FrameType, GeneratorType, TracebackType)
_FLAX_METHODS = ({*dir(nnx.Module), *dir(nnx.Param)} - VALUE_ATTRIBUTES) - {"ref", "type"}
NEVER_ATTRIBUTES = _FLAX_METHODS | {name for kind in _INNER for name in dir(kind) if "_" in name} | {
    "ctypes", "dump", "dumps", "format", "format_map", "mro", "setflags", "tobytes", "tofile",
}  # fmt: skip

BUILTINS = (
    "abs", "all", "any", "bool", "dict", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min",
    "range", "reversed", "round", "set", "slice", "sorted", "staticmethod", "str", "sum", "super", "tuple",
    "zip", "ValueError", "TypeError", "True", "False", "None",
)  # fmt: skip

SYNTAX = (
    ast.Module, ast.Import, ast.ImportFrom, ast.alias, ast.ClassDef, ast.FunctionDef, ast.arguments, ast.arg,
    ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.If, ast.Expr, ast.Pass, ast.Break,
    ast.Continue, ast.Assert, ast.Raise, ast.BoolOp, ast.NamedExpr, ast.BinOp, ast.UnaryOp, ast.Lambda, ast.IfExp,
    ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.Compare,
    ast.Call, ast.keyword, ast.FormattedValue, ast.JoinedStr, ast.Constant, ast.Attribute, ast.Subscript,
    ast.Starred, ast.Name, ast.List, ast.Tuple, ast.Slice, ast.expr_context, ast.boolop, ast.operator, ast.unaryop,
    ast.cmpop,
)  # fmt: skip
# why a statement that people do write is not among them
REFUSED_SYNTAX: dict[type[ast.AST], str] = {
    ast.While: "`while` cannot be traced; use `for` over a fixed range or jnp operations",
    ast.Try: "`try` hides errors; leave it out and let them show",
    ast.TryStar: "`try` hides errors; leave it out and let them show",
    ast.With: "`with` has no use here; leave it out",
    ast.Match: "`match` is not needed; use `if` for fixed choices and jnp.where for values",
    ast.Delete: "nothing is deleted; let the name stand",
    ast.Global: "a function changes no global name; pass values as arguments and return them",
    ast.Nonlocal: "a function changes no outer name; pass values as arguments and return them",
    ast.Yield: "a policy program is pure, so nothing yields; return the value",
    ast.YieldFrom: "a policy program is pure, so nothing yields; return the value",
    ast.AsyncFunctionDef: "a policy program is pure, so nothing is async; use `def`",
    ast.Await: "a policy program is pure, so nothing is async; leave `await` out",
}
