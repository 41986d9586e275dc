"""Seeds over devices: the numbers are those of one device, whatever the number of seeds and devices."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrefine.learn.mesh import map_seeds, seed_mesh, seeds_at_once

ROOT = Path(__file__).parents[2]

# eight devices are simulated; a process has to know before its first computation
TRAINED = """
from jaxrefine.learn.mesh import gather, join_processes, seed_mesh
if JOINED:
    join_processes(*JOINED)

import jax, jax.numpy as jnp, numpy as np
from toy import Block, PROGRAM, STEPS
from jaxrefine.learn.gspo import Batches, Hyperparameters, start, train
from jaxrefine.policy.program import PolicySpec, load_program
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
"""
SHARED = """
assert jax.device_count() == 8
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


# two processes of one device each; either holds all numbers in the end, and they are those of one device
JOINED = """
assert (jax.device_count(), jax.local_device_count()) == (2, 1)
joined, curves = trained(5, seed_mesh())
joined = gather(joined.params)
with jax.default_device(jax.local_devices()[0]):
    np.testing.assert_allclose(joined, trained(5, None)[0].params, rtol=2e-5, atol=1e-6)
assert gather(curves.length).shape == (5, 3)
"""


def _python(code: str, **variables: str) -> subprocess.Popen[str]:
    variables = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"} | variables
    return subprocess.Popen([sys.executable, "-c", code], env=variables, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_eight_devices_train_as_one_does() -> None:
    flags = "--xla_force_host_platform_device_count=8"
    with _python(f"JOINED = None\n{TRAINED}{SHARED}", XLA_FLAGS=flags) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors


@pytest.mark.slow
def test_two_processes_train_as_one_does() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    codes = [f"JOINED = {(address, 2, i)}\n{TRAINED}{JOINED}" for i in range(2)]
    with _python(codes[0]) as first, _python(codes[1]) as second:
        errors = [process.communicate()[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), "\n".join(errors)


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
