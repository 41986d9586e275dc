"""A walk over a policy program's syntax: what each name, attribute, assignment and function may be."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from jaxrefine.policy.allowlist import (
    BUILTINS,
    NEVER_ATTRIBUTES,
    REFUSED_SYNTAX,
    SYNTAX,
    VALUE_ATTRIBUTES,
    reach,
)
from jaxrefine.policy.constants import MAX_EXPONENT, number
from jaxrefine.policy.errors import ProgramError, at

_FLAX_OWN = ("_pytree", "_object")


def check_form(tree: ast.Module, aliases: dict[str, str], classes: frozenset[str]) -> None:
    """Check every node of a program, whose imports and class headers are already known to be in order.

    Args:
        tree: the program.
        aliases: local names of the imported modules -> their full names.
        classes: names of its classes.

    Raises:
        ProgramError: the first thing that a policy program may not do.
    """
    _Walk(tree, aliases, classes).check()


def _bindings(node: ast.AST) -> Iterator[str]:
    """The names, other than imported ones, that a node binds."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name


def _root(node: ast.expr) -> ast.expr:
    """What the attributes and entries of an expression such as ``a.b[0].c`` are taken of."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node


class _Walk:
    def __init__(self, tree: ast.Module, aliases: dict[str, str], classes: frozenset[str]) -> None:
        self.tree, self.aliases, self.classes = tree, aliases, classes
        self.nodes = list(ast.walk(tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.bound = {name for node in self.nodes for name in _bindings(node)} | set(aliases)
        self.own = set(self._own_attributes())

    def check(self) -> None:
        for node in self.nodes:
            self._check_syntax(node)
        for node in self.nodes:
            self._check_identifiers(node)
        for node in self.nodes:
            if isinstance(node, ast.Name):
                self._check_name(node)
        for node in self.nodes:
            if isinstance(node, ast.Name) and node.id == "rngs":
                self._check_rngs(node)
            elif isinstance(node, ast.Attribute):
                self._check_attribute(node)
            elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                self._check_subscript_store(node)
            elif isinstance(node, ast.FunctionDef | ast.Lambda):
                self._check_function(node)
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
                self._check_power(node)

    def _own_attributes(self) -> Iterator[str]:
        """Attributes of the program's own classes."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef) and isinstance(self.parents[node], ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr
            elif isinstance(node, ast.AnnAssign) and isinstance(self.parents[node], ast.ClassDef):
                yield from _bindings(node.target)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "Dict":
                yield from (keyword.arg for keyword in node.keywords if keyword.arg)

    def _function(self, node: ast.AST) -> ast.FunctionDef | ast.Lambda | None:
        """The innermost function around a node."""
        around = self.parents.get(node)
        while not (around is None or isinstance(around, ast.FunctionDef | ast.Lambda)):
            around = self.parents.get(around)
        return around

    def _in_init(self, node: ast.AST) -> bool:
        """Is the innermost function around a node a class's ``__init__``?"""
        function = self._function(node)
        return (
            isinstance(function, ast.FunctionDef)
            and function.name == "__init__"
            and isinstance(self.parents[function], ast.ClassDef)
        )

    def _in_annotation(self, node: ast.AST) -> bool:
        while node in self.parents:
            parent = self.parents[node]
            if node in (getattr(parent, "annotation", None), getattr(parent, "returns", None)):
                return True
            node = parent
        return False

    def _check_syntax(self, node: ast.AST) -> None:
        if isinstance(node, SYNTAX):
            return
        for kind, why in REFUSED_SYNTAX.items():
            if isinstance(node, kind):
                raise ProgramError(f"{at(node).capitalize()}: {why}.")
        raise ProgramError(
            f"{at(node).capitalize()}: {type(node).__name__} has no place in a policy program; write "
            "assignments, `if`, `for`, calls and `return`."
        )

    def _check_identifiers(self, node: ast.AST) -> None:
        names = list(_bindings(node))
        if isinstance(node, ast.alias):
            names = [node.asname or ""]
        elif isinstance(node, ast.keyword):
            names = [node.arg or ""]
        elif isinstance(node, ast.FunctionDef) and isinstance(self.parents[node], ast.ClassDef):
            names = []  # special methods have a check of their own
        for name in names:
            if name.startswith("__"):
                raise ProgramError(f"`{name}` at {at(node)} is not available to a policy program; use another name.")
        for name in _bindings(node):
            if name in self.aliases:
                raise ProgramError(
                    f"{at(node).capitalize()} gives `{name}` a new meaning, but it is an imported module; use another "
                    "name."
                )
        if isinstance(node, ast.ClassDef) and node not in self.tree.body:
            raise ProgramError(f"The class `{node.name}` at {at(node)} must stand at the top level of the module.")

    def _check_name(self, node: ast.Name) -> None:
        parent = self.parents[node]
        if node.id in self.aliases:
            if not (isinstance(parent, ast.Attribute) and parent.value is node):
                raise ProgramError(
                    f"`{node.id}` at {at(node)} stands alone; an imported module's name may only start a dotted name "
                    f"such as `{node.id}.{'Module' if self.aliases[node.id] == 'flax.nnx' else 'numpy.sum'}`."
                )
        elif node.id == "self":
            if not isinstance(node.ctx, ast.Load):
                raise ProgramError(f"`self` gets a new meaning at {at(node)}; use another name.")
        elif node.id == "super":
            outer = self.parents.get(parent)
            plain = isinstance(parent, ast.Call) and parent.func is node and not (parent.args or parent.keywords)
            if not (plain and isinstance(outer, ast.Attribute)):
                raise ProgramError(f"`super` at {at(node)} may only be written `super().` and a method.")
        elif node.id.startswith("__") or (
            hasattr(builtins, node.id) and node.id not in BUILTINS and node.id not in self.bound
        ):
            raise ProgramError(f"`{node.id}` at {at(node)} is not available to a policy program.")

    def _check_rngs(self, node: ast.Name) -> None:
        parent = self.parents[node]
        call = self.parents.get(parent)
        function = call.func if isinstance(call, ast.Call) else None
        to_own = isinstance(function, ast.Name) and function.id in self.classes
        to_base = isinstance(function, ast.Attribute) and function.attr == "__init__"
        if not (isinstance(parent, ast.keyword) and parent.arg == "rngs" and (to_own or to_base)):
            raise ProgramError(
                f"`rngs` at {at(node)}: a policy program uses no randomness. `rngs` may only be passed on, as "
                "`rngs=rngs`, to submodules of the program's own classes; give parameters fixed initial values."
            )

    def _check_attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._check_store(node)
            return
        if isinstance(self.parents[node], ast.Attribute) and self._path(node):
            return  # the whole of a module's dotted name is checked at its end
        path = self._path(node)
        if path:
            self._check_reach(node, path)
            return
        inner = node.value
        root = _root(node)
        if isinstance(root, ast.Name) and root.id == "rngs":
            self._check_rngs(root)
        of_self = isinstance(inner, ast.Name) and inner.id == "self"
        of_super = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "super"
        own = node.attr in self.own and not node.attr.startswith(_FLAX_OWN) and node.attr not in NEVER_ATTRIBUTES
        if node.attr.startswith("_"):
            allowed = (own and (of_self or of_super) and not node.attr.startswith("__")) or (
                of_super and node.attr == "__init__" and self._in_init(node)
            )
        else:
            allowed = own or node.attr in VALUE_ATTRIBUTES
        if not allowed:
            raise ProgramError(
                f"`.{node.attr}` at {at(node)} is not available to a policy program. Its classes have the attributes "
                "that their `__init__` and methods define; for arrays use functions of jax.numpy and jax.nn."
            )

    def _path(self, node: ast.Attribute) -> str:
        """The full dotted name of something in an imported module; empty if it is not in one."""
        parts: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in self.aliases:
            return ".".join([self.aliases[inner.id], *reversed(parts)])
        return ""

    def _check_reach(self, node: ast.Attribute, path: str) -> None:
        try:
            leads_to = reach(path)
        except KeyError as error:
            known = str(error.args[0])
            raise self._unavailable(node, path, known) from error
        if leads_to is not None:
            raise ProgramError(
                f"`{ast.unparse(node)}` at {at(node)} is a module; write the whole dotted name where it is used, such "
                "as `jax.nn.softplus(x)`."
            )
        if path.startswith("flax.nnx."):
            self._check_nnx(node, path.rsplit(".", 1)[1])

    def _unavailable(self, node: ast.Attribute, path: str, missing: str) -> ProgramError:
        text = f"`{ast.unparse(node)}` at {at(node)} is not available to a policy program"
        if path.startswith("flax.nnx"):
            why = (
                ": its state is nnx.Param and Python numbers only, so use nnx.Module, nnx.Param and functions of "
                "jax.numpy and jax.nn."
            )
        elif missing.startswith("jax.lax."):
            why = ". It needs no loops of jax.lax: a Python `for` over a fixed range, jax.vmap or jnp operations do."
        elif missing.count(".") == 1:
            why = "; there are jax.numpy, jax.nn, jax.lax and jax.vmap."
        else:
            why = f": `{missing}` reads files, calls back into Python or is no public function of it."
        return ProgramError(text + why)

    def _check_nnx(self, node: ast.Attribute, name: str) -> None:
        parent = self.parents[node]
        if self._in_annotation(node):
            return
        called = isinstance(parent, ast.Call) and parent.func is node
        if name == "Rngs":
            raise ProgramError(
                f"`nnx.Rngs` at {at(node)}: a policy program uses no randomness; it appears as the annotation of "
                "`rngs` only. Give parameters fixed initial values."
            )
        if name == "Module" and not isinstance(parent, ast.ClassDef):
            raise ProgramError(f"`nnx.Module` at {at(node)} may only be the base of a class.")
        if name in ("Dict", "List") and not called:
            raise ProgramError(f"`nnx.{name}` at {at(node)} may only be called, with the submodules it holds.")
        if name == "Param":
            plain = isinstance(parent, ast.Call) and called and len(parent.args) == 1 and not parent.keywords
            if not plain or (isinstance(parent, ast.Call) and isinstance(parent.args[0], ast.Starred)):
                raise ProgramError(
                    f"`nnx.Param` at {at(node)} must be called with the initial value and nothing else, as in "
                    "`nnx.Param(jnp.array(0.5))`."
                )

    def _check_store(self, node: ast.Attribute) -> None:
        of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
        if not (of_self and self._in_init(node)):
            raise self._mutation(node)
        if node.attr.startswith(("__", *_FLAX_OWN)) or node.attr in NEVER_ATTRIBUTES:
            raise ProgramError(f"`self.{node.attr}` at {at(node)} cannot be used; choose another name.")

    def _check_subscript_store(self, node: ast.Subscript) -> None:
        root: ast.expr = node
        while isinstance(root, ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name) or root.id == "self":
            raise self._mutation(node)

    def _mutation(self, node: ast.Attribute | ast.Subscript) -> ProgramError:
        root, function = _root(node), self._function(node)
        name = function.name if isinstance(function, ast.FunctionDef) else "The program"
        if isinstance(root, ast.Name) and root.id == "self":
            return ProgramError(
                f"`{name}` changes `self` at {at(node)}. A policy program has no memory: only `__init__` writes "
                "`self.x = ...`; compute local variables and report them in the info dictionary."
            )
        return ProgramError(
            f"`{name}` changes `{ast.unparse(node)}` at {at(node)}. Only `self.x = ...` in an `__init__`, and entries "
            "of local dictionaries and lists, may be assigned; compute a local variable instead."
        )

    def _check_function(self, node: ast.FunctionDef | ast.Lambda) -> None:
        is_method = isinstance(self.parents[node], ast.ClassDef)
        if isinstance(node, ast.FunctionDef) and node.decorator_list and not is_method:
            raise ProgramError(f"`{node.name}` at {at(node)} has a decorator; write a plain function.")
        arguments = node.args
        for default in (*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)):
            if not _is_plain(default):
                raise ProgramError(
                    f"A default argument at {at(default)} is `{ast.unparse(default)[:100]}`; it must be a number, "
                    "text or a tuple of these, since a default is shared by all calls."
                )
        positional = [*arguments.posonlyargs, *arguments.args]
        starred = [a for a in (arguments.vararg, arguments.kwarg) if a]
        for argument in (*positional, *arguments.kwonlyargs, *starred):
            if argument.arg == "self" and not (is_method and argument is positional[0]):
                raise ProgramError(
                    f"`self` at {at(argument)} must be the first argument of a method; use another name."
                )
            init = is_method and isinstance(node, ast.FunctionDef) and node.name == "__init__"
            if argument.arg == "rngs" and not init:
                raise ProgramError(f"`rngs` at {at(argument)} is an argument of `__init__` only; use another name.")

    def _check_power(self, node: ast.BinOp) -> None:
        exponent = number(node.right, {})
        constant = all(isinstance(n, ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
                       for n in ast.walk(node.right))  # fmt: skip
        if constant and (exponent is None or abs(exponent) > MAX_EXPONENT):
            raise ProgramError(
                f"`{ast.unparse(node)[:100]}` at {at(node)} has an exponent above {MAX_EXPONENT}; use a smaller one."
            )


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return all(_is_plain(part) for part in node.elts)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool | int | float | str | None)
    return number(node, {}) is not None
