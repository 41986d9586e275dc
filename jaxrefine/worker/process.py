"""``Worker`` in a jailed process: the same calls and results, and no program can harm the host or outlive it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jaxrefine import task as tasks
from jaxrefine.errors import UserError
from jaxrefine.policy.source import ProgramError
from jaxrefine.run.files import disk_error
from jaxrefine.sandbox import Backend, Jail, choose
from jaxrefine.worker.api import Progress
from jaxrefine.worker.calls import CALLS, Call, Reply, plain
from jaxrefine.worker.connection import BrokenProtocolError, Connection, ProcessEndedError
from jaxrefine.worker.modules import modules_beside, readable
from jaxrefine.worker.outbox import NotAFileError, Outbox, remove_tree

_SCRATCH = "worker"
_START_S = 600.0
_SHARE_OF_MEMORY = 0.75
_GPU = Path("/dev/nvidiactl")
# how JAX computes; none of these can hold a secret
_VARIABLES = ("JAX_PLATFORMS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS")
# XLA's fusion on CPUs computes a chain of formulas again for every use, exponentially in its depth: one program of a
# language model was not fitted after 20 minutes on a busy machine, and in two without it. A user's own flags win
_CPU_FLAGS = "--xla_cpu_use_fusion_emitters=false"
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
_GPU_PREFIX = "XLA_PYTHON_CLIENT_"


@dataclass(frozen=True)
class WorkerLimits:
    """What the process that holds model-written programs may use.

    Attributes:
        memory_mb: MiB of resident memory; None: three quarters of the machine's, or of its control group's.
        check_s: seconds that a check of a program may take.
        call_s: seconds that any other call may take; None: no limit.
        file_mb: MiB that one file of a round may have.
    """

    memory_mb: int | None = None
    check_s: float | None = 300.0
    call_s: float | None = None
    file_mb: int = 1 << 16


@dataclass(frozen=True)
class TaskChoice:
    """A task in words, as ``jaxrefine.task.get`` takes them."""

    name: str
    condition: str = "stock"
    text: str = "accurate"
    demonstration: Path | None = None


class WorkerDefectError(RuntimeError):
    """An exception in the process that is neither the program's fault nor a person's, or an answer of no known form.

    The text is its traceback, or what was wrong with the answer.
    """


class ProcessWorker:
    """Answers as ``Worker`` does, from a process in a jail that is started at the first call.

    A call during which the process ends, or breaks a limit or the protocol, raises ``ProgramError`` if it is about a
    program; the next call starts another process. Where a call is about none, an end is a ``UserError``, and a broken
    protocol a ``WorkerDefectError``. Use as a context manager, or call ``close``: the process ends then. It also ends
    with the host, however that ends, if calls are made in a thread that lives as long.

    What a call writes appears in its folder after the call has succeeded, never in part.
    """

    def __init__(
        self,
        task: TaskChoice,
        seed: int,
        fit: Mapping[str, Any],
        run: Path,
        progress: Progress = lambda done, total: None,
        *,
        backend: Backend | None = None,
        limits: WorkerLimits | None = None,
    ) -> None:
        """Prepare for a task; nothing is started yet.

        Args:
            task: the task.
            seed: root of all randomness.
            fit: options of imitation learning, named as the fields of ``FitSettings``.
            run: the run directory, which holds the folders of all calls; its ``worker`` becomes the process's own.
            progress: called with (done, total) during long calls.
            backend: what holds the jail; by default the strongest there is.
            limits: what the process may use.

        Raises:
            UserError: there is no such task.
        """
        found = tasks.get(task.name, task.demonstration, task.condition, task.text)
        self._demonstration = found.demonstration_path.resolve()
        self._modules = modules_beside(task.name)
        self._start: dict[str, Any] = {
            "task": asdict(task) | {"demonstration": str(self._demonstration)},
            "seed": seed,
            "fit": dict(fit),
            "modules": self._modules,
        }
        self._run = run.resolve()
        self._scratch = self._run / _SCRATCH
        self._progress = progress
        self._backend = backend or choose()
        self._limits = limits or WorkerLimits()
        self._connection: Connection | None = None

    @property
    def backend(self) -> str:
        """What holds the jail, by name."""
        return self._backend.name

    def check(self, source: str) -> dict[str, Any]:
        """See ``Worker.check``."""
        return self._call("check", {"source": source})

    def structure(self, source: str, before: str | None) -> dict[str, Any]:
        """See ``Worker.structure``."""
        return self._call("structure", {"source": source, "before": before})

    def fit(self, source: str, seeds: int, folder: Path) -> dict[str, Any]:
        """See ``Worker.fit``."""
        return self._call("fit", {"source": source, "seeds": seeds}, folder)

    def evaluate(self, source: str, folder: Path) -> dict[str, Any]:
        """See ``Worker.evaluate``."""
        return self._call("evaluate", {"source": source}, folder)

    def rollout(self, source: str, folder: Path, episodes: int) -> dict[str, Any]:
        """See ``Worker.rollout``."""
        return self._call("rollout", {"source": source, "episodes": episodes}, folder)

    def film(self, source: str, folder: Path, episodes: int) -> dict[str, Any]:
        """See ``Worker.film``."""
        return self._call("film", {"source": source, "episodes": episodes}, folder)

    def battery(self, source: str, folder: Path, episodes: int, chosen: int, ablated: int) -> dict[str, Any]:
        """See ``Worker.battery``."""
        arguments = {"source": source, "episodes": episodes, "chosen": chosen, "ablated": ablated}
        return self._call("battery", arguments, folder)

    def excerpt(self, folder: Path, episodes: int, characters: int) -> dict[str, Any]:
        """See ``Worker.excerpt``."""
        return self._call("excerpt", {"episodes": episodes, "characters": characters}, folder)

    def train(
        self, source: str, folder: Path, fits: Sequence[int], resets: int, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See ``Worker.train``."""
        arguments = {"source": source, "fits": list(fits), "resets": resets, "options": dict(options)}
        return self._call("train", arguments, folder)

    def device(self) -> str:
        """See ``Worker.device``."""
        return self._call("device", {})

    def close(self) -> None:
        """End the process and remove its scratch folder; a later call starts another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            remove_tree(self._scratch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: str, arguments: dict[str, Any], folder: Path | None = None) -> Any:
        call = CALLS[method]
        connection = self._connected()
        wall_s = self._limits.check_s if call.quick else self._limits.call_s
        with ExitStack() as stack:
            outbox = None
            if folder is not None:
                outbox = stack.enter_context(Outbox(self._scratch, [folder.resolve() / name for name in call.reads]))
                arguments["folder"] = str(outbox.path)
            try:
                request = {"method": method, "arguments": arguments}
                reply = connection.ask(request, call.result, wall_s, self._progress)
                if folder is not None and outbox is not None and reply.kind == "result":
                    self._publish(outbox, call, folder)
            except ProcessEndedError as end:
                raise self._mishap(method, end, connection, "source" in arguments) from None
            return _result(reply, {} if outbox is None else {str(outbox.path): str(folder)})

    def _publish(self, outbox: Outbox, call: Call, folder: Path) -> None:
        try:
            outbox.publish(call.writes, folder, self._limits.file_mb << 20, optional=call.may_write)
        except NotAFileError as error:
            self.close()
            raise ProcessEndedError(f"left something else than the files that were asked for: {error}") from error

    def _mishap(self, method: str, end: ProcessEndedError, connection: Connection, about_program: bool) -> Exception:
        words = connection.last_words
        said = f" The last it printed: {words[-500:]}" if end.own and words else ""
        broken = isinstance(end, BrokenProtocolError)
        if broken and not about_program:
            return WorkerDefectError(
                f"the worker process (jail: {self.backend}) {end}, asked for `{method}`, which is about no program"
            )
        if not about_program:
            return UserError(f"the worker process (jail: {self.backend}) {end}.{said or ' Try again.'}")
        if end.own:
            what = f"The program ended the process that ran it: during `{method}` the process {end}."
            advice = "Look for arrays that need too much memory and for code that is not plain array arithmetic."
        elif broken:
            what = f"The process that ran the program was stopped: during `{method}` it {end}."
            # whoever holds the channel can say anything on it, so nobody can tell the two apart
            advice = (
                "Either the program wrote to the channel of the answers, and must not, or this is a defect of "
                "jaxrefine, which no other program will mend."
            )
        else:
            what = f"The process that ran the program was stopped: during `{method}` it {end}."
            advice = "Look for loops that are unrolled when they are traced and for arrays that are larger than needed."
        return ProgramError(f"{what} {advice}{said}")

    def _connected(self) -> Connection:
        if self._connection is not None and self._connection.alive:
            return self._connection
        self.close()
        cache = _compilation_cache()
        # what an earlier process left, should its host have been killed
        remove_tree(self._scratch)
        for folder in (self._scratch, cache):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise disk_error(folder, error, "create") from error
        gpu = _GPU.exists() and os.environ.get("JAX_PLATFORMS") != "cpu"
        memory_mb = self._limits.memory_mb or int(_memory_mb() * _SHARE_OF_MEMORY)
        beside = self._demonstration.with_suffix(".json")
        jail = Jail(
            read=(self._run, self._demonstration, *([beside] if beside.exists() else []), *readable(self._modules)),
            write=(self._scratch, cache),
            processes=gpu,
            # the watch is slower than one large allocation; CUDA maps far more than it uses
            data_mb=None if gpu else memory_mb,
        )
        self._connection = Connection(
            self._backend.command(jail, ("-m", "jaxrefine.worker.serve")),
            self._scratch,
            _environment(self._scratch, cache, gpu),
            memory_mb,
            self._backend.status,
        )
        try:
            _result(self._connection.ask(self._start, None, _START_S, self._progress), {})
        except BaseException as error:
            connection = self._connection
            self.close()
            if isinstance(error, ProcessEndedError):
                raise self._mishap("start", error, connection, about_program=False) from None
            raise
        return self._connection


def _result(reply: Reply, folders: Mapping[str, str]) -> Any:
    """What the call returned, or what it raised; its messages name the folders that the caller knows."""
    if reply.kind == "result":
        return reply.value
    message = plain(reply.value)
    for theirs, ours in folders.items():
        message = message.replace(theirs, ours)
    if reply.kind == "program":
        raise ProgramError(message)
    if reply.kind == "user":
        raise UserError(message)
    raise WorkerDefectError(f"in the worker process:\n{message}")


def _environment(home: Path, cache: Path, gpu: bool) -> dict[str, str]:
    """All of the process's environment; nothing of the host's but what is named here."""
    names = {*_VARIABLES, *(_GPU_VARIABLES if gpu else ())}
    own = {} if gpu else {"XLA_FLAGS": _CPU_FLAGS}
    return (
        own
        | {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "TMPDIR": str(home),
            "PYTHONHASHSEED": "0",
            # importing MuJoCo would look for OpenGL, and glfw starts a process to ask a library its version
            "MUJOCO_GL": "off",
            "JAX_COMPILATION_CACHE_DIR": str(cache),
        }
        | {name: value for name, value in os.environ.items() if name in names or (gpu and name.startswith(_GPU_PREFIX))}
    )


def _compilation_cache() -> Path:
    """Of jailed processes alone: compiled functions are code, and these came out of model-written programs."""
    if own := os.environ.get("JAXREFINE_WORKER_CACHE_DIR"):
        return Path(own).resolve()
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (home / "jaxrefine" / "worker-xla").resolve()


def _memory_mb() -> int:
    """MiB of memory of the machine, or of this process's control group if that is less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    try:
        group = int(Path("/sys/fs/cgroup/memory.max").read_text()) >> 20
    except (OSError, ValueError):
        return machine
    return min(machine, group)
