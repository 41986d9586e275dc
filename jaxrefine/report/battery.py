"""The built-in checks' numbers: what they find wrong with a round, and what holding each latent at its mean costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxrefine.report.fields import JSON, get, items, number, read_json
from jaxrefine.report.untrusted import visible

# Observations beyond the demonstration's range in more than this share of the steps are counted.
_OFTEN = 0.05


@dataclass(frozen=True)
class Finding:
    """One built-in check: how many things it found, None where it did not run."""

    name: str
    count: int | None


@dataclass(frozen=True)
class Ablated:
    """A latent held at its mean.

    Attributes:
        name: The latent's.
        score: The metric's mean over the episodes.
        change: Its mean change against the same episodes with none held.
        error: The standard error of that change, None where it is not known.
    """

    name: str
    score: float
    change: float
    error: float | None


@dataclass(frozen=True)
class Battery:
    """What the numbers of a round's built-in checks say; empty where there are none.

    Attributes:
        findings: One for each check.
        unheld: The metric's mean with no latent held.
        episodes: Over how many episodes.
        ablated: Every latent that was held, as the file orders them.
    """

    findings: tuple[Finding, ...] = ()
    unheld: float | None = None
    episodes: int = 0
    ablated: tuple[Ablated, ...] = ()


def read_battery(folder: Path, gaps: list[str]) -> Battery:
    """Read battery.json; a file that is there and cannot be read is added to `gaps`."""
    numbers = read_json(folder / "battery.json", gaps)
    if not isinstance(numbers, dict):
        return Battery()
    held = _section(numbers, "Each latent held at its mean")
    unheld = [value for value in map(number, items(get(held, "none", "values"))) if value is not None]
    ablated = tuple(
        found for name, entry in _entries(held) if name != "none" and (found := _ablated(name, entry, held))
    )
    return Battery(
        tuple(Finding(name, count(numbers)) for name, count in _FINDINGS.items()),
        float(np.mean(unheld)) if unheld else None,
        len(unheld),
        ablated if unheld else (),
    )


def _section(numbers: JSON, title: str) -> JSON:
    """The numbers under a heading, of which only the beginning is the same in every run."""
    return next((entry for name, entry in _entries(numbers) if name.startswith(title)), None)


def _entries(value: JSON) -> list[tuple[str, JSON]]:
    return list(value.items()) if isinstance(value, dict) else []


def _ablated(name: str, entry: JSON, held: JSON) -> Ablated | None:
    pairs = [
        (after, before)
        for after, before in zip(
            map(number, items(get(entry, "values"))), map(number, items(get(held, "none", "values"))), strict=False
        )
        if after is not None and before is not None
    ]
    if not pairs:
        return None
    scores, base = np.array(pairs).T
    change = scores - base
    error = float(change.std(ddof=1) / np.sqrt(len(change))) if len(change) > 1 else None
    return Ablated(visible(name).removeprefix("latent_"), float(scores.mean()), float(change.mean()), error)


def _unconnected(what: str) -> Callable[[JSON], int | None]:
    def count(numbers: JSON) -> int | None:
        found = get(_section(numbers, "Structure"), what)
        return len(found) if isinstance(found, list) else None

    return count


def _flagged(title: str, flag: str) -> Callable[[JSON], int | None]:
    def count(numbers: JSON) -> int | None:
        section = _section(numbers, title)
        return None if section is None else sum(get(entry, flag) is True for _, entry in _entries(section))

    return count


def _still(numbers: JSON) -> int | None:
    """Latents that hardly vary although the program computes them from observations."""
    section = _section(numbers, "Latents over all steps")
    constant = set(map(str, items(get(_section(numbers, "Structure"), "latents that are the same at every step"))))
    if section is None:
        return None
    return sum(get(entry, "dead") is True and name not in constant for name, entry in _entries(section))


def _strayed(numbers: JSON) -> int | None:
    section = _section(numbers, "Observations outside")
    if section is None:
        return None
    shares = [(number(get(entry, "below")) or 0) + (number(get(entry, "above")) or 0) for _, entry in _entries(section)]
    return sum(share > _OFTEN for share in shares)


def _without_effect(numbers: JSON) -> int | None:
    held = _section(numbers, "Each latent held at its mean")
    base = items(get(held, "none", "values"))
    if not base:
        return None
    return sum(items(get(entry, "values")) == base for name, entry in _entries(held) if name != "none")


_FINDINGS: dict[str, Callable[[JSON], int | None]] = {
    "every latent reaches an action": _unconnected("latents that no action depends on"),
    "every weight reaches an action": _unconnected("weights that no action depends on"),
    "no weight changed its sign": _flagged("Weights", "flipped"),
    "every computed latent varies": _still,
    f"observations stay in the demonstrated range (in {1 - _OFTEN:.0%} of steps)": _strayed,
    "every latent matters when held": _without_effect,
}
