"""The control without feedback: the first program, fitted and evaluated."""

from __future__ import annotations

from jaxrefine.methods.rounds import Round, Rounds


def zero_shot(rounds: Rounds) -> tuple[list[Round], str | None]:
    """Carry out round 0 alone.

    Returns:
        That round, and None: nothing can end it early.

    Raises:
        RoundFailedError: it has no usable program.
    """
    only = rounds.first()
    only.decision = "limit"
    return [only], None
