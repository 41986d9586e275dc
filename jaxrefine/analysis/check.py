"""What an analysis must be before a process is spent on it."""

from __future__ import annotations

import ast
import warnings

FUNCTION = "run_all"


def check_analysis(code: str) -> str | None:
    """Say what is wrong with the text of an analysis, without running it.

    Args:
        code: Python source.

    Returns:
        None if it parses and defines `run_all(df)` at its top level, else one paragraph for its author.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
            compile(tree, "analysis.py", "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f" at line {error.lineno}: `{(error.text or '').strip()}`" if error.lineno else ""
        return f"The analysis is not valid Python: {error.msg}{where}. Send the whole corrected analysis."
    except (ValueError, RecursionError, MemoryError) as error:
        return f"The analysis cannot be read as Python: {str(error) or 'it is nested too deeply'}."
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == FUNCTION]
    if not functions:
        return (
            f"The analysis does not define a function {FUNCTION}(df) at its top level. Define it; it is called once "
            "with the table as a pandas DataFrame and writes its results to test_results.txt."
        )
    if not _takes_one(functions[-1].args):
        return (
            f"{FUNCTION} must be callable with one argument, the table: def {FUNCTION}(df). "
            f"It is defined as {FUNCTION}({ast.unparse(functions[-1].args)})."
        )
    return None


def _takes_one(arguments: ast.arguments) -> bool:
    positional = len(arguments.posonlyargs) + len(arguments.args)
    required = positional - len(arguments.defaults)
    accepts = positional >= 1 or arguments.vararg is not None
    return accepts and required <= 1 and all(default is not None for default in arguments.kw_defaults)
