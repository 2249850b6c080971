"""The tables of the job runtime."""

from jobs.models.alerts import Alert, AlertRule, Notification, Silence
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
from jobs.models.queues import QueueAction, QueuePause, QueueSample, StoppedConsumer
from jobs.models.runs import Deploy, Rollup, Run, WorkerBoot
from jobs.models.states import StateSample
from jobs.models.workers import Worker

__all__ = [
    "Alert",
    "AlertRule",
    "AuditEntry",
    "BeatProcess",
    "DeadLetter",
    "Death",
    "Deploy",
    "FailureGroup",
    "IdempotencyRecord",
    "JobProgress",
    "Lease",
    "LetterMessage",
    "Notification",
    "Operation",
    "OperationBatch",
    "OperationEvent",
    "OperationItem",
    "OperationStage",
    "OutboxMessage",
    "QueueAction",
    "QueuePause",
    "QueueSample",
    "Rollup",
    "Run",
    "Silence",
    "StateSample",
    "StoppedConsumer",
    "Worker",
    "WorkerBoot",
]
