"""Tables out of a run directory, of which nothing is certain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from jaxrefine.report.untrusted import is_regular, visible

MAX_ROWS = 2_000_000
MOST_SEEDS = 1_000  # of fits or trainings, over which a report resamples


def read_numbers(path: Path, columns: Sequence[str], gaps: list[str], within: str = "") -> pd.DataFrame | None:
    """Columns of a table as float64, NaN where an entry is no finite number.

    Args:
        path: A Parquet file.
        columns: Which to read; all of them have to be there.
        gaps: Receives a sentence if the file is there and cannot be read.
        within: What to call the folder in that sentence, the folder's own name by default.

    Returns:
        The table; None if there is no such file or it cannot be read.
    """
    if not is_regular(path):
        return None
    said = f"{within or path.parent.name}/{path.name}"
    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows > MAX_ROWS:
                gaps.append(f"{said} has {file.metadata.num_rows:,} rows, more than a report reads.")
                return None
            missing = [name for name in columns if file.schema_arrow.names.count(name) != 1]
            if missing:
                gaps.append(f"{said} does not have one column each of {', '.join(missing)}.")
                return None
            table = file.read(columns=list(columns)).to_pandas()
            return table.apply(pd.to_numeric, errors="coerce").astype(float).replace([np.inf, -np.inf], np.nan)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
        gaps.append(f"{said} cannot be read ({visible(str(error))}).")
        return None


def wide(table: pd.DataFrame, index: str, columns: str, values: str) -> pd.DataFrame | None:
    """A table with a row for each seed and a column for each of what was measured of it.

    Args:
        table: Long, without NaN in the two columns that name an entry.
        index: The column of seeds.
        columns: The column of episodes, or whatever the values stand over.
        values: The column of values.

    Returns:
        The table; None unless there are at most `MOST_SEEDS` seeds and each has exactly one value everywhere, which
        also keeps a table of few rows from becoming one of millions squared.
    """
    seeds, places = table[index].nunique(), table[columns].nunique()
    if not 0 < seeds <= MOST_SEEDS or seeds * places != len(table) or table.duplicated([index, columns]).any():
        return None
    return table.pivot(index=index, columns=columns, values=values)
