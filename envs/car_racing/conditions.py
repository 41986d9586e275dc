"""Named changes of the car and its road, which the task's text does not mention.

Each is a set of ``EnvParams`` fields; what they mean stands there. The stock car is the condition without changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CONDITIONS: Mapping[str, Mapping[str, float | int]] = MappingProxyType({
    "stock": {},
    "slick": {"friction": 0.5},
    "pull": {"pull": 0.25},
    "delay": {"delay": 6},
    "worn": {"friction": 0.7, "pull": 0.2},
})  # fmt: skip


def changes(name: str) -> Mapping[str, float | int]:
    """The ``EnvParams`` fields that this condition changes.

    Raises:
        ValueError: there is no such condition; the message lists those that exist.
    """
    if name not in CONDITIONS:
        raise ValueError(f"no condition of car_racing is called {name!r}; there are: {', '.join(CONDITIONS)}")
    return CONDITIONS[name]
