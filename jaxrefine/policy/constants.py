"""What a policy program may assign at module level: constants, so that nothing is remembered between calls."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from jaxrefine.policy.errors import ProgramError, at

Number: TypeAlias = int | float

MAX_EXPONENT = 64
_LARGEST = 1e40  # whole numbers have no bound of their own, and computing with huge ones cannot be interrupted
_CONSTANTS = {"e", "euler_gamma", "inf", "nan", "pi"}
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def check_constant(node: ast.Assign | ast.AnnAssign, numbers: dict[str, Number]) -> list[str]:
    """Check one assignment at module level.

    Args:
        node: the statement.
        numbers: names of the numbers assigned so far and their values; this one's are added.

    Returns:
        The names it binds.

    Raises:
        ProgramError: it is not an assignment of a constant to a name.
    """
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    if len(names) != len(targets) or (node.value is not None and not _is_constant(node.value, numbers)):
        raise ProgramError(
            f"{at(node).capitalize()}: a module-level name is a constant: a number, text, a tuple of these, simple "
            "arithmetic with numbers, or jnp.array of numbers. Compute anything else in `__init__` or `__call__`."
        )
    value = number(node.value, numbers) if node.value is not None else None
    if value is not None:
        numbers.update(dict.fromkeys(names, value))
    return names


def number(node: ast.expr, numbers: dict[str, Number]) -> Number | None:
    """The value of an expression of numbers; None if it is anything else, or too large to be computed with."""
    value: Number | None = None
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        value = node.value
    elif isinstance(node, ast.Name):
        value = numbers.get(node.id)
    elif isinstance(node, ast.Attribute) and node.attr in _CONSTANTS:
        value = 1.0  # the size of what it stands for is all that matters here
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = number(node.operand, numbers)
        value = -value if value is not None and isinstance(node.op, ast.USub) else value
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = number(node.left, numbers), number(node.right, numbers)
        if left is None or right is None or (isinstance(node.op, ast.Pow) and abs(right) > MAX_EXPONENT):
            return None
        try:
            value = _OPERATORS[type(node.op)](left, right)
        except ArithmeticError:
            return None
    if isinstance(value, int | float) and not (isinstance(value, int) and abs(value) > _LARGEST):
        return value
    return None


def _is_constant(node: ast.expr, numbers: dict[str, Number]) -> bool:
    if isinstance(node, ast.Tuple):
        return all(_is_constant(part, numbers) for part in node.elts)
    if isinstance(node, ast.Call):
        dtypes = [k.value for k in node.keywords if k.arg == "dtype"]
        return (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in ("array", "asarray")
            and isinstance(node.func.value, ast.Name)
            and len(node.args) == 1
            and _is_table(node.args[0], numbers)
            and len(dtypes) == len(node.keywords)
            and all(isinstance(dtype, ast.Attribute) for dtype in dtypes)
        )
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool | str | None) or number(node, numbers) is not None
    return number(node, numbers) is not None


def _is_table(node: ast.expr, numbers: dict[str, Number]) -> bool:
    if isinstance(node, ast.List | ast.Tuple):
        return all(_is_table(part, numbers) for part in node.elts)
    return number(node, numbers) is not None
