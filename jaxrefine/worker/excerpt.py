"""One rollout of a table as text that a prompt can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from jaxrefine.errors import UserError

DIGITS = 4


def excerpt(path: Path, by_mean: int, characters: int) -> dict[str, Any]:
    """The mean-action rollout of median return, as CSV.

    What repeats itself is left out: ``next_obs_*``, the episode's number, and the weights, which are given apart.

    Args:
        path: of a table of rollouts.
        by_mean: the first episodes, as many, took the mean action.
        characters: the CSV's length at most; where it is longer, one step of every so many is kept.

    Returns:
        ``{"csv": str, "episode": int, "rows": int, "every": int, "weights": {name: value}}``.

    Raises:
        UserError: not even two steps fit.
    """
    table = pd.read_parquet(path, filters=[("episode", "<", by_mean)])
    returns = table.groupby("episode")["reward"].sum().sort_values(kind="stable")
    episode = int(returns.index[len(returns) // 2])
    rows = table[table["episode"] == episode].sort_values("t")
    names = list(map(str, rows.columns))
    weights = [name for name in names if name.startswith("weight_")]
    dropped = ["episode", *weights, *(name for name in names if name.startswith("next_obs_"))]
    shown = rows.drop(columns=dropped)
    every = 1
    while len(text := shown.iloc[::every].to_csv(index=False, float_format=f"%.{DIGITS}g")) > characters:
        every += max(1, int(every * (len(text) / characters - 1)))
        if every >= len(shown):
            raise UserError(f"refine.table_kb allows {characters:,} characters, too few for two steps of the table")
    first = rows.iloc[0]
    return {
        "csv": text,
        "episode": episode,
        "rows": len(shown.iloc[::every]),
        "every": every,
        "weights": {name: float(first[name]) for name in weights},
    }
