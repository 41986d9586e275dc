"""A run's numbers for Weights & Biases, as an offline run: nothing is sent; `wandb sync` does that for who wants it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jaxrefine.errors import UserError
from jaxrefine.report.record import Fact, Record, read_run
from jaxrefine.report.sinks import curves_of, whole_folder

# of the machine, the code, the terminal and the repository nothing is recorded
_SETTINGS = {
    "mode": "offline",
    "console": "off",
    "silent": True,
    "save_code": False,
    "disable_code": True,
    "disable_git": True,
    "host": "",
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_disable_viewer": True,
    "x_save_requirements": False,
}


def write_wandb(run: Path) -> Path:
    """Write RUN/wandb anew: one offline run with the configuration, the report's numbers and its summary.

    Rounds are logged over `round`, training over `resets` of one seed; see `sinks.curves_of` for the numbers. Written
    again, it is the same run to the service.

    Args:
        run: A run directory.

    Returns:
        The offline run's folder, for `wandb sync`.

    Raises:
        UserError: The package is not installed, the folder is no run directory, or it cannot be written.
    """
    require_wandb()
    record = read_run(run)
    with whole_folder(run / "wandb") as folder:
        with _alone(folder / "cache"):
            _log(record, folder)
        (made,) = (folder / "wandb").glob("offline-run-*")
        for left in ("logs", "tmp"):
            shutil.rmtree(made / left, ignore_errors=True)
        made.rename(folder / made.name)
        for left in ("wandb", "cache"):
            shutil.rmtree(folder / left, ignore_errors=True)
    return run / "wandb" / made.name


def require_wandb() -> None:
    """Raise unless an offline run can be written.

    Raises:
        UserError: The package is missing.
    """
    try:
        with _alone():
            import_module("wandb")
    except ImportError as error:
        raise UserError("Weights & Biases needs the package wandb: pip install '.[wandb]'") from error


def _log(record: Record, folder: Path) -> None:
    wandb = import_module("wandb")
    identity = hashlib.sha256(f"{record.name}\n{record.config}".encode()).hexdigest()[:16]
    try:
        logged = wandb.init(
            dir=str(folder),
            project="jaxrefine",
            id=identity,
            name=record.name[:128],
            group=record.task[:128],
            job_type=record.method[:64],
            config=_config(record),
            settings=wandb.Settings(**_SETTINGS),
        )
        for curves in curves_of(record):
            axis = f"{curves.name}/{curves.axis}"
            logged.define_metric(axis, hidden=True)
            logged.define_metric(f"{curves.name}/*", step_metric=axis)
            for step, values in curves.points:
                logged.log({axis: step, **{f"{curves.name}/{name}": value for name, value in values.items()}})
        logged.summary.update({"status": record.status, "best_round": record.best_round, **_plain(record.resources)})
        logged.finish(exit_code=0 if record.status == "finished" else 1)
    except wandb.Error as error:
        raise UserError(f"Weights & Biases could not write its offline run: {error}") from error
    finally:
        wandb.teardown()


def _config(record: Record) -> dict[str, Any]:
    try:
        found = OmegaConf.to_container(OmegaConf.create(record.config or ""))
    except Exception:  # a damaged file; the YAML reader's own errors are not part of OmegaConf's interface
        return {}
    return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}


def _plain(facts: tuple[Fact, ...], within: str = "resources") -> dict[str, str | int | float | None]:
    found: dict[str, str | int | float | None] = {}
    for fact in facts:
        name = f"{within}/{fact.name}"
        found |= _plain(fact.parts, name) if fact.parts else {name: fact.value}
    return found


@contextmanager
def _alone(cache: Path | None = None) -> Iterator[None]:
    """Hide a person's own settings of W&B, which could lead to a server, and have it report no errors of its own."""
    theirs = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
    mine = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
    if cache is not None:
        mine |= {f"WANDB_{kind}_DIR": str(cache) for kind in ("CACHE", "CONFIG", "DATA", "ARTIFACT")}
    for name in theirs:
        del os.environ[name]
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            del os.environ[name]
        os.environ.update(theirs)
