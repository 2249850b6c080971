"""The tables of the job runtime."""

from jobs.models.groups import FailureGroup
from jobs.models.leases import Lease
from jobs.models.letters import DeadLetter, Death
from jobs.models.operations import (
    AuditEntry,
    Operation,
    OperationBatch,
    OperationEvent,
    OperationItem,
    OperationStage,
)
from jobs.models.workers import Worker

__all__ = [
    "AuditEntry",
    "DeadLetter",
    "Death",
    "FailureGroup",
    "Lease",
    "Operation",
    "OperationBatch",
    "OperationEvent",
    "OperationItem",
    "OperationStage",
    "Worker",
]
