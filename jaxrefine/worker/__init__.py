"""The one door from the host's loop to the device: program source and settings in, arrays and files out."""

from jaxrefine.policy.source import ProgramError
from jaxrefine.worker.api import Worker
from jaxrefine.worker.process import ProcessWorker, TaskChoice, WorkerLimits
from jaxrefine.worker.runtime import configure, spare_the_device

__all__ = ["ProcessWorker", "ProgramError", "TaskChoice", "Worker", "WorkerLimits", "configure", "spare_the_device"]
