"""What the throughput bench is made of: cases, and what each environment adds to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True)
class Case:
    """One line of the table: ``measure`` does some work and returns the steps a second of that work."""

    name: str
    measure: Callable[[], float]
    note: str = ""


@dataclass(frozen=True)
class Effort:
    """How much one measurement does.

    Attributes:
        steps: of a batch; one environment alone takes a multiple of them.
        seconds: for which an implementation that is stepped from outside is stepped.
    """

    steps: int = 100
    seconds: float = 2.0


@dataclass(frozen=True)
class Subject:
    """What the bench needs to know of one environment.

    Attributes:
        name: as ``envs.make`` and the task of the same name have it.
        title: as people call it.
        batches: how many environments are stepped at once, unless the command line says otherwise.
        policy: file of the program that drives the instrumented rollouts.
        actions: (steps, batch) -> the actions of raw batched steps, ``(steps, batch, A)``.
        action: what one environment alone is given at every step.
        yardsticks: other implementations of the same, to be measured in the same run. Each raises ImportError, which
            says what to install, where it cannot be had.
    """

    name: str
    title: str
    batches: tuple[int, ...]
    policy: Path
    actions: Callable[[int, int], jax.Array | np.ndarray]
    action: tuple[float, ...]
    yardsticks: tuple[Callable[[Effort], Case], ...]


def envpool_case(name: str, actions: np.ndarray, threads: int, effort: Effort) -> Case:
    """EnvPool's environment of this name, under ``actions`` (steps, environments, A) over and over.

    Raises:
        ImportError: EnvPool is not installed.
    """
    try:
        import envpool
    except ImportError as error:
        raise ImportError("EnvPool is not installed: pip install 'jaxrefine[bench]'") from error
    env = envpool.make_gymnasium(name, num_envs=actions.shape[1], num_threads=threads)
    env.reset()

    def measure() -> float:
        return rate_for(effort.seconds, lambda count: env.step(actions[count % len(actions)]), actions.shape[1])

    return Case("EnvPool", measure, f"{threads} threads")


def rate_of(work: Callable[[], Any], steps: int) -> float:
    """Steps a second of work that takes so many."""
    start = time.perf_counter()
    jax.block_until_ready(work())
    return steps / (time.perf_counter() - start)


def rate_for(seconds: float, step: Callable[[int], Any], steps_each: int) -> float:
    """Steps a second of ``step(0)``, ``step(1)``, ... for some seconds, when each call takes ``steps_each``."""
    start, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < seconds:
        step(count)
        count += 1
    return count * steps_each / spent
