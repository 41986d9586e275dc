"""How this process uses JAX."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import jax


def configure() -> None:
    """Keep compiled functions between runs, unless the user has decided where.

    The folder holds executable code that came out of model-written programs, so it is this command's own and no
    other program's cache.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "jaxrefine" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def spare_the_device() -> None:
    """Leave the accelerator, and its memory, to the worker's process: what the host computes stays on the CPU.

    Call it before the first computation of a process that has a ``ProcessWorker``.
    """
    jax.config.update("jax_platforms", "cpu")


def device_memory() -> int:
    """Bytes that arrays may take on one device: what an accelerator has, or half of what this process may use."""
    device = jax.devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), resource.getrlimit(resource.RLIMIT_DATA)[0]]
    return min(limit for limit in limits if limit > 0) // (2 * jax.device_count())
