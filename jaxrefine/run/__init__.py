"""The run directory: artifacts written whole, the event log, steps that survive a kill, and what a person sees."""

from jaxrefine.run.console import Console, print_summary
from jaxrefine.run.directory import RunDirectory
from jaxrefine.run.events import Event, read_events
from jaxrefine.run.files import whole_file, write_whole

__all__ = ["Console", "Event", "RunDirectory", "print_summary", "read_events", "whole_file", "write_whole"]
