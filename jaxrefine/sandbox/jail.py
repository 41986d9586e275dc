"""What a jailed process may touch and use, said without a word on how it is held to that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Jail:
    """What a process of model-written code may do.

    It may always read Python, its packages, this project's packages and the system's libraries, and start threads. It
    never has a network, other processes to look at, or any right of the superuser.

    Attributes:
        read: Files and folders it may read besides; each must exist.
        write: Folders it may read and write; each must exist. None may hold a folder of `read` that must stay as it is.
        processes: Whether it may start processes and reach an accelerator's devices; compilers for GPUs need both.
        memory_mb: MiB of address space; `None` here and below: no limit but the machine's.
        data_mb: MiB of private memory it may map, which leaves files and reserved address space uncounted.
        wall_s: Seconds until it is ended, should its starter not have done it.
        cpu_s: Seconds of processor time.
        file_mb: MiB that one file may have.
        open_files: Files it may hold open.
        tasks: Threads and processes beyond those that the user runs already; the kernel does not count root's.
    """

    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    processes: bool = False
    memory_mb: int | None = None
    data_mb: int | None = None
    wall_s: float | None = None
    cpu_s: float | None = None
    file_mb: int | None = None
    open_files: int | None = None
    tasks: int | None = None
