"""Runs a handful of programs as one: prefixed output, one stop for all, nothing left behind.

Standard library only, no Django: ``guard`` must outlive a killed parent and start in a moment.
"""

from console.supervisor.lock import AlreadyRunning, DataLock
from console.supervisor.output import Output
from console.supervisor.program import Program
from console.supervisor.supervisor import Ending, Supervisor

__all__ = ["AlreadyRunning", "DataLock", "Ending", "Output", "Program", "Supervisor"]
