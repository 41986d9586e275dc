"""The jail of model-written code: what it may read, write and use, held by the strongest means the machine has."""

from jaxrefine.sandbox.backends import Backend
from jaxrefine.sandbox.choice import Mode, choose
from jaxrefine.sandbox.jail import Jail

__all__ = ["Backend", "Jail", "Mode", "choose"]
