"""What a policy program's text may contain, decided before any of it runs.

This is a check of form, with messages for the author of the program. It keeps honest mistakes out and makes
mischief laborious; it is not the jail. Whoever runs a program he does not trust runs it in a process that
holds no secret.
"""

from __future__ import annotations

import ast
import builtins
from typing import Any

IMPORTS = ("jax", "jax.numpy", "flax.nnx")
_JAX = {"Array", "lax", "nn", "numpy", "vmap"}
_JAX_SUBMODULES = {"lax", "nn", "numpy"}
_NNX = {
    "Dict", "List", "Module", "Param", "Rngs", "celu", "elu", "gelu", "hard_sigmoid", "hard_tanh", "identity",
    "leaky_relu", "log_sigmoid", "log_softmax", "relu", "relu6", "selu", "sigmoid", "silu", "soft_sign",
    "softmax", "softplus", "standardize", "swish", "tanh",
}  # fmt: skip
_FORBIDDEN_ATTRIBUTES = {
    "callback", "compat", "custom_call", "debug", "experimental", "export", "ffi", "from_dlpack", "frombuffer",
    "fromfile", "io_callback", "load", "loadtxt", "fromstring", "outside_call", "pure_callback", "save",
    "savetxt", "savez", "tofile", "tobytes", "id_print", "id_tap", "infeed", "outfeed", "rng_bit_generator",
    "rng_uniform", "fromfunction", "frompyfunc", "fromiter", "apply_along_axis", "printoptions",
    "set_printoptions", "format", "format_map",
}  # fmt: skip
_BUILTINS = (
    "abs", "all", "any", "bool", "dict", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min",
    "range", "reversed", "round", "set", "slice", "sorted", "staticmethod", "str", "sum", "super", "tuple",
    "zip", "property", "ValueError", "TypeError", "True", "False", "None",
)  # fmt: skip
_BUILTINS_OUT_OF_SIGHT = ("__build_class__",)


class ProgramError(Exception):
    """Why a program was not accepted: one paragraph its author can act on."""


def check_source(source: str, class_name: str, arguments: tuple[str, ...]) -> ast.Module:
    """Parse the text of a policy program and check its form.

    Args:
        source: the text of the module.
        class_name: the policy class it must define.
        arguments: the observation's keys, which ``__call__`` takes by these names and in this order.

    Returns:
        The syntax tree.

    Raises:
        ProgramError: it does not parse, imports or reaches something it may not, or does not define the class
            with the agreed signatures.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise ProgramError(f"The program does not parse: {error.msg} at line {error.lineno}: `{line}`.") from error
    except ValueError as error:
        raise ProgramError(f"The program does not parse: {error}.") from error
    _check_module_level(tree)
    aliases = _check_imports(tree)
    for node in ast.walk(tree):
        _check_node(node, aliases)
    _check_class(tree, class_name, arguments)
    return tree


def restricted_builtins() -> dict[str, Any]:
    """The builtins a program sees, with an ``__import__`` that knows ``IMPORTS`` only."""

    def limited_import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level or (name not in IMPORTS and name != "flax"):
            raise ImportError(f"a policy program imports only {', '.join(IMPORTS)}, not {name}")
        return builtins.__import__(name, globals, locals, fromlist, level)

    names = {name: getattr(builtins, name) for name in _BUILTINS if hasattr(builtins, name)}
    names |= {name: getattr(builtins, name) for name in _BUILTINS_OUT_OF_SIGHT}
    return names | {"__import__": limited_import}


def _at(node: ast.AST) -> str:
    return f"line {getattr(node, 'lineno', '?')}"


def _check_module_level(tree: ast.Module) -> None:
    for node in tree.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        allowed = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.Assign, ast.AnnAssign)
        if not (is_text or isinstance(node, allowed)):
            raise ProgramError(
                f"The module may hold imports, constants, functions and classes only; {_at(node)} is a "
                f"{type(node).__name__} statement. Move it into the class or leave it out."
            )


def _check_imports(tree: ast.Module) -> dict[str, str]:
    """Local names of the imported modules -> their full names."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name not in IMPORTS:
                    raise _bad_import(node, name.name)
                if name.name == "flax.nnx" and name.asname is None:
                    raise ProgramError(f"Write `from flax import nnx` at {_at(node)}.")
                aliases[name.asname or name.name.split(".")[0]] = name.name if name.asname else "jax"
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                full = f"{node.module}.{name.name}"
                if node.level or not (
                    full == "flax.nnx"
                    or (node.module == "jax" and name.name in _JAX_SUBMODULES)
                    or (node.module == "__future__" and name.name == "annotations")
                ):
                    raise _bad_import(node, full)
                aliases[name.asname or name.name] = full
    return aliases


