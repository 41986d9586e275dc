"""The environments in the terms of other libraries: Gymnasium, brax and Stable-Baselines3.

Each class is imported when it is asked for, so that none of these libraries burdens a user of another.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.adapters.brax import BraxEnv
    from envs.adapters.gymnasium import GymnasiumEnv, GymnasiumVectorEnv
    from envs.adapters.stable_baselines import StableBaselinesVecEnv

# class -> module, and the optional dependency that brings what the module imports
_HOMES = {
    "GymnasiumEnv": ("envs.adapters.gymnasium", "gymnasium"),
    "GymnasiumVectorEnv": ("envs.adapters.gymnasium", "gymnasium"),
    "BraxEnv": ("envs.adapters.brax", "brax"),
    "StableBaselinesVecEnv": ("envs.adapters.stable_baselines", "sb3"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _HOMES[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        raise ImportError(
            f"{name} needs {library}, which is not installed: pip install 'jaxrefine[{extra}]'"
        ) from error


__all__ = ["BraxEnv", "GymnasiumEnv", "GymnasiumVectorEnv", "StableBaselinesVecEnv"]
