"""The job runtime: what an application installs.

Importing this package imports nothing else, so that ``from jobs.agent import attach`` works in a
process without Django. The names below are loaded when they are asked for.
"""

# A type checker takes it for true; typing, where it also is, would be one more module to load.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from jobs.base import Job
    from jobs.errors import JobsError, PermanentError, TransientError

__all__ = ["Job", "JobsError", "PermanentError", "TransientError"]

_HOMES = {
    "Job": "jobs.base",
    "JobsError": "jobs.errors",
    "PermanentError": "jobs.errors",
    "TransientError": "jobs.errors",
}


def __getattr__(name: str) -> object:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
