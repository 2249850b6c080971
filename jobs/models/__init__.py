"""The tables of the job runtime."""

from jobs.models.beats import BeatProcess
from jobs.models.groups import FailureGroup
from jobs.models.idempotency import IdempotencyRecord, JobProgress
from jobs.models.leases import Lease
from jobs.models.letters import DeadLetter, Death, LetterMessage
from jobs.models.operations import (
    AuditEntry,
    Operation,
    OperationBatch,
    OperationEvent,
    OperationItem,
    OperationStage,
)
from jobs.models.outbox import OutboxMessage
from jobs.models.workers import Worker

__all__ = [
    "AuditEntry",
    "BeatProcess",
    "DeadLetter",
    "Death",
    "FailureGroup",
    "IdempotencyRecord",
    "JobProgress",
    "Lease",
    "LetterMessage",
    "Operation",
    "OperationBatch",
    "OperationEvent",
    "OperationItem",
    "OperationStage",
    "OutboxMessage",
    "Worker",
]
