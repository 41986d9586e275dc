"""Looking things up in JSON of which nothing is certain: a killed run's, an older version's, an edited one's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jaxrefine.report.untrusted import read_bytes, visible

JSON = Any

# what is larger overflows in a mean, a deviation or a figure
LARGEST = 1e100


def number(value: JSON) -> float | None:
    """The value as a finite number that a run could have measured, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # JSON's whole numbers have no bound
        return None
    return found if abs(found) < LARGEST else None  # not of NaN either


def integer(value: JSON) -> int | None:
    """The value as a whole number, or None."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def string(value: JSON) -> str | None:
    """The value if it is text, or None; hidden characters made visible."""
    return visible(value) if isinstance(value, str) and value else None


def numbers(value: JSON) -> tuple[float, ...]:
    """The finite numbers of a list; those of anything else: none."""
    found = (number(item) for item in items(value))
    return tuple(item for item in found if item is not None)


def items(value: JSON) -> list[JSON]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def get(value: JSON, *keys: str) -> JSON:
    """The entry under nested keys, None where one of them is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def read_json(path: Path, gaps: list[str]) -> JSON:
    """The file's content; None if there is none, or it is not JSON, which is added to `gaps`."""
    try:
        return json.loads(read_bytes(path))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        gaps.append(f"{path.parent.name}/{path.name} cannot be read ({error}).")
        return None


def read_json_lines(path: Path, gaps: list[str]) -> list[dict[str, JSON]]:
    """The file's objects, one a line.

    A torn last line is what a killed process leaves and is passed over; any other unreadable line is added to `gaps`.
    """
    try:
        lines = read_bytes(path).decode("utf-8", errors="backslashreplace").split("\n")
    except FileNotFoundError:
        return []
    found: list[dict[str, JSON]] = []
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            found.append(value)
        elif index < len(lines) - 1:
            gaps.append(f"{path.name}: line {index + 1} cannot be read and was passed over.")
        else:
            gaps.append(f"{path.name}: the last line was cut off while it was being written.")
    return found
