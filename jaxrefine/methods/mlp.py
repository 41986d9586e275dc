"""The control without structure: a perceptron in the program's place, with no model in the loop."""

from __future__ import annotations

from jaxrefine.methods.rounds import Round, Rounds


def mlp(rounds: Rounds) -> tuple[list[Round], str | None]:
    """Fit and evaluate the perceptron of ``method.hidden``; its training, if any, follows as a program's does.

    Returns:
        The one round, and None: nothing can end it early.

    Raises:
        RoundFailedError: it could not be fitted.
    """
    only = rounds.builtin("mlp:" + ",".join(map(str, rounds.config.method.hidden)))
    only.decision = "limit"
    return [only], None
