"""The one door from the host's loop to the device: program source and settings in, arrays and files out."""

from jaxrefine.policy.source import ProgramError
from jaxrefine.worker.api import Worker
from jaxrefine.worker.runtime import configure

__all__ = ["ProgramError", "Worker", "configure"]
