"""What brax 0.14.2 calls and JAX no longer has.

It can go, with its one use in ``bench.ppo``, when the pinned brax no longer calls ``jax.device_put_replicated``
(``grep -r device_put_replicated`` in its ``training`` folder finds nothing).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@contextmanager
def device_put_replicated() -> Iterator[None]:
    """Within it, ``jax.device_put_replicated`` exists; afterwards JAX is as it was."""
    if hasattr(jax, "device_put_replicated"):
        yield
        return
    jax.device_put_replicated = _replicate
    try:
        yield
    finally:
        del jax.device_put_replicated


def _replicate(tree: Any, devices: Sequence[jax.Device]) -> Any:
    """Every leaf once for each device, stacked: the replacement that JAX's guide to migrating from pmap describes."""
    sharding = NamedSharding(Mesh(np.array(devices), "devices"), PartitionSpec("devices"))

    def put(leaf: Any) -> jax.Array:
        return jax.device_put(jnp.broadcast_to(leaf, (len(devices), *jnp.shape(leaf))), sharding)

    return jax.tree.map(put, tree)
