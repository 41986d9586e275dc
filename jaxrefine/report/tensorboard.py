"""A run's numbers for TensorBoard."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from jaxrefine.errors import UserError
from jaxrefine.report.record import read_run
from jaxrefine.report.sinks import curves_of, whole_folder


def write_tensorboard(run: Path) -> Path:
    """Write RUN/tensorboard anew: rounds, and every seed of every training budget, each a TensorBoard run of its own.

    The step axis is rounds, or resets of one seed; see `sinks.curves_of` for the numbers.

    Args:
        run: A run directory.

    Returns:
        The folder, for `tensorboard --logdir`.

    Raises:
        UserError: The package that writes event files is not installed, the folder is no run directory, or it cannot
            be written.
    """
    require_tensorboard()
    make_writer = import_module("tensorboardX").SummaryWriter
    found = curves_of(read_run(run))
    with whole_folder(run / "tensorboard") as folder:
        for curves in found:
            with make_writer(str(folder / curves.name.replace("/", "-"))) as writer:
                for step, values in curves.points:
                    for name, value in values.items():
                        writer.add_scalar(name, value, step)
    return run / "tensorboard"


def require_tensorboard() -> None:
    """Raise unless event files can be written.

    Raises:
        UserError: The package is missing.
    """
    try:
        import_module("tensorboardX")
    except ImportError as error:
        raise UserError("curves for TensorBoard need the package tensorboardX: pip install '.[tensorboard]'") from error
