"""The errors of the job runtime.

A message has three parts: what was refused, the value, what to do.
"""


class JobsError(Exception):
    """Is the base of every error that this package raises on purpose."""


class BrokerUnavailable(JobsError):
    """The broker did not answer in time; nothing was lost, trying again is safe."""


class LeaseLost(JobsError):
    """Another process holds the duty now; the caller must stop and undo nothing."""


class OperationRefused(JobsError):
    """An operation cannot start or change as asked; nothing was changed."""


class QueryError(JobsError):
    """A search cannot be read; says which word, where, and what was probably meant."""
