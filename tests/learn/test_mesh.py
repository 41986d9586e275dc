"""Seeds over devices: the numbers are those of one device, whatever the number of seeds and devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrefine.learn.mesh import map_seeds, seed_mesh, seeds_at_once

ROOT = Path(__file__).parents[2]

# eight devices are simulated; a process has to know before its first computation
SHARED = """
import jax, jax.numpy as jnp, numpy as np
from toy import Block, PROGRAM, STEPS
from jaxrefine.learn.gspo import Batches, Hyperparameters, start, train
from jaxrefine.learn.mesh import seed_mesh
from jaxrefine.policy.program import PolicySpec, load_program

assert jax.device_count() == 8
program = load_program(PROGRAM, PolicySpec("BlockPolicy", (("block", (2,)),), 1))
env = Block()
episodes = env.params_for_seeds(range(16))


def trained(seeds, mesh, one_by_one=False):
    batches = Batches(episodes=6, steps=STEPS, one_by_one=one_by_one)
    hyper = jax.tree.map(lambda x: jnp.full(seeds, x), Hyperparameters(learning_rate=0.05, updates=3, window=10))
    first = jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds, *x.shape)).copy(), start(program.initial))
    keys = jax.random.split(jax.random.key(0), seeds)
    return train(env, program.apply, episodes, program.initial, first, keys, hyper, starts=16, batches=batches,
                 updates=3, mesh=mesh)


for seeds, devices in ((16, 8), (11, 8), (5, 8), (6, 3)):
    alone, curves = trained(seeds, None)
    shared, shared_curves = trained(seeds, seed_mesh(devices))
    assert shared.params.shape == alone.params.shape == (seeds, 3)
    np.testing.assert_allclose(shared.params, alone.params, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(shared_curves.episode_return, curves.episode_return, rtol=2e-5)
    assert len(np.unique(np.asarray(shared.params), axis=0)) == seeds

whole, _ = trained(16, seed_mesh(8))
assert len(whole.params.sharding.device_set) == 8, whole.params.sharding
np.testing.assert_allclose(trained(16, seed_mesh(8), one_by_one=True)[0].params, whole.params, rtol=2e-5, atol=1e-6)
"""


@pytest.mark.slow
def test_eight_devices_train_as_one_does() -> None:
    variables = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
    }
    ended = subprocess.run([sys.executable, "-c", SHARED], env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_on_one_device_it_is_vmap() -> None:
    import jax.numpy as jnp

    doubled = map_seeds(lambda shared, own: shared * own, seed_mesh(1))
    assert doubled(jnp.asarray(2.0), jnp.arange(3.0)).tolist() == [0.0, 2.0, 4.0]


@given(st.integers(1, 5000), st.integers(1, 10**10), st.integers(0, 10**12), st.integers(1, 16))
def test_chunks_of_seeds_fit_and_are_even(seeds: int, each: int, available: int, devices: int) -> None:
    size = seeds_at_once(seeds, each, available, devices)
    assert 1 <= size <= seeds
    assert size * each <= devices * available or size <= devices  # one a device cannot be made smaller
    chunks = -(-seeds // size)
    assert chunks * size - seeds < chunks  # the last chunk lacks less than one of each other's share
    if seeds * each <= available:
        assert size == seeds
