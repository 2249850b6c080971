"""The base class of jobs."""

from jobs.base.job import Job

__all__ = ["Job"]
