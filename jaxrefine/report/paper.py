"""What the method's paper reports, to be drawn beside a run of ours.

Zhu et al. 2026, "Iterative Policy Refinement through Semantic Rollout Analysis": Table 1 and Figure 5. Its runs are of
the stock environments; nothing of it compares with a changed one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """The refined program after imitation alone, over the paper's ten seeds; `std` None where the paper gives none."""

    metric: str
    mean: float
    std: float | None
    where: str


_REFINED = {
    "car_racing": Published("return", 882.0, 29.3, "Table 1"),
    "door": Published("smallest distance", 0.110, None, "Figure 5"),
}


def refined(task: str, condition: str | None, metric: str) -> Published | None:
    """The paper's level for a run's metric; None for a changed environment or anything the paper did not measure."""
    found = _REFINED.get(task) if condition == "stock" else None
    return found if found is not None and found.metric == metric else None
