"""The one way in which a policy program fails, and where in its text."""

from __future__ import annotations

import ast


class ProgramError(Exception):
    """Why a program was not accepted: one paragraph its author can act on."""


def at(node: ast.AST) -> str:
    """Where a node stands, for a message."""
    return f"line {getattr(node, 'lineno', '?')}"
