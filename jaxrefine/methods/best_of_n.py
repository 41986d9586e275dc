"""The control with as many calls and no feedback: several first programs, the best on validation episodes kept."""

from __future__ import annotations

from jaxrefine.methods.rounds import Round, RoundFailedError, Rounds


def best_of_n(rounds: Rounds) -> tuple[list[Round], str | None]:
    """Ask ``method.n`` times for a program, the request being the same each time; fit and evaluate every one.

    A program that stays unusable counts as one of them. Which is best is for the summary to say, as of any rounds.

    Returns:
        The rounds that have a program, and None: nothing can end it early.

    Raises:
        RoundFailedError: none of them has.
    """
    done: list[Round] = []
    failures: list[str] = []
    for number in range(rounds.config.method.n):
        try:
            done.append(rounds.first(number))
        except RoundFailedError as failure:
            failures.append(str(failure))
            continue
        done[-1].decision = "limit"
    if not done:
        raise RoundFailedError("; ".join(failures))
    return done, None
