"""How revisions bring fitted weights into the roles that the program gave them (the paper's Table 5)."""

from __future__ import annotations

from dataclasses import dataclass

from jaxrefine.report.rounds import Round

_MOST_WEIGHTS = 12
_SHORT = 260


@dataclass(frozen=True)
class Cell:
    """A weight in one round; `flipped` if fitting turned the sign that the program began with."""

    fitted: float
    flipped: bool


@dataclass(frozen=True)
class Weighed:
    """A weight that fitting turned round in some round, and what became of it; None where a program lacks it."""

    name: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Alignment:
    """One conversation.

    Attributes:
        rounds: Those with fitted weights.
        weights: Of single numbers, those that were turned round most often first.
        others: How many more were turned round and are not shown.
        flips: In each round, how many weights fitting turned round, and of how many.
    """

    rounds: tuple[Round, ...]
    weights: tuple[Weighed, ...]
    others: int
    flips: tuple[tuple[int, int], ...]


def alignment(rounds: tuple[Round, ...]) -> Alignment | None:
    """Follow the weights through the rounds; None where fewer than two rounds kept any."""
    kept = tuple(entry for entry in rounds if any(weight.entries == 1 for weight in entry.weights))
    if len(kept) < 2:
        return None
    tables = [{w.name: Cell(w.fitted, w.flips > 0) for w in entry.weights if w.entries == 1} for entry in kept]
    names = dict.fromkeys(name for table in tables for name, cell in table.items() if cell.flipped)
    turned = sorted(
        (Weighed(name, tuple(table.get(name) for table in tables)) for name in names),
        key=lambda w: -sum(cell is not None and cell.flipped for cell in w.cells),
    )
    flips = tuple((sum(cell.flipped for cell in table.values()), len(table)) for table in tables)
    return Alignment(kept, tuple(turned[:_MOST_WEIGHTS]), max(0, len(turned) - _MOST_WEIGHTS), flips)


def shortened(text: str | None) -> str | None:
    """What the model said it changed, to the length of a table's cell."""
    if text is None or len(text) <= _SHORT:
        return text
    return text[:_SHORT].rsplit(" ", 1)[0] + " …"
