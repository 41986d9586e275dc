"""What a policy program's text may contain, decided before any of it runs.

This is a check of form, with messages for the author of the program. It keeps honest mistakes out and makes
mischief laborious; it is not the jail. Whoever runs a program he does not trust runs it in a process that
holds no secret.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from typing import Any

from jaxrefine.policy.allowlist import BUILTINS, IMPORTABLE, IMPORTS
from jaxrefine.policy.constants import Number, check_constant
from jaxrefine.policy.errors import ProgramError as ProgramError
from jaxrefine.policy.errors import at
from jaxrefine.policy.form import check_form

MAX_CHARACTERS = 100_000
MAX_DEPTH = 150  # of nested syntax; Python's own compiler gives up some way above
_BUILTINS_OUT_OF_SIGHT = ("__build_class__",)
_SPECIAL_METHODS = ("__init__", "__call__")


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
    tree = _parse(source)
    aliases = _check_imports(tree)
    _check_module_level(tree)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    _check_classes(classes, aliases)
    check_form(tree, aliases, frozenset(classes))
    _check_policy(classes, class_name, arguments)
    return tree


def restricted_builtins() -> dict[str, Any]:
    """The builtins a program sees, with an ``__import__`` that knows ``IMPORTS`` only."""

    def limited_import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level or name not in (*IMPORTS, "flax", "__future__"):
            raise ImportError(f"a policy program imports only {', '.join(IMPORTS)}, not {name}")
        return builtins.__import__(name, globals, locals, fromlist, level)

    names = {name: getattr(builtins, name) for name in (*BUILTINS, *_BUILTINS_OUT_OF_SIGHT) if hasattr(builtins, name)}
    return names | {"__import__": limited_import}


def _parse(source: str) -> ast.Module:
    if len(source) > MAX_CHARACTERS:
        raise ProgramError(
            f"The program has {len(source):,} characters; at most {MAX_CHARACTERS:,} are read. Keep it small: a policy "
            "is something a person can read."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as a backslash in a docstring
            tree = ast.parse(source)
    except SyntaxError as error:
        where = f" at line {error.lineno}: `{error.text.strip()[:200]}`" if error.text else ""
        raise ProgramError(f"The program does not parse: {error.msg}{where}.") from error
    except ValueError as error:
        raise ProgramError(f"The program does not parse: {error}.") from error
    except (RecursionError, MemoryError) as error:
        raise _too_deep() from error
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise _too_deep()
    return tree


def _too_deep() -> ProgramError:
    return ProgramError(
        "The program does not parse: its expressions are nested too deeply. Split long expressions into named "
        "intermediate values, or sum an array with jnp.sum."
    )


def _check_imports(tree: ast.Module) -> dict[str, str]:
    """Local names of the imported modules -> their full names."""
    found: list[tuple[str, str, ast.AST]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in tree.body:
            raise ProgramError(f"{at(node).capitalize()} imports inside another statement; put imports at the top.")
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name not in IMPORTS:
                    raise _bad_import(node, name.name)
                if name.name == "flax.nnx" and name.asname is None:
                    raise ProgramError(f"Write `from flax import nnx` at {at(node)}.")
                found.append((name.asname or "jax", name.name if name.asname else "jax", node))
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                full = f"{node.module}.{name.name}"
                if full == "__future__.annotations":
                    continue
                if node.level or full not in IMPORTABLE:
                    raise _bad_import(node, full)
                found.append((name.asname or name.name, full, node))
    aliases: dict[str, str] = {}
    for local, full, node in found:
        if aliases.setdefault(local, full) != full:
            raise ProgramError(f"`{local}` is imported as two different things; give each its own name ({at(node)}).")
    return aliases


def _bad_import(node: ast.AST, name: str) -> ProgramError:
    return ProgramError(
        f"{at(node).capitalize()} imports `{name}`. A policy program imports only {', '.join(IMPORTS)} "
        "(`import jax`, `import jax.numpy as jnp`, `from flax import nnx`); activation functions are under "
        "`jax.nn` and need no import of their own."
    )


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _check_module_level(tree: ast.Module) -> None:
    numbers: dict[str, Number] = {}
    bound: set[str] = set()
    for node in tree.body:
        names: list[str] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names = check_constant(node, numbers)
        elif not (_is_text(node) or isinstance(node, ast.Import | ast.ImportFrom)):
            raise ProgramError(
                f"The module may hold imports, constants, functions and classes only; {at(node)} is a "
                f"{type(node).__name__} statement. Move it into the class or leave it out."
            )
        for name in names:
            if name in bound:
                raise ProgramError(f"`{name}` is defined a second time at {at(node)}; define each name once.")
            bound.add(name)


def _check_classes(classes: dict[str, ast.ClassDef], aliases: dict[str, str]) -> None:
    known: set[str] = set()
    for cls in classes.values():
        plain = len(cls.bases) == 1 and not (cls.keywords or cls.decorator_list)
        base = cls.bases[0] if plain else None
        is_module = (
            isinstance(base, ast.Attribute)
            and base.attr == "Module"
            and isinstance(base.value, ast.Name)
            and aliases.get(base.value.id) == "flax.nnx"
        )
        if not (is_module or (isinstance(base, ast.Name) and base.id in known)):
            raise ProgramError(
                f"The class at {at(cls)} must be written `class {cls.name}(nnx.Module):`, or derive from a class that "
                "the program defines above it; nothing else stands between the parentheses, and no decorator above."
            )
        known.add(cls.name)
        methods: set[str] = set()
        for node in cls.body:
            annotation = isinstance(node, ast.AnnAssign) and node.value is None and isinstance(node.target, ast.Name)
            if isinstance(node, ast.FunctionDef):
                _check_method(node, methods)
            elif not (_is_text(node) or annotation or isinstance(node, ast.Pass)):
                raise ProgramError(
                    f"The body of `{cls.name}` holds methods only; {at(node)} is a {type(node).__name__} "
                    "statement. Put constants above the class or, as numbers, on `self` in `__init__`."
                )


def _check_method(node: ast.FunctionDef, methods: set[str]) -> None:
    if node.name in methods:
        raise ProgramError(f"`{node.name}` is defined a second time at {at(node)}; define each method once.")
    methods.add(node.name)
    if node.name.startswith("__") and node.name not in _SPECIAL_METHODS:
        raise ProgramError(f"A policy program defines no special method `{node.name}` ({at(node)}).")
    static = [d for d in node.decorator_list if isinstance(d, ast.Name) and d.id == "staticmethod"]
    if len(static) != len(node.decorator_list) or (static and node.name in _SPECIAL_METHODS):
        raise ProgramError(
            f"`{node.name}` at {at(node)} has a decorator; only @staticmethod may stand above a method, and nothing "
            "above `__init__` and `__call__`. Write a plain method."
        )
    positional = node.args.posonlyargs + node.args.args
    if bool(static) == bool(positional and positional[0].arg == "self"):
        first = "no `self`" if static else "`self` as its first argument"
        raise ProgramError(f"`{node.name}` at {at(node)} must have {first}.")


def _check_policy(classes: dict[str, ast.ClassDef], class_name: str, arguments: tuple[str, ...]) -> None:
    if class_name not in classes:
        found = ", ".join(classes) or "none"
        raise ProgramError(f"The program must define the class `{class_name}(nnx.Module)`; it defines: {found}.")
    methods = {node.name: node for node in classes[class_name].body if isinstance(node, ast.FunctionDef)}
    for name in _SPECIAL_METHODS:
        if name not in methods:
            raise ProgramError(f"`{class_name}` has no `{name}`.")
    init, call = methods["__init__"].args, methods["__call__"].args
    if (
        [a.arg for a in init.args] != ["self"]
        or [a.arg for a in init.kwonlyargs] != ["rngs"]
        or (init.posonlyargs or init.vararg or init.kwarg)
    ):
        raise ProgramError(
            f"The constructor's signature must be `def __init__(self, *, rngs: nnx.Rngs)` in `{class_name}`."
        )
    names = tuple(a.arg for a in call.args)
    if names != ("self", *arguments) or call.posonlyargs or call.kwonlyargs or call.vararg or call.kwarg:
        every = ast.unparse(call)
        raise ProgramError(
            f"The signature must be `def __call__(self, {', '.join(arguments)})` in `{class_name}`; it has ({every})."
        )
