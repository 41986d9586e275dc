"""How numbers are written for a person."""

from __future__ import annotations

from collections.abc import Iterable

MISSING = "–"


def decimals_for(values: Iterable[float]) -> int:
    """How many decimals suit measured values of this size, so that a whole table can share them."""
    largest = max((abs(value) for value in values), default=0.0)
    return 1 if largest >= 100 else 2 if largest >= 10 else 3


def measure(value: float | None, decimals: int) -> str:
    """A measured value with a fixed number of decimals."""
    return MISSING if value is None else f"{value:,.{decimals}f}".replace("-", "−")


def signed(value: float | None, decimals: int) -> str:
    """A difference, with its sign."""
    return MISSING if value is None else f"{value:+,.{decimals}f}".replace("-", "−")


def significant(value: float | None) -> str:
    """A coefficient to four significant digits."""
    return MISSING if value is None else f"{value:.4g}".replace("-", "−")


def count(value: float | str | None) -> str:
    """A number of things, thousands apart; text as it is."""
    if value is None:
        return "unknown"
    if isinstance(value, str):
        return value
    return f"{value:,.2f}" if isinstance(value, float) and value != int(value) else f"{int(value):,}"


def plain(value: float | str | None) -> str:
    """A setting as it was written."""
    return "unknown" if value is None else str(value)


def seconds(value: float | None) -> str:
    """A duration given in seconds."""
    if value is None:
        return MISSING
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def p_value(value: float | None) -> str:
    """A p-value; tiny ones as a bound."""
    if value is None:
        return MISSING
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"
