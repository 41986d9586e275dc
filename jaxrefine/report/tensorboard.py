"""Learning curves for TensorBoard, out of a run directory."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pandas as pd

from jaxrefine.errors import UserError


def write_tensorboard(run: Path) -> Path:
    """Write the curves of every budget and seed as event files, each seed a run of its own: ``tensorboard --logdir``.

    The step axis is resets. Test means of the looks stand beside the curves as ``test``.

    Args:
        run: a run directory with a folder under ``rl``.

    Returns:
        The folder that TensorBoard is to read.

    Raises:
        UserError: the package that writes event files is not installed.
    """
    require_tensorboard()
    folder = run / "tensorboard"
    for curves in sorted(run.glob("rl/*/curves.parquet")):
        budget = curves.parent.name
        looked = pd.read_parquet(curves.with_name("checkpoints.parquet"))
        tested = looked.groupby(["seed", "resets"])["value"].mean()
        for seed, mine in pd.read_parquet(curves).groupby("seed"):
            # a budget that is trained anew replaces its curves: event files are only ever added to
            target = folder / f"{budget}-seed-{seed}"
            for old in target.glob("events.out.tfevents.*"):
                old.unlink()
            writer = import_module("tensorboardX").SummaryWriter(str(target))
            for row in mine.to_dict("records"):
                for name, value in row.items():
                    if name not in ("seed", "update", "resets"):
                        writer.add_scalar(name, value, row["resets"])
            for resets, value in tested.loc[seed].items():
                writer.add_scalar("test", value, resets)
            writer.close()
    return folder


def require_tensorboard() -> None:
    """Raise unless event files can be written.

    Raises:
        UserError: the package is missing.
    """
    try:
        import_module("tensorboardX")
    except ImportError as error:
        raise UserError(
            "rl.tensorboard needs the package tensorboardX: pip install 'jaxrefine[tensorboard]'"
        ) from error