def _bad_import(node: ast.AST, name: str) -> ProgramError:
    return ProgramError(
        f"{_at(node).capitalize()} imports `{name}`. A policy program imports only {', '.join(IMPORTS)} "
        "(`import jax`, `import jax.numpy as jnp`, `from flax import nnx`); activation functions are under "
        "`jax.nn` and need no import of their own."
    )


def _check_node(node: ast.AST, aliases: dict[str, str]) -> None:
    if isinstance(node, ast.Attribute):
        _check_attribute(node, aliases)
    elif isinstance(node, ast.Name):
        known = node.id in _BUILTINS or not hasattr(builtins, node.id)
        if node.id.startswith("__") or not known:
            raise ProgramError(f"`{node.id}` at {_at(node)} is not available to a policy program.")
    elif isinstance(node, ast.Global | ast.Nonlocal | ast.AsyncFunctionDef | ast.Await | ast.Yield | ast.YieldFrom):
        raise ProgramError(f"A policy program is pure: {type(node).__name__.lower()} at {_at(node)} is not allowed.")
    elif isinstance(node, ast.While):
        raise ProgramError(f"`while` at {_at(node)} cannot be traced; use `for` over a fixed range or jnp operations.")
    elif isinstance(node, ast.FunctionDef) and node.name.startswith("__") and node.name not in ("__init__", "__call__"):
        raise ProgramError(f"A policy program defines no special method `{node.name}` ({_at(node)}).")


def _check_attribute(node: ast.Attribute, aliases: dict[str, str]) -> None:
    inner = node.value
    is_super_init = (
        node.attr == "__init__"
        and isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Name)
        and inner.func.id == "super"
    )
    if (node.attr.startswith("_") and not is_super_init) or node.attr in _FORBIDDEN_ATTRIBUTES:
        raise ProgramError(f"`.{node.attr}` at {_at(node)} is not available to a policy program.")
    root = aliases.get(inner.id) if isinstance(inner, ast.Name) else None
    if root == "jax" and node.attr not in _JAX:
        raise ProgramError(
            f"`jax.{node.attr}` at {_at(node)} is not available to a policy program; there are jax.numpy, jax.nn, "
            "jax.lax and jax.vmap."
        )
    if root == "flax.nnx" and node.attr not in _NNX:
        raise ProgramError(
            f"`nnx.{node.attr}` at {_at(node)} is not available to a policy program: its state is nnx.Param and Python "
            "numbers only, so use nnx.Module, nnx.Param and functions of jax.numpy and jax.nn."
        )


def _check_class(tree: ast.Module, class_name: str, arguments: tuple[str, ...]) -> None:
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if class_name not in classes:
        found = ", ".join(classes) or "none"
        raise ProgramError(f"The program must define the class `{class_name}(nnx.Module)`; it defines: {found}.")
    methods = {node.name: node for node in classes[class_name].body if isinstance(node, ast.FunctionDef)}
    for name in ("__init__", "__call__"):
        if name not in methods:
            raise ProgramError(f"`{class_name}` has no `{name}`.")
    init, call = methods["__init__"].args, methods["__call__"].args
    if [a.arg for a in init.args] != ["self"] or [a.arg for a in init.kwonlyargs] != ["rngs"]:
        raise ProgramError(
            f"The constructor's signature must be `def __init__(self, *, rngs: nnx.Rngs)` in `{class_name}`."
        )
    names = tuple(a.arg for a in call.args)
    if names != ("self", *arguments) or call.kwonlyargs or call.vararg or call.kwarg:
        raise ProgramError(
            f"The signature must be `def __call__(self, {', '.join(arguments)})` in `{class_name}`; it has "
            f"({', '.join(names)})."
        )
    for cls in classes.values():
        for method in cls.body:
            if isinstance(method, ast.FunctionDef) and method.name != "__init__":
                _check_no_mutation(method)


def _check_no_mutation(method: ast.FunctionDef) -> None:
    for node in ast.walk(method):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        targets += [part for target in targets for part in ast.walk(target) if isinstance(part, ast.expr)]
        for target in targets:
            root: ast.expr = target
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if isinstance(root, ast.Name) and root.id == "self" and root is not target:
                raise ProgramError(
                    f"`{method.name}` changes `self` at {_at(node)}. A policy program has no memory: compute local "
                    "variables and report them in the info dictionary."
                )
