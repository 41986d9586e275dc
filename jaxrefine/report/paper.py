"""What the method's paper reports, to be drawn beside a run of ours.

Zhu et al. 2026, "Iterative Policy Refinement through Semantic Rollout Analysis": Table 1 and Figure 5. Its runs are of
the stock environments; nothing of it compares with a changed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """The refined program after imitation alone, over the paper's ten seeds; `std` None where the paper gives none."""

    metric: str
    mean: float
    std: float | None
    where: str


# (task, condition) -> method -> stage -> mean of the paper's Table 1 and section 4 (ten episodes, one run each)
MEANS: Mapping[tuple[str, str], Mapping[str, Mapping[str, float]]] = {
    ("car_racing", "stock"): {
        "MLP": {"IL": 636.6, "RL 400": 591.8, "RL 2000": 850.2},
        "zero-shot": {"IL": 766.5, "RL 400": 657.0, "RL 2000": 901.1},
        "refined": {"IL": 882.0, "RL 400": 900.5, "RL 2000": 906.5},
    },
    ("door", "stock"): {"zero-shot": {"IL": 0.548}, "refined": {"IL": 0.110}},
}

_REFINED = {
    "car_racing": Published("return", 882.0, 29.3, "Table 1"),
    "door": Published("smallest distance", 0.110, None, "Figure 5"),
}


def refined(task: str, condition: str | None, metric: str) -> Published | None:
    """The paper's level for a run's metric; None for a changed environment or anything the paper did not measure."""
    found = _REFINED.get(task) if condition == "stock" else None
    return found if found is not None and found.metric == metric else None
