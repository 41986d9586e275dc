"""What every test shares: the compilation cache, and shapes checked against the signatures."""

from __future__ import annotations

import os
from pathlib import Path

# before anything imports JAX, and for the processes that tests start
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "jaxrefine-tests" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# as the worker's process has it, which some tests compare with
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

import hypothesis
from jaxtyping import install_import_hook

# the same examples on every machine: what fails once fails again
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

install_import_hook(["jaxrefine.learn", "jaxrefine.policy", "envs"], "beartype.beartype")
