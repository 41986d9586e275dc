"""Environments in JAX that reproduce their references; they know nothing of jaxrefine."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from envs.base import Column, Environment, Observation, Schema

# name -> module and class; imported on demand, so that one environment's dependencies never burden another's user
_REGISTRY = {"car_racing": ("envs.car_racing.env", "CarRacing"), "door": ("envs.door.env", "Door")}


def names() -> tuple[str, ...]:
    """The registered environments."""
    return tuple(_REGISTRY)


def make(name: str, **options: Any) -> tuple[Environment, Any]:
    """The environment of this name and its default parameters.

    Args:
        name: of the environment.
        options: of its class, e.g. ``condition="slick"`` for Car Racing.

    Raises:
        ValueError: there is no such environment, or no such condition of it; the message lists those that exist.
    """
    if name not in _REGISTRY:
        raise ValueError(f"no environment is called {name!r}; there are: {', '.join(_REGISTRY)}")
    module, cls = _REGISTRY[name]
    env = getattr(import_module(module), cls)(**options)
    return env, env.default_params


__all__ = ["Column", "Environment", "Observation", "Schema", "make", "names"]
