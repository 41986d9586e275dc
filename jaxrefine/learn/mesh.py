"""The seed axis over devices: every device trains its own seeds, and none waits for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, PartitionSpec

_AXIS = "seed"


def join_processes(coordinator: str | None = None, processes: int | None = None, process: int | None = None) -> None:
    """Join the other processes of a launcher's job, whose devices `seed_mesh` then counts as well.

    Before the first computation, and importing gymnax computes something. Every process has to carry out the same
    program. Slurm, Open MPI and Kubernetes say by themselves who belongs together; elsewhere the arguments do.

    Args:
        coordinator: ``host:port`` of process 0.
        processes: how many there are.
        process: which this one is.

    Raises:
        ValueError, RuntimeError: of JAX, when it cannot tell who belongs together or does not reach them.
    """
    jax.distributed.initialize(coordinator, processes, process)


def gather(tree: Any) -> Any:
    """A tree's arrays as NumPy arrays, whole in every process, whichever devices hold their parts."""
    if jax.process_count() == 1:
        return jax.tree.map(np.asarray, tree)
    return jax.tree.map(np.asarray, multihost_utils.process_allgather(tree, tiled=True))


def seed_mesh(devices: int | None = None) -> Mesh:
    """A row of devices, all of them unless told how many."""
    return jax.make_mesh((devices or jax.device_count(),), (_AXIS,), axis_types=(AxisType.Auto,))


def map_seeds(function: Callable[..., Any], mesh: Mesh | None) -> Callable[..., Any]:
    """``vmap`` a function of (shared, mapped) over the leading axis of ``mapped``, which is cut over the devices.

    The function's numbers do not depend on the cut. Seeds that the devices do not share evenly are made up for by
    repetitions of the last one, which are dropped again.

    Args:
        function: takes two trees; nothing in it may speak to another seed.
        mesh: from `seed_mesh`; None: one device, whichever the arrays are on.
    """
    over_seeds = jax.vmap(function, (None, 0))
    if mesh is None or mesh.size == 1:
        return over_seeds
    # seeds share nothing, so there is nothing for the check of replication to look at
    sharded = jax.shard_map(
        over_seeds,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(_AXIS)),
        out_specs=PartitionSpec(_AXIS),
        check_vma=False,
    )

    def padded(shared: Any, mapped: Any) -> Any:
        seeds = len(jax.tree.leaves(mapped)[0])
        whole = jnp.minimum(jnp.arange(-(-seeds // mesh.size) * mesh.size), seeds - 1)
        result = sharded(shared, jax.tree.map(lambda leaf: leaf[whole], mapped))
        return jax.tree.map(lambda leaf: leaf[:seeds], result)

    return padded


def seeds_at_once(seeds: int, bytes_per_seed: int, bytes_available: int, devices: int = 1) -> int:
    """How many seeds fit in the devices' memory together; at least one a device, and in as even chunks as possible.

    Args:
        seeds: how many there are.
        bytes_per_seed: what one of them needs.
        bytes_available: on one device.
        devices: that share them.
    """
    most = devices * max(1, bytes_available // max(1, bytes_per_seed))
    chunks = -(-seeds // most)
    return -(-seeds // chunks)
