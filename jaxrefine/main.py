"""The command: options -> method -> run directory -> summary and report.

``python -m jaxrefine.main --help`` shows the options.
"""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jaxrefine import task as tasks
from jaxrefine.config import Config, register
from jaxrefine.errors import UserError
from jaxrefine.llm import ScriptedClient
from jaxrefine.methods.clients import make_client
from jaxrefine.methods.experiment import check_options, run_experiment
from jaxrefine.report import require_tensorboard, require_wandb, write_report, write_tensorboard, write_wandb
from jaxrefine.run import Console, RunDirectory, print_summary
from jaxrefine.sandbox import Backend, Mode, choose
from jaxrefine.worker import ProcessWorker, TaskChoice, WorkerLimits, spare_the_device

# what a resumed run may change: where it lies, who answers from now on, what that may cost
_MAY_CHANGE = {
    "run", "out", "llm.provider", "llm.model", "llm.reasoning_effort", "llm.api", "llm.strict", "llm.path",
    "llm.base_url", "llm.api_key_env", "llm.timeout", "llm.max_retries", "llm.max_calls", "llm.max_tokens",
    "llm.max_cost", "llm.prices", "sandbox", "film", "sinks.tensorboard", "sinks.wandb",
    "worker.memory_mb", "worker.check_s", "worker.call_s",
}  # fmt: skip

# what the jobs of this command came to; Hydra would print its own words about an exception
_started: list[Config] = []
_mistakes: list[UserError] = []
_failures: list[str] = []


@hydra.main(version_base="1.3", config_path=str(Path(__file__).parent / "conf"), config_name="config")
def _hydra_main(options: DictConfig) -> None:
    config = OmegaConf.to_object(options)
    assert isinstance(config, Config)
    _started.append(config)
    try:
        reason = execute(config)
    except UserError as error:
        _mistakes.append(error)  # of several runs, the others go on
        return
    if reason is not None:
        _failures.append(reason)


def execute(config: Config) -> str | None:
    """Carry one run out, showing its progress.

    Returns:
        Why the run failed, or None.

    Raises:
        UserError: a mistake in the command or around it.
    """
    demonstration = Path(config.task.demonstration) if config.task.demonstration else None
    task = tasks.get(config.task.name, demonstration, config.task.condition, config.task.text)
    check_options(config)
    if config.sinks.tensorboard:
        require_tensorboard()
    if config.sinks.wandb:
        require_wandb()
    backend = choose(cast("Mode", config.sandbox))
    spare_the_device()
    _ = task.demonstration  # its mistakes are told before anything is made
    path = Path(config.run) if config.run else _new_path(config, task)
    pending: list[str] = []
    tell = pending.append
    # the perceptron asks nobody: no recording is opened for it, and none stands in its provenance
    asks = config.method.name != "mlp"
    client = make_client(config.llm, task.name, path, lambda text: tell(text)) if asks else ScriptedClient([])
    with RunDirectory.open_or_create(path) as run, Console(run) as console:
        tell = run.notice
        for text in pending:
            run.notice(text)
        _settle_options(config, run)
        if not backend.strong:
            run.notice(f"the model's code is held by {backend.name} alone; `apt install bubblewrap` makes it stronger")
        run.emit("sandbox_chosen", name=backend.name)
        try:
            with _worker(config, demonstration, run, backend) as worker:
                if ":" in config.task.name:
                    worker.device()  # starts it, so that a mistake in the task is told before a model is asked anything
                summary = run_experiment(config, task, run, client, worker, backend)
        except KeyboardInterrupt:
            console.print(f"\nstopped; the same command with run={run.path} goes on from the last finished step")
            raise
        except UserError as error:
            raise UserError(
                f"{error}\nthe run so far is kept; with this mended, the same command with run={run.path} goes on"
            ) from error
        write_report(run.path)
        print_summary(summary, console)
        if config.sinks.tensorboard:
            console.print(f"curves:  tensorboard --logdir {write_tensorboard(run.path)}")
        if config.sinks.wandb:
            console.print(f"curves:  wandb sync {write_wandb(run.path)}")
        return None if summary["status"] != "failed" else str(summary["reason"])


def _worker(config: Config, demonstration: Path | None, run: RunDirectory, backend: Backend) -> ProcessWorker:
    choice = TaskChoice(config.task.name, config.task.condition, config.task.text, demonstration)
    limits = WorkerLimits(config.worker.memory_mb, config.worker.check_s, config.worker.call_s)
    return ProcessWorker(
        choice, config.seed, asdict(config.fit), run.path, run.progress, backend=backend, limits=limits
    )


def _new_path(config: Config, task: tasks.Task) -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    what = task.name if task.condition == "stock" else f"{task.name}-{task.condition}"
    base = Path(config.out) / f"{what}-{config.method.name}-{config.llm.chain}-{stamp}"
    if base.parent != Path(config.out):
        raise UserError(f"llm.chain is {config.llm.chain!r}; run directories are named after it, so it may hold no /")
    number, path = 1, base
    while path.exists():  # two runs of one second
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def _settle_options(config: Config, run: RunDirectory) -> None:
    """Write the options into a new run; hold them against those of a run that goes on."""
    mine = _flat(config)
    if not (run.path / "config.yaml").exists():
        run.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.structured(config)))
        return
    try:
        theirs = OmegaConf.to_container(OmegaConf.create(run.read_text("config.yaml")))
    except Exception as error:  # the YAML reader's own errors are not part of OmegaConf's interface
        raise UserError(f"{run.path / 'config.yaml'} is damaged: {error}") from error
    # an option that the run was begun without has the value that it then had: its default
    recorded = _flat(Config()) | _flat_dict(theirs if isinstance(theirs, dict) else {})
    changed = [
        f"{name} was {recorded.get(name)!r}, is {value!r}"
        for name, value in mine.items()
        if name not in _MAY_CHANGE and recorded.get(name) != value
    ]
    if changed:
        raise UserError(
            f"the run in {run.path} was started with other options: {'; '.join(changed)}. Continue it with "
            "those, or choose another run="
        )


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        flat |= _flat(value, f"{prefix}{field.name}.") if is_dataclass(value) else {prefix + field.name: value}
    return flat


def _flat_dict(node: dict[Any, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in node.items():
        flat |= _flat_dict(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def main() -> None:
    """Run the command and exit: 0 done, 1 a run failed, 2 a mistake in the command, 130 interrupted."""
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing, and the messages below are ours
    try:
        _hydra_main()
    except (HydraException, OmegaConfBaseException) as error:
        # a missing choice is followed by Hydra's search path, which helps nobody here
        reasons = [str(error).split("Config search path:")[0].strip()]
        if isinstance(error.__cause__, OmegaConfBaseException):
            reasons.append(str(error.__cause__).strip())
        _leave("\n".join(reasons) + "\nsee python -m jaxrefine.main --help", 2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `| head`: nobody reads on, and Python must not try to flush at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if not _started:  # Hydra meets some odd overrides with whatever error they happen to cause
            _leave(f"the options cannot be read: {error}\nsee python -m jaxrefine.main --help", 2)
        traceback.print_exc()
        _leave("this is a defect of jaxrefine, not of your command; please report it with the traceback above", 1)
    if _mistakes:
        _leave("\njaxrefine: ".join(str(mistake) for mistake in _mistakes), 2)
    if _failures:
        _leave("\n".join(f"the run failed: {reason}" for reason in _failures), 1)


def _leave(message: str, status: int) -> None:
    print(f"jaxrefine: {message}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
